"""The command line of the benchmarks: `mpsgrad bench` and `python -m benchmarks`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .suite import Case, Request

__all__ = ["BenchError", "add_arguments", "main", "run"]

DTYPES = ("float32", "float16")
BATCHES = (1, 16, 32)

# Options of a run by the actions that have them too.
OF_SCALING = ("filter", "threads", "quick", "json", "plots")
OF_RUNS = (
    *OF_SCALING, "peers", "batch", "dtype", "full", "seconds", "caches", "device", "list"
)  # fmt: skip


class BenchError(Exception):
    """Something in the options or files is wrong; its text is the one line the user sees."""


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",")))


def _batches(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_positive(word) for word in _words(text)))


def _dtypes(text: str) -> tuple[str, ...]:
    names = _words(text)
    if not set(names) <= set(DTYPES):
        raise ValueError
    return names


# argparse puts these into its message.
_positive.__name__ = "positive integer"
_seconds.__name__ = "number of seconds"
_batches.__name__ = "list of batch sizes"
_dtypes.__name__ = "list of float32 and float16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options and the subcommands."""
    declared = _add_run_options(parser)
    parser.set_defaults(of_runs=declared)
    actions = parser.add_subparsers(dest="action", metavar="[ACTION]", required=False)

    compare = actions.add_parser("compare", help="two results files side by side")
    compare.add_argument("before", metavar="A", help="results of `--json`")
    compare.add_argument("after", metavar="B", help="results of another run")

    plot = actions.add_parser("plot", help="draw a results file: PNGs and one HTML page")
    plot.add_argument("results", metavar="FILE", help="results of `--json`")
    plot.add_argument("--to", metavar="FOLDER", default=".", help="where to put them (.)")

    report = actions.add_parser(
        "report", help="write a results file's tables, and a drawing, into a Markdown page"
    )
    report.add_argument("results", metavar="FILE", help="results of `--json`")
    report.add_argument("--scaling", metavar="FILE", help="results of `scaling --json`")
    report.add_argument(
        "--into",
        metavar="PAGE",
        help="replace what is between the page's markers, an SVG beside it (print the tables)",
    )

    scaling = actions.add_parser(
        "scaling", help="time and memory against batch size, image size and channels"
    )
    # What stands before the action is not to be overwritten by what is missing after it.
    _add_common_options(scaling, default=argparse.SUPPRESS)


def _add_common_options(parser: argparse.ArgumentParser, **missing: Any) -> None:
    """Declare what runs and studies have in common; `missing` may hold a default for all of it."""
    add = functools.partial(parser.add_argument, **missing)
    add(
        "--filter",
        action="append",
        **{"default": [], **missing},
        metavar="WORDS",
        help="only cases whose name has all of these, in any case; may be repeated",
    )
    add("--threads", type=_positive, help="processors to use (all there are)")
    add("--quick", action="store_true", help="small layers, short times: a trial")
    add("--json", metavar="FILE", help="write one JSON object a line")
    add("--plots", metavar="FOLDER", help="draw the results, as `plot` does")


