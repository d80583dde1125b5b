"""What `mpsgrad probe` asks the framework, and how it reports the answers."""

import json
import sys

import pytest
from mpsgrad import graph as g
from mpsgrad.__main__ import main

NUMBERS = [f"H{number}" for number in range(1, 8)]  # of the core
GRAPHS = ["G1", "G3", "G5", "G6", "graph 1"]  # docs/graph.md says why not the others
OTHERS = [
    f"{chapter} {number}"
    for chapter, count in {
        "pooling": 6,
        "softmax": 1,
        "dropout": 4,
        "upsampling": 4,
        "resize": 6,
        "reshape": 3,
        "optimizer": 2,
        "convolution": 2,
        "normalization": 11,
    }.items()
    for number in range(1, count + 1)
]
KERNELS = [
    *(
        "Neuron",
        "Dropout",
        "SoftMax",
        "LogSoftMax",
        "PoolingMax",
        "PoolingAverage",
        "PoolingL2Norm",
    ),
    *("DilatedPoolingMax", "Convolution", "FullyConnected", "InstanceNormalization"),
    *("GroupNormalization", "CrossChannelNormalization", "SpatialNormalization"),
    "LocalContrastNormalization",
]
NEWER = ["GramMatrixCalculation", "Pad"]  # Apple's prefix of them is shorter
CLASSES = [*(f"MPSCNN{name}" for name in KERNELS), *(f"MPSNN{name}" for name in NEWER)]


def answers(capsys):
    """Run the command; return its answers."""
    assert main(["probe", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def differing(report):
    return {answer["id"] for answer in report["answers"] if answer["agrees"] is False}


def test_every_question_has_an_answer(capsys, device):
    report = answers(capsys)
    assert report["device"] == device.name
    assert {answer["id"] for answer in report["answers"]} == {*NUMBERS, *GRAPHS, *OTHERS}
    for answer in report["answers"]:
        assert answer["question"]
        assert answer["assumed"]
        assert answer["answered"]
        if answer["agrees"] is not None:
            assert isinstance(answer["agrees"], bool)
    for number in ("H3", "H4"):
        about = [a["question"].split(":")[0] for a in report["answers"] if a["id"] == number]
        expected = {f"{name}{end}" for name in CLASSES for end in ("", "Gradient")}
        assert set(about) == expected
        assert len(about) == len(expected)


def test_the_table_shows_what_json_says(capsys):
    report = answers(capsys)
    assert main(["probe"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for heading in ("question", "assumed", "answered", "as assumed"):
        assert heading in out
    asked = [answer for answer in report["answers"] if answer["agrees"] is not None]
    count = sum(not answer["agrees"] for answer in asked)
    assert out.rstrip().endswith(f"{len(asked)} answers, {count} other than assumed.")


def test_without_rich_there_is_json(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["probe"]) == 2
    assert "give --json" in capsys.readouterr().err
    answers(capsys)


@pytest.mark.usefixtures("emulator")
def test_the_emulation_answers_as_assumed(capsys):
    assert differing(answers(capsys)) == set()


@pytest.mark.parametrize(
    ("option", "value", "number"),
    [
        ("padding_rounds_down", 1, "H1"),
        ("shared_source_reads", 1, "H6"),
        ("state_encode_steps", 2, "optimizer 2"),
    ],
)
def test_another_answer_is_reported(capsys, emulator, option, value, number):
    emulator.set(option, value)
    report = answers(capsys)
    assert differing(report) == {number}
    rows = [a for a in report["answers"] if a["id"] == number and a["agrees"] is False]
    assert all(row["answered"] != row["assumed"] for row in rows)
    assert main(["probe"]) == 0
    assert "NO" in capsys.readouterr().out


def test_graphs_that_are_no_graphs_of_the_device_are_not_asked(capsys, monkeypatch):
    monkeypatch.setattr(g.Graph, "_has_runner", False)
    monkeypatch.setattr(g.Graph, "_why_no_runner", "for a test")
    rows = [answer for answer in answers(capsys)["answers"] if answer["id"] in GRAPHS]
    assert {row["id"] for row in rows} == set(GRAPHS)
    for row in rows:
        assert row["agrees"] is None
        assert row["answered"] == "encoded kernel by kernel: for a test"
