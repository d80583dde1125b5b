"""Convolution: the forward pass, the two gradients, and both together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .peers import LAYOUTS
from .suite import COMPILED, Output, Work, layer_cases
from .timing import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from .layers import ConvolutionLayer
    from .suite import Case, Context, Request

__all__ = ["cases"]

KERNELS = ("forward", "data_gradient", "weight_gradient", "gradient")
OPTIONS = {
    "data_gradient": mg.ConvolutionGradientOption.DATA,
    "weight_gradient": mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS,
    "gradient": mg.ConvolutionGradientOption.ALL,
}
SAMPLES = 128


def cases(request: Request) -> Iterator[Case]:
    """Yield every kernel on every layer."""
    kernels = {name: (name,) for name in KERNELS}
    for line in layers.read("convolution"):
        layer = layers.ConvolutionLayer.of(line)
        if request.quick:
            layer = layer.quick()
        yield from layer_cases(request, "convolution", layer, kernels, build)


def build(context: Context, layer: ConvolutionLayer, batch: int, dtype: str, kernel: str) -> Work:
    """Make arrays and kernels."""
    data = Data(context, layer, batch, dtype)
    run, outputs = (forward if kernel == "forward" else backward)(context, data, kernel)
    x, w, g = data.x.nbytes, data.w.nbytes, data.g.nbytes
    moved = {
        "forward": x + w + g,
        "data_gradient": g + w + x,
        "weight_gradient": g + x + data.w.size * 4,
        "gradient": g + x + w + x + data.w.size * 4,
    }[kernel]
    both = 2 if kernel == "gradient" else 1
    return Work(
        run,
        outputs,
        bytes=moved,
        flops=both * layer.flops(batch),
        arrays=2 * x + w + g,
        peers={
            "torch": lambda peer: torch_calls(peer, data, kernel),
            "onednn": lambda peer: peer.convolution(layer, kernel, data.x, data.w, data.b, data.g),
            **dict.fromkeys(COMPILED, lambda peer: compiled_calls(peer, data, kernel)),
        },
    )


class Data:
    """The arrays of a layer: source, weights, biases and incoming gradient."""

    def __init__(self, context: Context, layer: ConvolutionLayer, batch: int, dtype: str) -> None:
        self.layer = layer
        self.x = context.normal((batch, *layer.shape), dtype)
        self.w = context.normal(layer.weights_shape, dtype)
        self.b = context.normal((layer.outputs,))
        self.g = context.normal((batch, *layer.size, layer.outputs), dtype)
        self.rng = context.rng

    def descriptor(self) -> mg.ConvolutionDescriptor:
        """Return what the weights are for."""
        layer = self.layer
        cls = mg.DepthWiseConvolutionDescriptor if layer.depthwise else mg.ConvolutionDescriptor
        return cls(
            layer.kernel[1],
            layer.kernel[0],
            input_feature_channels=layer.shape[2],
            output_feature_channels=layer.outputs,
            stride_in_pixels_x=layer.stride[1],
            stride_in_pixels_y=layer.stride[0],
            dilation_rate_x=layer.dilation[1],
            dilation_rate_y=layer.dilation[0],
            groups=layer.groups,
        )

    def source(self) -> mg.ArrayConvolutionDataSource:
        """Return weights and biases with their descriptor."""
        return mg.ArrayConvolutionDataSource(self.w, self.b, descriptor=self.descriptor())

    def sum_of(self, row: int, column: int, channel: int) -> tuple[int, int, int]:
        """Return which sum of the convolution an element of the result is."""
        return row, column, channel

    def kernel(self, context: Context) -> mg.Convolution:
        """Return the forward kernel."""
        result = mg.Convolution(self.source(), device=context.device)
        (height, width) = self.layer.pad
        result.padding = mg.ExplicitPadding(width, width, height, height)
        return result


def forward(context: Context, data: Data, _: str) -> tuple[Callable[[], Any], list[Output]]:
    """Return the call of the forward pass, and its result."""
    kernel = data.kernel(context)
    sources = context.batch(data.x)
    results = context.result(data.g.shape, data.g.dtype)

    def run() -> None:
        context.run(lambda buffer: kernel.encode_batch(buffer, sources, allocator=results))

    return run, [Output("y", lambda: context.read(results), forward_samples(data))]


class NewStates:
    """States of a forward kernel that are made anew before every call, as in training.

    Weight gradients are added to what a state has already. The forward pass is encoded, which
    states need, but a predicate keeps it from running. The kernel's offset is left as it is, for
    results may be larger than its padding has them; `place` finds it by padding.
    """

    def __init__(
        self, context: Context, forward: Any, sources: mg.ImageBatch, result: npt.NDArray[Any]
    ) -> None:
        self._context = context
        self._forward, self._sources = forward, sources
        self._results = context.result(result.shape, result.dtype)
        self._never = mg.Predicate(mg.Buffer(context.device, 4))
        self._renew()

    def place(self) -> None:
        """Find the kernel's offset by its padding, as an encode does that has no destination."""
        self._encode(allocator=self._results)
        self._renew()

    def before(self, which: str, run: Callable[[], Any]) -> Callable[[], Any]:
        """Return the call of a gradient, which needs new states if it is one of weights."""
        return run if which == "data_gradient" else Prepared(self._renew, run)

    def array(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return what a finished call has left."""
        self._context.run(self.now[0].synchronize)
        return np.asarray(getattr(self.now[0], name).to_numpy()).reshape(shape)

    def _renew(self) -> None:
        self.now: Any = None  # so that its memory serves again
        self.now = self._forward.result_state_batch(self._sources, self._results)
        self._encode(self._results, destination_states=self.now)

    def _encode(self, *destination: mg.ImageBatch, **options: Any) -> None:
        def encode(buffer: mg.CommandBuffer) -> None:
            buffer.predicate = self._never
            self._forward.encode_batch(buffer, self._sources, *destination, **options)

        self._context.run(encode)


def backward(context: Context, data: Data, which: str) -> tuple[Callable[[], Any], list[Output]]:
    """Return the call of a gradient, and its results."""
    sources, incoming = context.batch(data.x), context.batch(data.g)
    results = context.result(data.x.shape, data.x.dtype)
    states = NewStates(context, data.kernel(context), sources, data.g)
    states.place()
    kernel = mg.ConvolutionGradient(data.source(), device=context.device)
    kernel.gradient_option = OPTIONS[which]

    def encode(buffer: mg.CommandBuffer) -> None:
        kernel.encode_batch(buffer, incoming, sources, states.now, allocator=results)

    outputs = []
    if which != "weight_gradient":
        outputs.append(Output("dx", lambda: context.read(results), data_samples(data)))
    if which != "data_gradient":
        outputs += [
            Output(
                "dw",
                lambda: states.array("gradient_for_weights", data.w.shape),
                weight_samples(data),
            ),
            Output(
                "db",
                lambda: states.array("gradient_for_biases", data.b.shape),
                bias_samples(data.rng, data.g),
            ),
        ]
    return states.before(which, lambda: context.run(encode)), outputs


# --- Some elements in float64 -------------------------------------------------


def _weights(data: Data) -> npt.NDArray[np.float64]:
    """Return OHWI weights, with one input for depthwise ones."""
    w = data.w.astype(np.float64)
    return w[..., np.newaxis] if data.layer.depthwise else w


def _inputs(layer: ConvolutionLayer, output: int) -> slice:
    """Return the input channels that an output channel reads."""
    if layer.depthwise:
        return slice(output, output + 1)
    group = output // (layer.outputs // layer.groups)
    return slice(group * layer.inputs, (group + 1) * layer.inputs)


def forward_samples(data: Data) -> Samples:
    """Return elements of the result: a product for every tap inside the source, and the bias."""
    layer, w = data.layer, _weights(data)
    index = places(data.rng, data.g.shape, SAMPLES)
    exact, scale = [], []
    for n, *place in zip(*index, strict=True):
        row, column, output = data.sum_of(*place)
        channels = _inputs(layer, output)
        total, size = float(data.b[output]), abs(float(data.b[output]))
        for ky in range(layer.kernel[0]):
            y = row * layer.stride[0] - layer.pad[0] + ky * layer.dilation[0]
            for kx in range(layer.kernel[1]):
                x = column * layer.stride[1] - layer.pad[1] + kx * layer.dilation[1]
                if 0 <= y < layer.shape[0] and 0 <= x < layer.shape[1]:
                    pixel = data.x[n, y, x, channels].astype(np.float64)
                    total += pixel @ w[output, ky, kx]
                    size += np.abs(pixel) @ np.abs(w[output, ky, kx])
        exact.append(total)
        scale.append(size)
    products = layer.kernel[0] * layer.kernel[1] * layer.inputs
    return Samples(index, np.array(exact), np.array(scale), 2 * products + 2)


def data_samples(data: Data) -> Samples:
    """Return elements of the gradient with respect to the source."""
    layer, w = data.layer, _weights(data)
    index = places(data.rng, data.x.shape, SAMPLES)
    per_group = layer.shape[2] // layer.groups
    share = layer.outputs // layer.groups
    exact, scale = [], []
    for n, row, column, channel in zip(*index, strict=True):
        group = channel // per_group
        outputs = slice(group * share, (group + 1) * share)
        i = channel % per_group
        if layer.depthwise:
            outputs, i = slice(channel, channel + 1), 0
        total = size = 0.0
        for ky in range(layer.kernel[0]):
            y, rest_y = divmod(row + layer.pad[0] - ky * layer.dilation[0], layer.stride[0])
            for kx in range(layer.kernel[1]):
                x, rest_x = divmod(column + layer.pad[1] - kx * layer.dilation[1], layer.stride[1])
                if rest_x or rest_y or not (0 <= y < layer.size[0] and 0 <= x < layer.size[1]):
                    continue
                pixel = data.g[n, y, x, outputs].astype(np.float64)
                total += pixel @ w[outputs, ky, kx, i]
                size += np.abs(pixel) @ np.abs(w[outputs, ky, kx, i])
        exact.append(total)
        scale.append(size)
    products = layer.kernel[0] * layer.kernel[1] * (1 if layer.depthwise else share)
    return Samples(index, np.array(exact), np.array(scale), 2 * products)


def weight_samples(data: Data) -> Samples:
    """Return elements of the gradient with respect to the weights: all taps of a few filters."""
    layer = data.layer
    outputs = data.rng.choice(layer.outputs, min(3, layer.outputs), replace=False)
    exact, scale, index = [], [], []
    for output in sorted({0, layer.outputs - 1, *outputs.tolist()}):
        channels = _inputs(layer, output)
        i = int(data.rng.integers(channels.start, channels.stop))
        g = data.g[..., output].astype(np.float64)
        x = np.pad(data.x[..., i].astype(np.float64), [(0, 0), *((pad, pad) for pad in layer.pad)])
        for ky in range(layer.kernel[0]):
            for kx in range(layer.kernel[1]):
                window = x[
                    :,
                    ky * layer.dilation[0] :: layer.stride[0],
                    kx * layer.dilation[1] :: layer.stride[1],
                ][:, : layer.size[0], : layer.size[1]]
                product = window * g
                exact.append(product.sum())
                scale.append(np.abs(product, out=product).sum())
                place = (output, ky, kx)
                index.append(place if layer.depthwise else (*place, i - channels.start))
    places_ = tuple(np.array(axis) for axis in zip(*index, strict=True))
    return Samples(places_, np.array(exact), np.array(scale), 2 * data.g[..., 0].size)


def bias_samples(rng: np.random.Generator, gradient: npt.NDArray[Any]) -> Samples:
    """Return elements of the gradient with respect to the biases."""
    outputs = np.unique(rng.integers(0, gradient.shape[3], 6))
    sums, sizes = [], []
    for output in outputs:
        g = gradient[..., output].astype(np.float64)
        sums.append(g.sum())
        sizes.append(np.abs(g).sum())
    return Samples((outputs,), np.array(sums), np.array(sizes), gradient[..., 0].size)


# --- Peers ----------------------------------------------------------------------


def torch_calls(peer: Any, data: Data, kernel: str) -> dict[str, Callable[[], Any]]:
    """PyTorch: ``convolution``, and ``convolution_backward`` with the gradients that are wanted."""
    layer = data.layer
    groups = layer.outputs if layer.depthwise else layer.groups
    geometry = (list(layer.stride), list(layer.pad), list(layer.dilation), False, [0, 0], groups)
    return torch_variants(peer, kernel, (data.x, data.w, data.b, data.g), geometry)


def torch_variants(
    peer: Any, kernel: str, operands: Sequence[Any], geometry: Sequence[Any]
) -> dict[str, Callable[[], Any]]:
    """Return the calls of a convolution, transposed or not, on source, weights, biases, gradient.

    ``geometry`` is what PyTorch's operators have from the stride to the groups.
    """
    source, weights, biases, gradient = operands
    wanted = {
        "data_gradient": [True, False, False],
        "weight_gradient": [False, True, True],
        "gradient": [True, True, True],
    }
    calls = {}
    for layout in LAYOUTS:
        x, w, g = (
            peer.image(source, layout),
            peer.weights(weights, layout),
            peer.image(gradient, layout),
        )
        if kernel == "forward":
            b = peer.array(biases.astype(source.dtype))
            calls[layout] = lambda x=x, w=w, b=b: (peer.aten.convolution(x, w, b, *geometry),)
        else:
            calls[layout] = lambda x=x, w=w, g=g: tuple(
                result
                for result, mask in zip(
                    peer.aten.convolution_backward(
                        g, x, w, [len(biases)], *geometry, wanted[kernel]
                    ),
                    wanted[kernel],
                    strict=True,
                )
                if mask
            )
    return calls


def compiled_calls(peer: Any, data: Data, kernel: str) -> dict[str, Callable[[], Any]]:
    """JAX and MLX: the convolution, and the gradients that they derive."""
    layer = data.layer
    groups = layer.outputs if layer.depthwise else layer.groups

    def convolve(x: Any, w: Any, b: Any) -> Any:
        if layer.depthwise:
            w = w[..., None]
        y = peer.convolve(x, w, layer.stride, layer.pad, layer.dilation, groups)
        return y + b.astype(y.dtype)

    def backward(g: Any, x: Any, w: Any, b: Any) -> Any:
        match kernel:
            case "data_gradient":
                return peer.vjp(lambda x: convolve(x, w, b), g, x)[1]
            case "weight_gradient":
                return peer.vjp(lambda w, b: convolve(x, w, b), g, w, b)[1]
            case _:
                return peer.vjp(convolve, g, x, w, b)[1]

    arrays = data.x, data.w, data.b
    if kernel == "forward":
        return dict(peer.call(convolve, *arrays))
    return dict(peer.call(backward, data.g, *arrays))
