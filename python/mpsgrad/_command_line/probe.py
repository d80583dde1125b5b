"""Ask the Metal device what Apple's documentation leaves open.

For each question: what mpsgrad assumes, which is also what the CPU device does, and what this
machine's framework answered. Without a Metal device there is nobody to ask: exit code 2.

Examples
--------
  mpsgrad probe
  mpsgrad probe --json > answers.json
"""

from __future__ import annotations

import platform
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad import _core
from mpsgrad._command_line.report import UserError, open_device, print_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

__all__ = ["add_arguments", "run"]


@dataclass(frozen=True)
class Answer:
    """One question; `agrees` is None if the machine could not be asked."""

    id: str
    question: str
    assumed: str
    answered: str
    agrees: bool | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Ask every question and print the answers."""
    device = open_device("metal")
    if not options.json:
        console, table = _table(device)
    answers = [answer for ask in _QUESTIONS for answer in ask(device)]
    if options.json:
        print_json(
            {
                "version": mg.__version__,
                "device": device.name,
                "system": _system(),
                "answers": [asdict(answer) for answer in answers],
            }
        )
        return 0
    for answer in answers:
        mark = {True: "yes", False: "NO", None: "not asked"}[answer.agrees]
        table.add_row(answer.id, answer.question, answer.assumed, answer.answered, mark)
    console.print(table)
    count = sum(answer.agrees is False for answer in answers)
    asked = sum(answer.agrees is not None for answer in answers)
    console.print(f"{asked} answers, {count} other than assumed.")
    return 0


def _system() -> str:
    version = platform.mac_ver()[0]
    return f"macOS {version}" if version else platform.platform(terse=True)


def _table(device: mg.Device) -> tuple[Any, Any]:
    try:
        from rich import box, console, table
    except ModuleNotFoundError:
        raise UserError(
            "the table needs rich, which is not installed; "
            "use --json, or pip install 'mpsgrad[demo]'"
        ) from None
    result = table.Table(
        title=f"{device.name}, {_system()}, mpsgrad {mg.__version__}", box=box.SIMPLE_HEAD
    )
    result.add_column("", no_wrap=True)
    result.add_column("question", ratio=1, overflow="fold")
    for name in ("assumed", "answered", "as assumed"):
        result.add_column(name, max_width=18, overflow="fold")
    return console.Console(), result


def _compare(number: str, question: str, assumed: Any, answered: Any) -> Answer:
    return Answer(number, question, str(assumed), str(answered), bool(assumed == answered))


def _not_asked(number: str, question: str, assumed: Any, reason: str) -> Answer:
    return Answer(number, question, str(assumed), reason, None)


# --- geometry: what Apple's classes say of themselves ---------------------------


def _placement(device: mg.Device, width: int, kernel: int, stride: int, method: int) -> list[int]:
    """Return width and offset of a result as mpsgrad has them."""
    pooling = mg.PoolingMax(kernel, 1, stride, 1, device=device)
    pooling.padding = mg.DefaultPadding(method)
    image = mg.Image(device, mg.ImageDescriptor(width=width, height=1, feature_channels=1))
    result = pooling.destination_descriptor(image)
    return [result.width, pooling.offset.x]


def _placements(
    device: mg.Device, number: str, cases: list[tuple[str, int, int, int, int]]
) -> Iterator[Answer]:
    for words, width, kernel, stride, method in cases:
        _, answered_width, _, _, _, offset = _core._probe_pooling_descriptor(
            device, width, kernel, stride, method
        )
        yield _compare(
            number,
            f"{words}: width and offset of a max pooling, kernel {kernel}, stride {stride}, "
            f"of {width} pixels",
            _placement(device, width, kernel, stride, method),
            [answered_width, offset[0]],
        )


def _h1(device: mg.Device) -> Iterator[Answer]:
    method = mg.PaddingMethod
    yield from _placements(
        device,
        "H1",
        [
            ("rounding of unread pixels, remainder top left", 7, 2, 3, method.SIZE_VALID_ONLY),
            (
                "rounding of unread pixels, remainder bottom right",
                7,
                2,
                3,
                method.SIZE_VALID_ONLY | method.ADD_REMAINDER_TO_BOTTOM_RIGHT,
            ),
        ],
    )


def _h2(device: mg.Device) -> Iterator[Answer]:
    method = mg.PaddingMethod
    sides = {"top left": method.ALIGN_TOP_LEFT, "bottom right": method.ALIGN_BOTTOM_RIGHT}
    yield from _placements(
        device,
        "H2",
        [
            *((f"same, aligned {s}", 6, 3, 2, method.SIZE_SAME | m) for s, m in sides.items()),
            *((f"valid only, aligned {s}", 8, 1, 4, m) for s, m in sides.items()),
        ],
    )


def _kernels(device: mg.Device) -> dict[str, tuple[mg.UnaryKernel, mg.GradientKernel]]:
    """Return mpsgrad's kernels that the prober asks Apple's about, by the forward class."""
    tanh = mg.NeuronDescriptor(mg.NeuronType.TANH, 1.0, 1.0)
    window, dilated = (3, 3, 2, 2), (2, 2, 2, 2, 1, 1)
    return {
        "Neuron": (mg.Neuron(tanh, device=device), mg.NeuronGradient(tanh, device=device)),
        "SoftMax": (mg.SoftMax(device=device), mg.SoftMaxGradient(device=device)),
        "LogSoftMax": (mg.LogSoftMax(device=device), mg.LogSoftMaxGradient(device=device)),
        "PoolingMax": (
            mg.PoolingMax(*window, device=device),
            mg.PoolingMaxGradient(*window, device=device),
        ),
        "PoolingAverage": (
            mg.PoolingAverage(*window, device=device),
            mg.PoolingAverageGradient(*window, device=device),
        ),
        "PoolingL2Norm": (
            mg.PoolingL2Norm(*window, device=device),
            mg.PoolingL2NormGradient(*window, device=device),
        ),
        "DilatedPoolingMax": (
            mg.DilatedPoolingMax(*dilated, device=device),
            mg.DilatedPoolingMaxGradient(*dilated, device=device),
        ),
    }


def _descriptors(
    device: mg.Device, channel_format: mg.ChannelFormat, channel_offset: int
) -> dict[str, mg.ImageDescriptor]:
    """Return what mpsgrad's kernels make of the images that the prober shows Apple's."""

    def image(width: int, height: int, of_format: mg.ChannelFormat) -> mg.Image:
        return mg.Image(
            device,
            mg.ImageDescriptor(
                width=width, height=height, feature_channels=4, channel_format=of_format
            ),
        )

    formats = mg.ChannelFormat
    other = formats.FLOAT16 if channel_format == formats.FLOAT32 else formats.FLOAT32
    result = {}
    for name, (forward, gradient) in _kernels(device).items():
        forward.destination_feature_channel_offset = channel_offset
        source = image(5, 5, channel_format)
        made = forward.destination_descriptor(source)
        result[name] = made
        states = forward.result_state(source, mg.Image(device, made))
        gradient.destination_feature_channel_offset = channel_offset
        incoming = image(made.width, made.height, channel_format)
        second = image(5, 5, other)
        states = states if isinstance(states, list) else [states]
        result[f"{name}Gradient"] = gradient.destination_descriptor([incoming, second], states)
    return result


def _short(apple_class: str) -> str:
    return apple_class.removeprefix("MPSCNN").removeprefix("MPSNN")


def _h3(device: mg.Device) -> Iterator[Answer]:
    chosen = mg.ChannelFormat.FLOAT32
    assumed = _descriptors(device, chosen, 0)
    for apple_class, _, _, _, channel_format, _ in _core._probe_descriptors(device, chosen, 0):
        yield _compare(
            "H3",
            f"{apple_class}: format of the result of a float32 source or gradient",
            assumed[_short(apple_class)].channel_format.name,
            channel_format.name,
        )


def _h4(device: mg.Device) -> Iterator[Answer]:
    chosen = mg.ChannelFormat.FLOAT32
    assumed = _descriptors(device, chosen, 4)
    for apple_class, _, _, channels, _, _ in _core._probe_descriptors(device, chosen, 4):
        yield _compare(
            "H4",
            f"{apple_class}: channels of a result of 4, destinationFeatureChannelOffset 4",
            assumed[_short(apple_class)].feature_channels,
            channels,
        )


# --- numbers: the same encode on both devices ------------------------------------


def _on_both(
    device: mg.Device, number: str, question: str, compute: Callable[[mg.Device], Any]
) -> Answer:
    """Compare what the CPU device computes, which is what mpsgrad assumes, with the machine."""
    assumed = compute(mg.Device("cpu"))
    try:
        answered = compute(device)
    except mg.errors.UnsupportedError as error:
        return _not_asked(number, question, _show(assumed), str(error))
    agrees = bool(np.allclose(np.asarray(assumed), np.asarray(answered), rtol=1e-3, atol=1e-6))
    return Answer(number, question, _show(assumed), _show(answered), agrees)


def _show(values: Any) -> str:
    return " ".join(f"{value:.6g}" for value in np.ravel(values))


def _h5(device: mg.Device) -> Iterator[Answer]:
    def data_gradient(on: mg.Device) -> Any:
        weights = np.array([1.0, 2.0, 4.0], np.float32).reshape(1, 1, 3, 1)
        descriptor = mg.ConvolutionDescriptor(
            3, 1, input_feature_channels=1, output_feature_channels=1
        )
        source = mg.ArrayConvolutionDataSource(weights, descriptor=descriptor)
        forward = mg.Convolution(source, device=on)
        forward.edge_mode = mg.EdgeMode.CLAMP
        x = np.array([1.0, 3.0, 5.0, 7.0], np.float32).reshape(1, 1, 4, 1)
        y, state = forward(x, with_state=True)
        gradient = mg.ConvolutionGradient(source, device=on)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that the border is the question
            return gradient(np.ones_like(y), x, state)

    yield _on_both(
        device,
        "H5",
        "data gradient of a convolution that clamped, weights 1 2 4: the first and last pixel",
        lambda on: data_gradient(on)[0, 0, [0, -1], 0],
    )


def _h6(device: mg.Device) -> Iterator[Answer]:
    yield _compare(
        "H6",
        "reads that one encode counts on a temporary image that is both of its sources",
        2,
        _core._probe_reads_of_shared_source(device),
    )


def _h7(device: mg.Device) -> Iterator[Answer]:
    for name, survives in _core._probe_archived_properties(device):
        yield _compare(
            "H7",
            f"an archive of MPSCNNPoolingAverage keeps {name}",
            "kept",
            "kept" if survives else "lost",
        )


def _pool(
    on: mg.Device,
    classes: tuple[Any, Any],
    window: tuple[int, ...],
    source: list[float],
    incoming: list[float],
    *,
    offset: int = 0,
    edge_mode: mg.EdgeMode = mg.EdgeMode.ZERO,
) -> Any:
    """Return the result of a pooling one pixel high, and after it the gradient."""
    forward, gradient = (cls(*window, device=on) for cls in classes)
    forward.offset = (offset, 0)
    forward.edge_mode = edge_mode
    rows = [np.asarray(values, np.float32).reshape(1, 1, -1, 1) for values in (source, incoming)]
    sources, gradients = (mg.ImageBatch.from_array(on, row) for row in rows)
    results = mg.ImageBatch.allocate(
        on,
        mg.ImageDescriptor(width=len(incoming), height=1, feature_channels=1),
        1,
    )
    states = forward.result_state(sources, results)
    with on.command_queue().command_buffer() as work:
        forward.encode(work, sources, results, destination_state=states)
        dx = gradient.encode(work, gradients, sources, states, allocator=mg.DEFAULT)
        mg.synchronize(results, work)
        mg.synchronize(dx, work)
    work.wait_until_completed()
    return np.concatenate([results.to_array().ravel(), dx.to_array().ravel()])


def _pooling(device: mg.Device) -> Iterator[Answer]:
    largest = (mg.PoolingMax, mg.PoolingMaxGradient)
    dilated = (mg.DilatedPoolingMax, mg.DilatedPoolingMaxGradient)
    norm = (mg.PoolingL2Norm, mg.PoolingL2NormGradient)
    clamp = mg.EdgeMode.CLAMP
    cases: list[tuple[str, Callable[[mg.Device], Any]]] = [
        (
            "a max pooling of equal pixels, 7 7 7 2: which of them gets the gradient",
            lambda on: _pool(on, largest, (3, 1, 1, 1), [7, 7, 7, 2], [10, 20], offset=1)[2:],
        ),
        (
            "a max pooling of 0 -1 with zeros outside: whether the zero inside wins",
            lambda on: _pool(on, largest, (3, 1, 1, 1), [0, -1], [1, 2])[2:],
        ),
        (
            "a dilated max pooling that clamped: taps beyond the edge read the edge pixel",
            lambda on: _pool(
                on, dilated, (2, 1, 3, 1, 1, 1), [9, 1, 2, 3], [1, 2], offset=1, edge_mode=clamp
            ),
        ),
        (
            "a max pooling whose window lies wholly outside, clamped",
            lambda on: _pool(on, largest, (2, 1, 1, 1), [5, 6, 7], [1], offset=9, edge_mode=clamp)[
                :1
            ],
        ),
        (
            "an L2 norm pooling of 3 4, clamped: repeats of the edge pixels count",
            lambda on: _pool(on, norm, (3, 1, 1, 1), [3, 4], [1, 0], edge_mode=clamp),
        ),
        (
            "an L2 norm pooling of zeros: the gradient where the norm is 0",
            lambda on: _pool(on, norm, (2, 1, 2, 1), [0, 0, 0, 0], [7, 7], offset=1)[2:],
        ),
    ]
    for number, (question, compute) in enumerate(cases, start=1):
        yield _on_both(device, f"pooling {number}", question, compute)


def _softmax(device: mg.Device) -> Iterator[Answer]:
    x = np.array([1e4, 1e4 - 1, -1e4, 88.0], np.float32).reshape(1, 1, 1, 4)
    yield _on_both(
        device,
        "softmax 1",
        "softmax of 10000 9999 -10000 88: whether the maximum is subtracted first",
        lambda on: np.nan_to_num(mg.SoftMax(device=on)(x), nan=-1.0),
    )


def _optimizer(device: mg.Device) -> Iterator[Answer]:
    def step(on: mg.Device) -> Any:
        descriptor = mg.OptimizerDescriptor(
            1.0, regularization_type=mg.RegularizationType.L1, regularization_scale=0.1
        )
        optimizer = mg.StochasticGradientDescent(optimizer_descriptor=descriptor, device=on)
        before = np.array([1.0, -1.0], np.float32)
        values, gradients = (
            mg.Vector.from_array(on, array.copy()) for array in (before, np.full_like(before, 0.2))
        )
        result = mg.Vector.from_array(on, np.zeros_like(before))
        with on.command_queue().command_buffer() as work:
            optimizer.encode_vector(work, gradients, values, None, result)
            result.synchronize(work)
        work.wait_until_completed()
        return before - result.to_numpy()

    yield _on_both(
        device,
        "optimizer 1",
        "gradient 0.2 after L1 regularization by 0.1 of a value 1 and of a value -1",
        step,
    )


_QUESTIONS: list[Callable[[mg.Device], Iterator[Answer]]] = [
    _h1,
    _h2,
    _h3,
    _h4,
    _h5,
    _h6,
    _h7,
    _pooling,
    _softmax,
    _optimizer,
]
