"""Drawings of results: the roofs of the machine, the ratio to each peer, and a page with both."""

from __future__ import annotations

import base64
import html
import io
import math
import statistics
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .results import geometric_mean, is_clear, peers_of, worst_first
from .tables import amount, duration
from .targets import targets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .results import Record

__all__ = [
    "families",
    "ratios",
    "roofline",
    "titled_families",
    "write_plots",
    "write_scaling",
    "write_svg",
]

COLOURS = (
    "#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#7a5c00", "#666666",
    "#8ab4f8", "#f28b82", "#81c995", "#fdd663", "#d7aefb", "#78d9ec", "#c5a86b", "#000000",
    "#1b4f9c", "#ff5ca8", "#9acd32", "#b0b0b0",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D")
LEAST = 1e-3  # share of scratch memory that is still drawn
PEER_NAMES = {"torch": "PyTorch", "onednn": "oneDNN", "jax": "JAX", "mlx": "MLX"}
PEER_COLOURS = {"torch": "#d9480f", "onednn": "#862e9c", "jax": "#1971c2", "mlx": "#2f9e44"}


def _families(records: Sequence[Record]) -> dict[str, str]:
    names = list(dict.fromkeys(record["family"] for record in records))
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _plain(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _tidy(axes: Any) -> None:
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def roofline(records: Sequence[Record]) -> Figure:
    """Draw what was reached below what the machine can do: arithmetic, and memory traffic."""
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    machine = records[0]["machine"]
    colours = _families(records)
    peak = machine["multiply_add"] / 1e9
    bandwidth = machine["bandwidth"]
    slowest = bandwidth[-1][2] / 1e9

    busy = [record for record in records if record["flops"]]
    intensities = [record["flops"] / record["bytes"] for record in busy] or [1.0]
    low = min(0.5, *intensities) / 1.5
    high = max(peak / slowest * 4, *intensities) * 1.5
    knee = peak / slowest
    left.plot([low, knee, high], [low * slowest, peak, peak], color="black", linewidth=1.4)
    left.annotate(
        f"multiply-adds {peak:.0f} GFLOP/s", (high, peak), (-4, 5), textcoords="offset points",
        ha="right", fontsize=9,
    )  # fmt: skip
    left.annotate(
        f"copies {slowest:.0f} GB/s", (low * 1.5, low * 1.5 * slowest), (12, -6),
        textcoords="offset points", fontsize=9,
    )  # fmt: skip
    for family, colour in colours.items():
        own = [record for record in busy if record["family"] == family]
        if own:
            left.scatter(
                [record["flops"] / record["bytes"] for record in own],
                [record["flops"] / record["seconds"]["median"] / 1e9 for record in own],
                s=22, color=colour, alpha=0.75, linewidths=0, label=family,
            )  # fmt: skip
    left.set(xscale="log", yscale="log", xlim=(low, high))
    left.set_xlabel("arithmetic intensity (FLOP per byte of input and output)")
    left.set_ylabel("GFLOP/s")
    left.set_title("Kernels with arithmetic", loc="left", fontsize=11)
    if busy:
        left.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=4)

    quiet = [record for record in records if record["bytes"] and not record["flops"]]
    sizes = [row[0] for row in bandwidth]
    right.plot(
        sizes, [row[2] / 1e9 for row in bandwidth], color="black", linewidth=1.4, marker=".",
        label="a copy, all threads",
    )  # fmt: skip
    if "reading" in machine:  # not in results of former versions
        right.plot(
            sizes, [row[2] / 1e9 for row in machine["reading"]], color="black", linewidth=1,
            linestyle="--", label="reading alone",
        )  # fmt: skip
    for family, colour in colours.items():
        own = [record for record in quiet if record["family"] == family]
        if own:
            right.scatter(
                [record["bytes"] for record in own],
                [record["bytes"] / record["seconds"]["median"] / 1e9 for record in own],
                s=22, color=colour, alpha=0.75, linewidths=0, label=family,
            )  # fmt: skip
    right.set(yscale="log")
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
    right.set_xlabel("bytes of input and output")
    right.set_ylabel("GB/s")
    right.set_title("Kernels bound by memory", loc="left", fontsize=11)
    right.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=4)
    for axes in (left, right):
        _plain(axes.yaxis)
        _tidy(axes)
    _plain(left.xaxis)
    return figure


