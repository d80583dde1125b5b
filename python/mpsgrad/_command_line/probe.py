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
            "the table needs rich, which is not installed; run: pip install rich, or give --json"
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
    weights, full = (
        mg.ArrayConvolutionDataSource(np.zeros((4, side, side, 4), np.float32)) for side in (1, 5)
    )
    instances = mg.ArrayInstanceNormalizationDataSource(number_of_feature_channels=4)
    groups = mg.ArrayGroupNormalizationDataSource(number_of_feature_channels=4, number_of_groups=2)
    return {
        "Neuron": (mg.Neuron(tanh, device=device), mg.NeuronGradient(tanh, device=device)),
        "Dropout": (mg.Dropout(0.5, 1, device=device), mg.DropoutGradient(0.5, device=device)),
        "SoftMax": (mg.SoftMax(device=device), mg.SoftMaxGradient(device=device)),
        "LogSoftMax": (mg.LogSoftMax(device=device), mg.LogSoftMaxGradient(device=device)),
        "GramMatrixCalculation": (
            mg.GramMatrixCalculation(device=device),
            mg.GramMatrixCalculationGradient(device=device),
        ),
        "Pad": (mg.Pad(device=device), mg.PadGradient(device=device)),
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
        "Convolution": (
            mg.Convolution(weights, device=device),
            mg.ConvolutionGradient(weights, device=device),
        ),
        "FullyConnected": (
            mg.FullyConnected(full, device=device),
            mg.FullyConnectedGradient(full, device=device),
        ),
        "InstanceNormalization": (
            mg.InstanceNormalization(instances, device=device),
            mg.InstanceNormalizationGradient(device=device),
        ),
        "GroupNormalization": (
            mg.GroupNormalization(groups, device=device),
            mg.GroupNormalizationGradient(device=device),
        ),
        "CrossChannelNormalization": (
            mg.CrossChannelNormalization(3, device=device),
            mg.CrossChannelNormalizationGradient(3, device=device),
        ),
        "SpatialNormalization": (
            mg.SpatialNormalization(3, 3, device=device),
            mg.SpatialNormalizationGradient(3, 3, device=device),
        ),
        "LocalContrastNormalization": (
            mg.LocalContrastNormalization(3, 3, device=device),
            mg.LocalContrastNormalizationGradient(3, 3, device=device),
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
        destination = mg.Image(device, made)
        states = forward.result_state(source, destination)
        with device.command_queue().command_buffer() as work:  # some states must have been filled
            forward.encode(work, source, destination, destination_state=states)
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
    except Exception as error:  # an answer too, and the questions after it are still to be asked
        return Answer(number, question, _show(assumed), f"{type(error).__name__}: {error}", False)
    expected, got = np.asarray(assumed, np.float64), np.asarray(answered, np.float64)
    agrees = expected.shape == got.shape and np.allclose(expected, got, rtol=1e-3, atol=1e-6)
    return Answer(number, question, _show(assumed), _show(answered), bool(agrees))


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


def _dropout(device: mg.Device) -> Iterator[Answer]:
    def masks(on: mg.Device, *seeds: int) -> list[Any]:
        """Return the masks of two encodes of each of some kernels."""
        x = np.ones((2, 4, 4, 16), np.float32)
        kernels = [mg.Dropout(0.5, seed, device=on) for seed in seeds]
        return [[kernel(x, with_state=True)[1].mask for _ in range(2)] for kernel in kernels]

    def values(on: mg.Device) -> Any:
        x = np.full((1, 8, 8, 16), 3, np.float32)
        return np.unique(mg.Dropout(0.75, 1, device=on)(x))

    def infinities(on: mg.Device) -> Any:
        x = np.full((1, 8, 8, 16), np.inf, np.float32)
        y = mg.Dropout(0.75, 1, device=on)(x)
        return [float(np.isnan(y).any())]

    def sequences(on: mg.Device) -> Any:
        (first, second), again = masks(on, 1, 1)
        return [
            float(np.array_equal(*both)) for both in (([first, second], again), (first, second))
        ]

    def images(on: mg.Device) -> Any:
        ((mask, _),) = masks(on, 1)
        return [float(np.array_equal(mask[0], mask[1]))]

    cases: list[tuple[str, Callable[[mg.Device], Any]]] = [
        ("which values a dropout of threes that keeps 3 of 4 gives", values),
        ("whether one of infinities gives NaN", infinities),
        ("whether equal kernels draw equal masks, and two encodes of one equal ones", sequences),
        ("whether two images of a batch get equal masks", images),
    ]
    for number, (question, compute) in enumerate(cases, start=1):
        yield _on_both(device, f"dropout {number}", question, compute)


def _upsampling(device: mg.Device) -> Iterator[Answer]:
    def bilinear(on: mg.Device, align_corners: bool) -> list[Any]:
        """Return the result of a row, and the gradient of ones."""
        forward = mg.UpsamplingBilinear(2, 1, align_corners, device=on)
        x = np.array([1, 2, 4], np.float32).reshape(1, 1, 3, 1)
        y, states = forward(x, with_state=True)
        dx = mg.UpsamplingBilinearGradient(2, 1, device=on)(np.ones_like(y), x, states)
        return [y.ravel(), dx.ravel()]

    cases: list[tuple[str, Callable[[mg.Device], Any]]] = [
        (
            "bilinear upsampling of 1 2 4 by 2, corners not aligned: positions, and the right edge",
            lambda on: bilinear(on, False)[0],
        ),
        (
            "the gradient of that for ones",
            lambda on: bilinear(on, False)[1],
        ),
        (
            "bilinear upsampling of 1 2 4 by 2, corners aligned",
            lambda on: bilinear(on, True)[0],
        ),
        (
            "the gradient of that for ones: whether its kernel finds the alignment in the state",
            lambda on: bilinear(on, True)[1],
        ),
    ]
    for number, (question, compute) in enumerate(cases, start=1):
        yield _on_both(device, f"upsampling {number}", question, compute)


def _resize(device: mg.Device) -> Iterator[Answer]:
    row = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4, 1)
    square = np.arange(1, 5, dtype=np.float32).reshape(1, 2, 2, 1)
    nine = np.arange(9, dtype=np.float32).reshape(1, 3, 3, 1)

    def crop(on: mg.Device, *region: float) -> Any:
        return mg.CropAndResizeBilinear(2, 2, [region], device=on)(nine)

    def sample(on: mg.Device, places: list[list[float]], *, positions: bool) -> Any:
        kernel = mg.GridSample(device=on)
        kernel.use_grid_value_as_input_coordinate = positions
        return kernel(square, np.array(places, np.float32).reshape(1, 1, -1, 2))

    cases: list[tuple[str, Callable[[mg.Device], Any]]] = [
        (
            "1 2 3 4 resized to 3, corners not aligned: positions",
            lambda on: mg.ResizeBilinear(3, 1, device=on)(row),
        ),
        (
            "the same with corners aligned",
            lambda on: mg.ResizeBilinear(3, 1, True, device=on)(row),
        ),
        (
            "the first quarter of 3x3 cropped to 2x2: what normalised coordinates are parts of",
            lambda on: crop(on, 0.0, 0.0, 0.5, 0.5),
        ),
        (
            "a crop of which all but a corner is outside: the extrapolation value",
            lambda on: crop(on, 0.25, 0.25, 1.0, 1.0),
        ),
        (
            "1 2 over 3 4 sampled at (0.5, 0.5), (1.5, 0) and (0, 1): units, outside, x before y",
            lambda on: sample(on, [[0.5, 0.5], [1.5, 0.0], [0.0, 1.0]], positions=True),
        ),
        (
            "the same image half a pixel to the right of each of its first row",
            lambda on: sample(on, [[0.5, 0.0], [0.5, 0.0]], positions=False),
        ),
    ]
    for number, (question, compute) in enumerate(cases, start=1):
        yield _on_both(device, f"resize {number}", question, compute)


def _reshape(device: mg.Device) -> Iterator[Answer]:
    x = np.arange(32, dtype=np.float32).reshape(1, 2, 2, 8)

    def border(on: mg.Device) -> Any:
        pad = mg.Pad((3, 0, 0), (2, 0, 0), device=on)
        pad.edge_mode = mg.EdgeMode.MIRROR
        row = np.arange(3, dtype=np.float32).reshape(1, 1, 3, 1)
        result, states = pad(row, with_state=True)
        powers = 2 ** np.arange(8, dtype=np.float32).reshape(result.shape)
        gradient = mg.PadGradient(device=on)(powers, row, states)
        return np.concatenate([result.ravel(), gradient.ravel()])

    def box(on: mg.Device) -> Any:
        part = mg.Slice(device=on)
        part.edge_mode, part.offset = mg.EdgeMode.CLAMP, mg.Offset(1, 1)
        part.clip_rect = mg.Region((0, 0), (2, 1))
        part.source_feature_channel_offset = 4
        return part(x)

    cases: list[tuple[str, Callable[[mg.Device], Any]]] = [
        (
            "a reshape of 2x2 pixels of 8 channels to 1x2 of 16: the order of the elements",
            lambda on: mg.Reshape(device=on)(x, (1, 2, 16)),
        ),
        ("a mirrored border of 3 and 2 around 0 1 2, and its gradient of powers of 2", border),
        ("a slice that reaches outside the source, with the nearest pixels", box),
    ]
    for number, (question, compute) in enumerate(cases, start=1):
        yield _on_both(device, f"reshape {number}", question, compute)


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
    yield _compare(
        "optimizer 2",
        "by how much timeStep of an Adam grows with one encode of weights and biases",
        1,
        _core._probe_steps_of_state_encode(device),
    )


# --- convolutions and normalizations ----------------------------------------------


def _column(*values: float) -> Any:
    """Return one pixel: (1, 1, C)."""
    return np.array(values, np.float32).reshape(1, 1, -1)


def _before_and_after_reload(
    on: mg.Device, kernel: mg.UnaryKernel, x: Any, change: Callable[[], None]
) -> Any:
    """Encode, change what the kernel reads of its data source, encode again, and run all of it."""
    images = mg.ImageBatch.from_array(on, x)
    results = [mg.ImageBatch.from_array(on, np.zeros_like(x)) for _ in range(2)]
    with on.command_queue().command_buffer() as work:
        kernel.encode(work, images, results[0])
        change()
        kernel.encode(work, images, results[1])
        for result in results:
            mg.synchronize(result, work)
    work.wait_until_completed()
    return np.concatenate([result.to_array().ravel() for result in results])


def _convolution(device: mg.Device) -> Iterator[Answer]:
    x = np.array([1, 2, 3, 4], np.float32).reshape(2, 1, 2, 1)

    def weight_gradients(on: mg.Device, *, encodes: int) -> Any:
        source = mg.ArrayConvolutionDataSource(np.full((1, 1, 1, 1), 2, np.float32))
        forward = mg.Convolution(source, device=on)
        gradient = mg.ConvolutionGradient(source, device=on)
        y, state = forward(x, with_state=True)
        for _ in range(encodes):
            gradient(np.ones_like(y), x, state)
        return np.concatenate([state.gradient_for_weights.to_numpy().ravel()[:1], y[0, 0, :1, 0]])

    yield _on_both(
        device,
        "convolution 1",
        "weight gradient of a batch, 1 2 and 3 4 with gradients of 1: the sum; and a result",
        lambda on: weight_gradients(on, encodes=1),
    )
    yield _on_both(
        device,
        "convolution 2",
        "the same after a second gradient encode with the same state: added",
        lambda on: weight_gradients(on, encodes=2),
    )


def _local(on: mg.Device, name: str, sizes: tuple[int, ...], x: Any, g: Any = None) -> Any:
    """Return result and gradient of a local normalization whose settings are 1."""
    forward = getattr(mg, name)(*sizes, device=on)
    gradient = getattr(mg, f"{name}Gradient")(*sizes, device=on)
    for kernel in (forward, gradient):
        kernel.alpha = kernel.beta = kernel.delta = 1.0
    y, state = forward(x, with_state=True)
    return y[..., 0], gradient(np.ones_like(x) if g is None else g, x, state)


def _normalization(device: mg.Device) -> Iterator[Answer]:
    ramp = np.arange(1, 17, dtype=np.float32).reshape(4, 4, 1)
    corner = np.zeros_like(ramp)
    corner[1, 1] = 1
    square = np.array([1, 2, 3, 4], np.float32).reshape(2, 2, 1)
    row = np.array([1, 3], np.float32).reshape(1, 2, 1)

    def spatial(on: mg.Device) -> Any:
        dx = _local(on, "SpatialNormalization", (3, 3), np.ones((5, 5, 1), np.float32))[1]
        return dx[[2, 0], [2, 0], 0]

    def spatial_ramp(on: mg.Device) -> Any:
        dx = _local(on, "SpatialNormalization", (3, 3), ramp, corner)[1]
        return dx[[0, 1, 2], [0, 1, 2], 0]

    def contrast(on: mg.Device) -> Any:
        dx = _local(on, "LocalContrastNormalization", (3, 3), ramp, corner)[1]
        return dx[[0, 1, 1, 2], [0, 0, 1, 2], 0]

    def batch(on: mg.Device) -> Any:
        x = np.array([1, 2, 3, 6], np.float32).reshape(2, 1, 2, 1)
        source = mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=1)
        _, state = mg.BatchNormalization(source, device=on)(x, with_state=True)
        return np.concatenate([state.mean.to_numpy(), state.variance.to_numpy()])

    def instance(
        on: mg.Device, gamma: list[float] | None
    ) -> tuple[mg.ArrayInstanceNormalizationDataSource, mg.InstanceNormalization]:
        source = mg.ArrayInstanceNormalizationDataSource(
            None if gamma is None else np.array(gamma, np.float32),
            number_of_feature_channels=1,
            epsilon=3.0,
        )
        return source, mg.InstanceNormalization(source, device=on)

    def without_gamma(on: mg.Device) -> Any:
        forward = instance(on, None)[1]
        g = np.eye(1, 2, dtype=np.float32)[..., None]
        y, state = forward(row, with_state=True)
        dx = mg.InstanceNormalizationGradient(device=on)(g, row, state)
        return np.concatenate([y.ravel(), dx.ravel(), state.gradient_for_gamma.to_numpy()])

    def live_gamma(on: mg.Device) -> Any:
        source, forward = instance(on, [2.0])
        _, state = forward(row, with_state=True)
        source.gamma = np.full(1, 4, np.float32)
        forward.reload_gamma_and_beta_from_data_source()
        g = np.eye(1, 2, dtype=np.float32)[..., None]
        return mg.InstanceNormalizationGradient(device=on)(g, row, state)

    def reload(on: mg.Device) -> Any:
        source, forward = instance(on, [2.0])

        def change() -> None:
            source.gamma = np.full(1, 4, np.float32)
            forward.reload_gamma_and_beta_from_data_source()

        return _before_and_after_reload(on, forward, row[None], change)

    def groups(on: mg.Device) -> Any:
        source = mg.ArrayGroupNormalizationDataSource(
            number_of_feature_channels=4, number_of_groups=2, epsilon=3.0
        )
        return mg.GroupNormalization(source, device=on)(_column(1, 3, 7, 9))

    def shifted(on: mg.Device) -> Any:
        forward = instance(on, [2.0])[1]
        forward.offset = mg.Offset(1, 0)
        x = np.array([1, 3, 5], np.float32).reshape(1, 1, 3, 1)
        images = mg.ImageBatch.from_array(on, x)
        result = mg.ImageBatch.from_array(on, np.zeros((1, 1, 2, 1), np.float32))
        with on.command_queue().command_buffer() as work:
            forward.encode(work, images, result)
            mg.synchronize(result, work)
        work.wait_until_completed()
        return result.to_array()

    cases: list[tuple[str, Callable[[mg.Device], Any]]] = [
        (
            "cross-channel gradient, 5 channels of 1, kernel 3: the exact derivative, or -0.62 "
            "-1.22 -1 as printed in Apple's header",
            lambda on: _local(on, "CrossChannelNormalization", (3,), _column(1, 1, 1, 1, 1))[1][
                0, 0, :3
            ],
        ),
        (
            "spatial gradient, 5x5 of 1, kernel 3, centre and corner: exact, or -4 -3.14201",
            spatial,
        ),
        (
            "spatial gradient of a ramp, kernel 3: exact, or -0.1728 -0.010131 -0.007425",
            spatial_ramp,
        ),
        (
            "local contrast gradient of a ramp, kernel 3: exact, or -0.001138 -0.013992 0.072072 "
            "-0.009009",
            contrast,
        ),
        (
            "spatial normalization, kernel 2: the window leans to the smaller index",
            lambda on: _local(on, "SpatialNormalization", (2, 2), square)[0],
        ),
        (
            "batch statistics of 1 2 and 3 6: the mean, and the variance without a correction",
            batch,
        ),
        ("an instance without gamma: result, gradient, and gradient for gamma", without_gamma),
        (
            "gradient of an instance whose gamma went from 2 to 4 after the forward pass: by the 4",
            live_gamma,
        ),
        (
            "results of 1 3 before and after a reload of gamma 2 to 4, none of it committed before",
            reload,
        ),
        ("1 3 7 9 in two groups: the first two channels are one", groups),
        ("1 3 5 from the second pixel on: the statistics of all three", shifted),
    ]
    for number, (question, compute) in enumerate(cases, start=1):
        yield _on_both(device, f"normalization {number}", question, compute)