def _add_run_options(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Declare the options of a run; return the defaults of all of them."""
    _add_common_options(parser)
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        help="of torch, onednn, jax and mlx, separated by commas; none; default: those installed",
    )
    parser.add_argument("--batch", type=_batches, metavar="N,...", help="batch sizes (16)")
    parser.add_argument("--dtype", type=_dtypes, metavar="T,...", help="element types (float32)")
    parser.add_argument(
        "--full", action="store_true", help="batches 1, 16 and 32, in float32 and float16"
    )
    parser.add_argument("--seconds", type=_seconds, help="time for each candidate of a case (0.5)")
    parser.add_argument(
        "--caches",
        choices=["warm", "cold"],
        default="warm",
        help="as the candidate's own last call left them, or emptied before each call (warm)",
    )
    parser.add_argument(
        "--device", choices=["cpu", "metal"], default="cpu", help="what runs the kernels (cpu)"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases only")
    return {name: parser.get_default(name) for name in OF_RUNS}


def run(options: argparse.Namespace) -> int:
    """Do what the options say.

    Returns
    -------
    int
        Exit code: 1 if a kernel computed something wrong, else 0.

    Raises
    ------
    BenchError
        If an option or a file is wrong.
    """
    from .results import ResultsError

    actions: dict[str | None, Callable[[argparse.Namespace], int]] = {
        None: _run,
        "compare": _compare,
        "plot": _plot,
        "report": _report,
        "scaling": _scaling,
    }
    _refuse_others(options)
    try:
        code = actions[options.action](options)
        sys.stdout.flush()
        return code
    except ResultsError as error:
        raise BenchError(str(error)) from error
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _refuse_others(options: argparse.Namespace) -> None:
    """Raise `BenchError` for an option of a run before an action that has no such option."""
    if options.action is None:
        return
    known = OF_SCALING if options.action == "scaling" else ()
    for name, default in options.of_runs.items():
        if name not in known and getattr(options, name) != default:
            raise BenchError(f"--{name} does nothing for {options.action}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m benchmarks`."""
    from . import __doc__ as text

    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except BenchError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130


def need(module: str, purpose: str) -> None:
    """Raise `BenchError` unless a module of the extra is there."""
    if importlib.util.find_spec(module) is None:
        text = f"{purpose} needs {module}, which is not installed; run: pip install {module}"
        raise BenchError(text)


# --- Running ----------------------------------------------------------------------


def _chosen_peers(text: str | None, device: str) -> list[str]:
    from .peers import PEERS, installed

    if text is None:
        return [name for name in PEERS if installed(name)] if device == "cpu" else []
    names = _words(text)
    if names == ("none",):
        return []
    if unknown := [name for name in names if name not in PEERS]:
        known = f"there are {', '.join(PEERS)}; none stands alone"
        raise BenchError(f"--peers: no peer {unknown[0]!r}; {known}")
    for name in names:
        if not installed(name):
            raise BenchError(f"--peers: {name} is not installed; run: {PEERS[name].install}")
    return list(names)


class _ResultsFile:
    """One JSON object a line; what a file held before stays until there is one, or none to come."""

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else Path(path)
        self.file: Any = None
        if self.path is not None:
            is_new = not self.path.exists()
            self._open("a").close()  # says at once if it cannot be written
            if is_new:
                self.path.unlink()

    def _open(self, mode: str) -> Any:
        assert self.path is not None
        try:
            return self.path.open(mode, encoding="utf-8")
        except OSError as error:
            raise BenchError(f"{self.path}: cannot be written ({error.strerror})") from error

    def add(self, record: dict[str, Any]) -> None:
        if self.path is None:
            return
        if self.file is None:
            self.file = self._open("w")
        try:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # for what is left in the buffer
                self.file.close()
            raise BenchError(f"{self.path}: cannot be written ({error.strerror})") from error

    def __enter__(self) -> _ResultsFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.path is not None and self.file is None and kind is None:
            self.file = self._open("w")
        if self.file is not None:
            self.file.close()


def _folder(path: str | None) -> None:
    if path is not None:
        need("matplotlib", "--plots")
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(f"{path}: cannot be written ({error.strerror})") from error


def _threads(wanted: int | None) -> int:
    from .machine import available_processors

    there = available_processors()
    if wanted is not None and wanted > there:
        raise BenchError(f"--threads: {wanted} wanted, but there are {there} processors")
    return wanted or there


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str, str], None]]:
    """Give a function ``(name, result of the one before)`` that draws the bar, or says how far."""
    if not sys.stderr.isatty():
        done = -1

        def say(name: str, _: str) -> None:
            nonlocal done
            done += 1
            if done * 10 // total > (done - 1) * 10 // total >= 0:
                print(f"{done} of {total} done, next: {name}", file=sys.stderr)

        yield say
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        first = True

        def update(name: str, before: str) -> None:
            nonlocal first
            if not first:
                bar.advance(task)
            first = False
            bar.update(task, description=name)
            if before:
                bar.print(before, markup=False, highlight=False)

        yield update
        bar.advance(task)


def _run(options: argparse.Namespace) -> int:
    import mpsgrad as mg

    from .machine import available_processors, measure_machine, use_threads
    from .runner import Runner
    from .suite import Request
    from .timing import Effort, keep_freed_memory

    need("rich", "the benchmark")
    request = Request(
        batches=options.batch or (BATCHES if options.full else (2,) if options.quick else (16,)),
        dtypes=options.dtype or (DTYPES if options.full else DTYPES[:1]),
        quick=options.quick,
    )
    cases = _chosen_cases(request, options.filter)
    if options.list:
        print("\n".join(cases))
        return 0
    names = _chosen_peers(options.peers, options.device)
    threads, cores = _threads(options.threads), available_processors()
    _folder(options.plots)
    try:
        device = mg.Device(options.device)
    except mg.errors.DeviceError as error:
        raise BenchError(str(error)) from error

    from .tables import console, show_machine, show_results, show_targets
    from .targets import targets

    records: list[dict[str, Any]] = []
    problems: dict[str, list[str]] = {"WRONG, not timed": [], "not supported": []}
    interrupted = False
    with _ResultsFile(options.json) as file:
        keep_freed_memory()
        use_threads(threads)
        peers = _loaded_peers(names, threads, asked=options.peers is not None)
        out = console()
        load = _warn_if_busy()
        machine = measure_machine(threads, cores=cores, quick=options.quick)
        show_machine(machine.as_dict(), out)
        seconds = options.seconds or (0.005 if options.quick else 0.5)
        effort = Effort(seconds, 3 if options.quick else 7, options.caches == "cold")
        runner = Runner(device, machine, peers, effort, quick=options.quick, load=load)
        try:
            with _progress(len(cases)) as show:
                before = ""
                for case in cases.values():
                    show(case.name, before)
                    outcome = runner.run(case)
                    before = ""
                    if outcome.record is not None:
                        records.append(outcome.record)
                        file.add(outcome.record)
                        continue
                    kind = "WRONG, not timed" if outcome.wrong is not None else "not supported"
                    before = f"{kind}: {case.name}: {outcome.wrong or outcome.unsupported}"
                    problems[kind].append(before)
        except KeyboardInterrupt:
            interrupted = True
    if records:
        show_results(records, out)
        show_targets(targets(records), out)
        if options.plots:
            from .plots import write_plots

            for path in write_plots(records, Path(options.plots)):
                print(path)
    for lines in problems.values():
        for line in lines:
            print(line, file=sys.stderr)
    if interrupted:
        print(f"{len(records)} of {len(cases)} cases were timed", file=sys.stderr)
        raise KeyboardInterrupt
    return 1 if problems["WRONG, not timed"] else 0


