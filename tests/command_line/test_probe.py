"""`mpsgrad probe` where there is nobody to ask. Its questions are tested in tests/metal."""

import mpsgrad as mg
import pytest
from mpsgrad import _core
from mpsgrad.__main__ import main
from mpsgrad._command_line.probe import graphs


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_without_a_metal_device_one_line_says_so(capsys, monkeypatch, options):
    def absent(kind):
        raise mg.errors.DeviceError(f"Device: no {kind} here")

    monkeypatch.setattr(mg, "Device", absent)
    assert main(["probe", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "mpsgrad probe: Device: no metal here\n")


def test_only_a_device_over_a_framework_can_be_asked():
    cpu = mg.Device("cpu")
    for ask in (
        lambda: _core._probe_pooling_descriptor(cpu, 7, 2, 3, 0),
        lambda: _core._probe_descriptors(cpu, mg.ChannelFormat.FLOAT32, 0),
        lambda: _core._probe_reads_of_shared_source(cpu),
        lambda: _core._probe_archived_properties(cpu),
        lambda: _core._probe_steps_of_state_encode(cpu),
    ):
        with pytest.raises(mg.errors.UnsupportedError, match="'cpu' has no framework to ask"):
            ask()


def test_what_graphs_are_assumed_to_answer():
    """As section 16 of the graph chapter has it."""
    questions = [*graphs.QUESTIONS, *graphs.QUESTIONS_OF_OURS]
    answers = [answer for each in questions for answer in each.ask(mg.Device("cpu"))]
    assert [(answer.id, answer.assumed) for answer in answers] == [
        ("G1", "3 2"),
        ("G1", "5 -7"),
        ("G3", "3 1 6 2 2 3 1 -2 -3 -1 30 10"),
        ("G3", "9 7 8"),
        ("G5", "4 1"),
        ("G6", "1 0"),
        ("graph 1", "1 0"),
    ]
    assert all(answer.agrees and answer.answered == answer.assumed for answer in answers)
