"""Transposed convolution: the forward pass, the two gradients, and both together.

It is the data gradient of a convolution from its result to its source, whose arrays, exact elements
and operations these cases take.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .convolution import (
    KERNELS,
    OPTIONS,
    Data,
    NewStates,
    bias_samples,
    data_samples,
    forward_samples,
    torch_variants,
    weight_samples,
)
from .suite import Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .check import Samples
    from .layers import ConvolutionLayer
    from .suite import Case, Context, Request

__all__ = ["cases"]


def cases(request: Request) -> Iterator[Case]:
    """Yield every kernel on every layer."""
    kernels = {name: (name,) for name in KERNELS}
    for line in layers.read("convolution_transpose"):
        if request.quick:
            small = line.quick()
            outputs = (layers.smaller(line.number(1)),)
            line = replace(small, sizes=(small.sizes[0], outputs, small.sizes[2]))
        yield from layer_cases(request, "convolution_transpose", line, kernels, build)


def undone(line: layers.Line) -> ConvolutionLayer:
    """Return the convolution from a layer's result to its source."""
    height, width, inputs = line.shape
    stride, pad, window = line.pair("stride", 1), line.pair("pad", 0), line.sizes[2]
    rows, columns = (
        (size - 1) * step - 2 * cut + taps
        for size, step, cut, taps in zip((height, width), stride, pad, window, strict=True)
    )
    return layers.ConvolutionLayer(
        line.name,
        (rows, columns, line.number(1)),
        (window[0], window[1]),
        stride,
        pad,
        (1, 1),
        inputs,
        1,
        depthwise=False,
    )


class Transposed:
    """The arrays of a layer, which are those of the convolution it undoes."""

    def __init__(self, context: Context, line: layers.Line, batch: int, dtype: str) -> None:
        self.data = Data(context, undone(line), batch, dtype)
        self.source, self.gradient = self.data.g, self.data.x
        self.b = context.normal((line.number(1),))
        self.data.b = np.zeros_like(self.data.b)

    def kernels(self, context: Context) -> tuple[Any, Any]:
        """Return the forward kernel, with its window in place, and the gradient kernel."""
        layer = self.data.layer
        descriptor = mg.ConvolutionDescriptor(
            layer.kernel[1],
            layer.kernel[0],
            input_feature_channels=layer.outputs,
            output_feature_channels=layer.shape[2],
            stride_in_pixels_x=layer.stride[1],
            stride_in_pixels_y=layer.stride[0],
        )
        weights = np.ascontiguousarray(self.data.w[:, ::-1, ::-1].transpose(3, 1, 2, 0))
        source = mg.ArrayConvolutionDataSource(
            weights.astype(np.float32),
            self.b,
            descriptor=descriptor,
            kernel_weights_data_type=(
                mg.DataType.FLOAT16 if weights.dtype == np.float16 else mg.DataType.FLOAT32
            ),
        )
        forward = mg.ConvolutionTranspose(source, device=context.device)
        offsets = [
            taps // 2 - taps + 1 + cut for taps, cut in zip(layer.kernel, layer.pad, strict=True)
        ]
        forward.kernel_offset_y, forward.kernel_offset_x = offsets
        return forward, mg.ConvolutionTransposeGradient(source, device=context.device)


def build(context: Context, line: layers.Line, batch: int, dtype: str, kernel: str) -> Work:
    """Make arrays and kernels."""
    arrays = Transposed(context, line, batch, dtype)
    run, outputs = (forward if kernel == "forward" else backward)(context, arrays, kernel)
    x, w, g = arrays.source.nbytes, arrays.data.w.nbytes, arrays.gradient.nbytes
    moved = {
        "forward": x + w + g,
        "data_gradient": g + w + x,
        "weight_gradient": g + x + arrays.data.w.size * 4,
        "gradient": g + x + w + x + arrays.data.w.size * 4,
    }[kernel]
    return Work(
        run,
        outputs,
        bytes=moved,
        flops=(2 if kernel == "gradient" else 1) * arrays.data.layer.flops(batch),
        arrays=2 * x + w + g,
        peers={"torch": lambda peer: torch_calls(peer, arrays, kernel)},
    )


def forward(context: Context, arrays: Transposed, _: str) -> tuple[Callable[[], Any], list[Output]]:
    """Return the call of the forward pass, and its result."""
    kernel, _gradient = arrays.kernels(context)
    sources = context.batch(arrays.source)
    results = context.result(arrays.gradient.shape, arrays.gradient.dtype)

    def run() -> None:
        context.run(lambda buffer: kernel.encode_batch(buffer, sources, results))

    samples = data_samples(arrays.data)
    biases = arrays.b[samples.index[3]].astype(np.float64)
    samples = replace(
        samples,
        exact=samples.exact + biases,
        scale=samples.scale + np.abs(biases),
        roundings=samples.roundings + 2,
    )
    return run, [Output("y", lambda: context.read(results), samples)]


def backward(
    context: Context, arrays: Transposed, which: str
) -> tuple[Callable[[], Any], list[Output]]:
    """Return the call of a gradient, and its results."""
    forward_kernel, kernel = arrays.kernels(context)
    kernel.gradient_option = OPTIONS[which]
    sources, incoming = context.batch(arrays.source), context.batch(arrays.gradient)
    results = context.result(arrays.source.shape, arrays.source.dtype)
    states = NewStates(context, forward_kernel, sources, arrays.gradient)

    def encode(buffer: mg.CommandBuffer) -> None:
        kernel.encode_batch(buffer, incoming, sources, states.now, allocator=results)

    inputs, rows, columns, outputs_ = arrays.data.w.shape

    def weights() -> npt.NDArray[Any]:
        """Return the weight gradient as other libraries have it, (I, kH, kW, O)."""
        found = states.array("gradient_for_weights", (outputs_, rows, columns, inputs))
        return found[:, ::-1, ::-1].transpose(3, 1, 2, 0)

    outputs = []
    if which != "weight_gradient":
        outputs.append(Output("dx", lambda: context.read(results), forward_samples(arrays.data)))
    if which != "data_gradient":
        outputs += [
            Output("dw", weights, weight_samples(arrays.data)),
            Output(
                "db",
                lambda: states.array("gradient_for_biases", (outputs_,)),
                _bias_samples(arrays),
            ),
        ]
    return states.before(which, lambda: context.run(encode)), outputs


def _bias_samples(arrays: Transposed) -> Samples:
    return bias_samples(arrays.data.rng, arrays.gradient)


def torch_calls(peer: Any, arrays: Transposed, kernel: str) -> dict[str, Callable[[], Any]]:
    """PyTorch: ``conv_transpose2d``, and its backward with the gradients that are wanted."""
    layer = arrays.data.layer
    geometry = (list(layer.stride), list(layer.pad), [1, 1], True, [0, 0], 1)
    operands = arrays.source, arrays.data.w, arrays.b, arrays.gradient
    return torch_variants(peer, kernel, operands, geometry)