def _chosen_cases(request: Request, filters: Sequence[str]) -> dict[str, Case]:
    """Return the cases by name, or raise `BenchError` with the reason why there are none."""
    from .suite import Request, all_cases, has_words

    cases = {case.name: case for case in all_cases(request) if has_words(case.name, filters)}
    if not cases:
        words = " or ".join(map(repr, filters))
        every = all_cases(Request(BATCHES, DTYPES))
        others = next((case.name for case in every if has_words(case.name, filters)), None)
        hint = f" with this --batch and --dtype; there is {others!r}" if others else ""
        raise BenchError(f"--filter: no case has the words {words}{hint}")
    return cases


def _loaded_peers(names: Sequence[str], threads: int, *, asked: bool) -> list[Any]:
    """Return the peers. Of those that nobody asked for, one that cannot be loaded is left out."""
    from .peers import load_peer

    peers = []
    for name in names:
        try:
            peers.append(load_peer(name, threads))
        except ImportError as error:
            if asked:
                text = f"a peer cannot be imported, choose others with --peers; {error}"
                raise BenchError(text) from error
            print(f"left out: {error}", file=sys.stderr)
    return peers


def _warn_if_busy() -> float | None:
    """Say so if other programs are running: libraries that wait by spinning suffer most."""
    if not hasattr(os, "getloadavg"):
        return None
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"This machine is busy (load {load:.1f}): times and ratios will tell little.",
            file=sys.stderr,
        )
    return load


# --- Results files ------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    from .compare import compare, differences
    from .results import read

    need("rich", "the comparison")
    from .tables import console, show_comparison

    before, after = read(options.before), read(options.after)
    rows = compare(before, after)
    if not rows:
        raise BenchError(f"{options.before} and {options.after} have no case in common")
    out = console()
    show_comparison(rows, out)
    for line in differences(before, after):
        out.print(f"[bold]differs:[/bold] {line}")
    return 0


def _plot(options: argparse.Namespace) -> int:
    from .results import read

    records = read(options.results)
    _folder(options.to)
    from .plots import write_plots

    for path in write_plots(records, Path(options.to)):
        print(path)
    return 0


def _report(options: argparse.Namespace) -> int:
    from .report import RESULTS, insert, markdown
    from .results import read
    from .scaling import read_points

    points = read_points(options.scaling) if options.scaling else []
    records = read(options.results)
    sections = markdown(records, points)
    if options.into is None:
        print("\n\n".join(sections.values()))
        return 0
    page = Path(options.into)
    if any(record["ratios"] for record in records):
        need("matplotlib", "the drawing")
        from .plots import titled_families, write_svg

        title, figure = titled_families(records)
        drawing = page.with_suffix(".svg")
        sections[RESULTS] = f"![{title}]({drawing.name})\n\n{sections[RESULTS]}"
        insert(page, sections)
        write_svg(figure, drawing)
    else:
        insert(page, sections)
    return 0


def _scaling(options: argparse.Namespace) -> int:
    from .scaling import selected, study

    need("rich", "the study")
    kernels = selected(options.filter)
    if not kernels:
        raise BenchError(
            f"--filter: no kernel has the words {' or '.join(map(repr, options.filter))}"
        )
    _folder(options.plots)
    threads = _threads(options.threads)
    with _ResultsFile(options.json) as file:
        points = study(kernels, threads, quick=options.quick, progress=_progress, keep=file.add)
    from .scaling import fits, show_fits
    from .tables import console

    show_fits(fits(points), console())
    if options.plots:
        from .plots import write_scaling

        print(write_scaling(points, Path(options.plots)))
    return 0
