"""Sub-pixel convolution, whose channels become pixels. Apple's has no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg

from . import convolution, layers
from .peers import LAYOUTS
from .suite import COMPILED, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]


def cases(request: Request) -> Iterator[Case]:
    """Yield the forward pass on every layer."""
    for line in request.lines("sub_pixel_convolution"):
        yield from layer_cases(request, "sub_pixel_convolution", line, {"forward": ()}, build)


class Data(convolution.Data):
    """The arrays of a layer, its result in large."""

    def __init__(self, context: Context, line: Line, batch: int, dtype: str) -> None:
        super().__init__(context, layers.ConvolutionLayer.of(line), batch, dtype)
        self.factor, _ = line.pair("factor", 1)
        height, width = self.layer.size
        self.produced = self.layer.outputs // self.factor**2
        shape = batch, height * self.factor, width * self.factor, self.produced
        self.g = self.g.reshape(shape)

    def descriptor(self) -> mg.ConvolutionDescriptor:
        """Return what the weights are for."""
        layer = self.layer
        return mg.SubPixelConvolutionDescriptor(
            layer.kernel[1],
            layer.kernel[0],
            input_feature_channels=layer.shape[2],
            output_feature_channels=layer.outputs,
            sub_pixel_scale_factor=self.factor,
        )

    def sum_of(self, row: int, column: int, channel: int) -> tuple[int, int, int]:
        """Return which sum of the convolution an element of the result is."""
        (y, dy), (x, dx) = divmod(row, self.factor), divmod(column, self.factor)
        return y, x, (dy * self.factor + dx) * self.produced + channel


def build(context: Context, line: Line, batch: int, dtype: str) -> Work:
    """Make arrays and the kernel."""
    data = Data(context, line, batch, dtype)
    run, outputs = convolution.forward(context, data, "forward")
    moved = data.x.nbytes + data.w.nbytes + data.g.nbytes
    return Work(
        run,
        outputs,
        bytes=moved,
        flops=data.layer.flops(batch),
        arrays=moved,
        peers={
            "torch": lambda peer: torch_calls(peer, data),
            **dict.fromkeys(COMPILED, lambda peer: compiled_calls(peer, data)),
        },
    )


def torch_calls(peer: Any, data: Data) -> dict[str, Callable[[], Any]]:
    """PyTorch: ``pixel_shuffle`` of a convolution, whose outputs have channels before places."""
    layer, factor = data.layer, data.factor
    produced = range(data.produced)
    order = [k for channel in produced for k in range(channel, layer.outputs, data.produced)]
    geometry = ([1, 1], list(layer.pad), [1, 1], False, [0, 0], 1)
    biases = peer.array(data.b[order].astype(data.x.dtype))
    calls = {}
    for layout in LAYOUTS:
        x, w = peer.image(data.x, layout), peer.weights(data.w[order], layout)
        calls[layout] = lambda x=x, w=w: (
            peer.aten.pixel_shuffle(peer.aten.convolution(x, w, biases, *geometry), factor),
        )
    return calls


def compiled_calls(peer: Any, data: Data) -> dict[str, Callable[[], Any]]:
    """JAX and MLX: the convolution, and its channels' places put between its pixels."""
    layer, factor = data.layer, data.factor

    def enlarge(x: Any, w: Any, b: Any) -> Any:
        y = peer.convolve(x, w, layer.stride, layer.pad)
        y = y + b.astype(y.dtype)
        y = y.reshape(*y.shape[:3], factor, factor, data.produced).transpose(0, 1, 3, 2, 4, 5)
        return y.reshape(data.g.shape)

    return dict(peer.call(enlarge, data.x, data.w, data.b))