# --- graphs: what the device's own makes of ours; docs/graph.md says what cannot be asked ---


def _graph(on: mg.Device, results: list[Any], **options: Any) -> mg.graph.Graph:
    """Return a graph; it must be the device's own, where that has some, and not single kernels."""
    graph = mg.graph.Graph(on, result_images=results, format=mg.ChannelFormat.FLOAT32, **options)
    if on.kind == "metal" and not graph._has_runner:
        raise mg.errors.UnsupportedError(f"encoded kernel by kernel: {graph._why_no_runner}")
    return graph


def _run_graph(graph: mg.graph.Graph, **arrays: Any) -> dict[Any, Any]:
    """Return all results by handle."""
    made = graph(arrays)
    handles = [graph.result_handle, *graph.intermediate_image_handles]
    return dict(zip(handles, [made.result, *made.intermediates], strict=True))


def _g1(device: mg.Device) -> Iterator[Answer]:
    def gradients(on: mg.Device, make: Any, first: float, second: float) -> list[Any]:
        node = make(mg.graph.ImageNode("x"), mg.graph.ImageNode("y"))
        node.primary_scale, node.secondary_scale = first, second
        termini = mg.graph.InitialGradientNode(node).training_graph()
        results = _run_graph(_graph(on, termini), x=_column(2), y=_column(3))
        return [results["x"], results["y"]]

    yield _on_both(
        device,
        "G1",
        "a graph's gradients of x y for x and for y, which are 2 and 3",
        lambda on: gradients(on, mg.graph.MultiplicationNode, 1, 1),
    )
    yield _on_both(
        device,
        "G1",
        "a graph's gradients of 5 x - 7 y for x and for y",
        lambda on: gradients(on, mg.graph.SubtractionNode, 5, 7),
    )


