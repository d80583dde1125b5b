"""How time and memory grow with batch size, image size and channels.

Every point runs in a process of its own, because the peak of the device's storage is that of a
whole process. The arrays that a user holds are used in place, so what the device takes besides them
is scratch memory, states and its copies of weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .machine import commit, processor_name
from .results import ResultsError
from .suite import has_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from .suite import Context, Work

__all__ = ["AXES", "KERNELS", "fits", "read_points", "selected", "show_fits", "study"]

Point = dict[str, Any]

AXES = {
    "batch": (1, 2, 4, 8, 16, 32),
    "size": (8, 16, 32, 64, 128),
    "channels": (8, 16, 32, 64, 128, 256),
}
QUICK = {"batch": (1, 2), "size": (4, 8), "channels": (4, 8)}
BASE = {"batch": 8, "size": 32, "channels": 64}


def _convolution(kernel: str) -> Callable[..., Work]:
    def build(context: Context, batch: int, size: int, channels: int) -> Work:
        from . import convolution
        from .layers import ConvolutionLayer

        layer = ConvolutionLayer(
            "scaling", (size, size, channels), (3, 3), (1, 1), (1, 1), (1, 1), channels, 1, False
        )
        return convolution.build(context, layer, batch, "float32", kernel)

    return build


def _pooling(direction: str) -> Callable[..., Work]:
    def build(context: Context, batch: int, size: int, channels: int) -> Work:
        from . import pooling
        from .layers import PoolingLayer

        shape = size, size, channels
        layer = PoolingLayer("scaling", shape, (2, 2), (2, 2), (0, 0), (1, 1), ("max",))
        return pooling.build(context, layer, batch, "float32", "max", direction)

    return build


def _images(family: str, *choices: Any, **options: str) -> Callable[..., Work]:
    def build(context: Context, batch: int, size: int, channels: int) -> Work:
        import importlib

        from .layers import Line

        line = Line("scaling", ((size, size, channels),), options)
        module = importlib.import_module(f".{family}", __package__)
        work: Work = module.build(context, line, batch, "float32", *choices)
        return work

    return build


KERNELS: dict[str, Callable[..., Work]] = {
    "convolution/forward": _convolution("forward"),
    "convolution/data_gradient": _convolution("data_gradient"),
    "convolution/weight_gradient": _convolution("weight_gradient"),
    "pooling/max_forward": _pooling("forward"),
    "pooling/max_gradient": _pooling("gradient"),
    "batch_normalization/step": _images("batch_normalization", "step"),
    "group_normalization/instance_gradient": _images("group_normalization", 0, "gradient"),
    "local_normalization/cross_channel_gradient": _images(
        "local_normalization", "cross_channel", "gradient", window="5"
    ),
    "local_normalization/local_contrast_gradient": _images(
        "local_normalization", "local_contrast", "gradient", window="9"
    ),
    "arithmetic/multiply_gradient": _images("arithmetic", "multiply", "gradient"),
    "neuron/relu_gradient": _images("neuron", "relu", "gradient"),
    "softmax/softmax_gradient": _images("softmax", "softmax", "gradient"),
}


def selected(filters: Sequence[str]) -> list[str]:
    """Return the kernels whose name has every word of one of the filters."""
    return [name for name in KERNELS if has_words(name, filters)]


def study(
    kernels: Sequence[str],
    threads: int,
    *,
    quick: bool,
    progress: Any,
    keep: Callable[[Point], None],
) -> list[Point]:
    """Measure every kernel along every axis, from the common middle; keep each point at once."""
    axes, base = (QUICK, {"batch": 2, "size": 8, "channels": 8}) if quick else (AXES, BASE)
    where = {"threads": threads, "processor": processor_name(), "commit": commit()}
    wanted = [
        {"kernel": kernel, "axis": axis, **{**base, axis: value}, **where}
        for kernel in kernels
        for axis, values in axes.items()
        for value in values
    ]
    points = []
    with progress(len(wanted)) as show:
        for point in wanted:
            show(f"{point['kernel']} {point['axis']} {point[point['axis']]}", "")
            points.append(_in_own_process({**point, "quick": quick}))
            keep(points[-1])
    return points


def _in_own_process(point: Point) -> Point:
    command = [sys.executable, "-m", f"{__package__}.point", json.dumps(point)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        last = result.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ResultsError(f"{point['kernel']}: the measuring process failed: {last[0]}")
    measured: Point = json.loads(result.stdout)
    return measured


def read_points(path: str) -> list[Point]:
    """Return the points of a file that `scaling --json` wrote.

    Raises
    ------
    ResultsError
        If it cannot be read, or holds something else.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        points = [json.loads(line) for line in lines if line.strip()]
        if not points or not all({"axis", "kernel", "seconds"} <= set(p) for p in points):
            raise ValueError
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise ResultsError(f"{path}: not the results of a scaling study") from error
    return points


def fits(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return, for every kernel and axis, the exponent of the time and the share of memory.

    The exponent is the slope of a straight line through the logarithms: over all points, and over
    the upper half, where fixed costs no longer count.
    """
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point["kernel"], point["axis"]].append(point)
    found = []
    for (kernel, axis), group in groups.items():
        group.sort(key=lambda point: point[axis])
        values = np.array([point[axis] for point in group], float)
        times = np.array([point["seconds"] for point in group])
        half = len(group) // 2 if len(group) > 3 else 0
        found.append(
            {
                "kernel": kernel,
                "axis": axis,
                "values": values.tolist(),
                "exponent": _slope(values, times),
                "upper_exponent": _slope(values[half:], times[half:]),
                "scratch_share": max(point["scratch"] / point["arrays"] for point in group),
                "last_share": group[-1]["scratch"] / group[-1]["arrays"],
            }
        )
    return found


def _slope(values: np.ndarray, results: np.ndarray) -> float:
    return float(np.polyfit(np.log(values), np.log(results), 1)[0])


def show_fits(found: Sequence[dict[str, Any]], out: Console) -> None:
    """Print a row for every kernel and axis."""
    from .tables import new_table, show_table

    heads = ("against", "from", "to", "time grows as", "upper half", "scratch", "at the end")
    table = new_table("kernel", *heads)
    for row in found:
        table.add_row(
            row["kernel"],
            row["axis"],
            f"{row['values'][0]:g}",
            f"{row['values'][-1]:g}",
            f"{row['axis']}^{row['exponent']:.2f}",
            f"^{row['upper_exponent']:.2f}",
            f"{row['scratch_share']:.1%}",
            f"{row['last_share']:.1%}",
        )
    show_table(table, out)
    out.print(
        "\nscratch: most of what the device took besides the user's arrays, over those arrays"
    )
