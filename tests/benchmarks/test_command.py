"""`mpsgrad bench` as a user runs it, and what it writes. Nothing here depends on times."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad.__main__ import main
from mpsgrad.benchmarks import (
    FAMILIES,
    compare,
    machine,
    report,
    results,
    runner,
    scaling,
    suite,
    tables,
    timing,
)
from mpsgrad.benchmarks.check import Samples
from mpsgrad.benchmarks.results import ResultsError
from mpsgrad.benchmarks.tables import console, show_targets
from mpsgrad.benchmarks.targets import targets
from rich.console import Console

FILTERS = ("encode/neuron_forward", "relu_gradient resnet50/conv5", "forward vgg16/conv5_1")


def bench(*arguments, code=0, **environment):
    """Run the command in a process of its own; return (stdout, stderr)."""
    command = [sys.executable, "-m", "mpsgrad", "bench", *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert result.returncode == code, result.stderr
    return result.stdout, result.stderr


def filtered(*words):
    return [argument for word in words for argument in ("--filter", word)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A quick run: (folder, stdout, records); its results are in results.jsonl."""
    folder = tmp_path_factory.mktemp("bench")
    file = folder / "results.jsonl"
    out, _ = bench(
        "--quick", "--peers", "none", *filtered(*FILTERS),
        "--json", str(file), "--plots", str(folder / "plots"),
    )  # fmt: skip
    return folder, out, [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_reports_every_case(finished):
    _, out, records = finished
    assert [record["name"] for record in records] == [
        "convolution/forward vgg16/conv5_1 batch 2 float32",
        "neuron/relu_gradient resnet50/conv5 batch 2 float32",
        "encode/neuron_forward pixel float32",
    ]
    for record in records:
        assert record["name"] in out
    assert "multiply-adds" in out


# A shell's background jobs ignore the signal, and what they start does too.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from mpsgrad.__main__ import main
sys.exit(main())
"""


def test_an_interrupted_run_shows_what_it_has(tmp_path):
    file = tmp_path / "results.jsonl"
    command = [sys.executable, "-c", INTERRUPTIBLE, "bench", "--quick", "--peers", "none"]
    with subprocess.Popen(
        [*command, "--json", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not (file.exists() and file.read_bytes().count(b"\n") > 2):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    records = results.read(str(file))
    assert process.returncode == 130
    timed = int(re.search(r"(\d+) of \d+ cases were timed", err)[1])
    assert timed - len(records) in (0, 1)  # the last may not have been written
    assert "Traceback" not in err
    for record in records:
        assert record["name"] in out


def test_records_hold_what_a_comparison_needs(finished):
    for record in finished[2]:
        seconds = record["seconds"]
        assert 0 < seconds["min"] <= seconds["q1"] <= seconds["median"] <= seconds["q3"]
        assert record["versions"]["mpsgrad"] == mg.__version__
        assert record["machine"]["instruction_set"] == mg.cpu_instruction_set()
        assert record["machine"]["multiply_add"] > 0
        assert record["machine"]["empty_encode"] > 0
        assert (record["device"], record["caches"], record["quick"]) == ("cpu", "warm", True)
        assert record["ratios"] == record["peers"] == {}
        if record["family"] == "encode":
            assert record["calls_a_run"] == 100
            assert "fraction" not in record
        else:
            assert record["fraction"] == pytest.approx(record["floor"] / seconds["median"])
            assert record["fraction_now"] > 0
            assert record["limit"] in ("arithmetic", "memory")


def test_plots_are_drawn(finished):
    folder = finished[0] / "plots"
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "roofline.png"]
    assert (folder / "roofline.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("http-equiv", "")  # self-contained
    for record in finished[2]:
        assert record["name"] in page


def with_peers(records):
    """Records as if two peers had been timed, one of them faster on the first case."""
    changed = copy.deepcopy(records)
    for i, record in enumerate(changed):
        record["ratios"] = {"torch": 0.5 + i, "jax": 4.0}
    return changed


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_plots_with_peers(finished, tmp_path, capsys):
    file = write(tmp_path / "peers.jsonl", with_peers(finished[2]))
    assert main(["bench", "plot", file, "--to", str(tmp_path / "out")]) == 0
    names = {"roofline.png", "families.png", "ratios.png", "index.html"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert "x torch" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [20, 80, 300])
def test_tables_are_never_cut(finished, width):
    records = with_peers(finished[2])
    for record in records:
        record["peers"] = {f"{peer} x": dict(record["seconds"]) for peer in record["ratios"]}
    out = io.StringIO()
    console = Console(file=out, width=width)
    tables.show_results(records, console)
    tables.show_comparison(compare.compare(records, records), console)
    text = out.getvalue()
    assert "…" not in text
    for words in ("spread", "of floor", "~0.50", "~4.00", "x torch", "x jax", "beyond spread"):
        assert words in text
    names = text.replace("\n", "").replace(" ", "")
    if width == 300:
        assert all(record["name"].replace(" ", "") in names for record in records)


def test_a_ratio_is_clear_where_times_are_apart(finished):
    (record,) = with_peers(finished[2][:1])
    own = record["seconds"]
    far = dict.fromkeys(("q1", "median", "q3"), 10 * own["q3"])
    record["peers"] = {"torch slow": far, "torch": dict(own), "jax": far}
    assert not results.is_clear(record, "torch")
    assert results.is_clear(record, "jax")


def test_two_files_are_compared(finished, tmp_path, capsys):
    slower = copy.deepcopy(finished[2])
    for record in slower:
        for name in ("min", "q1", "median", "q3"):
            record["seconds"][name] *= 1000
    slower[0]["threads"] = 77
    before = write(tmp_path / "before.jsonl", finished[2])
    after = write(tmp_path / "after.jsonl", slower[:2])
    assert main(["bench", "compare", before, after]) == 0
    out = capsys.readouterr().out
    assert "all: 0.001 times as fast (geometric mean of 2 cases)" in out
    assert "1 cases are not in the second file" in out
    assert "threads:" in out
    rows = compare.compare(finished[2], slower)
    assert all(clear and speed == pytest.approx(1e-3) for *_, speed, clear in rows)
    assert not any(clear for *_, clear in compare.compare(finished[2], finished[2]))


def test_differences_within_a_file_are_told(finished):
    mixed = copy.deepcopy(finished[2])
    mixed[1]["machine"]["name"] = "another"
    mixed[1]["machine"]["multiply_add"] *= 2
    mixed[2]["versions"]["torch"] = "1"
    found = "\n".join(compare.differences(finished[2], mixed))
    for words in ("machine: ", ", another", "torch: None, then None, 1", "multiply-adds: "):
        assert words in found
    assert compare.differences(finished[2], finished[2]) == []
    assert len(compare.compare(finished[2], [*finished[2], *finished[2]])) == 3


def test_a_page_gets_the_tables(finished, tmp_path, capsys):
    page = tmp_path / "page.md"
    begin, end = report.markers(report.RESULTS)
    page.write_text(f"# Title\n\n{begin}\nold\n{end}\n\nthe end\n")
    file = write(tmp_path / "peers.jsonl", with_peers(finished[2]))
    assert main(["bench", "report", file, "--into", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("# Title\n\n")
    assert text.endswith("\n\nthe end\n")
    assert "old" not in text
    assert "| family | cases | x torch | slower | x jax | slower |" in text
    assert "| all | 3 | 1.23 | 1 of 3 | 4.00 | 0 of 3 |" in text
    assert "| slower than a peer | time | x torch | x jax |" in text
    assert text.count("| 0.50 | 4.00 |\n") == 1
    assert "| neuron_forward |" in text
    assert "![Times as fast as PyTorch, family by family](page.svg)\n" in text
    drawn = (tmp_path / "page.svg").read_bytes()
    assert b">convolution<" in drawn
    assert main(["bench", "report", file, "--into", str(page)]) == 0
    assert (tmp_path / "page.svg").read_bytes() == drawn
    assert main(["bench", "report", file]) == 0
    assert capsys.readouterr().out.strip() in text
    other = tmp_path / "other.md"
    other.write_text("no markers")
    assert main(["bench", "report", file, "--into", str(other)]) == 2
    assert other.read_text() == "no markers"
    assert not other.with_suffix(".svg").exists()


def test_a_page_tells_batches_apart_and_what_peers_could_not(finished):
    records = with_peers(finished[2])[:1] * 2
    records += [{**records[0], "name": "other", "batch": 32, "notes": ["jax: no such thing"]}]
    sections = report.markdown(records, [])
    for words in ("float32, batch 2 | 1 |", "float32, batch 32 | 1 |"):
        assert words in sections[report.KERNELS]
    assert "* other: jax: no such" in sections[report.RESULTS]
    assert "| all | 2 | 0.50 | 2 of 2 |" in sections[report.RESULTS]


def test_kernels_go_where_a_page_has_a_place_for_them(finished, tmp_path):
    page = tmp_path / "page.md"
    (begin, end), (first, last) = map(report.markers, (report.RESULTS, report.KERNELS))
    page.write_text(f"{begin}\n{end}\nbetween\n{first}\nold\n{last}\n")
    report.insert(page, report.markdown(finished[2], []))
    results, _, kernels = page.read_text().partition("between")
    assert "| kernel | type |" not in results
    assert "| kernel | type |" in kernels
    assert "old" not in kernels
    page.write_text(f"{first}\n{last}\n")
    with pytest.raises(ResultsError, match="must have the lines '<!-- results: begin -->'"):
        report.insert(page, report.markdown(finished[2], []))
    assert page.read_text() == f"{first}\n{last}\n"


# --- Targets ------------------------------------------------------------------------


def case_of(kernel, seconds, *, family="neuron", limit=None, share=None, torch=None):
    """A record with what targets look at."""
    return {
        "name": f"{family}/{kernel}",
        "family": family,
        "kernel": kernel,
        "device": "cpu",
        "quick": False,
        "seconds": {"median": seconds},
        "calls_a_run": 10,
        "ratios": {} if torch is None else {"torch": torch},
        **({} if limit is None else {"limit": limit, "fraction_now": share}),
    }


def test_targets_count_what_has_reached_them():
    records = [
        case_of("forward", 1, limit="arithmetic", share=0.74, torch=0.9),
        case_of("gradient", 1, limit="arithmetic", share=0.75, torch=2.0),
        case_of("backward", 1, limit="memory", share=0.84, torch=0.99),
        case_of("weight_gradient", 1, limit="memory", share=0.85, torch=1.0),
        case_of("gradient", 1, limit="memory", share=0.9),
        case_of("step", 1, family="training", torch=1.5),
        case_of("encoding_forward", 1e-5, family="encode"),
        case_of("encoding_gradient", 2.1e-5, family="encode"),
        case_of("gradient", 9e-5, family="encode"),
    ]
    found = {
        target.what: (target.wanted, target.reached, target.met) for target in targets(records)
    }
    mean = (0.9 * 2 * 0.99 * 1.5) ** (1 / 5)
    assert found == {
        "times as fast as PyTorch, geometric mean of 5 cases": ("1.5", f"{mean:.2f}", False),
        "times as fast as PyTorch, training/step": ("1.5", "1.50", True),
        "gradients slower than PyTorch": ("none", "1 of 3", False),
        "bound by arithmetic, at 75% of the multiply-add peak or more": ("all", "1 of 2", False),
        "bound by memory, at 85% of a copy's speed or more": ("all", "2 of 3", False),
        "longest of 2 encodes": ("2 us at most", "2.1 us", False),
    }


def test_targets_are_those_of_whole_layers_on_the_cpu_device(finished):
    records = [case_of("gradient", 1, torch=2.0)]
    assert all(target.met for target in targets(records))
    assert len(targets(records)) == 2
    assert targets([{**records[0], "quick": True}]) == []
    assert targets([{**records[0], "device": "metal"}]) == []
    assert targets(finished[2]) == []


def test_targets_are_shown(finished, capsys):
    records = [{**record, "quick": False} for record in with_peers(finished[2])]
    show_targets(targets(records), console())
    assert re.search(r"geometric mean of 3 cases +1\.5 +1\.23\n", capsys.readouterr().out)
    text = report.markdown(records, [])[report.RESULTS]
    assert "| times as fast as PyTorch, geometric mean of 3 cases | 1.5 | 1.23 (not met) |" in text


def test_wrong_kernels_are_refused(monkeypatch):
    """A kernel that computes something else: its case fails, and no time is reported."""
    monkeypatch.setattr(mg, "PoolingMax", mg.PoolingAverage)
    case = next(
        case
        for case in suite.all_cases(suite.Request((2,), quick=True), ["pooling"])
        if case.kernel == "max_forward"
    )
    outcome = quiet_runner().run(case)
    assert outcome.record is None
    assert outcome.wrong.startswith("y: ")
    assert "sampled elements are wrong" in outcome.wrong


def test_a_wrong_result_fails_the_command(tmp_path):
    """As above, from outside: exit code 1, and the results file stays without the case."""
    (tmp_path / "sitecustomize.py").write_text(
        "import mpsgrad as mg\nmg.PoolingMax = mg.PoolingAverage\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    file = tmp_path / "results.jsonl"
    _, err = bench(
        "--quick", "--peers", "none", "--filter", "max_forward vgg16/pool3", "--json", str(file),
        code=1, PYTHONPATH=path,
    )  # fmt: skip
    assert "WRONG, not timed: pooling/max_forward vgg16/pool3 batch 2 float32: y: " in err
    assert file.read_text() == ""


def test_one_that_raises_does_not_end_the_run(monkeypatch):
    class Broken:
        def __init__(self, *_, **__):
            raise ValueError("broken kernel\nand more")

    monkeypatch.setattr(mg, "Neuron", Broken)
    case = next(iter(suite.all_cases(suite.Request((2,), quick=True), ["neuron"])))
    assert quiet_runner().run(case).wrong == "ValueError: broken kernel"


# --- Peers --------------------------------------------------------------------------


LIMITS = machine.Machine(
    "test", "test", "test", 2, 2, 2**20, 1e9, 5e8,
    bandwidth=[(2**10, 1e9, 2e9), (2**20, 5e8, 1e9)],
    reading=[(2**10, 1e9, 2e9), (2**20, 5e8, 1e9)],
    empty_encode=1e-6,
)  # fmt: skip


class Fake:
    """A library."""

    name = "fake"
    version = "1"

    @staticmethod
    def read(result, shape):
        return np.asarray(result).reshape(shape)


def quiet_runner(peers=()):
    return runner.Runner(mg.Device("cpu"), LIMITS, peers, timing.Effort(1e-4, 2), quick=True)


def fake_case(variants):
    x = np.arange(1.0, 5.0, dtype=np.float32)
    index = (np.arange(4),)
    exact = x.astype(np.float64)
    output = suite.Output("y", lambda: x, Samples(index, exact, exact, 0))

    def work(_):
        return suite.Work(
            lambda: None,
            [output],
            bytes=2**10,
            flops=5e6,
            peers={"fake": lambda peer: variants(peer, x)},
        )

    return suite.Case("family", "kernel", "layer", 3, "float32", work)


def test_the_faster_variant_counts():
    def variants(_, x):
        return {"slow": lambda: (time.sleep(0.02), x)[1], "fast": lambda: x}

    record = quiet_runner([Fake()]).run(fake_case(variants)).record
    assert set(record["peers"]) == {"fake slow", "fake fast"}
    own = record["seconds"]["median"]
    assert record["ratios"] == {"fake": record["peers"]["fake fast"]["median"] / own}
    assert (record["floor"], record["limit"]) == (5e-3, "arithmetic")
    assert record["versions"]["fake"] == "1"


def test_peers_that_compute_something_else_are_not_timed():
    record = quiet_runner([Fake()]).run(fake_case(lambda _, x: {"": lambda: 2 * x})).record
    assert record["peers"] == record["ratios"] == {}
    (note,) = record["notes"]
    assert note.startswith("fake: y: 4 of 4 sampled elements are wrong")


def test_peers_that_cannot_are_noted():
    def raises(*_):
        raise RuntimeError("no such operator\nand more")

    for variants in (raises, lambda *_: {"a": raises}):
        record = quiet_runner([Fake()]).run(fake_case(variants)).record
        assert record["peers"] == {}
        assert record["notes"][0].endswith(": no such operator")


def test_candidates_take_turns():
    order = []
    candidates = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = timing.measure(candidates, timing.Effort(1e-3, 3))
    rounds = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert rounds == ["a", "b"] * 4  # a first look, then three rounds
    assert all(len(timed.rounds) == 3 for timed in times.values())


@pytest.mark.parametrize("cold", [False, True])
def test_slow_candidates_get_fewer_rounds(cold):
    times = timing.measure(
        {"slow": lambda: time.sleep(0.02), "fast": lambda: None},
        timing.Effort(0.001, 7, cold),
        2**12,
    )
    assert len(times["slow"].rounds) == 2
    assert len(times["fast"].rounds) == 7


@pytest.mark.parametrize("cold", [False, True])
def test_preparations_are_not_timed(cold):
    order = []

    def prepare():
        order.append("prepare")
        time.sleep(0.02)

    call = timing.Prepared(prepare, lambda: order.append("run"))
    found = timing.measure({"a": call}, timing.Effort(1e-4, 3, cold), 2**12)["a"]
    assert max(found.rounds) < 0.02
    assert order == ["prepare", "run"] * (len(order) // 2)
    untimed = len(order) // 2 - found.calls
    assert untimed == 1 if cold else untimed >= 3 + found.calls // 2  # warmed up, not only tried
    call()
    assert order[-2:] == ["prepare", "run"]


def test_reported_seconds_are_taken_as_they_are():
    candidates = {"limit": timing.Reported(lambda: 0.25), "own": lambda: None}
    times = timing.measure(candidates, timing.Effort(1.0, 3))
    assert times["limit"].rounds == (0.25, 0.25, 0.25)
    assert max(times["own"].rounds) < 0.25


@pytest.mark.parametrize(("flops", "limit"), [(1e9, "arithmetic"), (1.0, "memory")])
def test_the_floor_is_measured_again(flops, limit, monkeypatch):
    monkeypatch.setattr(machine, "_best_copy", lambda threads, size, _: threads * size)
    monkeypatch.setattr("mpsgrad._core.fma_peak", lambda _: 1e7)
    assert LIMITS.floor(flops, 2**10)[1] == limit
    assert LIMITS.floor_now(flops, 2**10) == {"arithmetic": 50.0, "memory": 0.5}[limit]


WITH_PEERS = (
    "vgg16", "training/step", "arithmetic senet", "subtract", "divide", "compare",
    "group_normalization style/conv2", "group_normalization diffusion",
    "local_normalization cuda-convnet", "neuron resnet50/conv3", "segmentation", "loss scores",
    "loss style", "optimizer bias", "upsampling fpn/p5", "convolution_transpose dcgan/conv4",
    "resize pspnet", "espcn",
)  # fmt: skip
# The types that each is asked for, and what it has nothing for. JAX takes long to compile; MLX
# shares a gradient among equal maxima, of which float16 images have some.
ONLY_TORCH = {"convolution_transpose", "reshape", "resize", "upsampling"}
PEERS = {
    "torch": ("float32,float16", set()),
    "jax": ("float32", ONLY_TORCH),
    "mlx": ("float32", {"local_normalization"} | ONLY_TORCH),
}


@pytest.mark.parametrize("peer", PEERS)
def test_peers_do_the_same_work(peer, tmp_path):
    if importlib.util.find_spec(peer) is None:
        pytest.skip("needs the extra bench" if peer == "torch" else f"needs {peer}")
    dtypes, without = PEERS[peer]
    file = tmp_path / "results.jsonl"
    # One thread: on a busy machine PyTorch's own wait for each other.
    out, _ = bench(
        "--quick", "--peers", peer, "--threads", "1", "--seconds", "0.001",
        "--dtype", dtypes, "--json", str(file), *filtered(*WITH_PEERS),
    )  # fmt: skip
    assert "Peers that could not" not in out
    assert f"x {peer}" in out
    records = [json.loads(line) for line in file.read_text().splitlines()]
    found = {record["family"] for record in records if peer in record["ratios"]}
    assert found == set(FAMILIES) - {"encode"} - without


@pytest.fixture
def broken_mlx(tmp_path):
    """As MLX is on Linux without its CPU backend, before what else there is: the PYTHONPATH."""
    for name in ("mlx", "torch", "jax"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('no torch either')\n")
    (tmp_path / "jax" / "__init__.py").write_text("raise OSError('nor this')\n")
    core = tmp_path / "mlx" / "core.py"
    core.write_text("raise ImportError('libmlx.so: cannot open shared object file')\n")
    return os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_a_peer_that_is_installed_in_part(broken_mlx, tmp_path):
    """The message names it, and what to do; results of before stay."""
    file = tmp_path / "results.jsonl"
    file.write_text("of before")
    _, err = bench(
        "--quick", "--peers", "mlx", *filtered("encode"), "--json", str(file),
        code=2, PYTHONPATH=broken_mlx,
    )  # fmt: skip
    assert "mlx: libmlx.so: cannot open" in err
    assert "pip install 'mlx[cpu]'" in err
    assert "Traceback" not in err
    assert file.read_text() == "of before"


def test_peers_that_nobody_asked_for_are_left_out(broken_mlx):
    out, err = bench("--quick", *filtered("encode/neuron_forward"), PYTHONPATH=broken_mlx)
    assert "encode/neuron_forward pixel float32" in out
    for words in ("torch: no torch either", "jax: nor this", "mlx: libmlx.so: cannot open"):
        assert f"left out: {words}" in err


# --- The machine ----------------------------------------------------------------------


def test_floors():
    assert LIMITS.copy_rate(2**10) == pytest.approx(2e9)
    assert LIMITS.copy_rate(2**15) == pytest.approx(math.sqrt(2) * 1e9)
    assert LIMITS.copy_rate(2**30) == pytest.approx(1e9)
    assert LIMITS.floor(0, 2**20) == (pytest.approx(2**20 / 1e9), "memory")
    assert LIMITS.floor(1e9, 2**20) == (pytest.approx(1.0), "arithmetic")


def test_a_machine_is_measured():
    found = machine.measure_machine(1, quick=True)
    assert found.multiply_add > 1e8
    sizes = [size for size, *_ in found.bandwidth]
    assert sizes == sorted(sizes)
    assert [size for size, *_ in found.reading] == sizes
    rates = (*found.bandwidth, *found.reading)
    assert all(one > 0 and every > 0 for _, one, every in rates)
    assert found.cache >= 2**15


def test_means():
    assert results.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(results.geometric_mean([]))


# --- Scaling ----------------------------------------------------------------------------


def test_an_interrupt_waits_for_the_threads():
    """The process must not end under a measurement; how long that takes is its own affair."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("2 ended\n", 0), done.stderr


INTERRUPTED = """
import os, signal, threading, time
from mpsgrad.benchmarks import machine
signal.signal(signal.SIGINT, signal.default_int_handler)
ended = []

def work():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(0.5)
    ended.append(1)
    return 1.0

try:
    machine._together(2, work)
except KeyboardInterrupt:
    print(len(ended), "ended")
"""


def test_scaling(tmp_path):
    file, plots = tmp_path / "scaling.jsonl", tmp_path / "plots"
    out, _ = bench(
        "scaling", "--quick", "--filter", "pooling gradient", "--json", str(file),
        "--plots", str(plots),
    )  # fmt: skip
    points = scaling.read_points(str(file))
    assert {point["axis"] for point in points} == {"batch", "size", "channels"}
    assert {point["kernel"] for point in points} == {"pooling/max_gradient"}
    for point in points:
        pixels = point["batch"] * point["size"] ** 2 * point["channels"]
        assert point["arrays"] == 4 * (2 * pixels + pixels // 4)
        assert point["seconds"] > 0
        assert point["scratch"] >= 0
        assert point["processor"] == machine.processor_name()
    assert "pooling/max_gradient" in out
    assert (plots / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kernel", scaling.KERNELS)
def test_points_are_right(kernel):
    context = suite.Context(mg.Device("cpu"), kernel)
    work = scaling.KERNELS[kernel](context, 2, 4, 8)
    work.run()
    for output in work.outputs:
        output.samples.compare(output.name, output.read())


def test_exponents():
    points = [
        {
            "kernel": "k",
            "axis": "size",
            "size": n,
            "seconds": n**2 * 1e-6,
            "scratch": 1,
            "arrays": n,
        }
        for n in (2, 4, 8, 16)
    ]
    (row,) = scaling.fits(points)
    assert row["exponent"] == pytest.approx(2)
    assert row["upper_exponent"] == pytest.approx(2)
    assert (row["scratch_share"], row["last_share"]) == (1 / 2, 1 / 16)


# --- Bad input --------------------------------------------------------------------------


BAD_VALUES = {
    "unknown peer": (["--peers", "foo"], "--peers: no peer 'foo'"),
    "no case": (["--filter", "nothing at all"], "--filter: no case has the words"),
    "too many threads": (["--threads", "4096"], "--threads: 4096 wanted, but there are"),
    "no metal": (["--device", "metal", "--filter", "encode"], "Metal"),
    "unwritable": (
        ["--quick", "--filter", "encode", "--json", "/nonexistent/file"],
        "/nonexistent/file: cannot be written",
    ),
    "missing file": (["compare", "/nonexistent/a", "b"], "/nonexistent/a: cannot be read"),
    "no plots": (["plot", "/nonexistent/a"], "/nonexistent/a: cannot be read"),
    "peer beside none": (["--peers", "torch,none"], "--peers: no peer 'none'"),
    "other type": (
        ["--filter", "optimizer/sgd", "--dtype", "float16"],
        "there is 'optimizer/sgd resnet50/conv5_3x3 float32'",
    ),
    "full": (
        ["--quick", "--peers", "none", "--filter", "encode/neuron_f", "--json", "/dev/full"],
        "/dev/full: cannot be written",
    ),
    "option of a run": (["--seconds", "3", "compare", "a", "b"], "--seconds does nothing for comp"),
    "peers of a study": (["--peers", "torch", "scaling"], "--peers does nothing for scaling"),
    "scaling of nothing": (["scaling", "--filter", "nothing"], "--filter: no kernel has the words"),
}


def test_unknown_peers_come_before_those_not_installed(capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.installed", lambda _: False)
    for names, words in {"torch,foo": "no peer 'foo'", "torch": "torch is not installed"}.items():
        assert main(["bench", "--peers", names]) == 2
        assert f"--peers: {words}" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "words"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_bad_values_end_in_one_line(capsys, monkeypatch, arguments, words):
    if "metal" in arguments:

        def absent(_):
            raise mg.errors.DeviceError("there is no Metal device here")

        monkeypatch.setattr(mg, "Device", absent)
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("mpsgrad bench: ") or "full" in arguments[-1]
    assert err.count("\n") == 1 or "full" in arguments[-1]
    assert words in err


def test_options_before_the_action_count(tmp_path):
    file = tmp_path / "points.jsonl"
    bench(
        "--threads", "1", "--json", str(file), "--filter", "softmax", "scaling", "--quick"
    )  # fmt: skip
    points = scaling.read_points(str(file))
    assert {(point["kernel"], point["threads"]) for point in points} == {
        ("softmax/softmax_gradient", 1)
    }


def test_whoever_reads_the_list_may_stop(finished):  # noqa: ARG001
    command = f"{sys.executable} -m mpsgrad bench --list --full | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("convolution/forward")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch", "0"], "invalid list of batch sizes value: '0'"),
        (["--batch", "1,x"], "invalid list of batch sizes value: '1,x'"),
        (["--dtype", "int8"], "invalid list of float32 and float16 value: 'int8'"),
        (["--seconds", "-1"], "invalid number of seconds value: '-1'"),
        (["--seconds", "nan"], "invalid number of seconds value: 'nan'"),
        (["--threads", "0"], "invalid positive integer value: '0'"),
        (["--caches", "hot"], "invalid choice: 'hot'"),
        (["fly"], "invalid choice: 'fly'"),
        (["compare", "a"], "required: B"),
    ],
)
def test_bad_options_exit_with_2(capsys, arguments, words):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_records_without_what_is_read(finished, tmp_path, capsys):
    for key in ("machine", "ratios", "notes", "versions", "commit"):
        record = {name: value for name, value in finished[2][0].items() if name != key}
        path = write(tmp_path / "file", [record])
        assert main(["bench", "plot", path, "--to", str(tmp_path)]) == 2
        assert f"line 1: not a benchmark result, '{key}' is missing" in capsys.readouterr().err
    record = copy.deepcopy(finished[2][0])
    record["seconds"]["median"] = "0.1"
    assert main(["bench", "compare", *[write(tmp_path / "file", [record])] * 2]) == 2
    assert "line 1: not a benchmark result" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "hello", "[]", '{"name": "a"}', '{"name": "a", "seconds": 1}']
)
def test_files_that_hold_something_else(capsys, tmp_path, text):
    path = tmp_path / "file"
    path.write_text(text)
    for arguments in (
        ["compare", str(path), str(path)],
        ["plot", str(path)],
        ["report", str(path)],
    ):
        assert main(["bench", *arguments]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert str(path) in err


def test_the_cases_can_be_listed(capsys):
    assert main(["bench", "--list", "--full", "--filter", "resnet50/conv1 convolution"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 4 * 3 * 2
    assert "convolution/weight_gradient resnet50/conv1 batch 32 float16" in listed


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    assert "mpsgrad bench compare old.jsonl new.jsonl" in capsys.readouterr().out