def _g3(device: mg.Device) -> Iterator[Answer]:
    def joined() -> tuple[mg.graph.ConcatenationNode, mg.graph.ConcatenationNode]:
        """Return b, c and a in one, and c and a, which are part of it."""
        a, b, c = (mg.graph.ImageNode(name) for name in "abc")
        inner = mg.graph.ConcatenationNode([c, a])
        return mg.graph.ConcatenationNode([b, inner]), inner

    inputs = {name: _column(*[value] * 4) for name, value in (("a", 1), ("b", 2), ("c", 3))}

    def forward(on: mg.Device) -> Any:
        outer, inner = joined()
        nodes = {
            "inner": inner,
            "doubled": mg.graph.NeuronLinearNode(inner, 2.0),
            "outer": outer,
            "negative": mg.graph.NeuronLinearNode(outer, -1.0),
        }
        nodes["tenfold"] = mg.graph.NeuronLinearNode(nodes["doubled"], 5.0)
        for name, node in nodes.items():
            node.result_image.handle = name
            if name in ("inner", "doubled"):
                node.result_image.export()
        graph = _graph(on, [nodes[name] for name in ("outer", "negative", "tenfold")])
        results = _run_graph(graph, **inputs)
        return np.concatenate([results[name].ravel()[::4] for name in nodes])

    def backward(on: mg.Device) -> list[Any]:
        termini = joined()[0].training_graph(mg.graph.ImageNode("dr"))
        gradient = _column(*[7] * 4, *[8] * 4, *[9] * 4)
        results = _run_graph(_graph(on, termini), **inputs, dr=gradient)
        return [results[name].ravel()[0] for name in "abc"]

    yield _on_both(
        device,
        "G3",
        "inputs a b c of 1 2 3, exports c,a and twice that, results b,c,a and -1 and 10 times it "
        "or c,a: each is found by its handle",
        forward,
    )
    yield _on_both(
        device,
        "G3",
        "gradients 7 8 9 of b,c,a: those for a b c are found by their handles",
        backward,
    )