def ratios(records: Sequence[Record]) -> Figure:
    """Draw, a row for every kernel, how many times as fast each of its cases is as each peer."""
    peers = peers_of(records)
    compared = [record for record in records if record["ratios"]]
    rows = list(dict.fromkeys(f"{record['family']}/{record['kernel']}" for record in compared))
    rows.sort(
        key=lambda row: min(
            min(record["ratios"].values())
            for record in compared
            if f"{record['family']}/{record['kernel']}" == row
        )
    )
    figure = Figure(figsize=(11, 1.6 + 0.3 * max(len(rows), 3)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1.0, color="black", linewidth=1.2)
    where = {row: -i for i, row in enumerate(rows)}
    for i, peer in enumerate(peers):
        shift = 0.0 if len(peers) == 1 else 0.22 - 0.44 * i / (len(peers) - 1)
        own = [record for record in compared if peer in record["ratios"]]
        axes.scatter(
            [record["ratios"][peer] for record in own],
            [where[f"{record['family']}/{record['kernel']}"] + shift for record in own],
            s=26, marker=MARKERS[i % len(MARKERS)], alpha=0.7, linewidths=0,
            color=PEER_COLOURS.get(peer, COLOURS[i]),
            label=f"{peer}, geometric mean {geometric_mean(r['ratios'][peer] for r in own):.2f}",
        )  # fmt: skip
    axes.set_xscale("log")
    values = [value for record in compared for value in record["ratios"].values()] or [1.0]
    axes.set_xlim(min(0.5, min(values) / 1.2), max(2.0, max(values) * 1.2))
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_yticks([where[row] for row in rows], rows, fontsize=9)
    _plain(axes.xaxis)
    axes.set_xlabel(
        "time of the peer's faster layout over ours: right of the line mpsgrad is faster"
    )
    if peers:
        figure.legend(frameon=False, fontsize=9, loc="outside upper right", ncols=len(peers))
    _tidy(axes)
    return figure


def families(records: Sequence[Record], peer: str) -> Figure:
    """Draw, a row for every family, its cases against one peer, and their geometric mean."""
    compared = [record for record in records if peer in record["ratios"]]
    groups: dict[str, list[Record]] = {}
    for record in compared:
        groups.setdefault(record["family"], []).append(record)
    means = {
        family: geometric_mean(record["ratios"][peer] for record in own)
        for family, own in groups.items()
    }
    rows = sorted(groups, key=lambda family: means[family])
    figure = Figure(figsize=(8.5, 1.3 + 0.27 * max(len(rows), 3)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1.0, color="black", linewidth=1.2)
    for backward, colour, label in (
        (False, COLOURS[0], "forward, optimizers and training"),
        (True, COLOURS[1], "gradients"),
    ):
        own = [record for record in compared if ("gradient" in record["kernel"]) == backward]
        axes.scatter(
            [record["ratios"][peer] for record in own],
            [rows.index(record["family"]) + (-0.16 if backward else 0.16) for record in own],
            s=20, alpha=0.55, linewidths=0, color=colour, label=label,
        )  # fmt: skip
    axes.scatter(
        [means[family] for family in rows], range(len(rows)), marker="|", s=220, color="black",
        label="geometric mean",
    )  # fmt: skip
    axes.set_xscale("log")
    values = [record["ratios"][peer] for record in compared]
    axes.set_xlim(min(0.5, min(values) / 1.2), max(2.0, max(values) * 1.2))
    low, high = axes.get_xlim()
    axes.set_xticks([t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= t <= high])
    axes.minorticks_off()
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_yticks(range(len(rows)), [family.replace("_", " ") for family in rows], fontsize=9)
    _plain(axes.xaxis)
    axes.set_xlabel(f"times as fast as {PEER_NAMES.get(peer, peer)}'s faster layout, each case")
    figure.legend(frameon=False, fontsize=9, loc="outside upper right", ncols=3)
    _tidy(axes)
    return figure


def titled_families(records: Sequence[Record]) -> tuple[str, Figure]:
    """Return `families` against the peer that most cases have, with a title."""
    peer = statistics.mode(peer for record in records for peer in record["ratios"])
    title = f"Times as fast as {PEER_NAMES.get(peer, peer)}, family by family"
    return title, families(records, peer)


def write_svg(figure: Figure, path: Path) -> None:
    """Write a drawing with text as text, the same bytes each time."""
    with mpl.rc_context({"svg.hashsalt": "mpsgrad", "svg.fonttype": "none"}):
        figure.savefig(
            path, format="svg", facecolor="white", metadata={"Date": None, "Creator": None}
        )


def write_plots(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write ``index.html`` and its drawings as PNG, of peers where there are any; return paths."""
    drawings = {"roofline": roofline(records)}
    if any(record["ratios"] for record in records):
        drawings["families"] = titled_families(records)[1]
        drawings["ratios"] = ratios(records)
    written = []
    for name, figure in drawings.items():
        written.append(folder / f"{name}.png")
        figure.savefig(written[-1], dpi=150)
    written.append(folder / "index.html")
    written[-1].write_text(_page(records, drawings), encoding="utf-8")
    return written


def write_scaling(points: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write ``scaling.png``: time and memory along every axis."""
    axes_names = list(dict.fromkeys(point["axis"] for point in points))
    kernels = list(dict.fromkeys(point["kernel"] for point in points))
    figure = Figure(figsize=(4.4 * len(axes_names), 8), layout="constrained")
    grid = figure.subplots(2, len(axes_names), squeeze=False, sharex="col", sharey="row")
    for column, axis in enumerate(axes_names):
        time, memory = grid[0][column], grid[1][column]
        for i, kernel in enumerate(kernels):
            group = sorted(
                (p for p in points if p["kernel"] == kernel and p["axis"] == axis),
                key=lambda point, axis=axis: point[axis],
            )
            values = [point[axis] for point in group]
            style = {
                "marker": "o",
                "markersize": 4,
                "linewidth": 1.3,
                "color": COLOURS[i % len(COLOURS)],
            }
            time.plot(values, [point["seconds"] * 1e3 for point in group], label=kernel, **style)
            shares = [max(point["scratch"] / point["arrays"], LEAST) for point in group]
            memory.plot(values, shares, **style)
        memory.axhline(0.1, color="black", linewidth=0.8, linestyle=":")
        time.set(xscale="log", yscale="log", title=f"against {axis}")
        memory.set(xscale="log", yscale="log", xlabel=axis)
        memory.set_xticks(values, [f"{value:g}" for value in values])
        memory.minorticks_off()
        for axes in (time, memory):
            _plain(axes.yaxis)
            _tidy(axes)
    grid[0][0].set_ylabel("milliseconds")
    grid[1][0].set_ylabel(f"scratch memory / arrays, at least {LEAST:g}")
    figure.legend(
        *grid[0][0].get_legend_handles_labels(), frameon=False, fontsize=9,
        loc="outside upper center", ncols=4,
    )  # fmt: skip
    path = folder / "scaling.png"
    figure.savefig(path, dpi=150)
    return path


# --- The page ---------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2rem; }
img { width: 100%; height: auto; background: white; border-radius: 4px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 1px solid; cursor: pointer; position: sticky; top: 0; background: Canvas; }
tbody tr:hover { background: color-mix(in srgb, CanvasText 8%, Canvas); }
.slow { color: #d9480f; font-weight: 600; } .quiet { opacity: .65; }
"""

ROOFLINE = (
    "Left: operations a second, below the peak of multiply-adds and of copies. Right: bytes of "
    "inputs and outputs a second, beside a copy of as many bytes; dashed, arrays that are only "
    "read: a processor may write beside reading, so the more of its bytes a kernel reads, the "
    "further it stays below a copy."
)

SCRIPT = """
for (const table of document.querySelectorAll("table"))
  table.querySelectorAll("th").forEach((head, column) => head.onclick = () => {
    const body = table.tBodies[0];
    const key = row => row.cells[column].dataset.key ?? row.cells[column].innerText;
    const number = row => parseFloat(key(row)), turn = head.turn = -(head.turn ?? -1);
    const rows = [...body.rows].sort((a, b) => isNaN(number(a)) && isNaN(number(b))
      ? turn * key(a).localeCompare(key(b))
      : isNaN(number(a)) ? 1 : isNaN(number(b)) ? -1 : turn * (number(a) - number(b)));
    body.append(...rows);
  });
"""


def _cell(text: str, key: float | None = None, kind: str = "") -> str:
    attributes = "" if key is None else f' data-key="{key:.6g}"'
    if kind:
        attributes += f' class="{kind}"'
    return f"<td{attributes}>{html.escape(text)}</td>"


def _ratio_cell(value: float | None, *, clear: bool = True) -> str:
    if value is None or math.isnan(value):
        return _cell("-", None, "quiet")
    if not clear:
        return _cell(f"~{value:.2f}", value, "quiet")
    return _cell(f"{value:.2f}", value, "slow" if value < 1 else "")


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _means_table(records: Sequence[Record], peers: Sequence[str]) -> str:
    rows = []
    for family in (*_families(records), "all"):
        own = [record for record in records if family in ("all", record["family"])]
        cells = [_cell(family), _cell(str(len(own)), len(own))]
        for peer in peers:
            found = [record["ratios"][peer] for record in own if peer in record["ratios"]]
            cells.append(_ratio_cell(geometric_mean(found)))
            slower = sum(value < 1 for value in found)
            cells.append(_cell(f"{slower} of {len(found)}", slower))
        rows.append("".join(cells))
    heads = ["family", "cases"]
    for peer in peers:
        heads += [f"x {peer}", f"slower than {peer}"]
    return _table(heads, rows)


def _targets(records: Sequence[Record]) -> str:
    rows = [
        _cell(target.what)
        + _cell(target.wanted)
        + _cell(target.reached, kind="" if target.met else "slow")
        for target in targets(records)
    ]
    if not rows:
        return ""
    return f"<h2>Targets</h2>{_table(['target', 'wanted', 'reached'], rows)}"


def _cases_table(records: Sequence[Record], peers: Sequence[str]) -> str:
    rows = []
    for record in worst_first(records):
        seconds = record["seconds"]
        each = seconds["median"] / record["calls_a_run"]
        spread = (seconds["q3"] - seconds["q1"]) / seconds["median"]
        shares = [record.get(name) for name in ("fraction", "fraction_now")]
        cells = [
            _cell(record["name"]),
            _cell(duration(each), each),
            _cell(f"{spread:.0%}", spread),
            *(_cell("-") if share is None else _cell(f"{share:.0%}", share) for share in shares),
            _cell(record.get("limit", "-")),
            *(
                _ratio_cell(record["ratios"].get(peer), clear=is_clear(record, peer))
                for peer in peers
            ),
        ]
        rows.append("".join(cells))
    heads = ["case", "time", "spread", "of floor", "now", "limit", *(f"x {p}" for p in peers)]
    return _table(heads, rows)


def _page(records: Sequence[Record], drawings: dict[str, Figure]) -> str:
    first, machine = records[0], records[0]["machine"]
    peers = peers_of(records)
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    commit = f", commit {first['commit']}" if first["commit"] else ""
    load = "" if first.get("load") is None else f"; load {first['load']:.1f} before the first case"
    trial = "<p class=slow>A trial with small layers and short times.</p>" if first["quick"] else ""
    images = {}
    for name, figure in drawings.items():
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=150)
        images[name] = base64.b64encode(stream.getvalue()).decode("ascii")

    def picture(name: str, title: str, text: str) -> str:
        if name not in images:
            return ""
        source = f"data:image/png;base64,{images[name]}"
        return f'<h2>{title}</h2><p>{text}</p><img alt="{title}" src="{source}">'

    means = ""
    if peers:
        means = (
            "<h2>Against other libraries</h2><p>Time of the library's fastest variant over ours, "
            f"geometric means; above 1 mpsgrad is faster.</p>{_means_table(records, peers)}"
        )
    size, _, rate = machine["bandwidth"][-1]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>mpsgrad: benchmarks</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{STYLE}</style></head><body>
<h1>mpsgrad: benchmarks</h1>
<p class="quiet">{html.escape(machine["name"])}, {html.escape(machine["instruction_set"])},
{machine["threads"]} of {machine["cores"]} processors, {html.escape(machine["system"])};
{html.escape(versions + commit)}; {html.escape(first["time"])}; caches {first["caches"]}{load}</p>
{trial}
<p>Multiply-adds {machine["multiply_add"] / 1e9:.0f} GFLOP/s, copies {rate / 1e9:.1f} GB/s over
{amount(size)}, an empty command buffer {duration(machine["empty_encode"])}: measured before the
cases.</p>
{_targets(records)}
{means}
{picture("families", "Every family", "A mark for each case, and the geometric mean.")}
{picture("ratios", "Every case", "A mark for each case; kernels with the worst case come first.")}
{picture("roofline", "Against the machine", ROOFLINE)}
<h2>Cases</h2>
<p>The worst ratio first; click a heading to sort. Of floor: the least time that the operations take
at the peak, or the bytes at the speed of copies, over the time measured; the limit is the larger of
the two. Now: the same with the speed that the limit had in turns with the case. ~ before a ratio:
the middle halves of both times overlap.</p>
{_cases_table(records, peers)}
<script>{SCRIPT}</script></body></html>
"""