def _g5(device: mg.Device) -> Iterator[Answer]:
    def masks(on: mg.Device) -> list[float]:
        node = mg.graph.DropoutNode(mg.graph.ImageNode("x"), 0.5, 1)
        assert node.result_state is not None
        node.result_state.export_from_graph = True
        images = mg.ImageBatch.from_array(on, np.ones((4, 4, 4, 16), np.float32))
        graph = _graph(on, [node])
        with on.command_queue().command_buffer() as work:
            made = graph.encode_batch(work, images)
            mg.synchronize(made.result, work)
        work.wait_until_completed()
        results = {image.tobytes() for image in made.result.to_array()}
        return [len(results), len({id(state) for state in made.states[0]})]

    yield _on_both(
        device,
        "G5",
        "a graph's dropout of a batch of 4 equal images: how many masks, and how many states",
        masks,
    )


def _g6(device: mg.Device) -> Iterator[Answer]:
    def results(on: mg.Device) -> list[Any]:
        source = mg.ArrayConvolutionDataSource(
            np.ones((1, 1, 1, 1), np.float32), optimizer=mg.SGD(1.0, device=on)
        )
        node = mg.graph.ConvolutionNode(mg.graph.ImageNode("x"), source)
        (terminus,) = node.training_graph(mg.graph.ImageNode("dy"))
        graph = _graph(on, [node, terminus], results_are_needed=[True, False])
        images = {
            name: mg.ImageBatch.from_array(on, np.ones((1, 1, 1, 1), np.float32))
            for name in ("x", "dy")
        }
        with on.command_queue().command_buffer() as work:
            made = [graph.encode_batch(work, images).result for _ in range(2)]
            for batch in made:
                mg.synchronize(batch, work)
        work.wait_until_completed()
        return [batch.to_array() for batch in made]

    yield _on_both(
        device,
        "G6",
        "results of two training encodes on one command buffer, of a weight that steps from 1 to "
        "0: the second uses the update of the first",
        results,
    )


def _graphs(device: mg.Device) -> Iterator[Answer]:
    def limited(on: mg.Device) -> Any:
        node = mg.graph.AdditionNode(mg.graph.ImageNode("x"), mg.graph.ImageNode("y"))
        node.maximum_value = 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that this is a question
            graph = _graph(on, node.training_graph(mg.graph.ImageNode("dr")))
        return _run_graph(graph, x=_column(0, 3), y=_column(0, 0), dr=_column(1, 1))["x"]

    yield _on_both(
        device,
        "graph 1",
        "a graph's gradient for x of x + 0, at most 1, where x is 0 and where it is 3",
        limited,
    )


_QUESTIONS: list[Callable[[mg.Device], Iterator[Answer]]] = [
    _h1,
    _h2,
    _h3,
    _h4,
    _h5,
    _h6,
    _h7,
    _g1,
    _g3,
    _g5,
    _g6,
    _pooling,
    _softmax,
    _dropout,
    _upsampling,
    _resize,
    _reshape,
    _optimizer,
    _convolution,
    _normalization,
    _graphs,
]
