"""Other libraries that do the same work, each behind a few helpers for the families."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .onednn import OneDnn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from .layers import Pair

__all__ = ["PEERS", "Jax", "Mlx", "OneDnn", "Torch", "load_peer"]

LAYOUTS = ("contiguous", "channels_last")


class Torch:
    """PyTorch. Images are views of the same memory, or copies in its own order, made beforehand."""

    name = "torch"
    module = "torch"
    install = "pip install torch"

    def __init__(self, threads: int) -> None:
        import torch

        self.torch: Any = torch
        self.aten: Any = torch.ops.aten
        self.functional: Any = torch.nn.functional
        self.version: str = torch.__version__
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def array(self, array: npt.NDArray[Any]) -> Any:
        """Return a tensor over an array."""
        return self.torch.from_numpy(array)

    def image(self, array: npt.NDArray[Any], layout: str) -> Any:
        """Return an NCHW tensor: a view in NHWC order in memory, or a copy in its own."""
        tensor = self.torch.from_numpy(array).permute(0, 3, 1, 2)
        return tensor.contiguous() if layout == "contiguous" else tensor

    def weights(self, array: npt.NDArray[Any], layout: str) -> Any:
        """Return OIHW weights in the memory order that goes with a layout."""
        if array.ndim == 3:  # depthwise
            array = array[..., np.newaxis]
        return self.image(array, layout)

    def images(
        self, call: Callable[..., Any], arrays: Sequence[npt.NDArray[Any]]
    ) -> dict[str, Callable[[], Any]]:
        """Return a call for each layout, of a function of images."""
        return {
            layout: _bound(call, [self.image(array, layout) for array in arrays])
            for layout in LAYOUTS
        }

    def flat(self, call: Callable[..., Any], arrays: Sequence[Any]) -> dict[str, Any]:
        """Return a call of a function to which the layout makes no difference."""
        return {"": _bound(call, [self.array(array) for array in arrays])}

    def backward(
        self, function: Callable[[Any], Any], g: npt.NDArray[Any], x: npt.NDArray[Any]
    ) -> dict[str, Callable[[], Any]]:
        """Return a call for each layout, of the gradient of a function of an image.

        The function is evaluated beforehand, once; its tape is kept, with all that it holds.
        """
        calls = {}
        for layout in LAYOUTS:
            incoming = self.image(g, layout)
            with self.torch.enable_grad():
                leaf = self.image(x, layout).detach().requires_grad_()
                result = function(leaf)
            calls[layout] = lambda y=result, x=leaf, g=incoming: self.torch.autograd.grad(
                y, x, g, retain_graph=True
            )
        return calls

    def gradient(self, loss: Callable[..., Any], wanted: Any, *others: Any) -> Any:
        """Return a loss and its gradient with respect to one tensor, by its own tape."""
        with self.torch.enable_grad():
            leaf = wanted.detach().requires_grad_()
            value = loss(leaf, *others)
            (gradient,) = self.torch.autograd.grad(value, leaf)
        return value.detach(), gradient

    def read(self, result: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return a tensor, or what a function gives, as an array in our order."""
        if callable(result):
            return np.asarray(result()).reshape(shape)
        if result.ndim == 4:
            result = result.permute(0, 2, 3, 1)
        return np.asarray(result.numpy()).reshape(shape)


class _Compiled:
    """A library that compiles functions of arrays and derives their gradients; images are NHWC.

    What such libraries write alike is here, so that one formula serves all of them: `numpy` has
    functions as NumPy's, `nn` activation functions, and each class adds what it has by another
    name. Functions are compiled when their call is first made, before it is timed.
    """

    numpy: Any
    nn: Any
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
    compiled_update: Callable[[Callable[..., Any]], Callable[..., Any]]
    finish: Callable[[Any], Any]

    def vjp(self, function: Callable[..., Any], gradient: Any, *values: Any) -> tuple[Any, Any]:
        """Return a function's result, and its gradients with respect to all its arguments."""
        raise NotImplementedError

    def array(self, array: npt.NDArray[Any]) -> Any:
        """Return a copy of an array."""
        return self.numpy.array(array)

    def call(self, function: Callable[..., Any], *arrays: npt.NDArray[Any]) -> dict[str, Any]:
        """Return a call of a function of arrays, compiled."""
        compiled, finish = self.compiled(function), self.finish
        values = [self.array(array) for array in arrays]
        return {"": lambda: finish(compiled(*values))}

    def gradient(
        self, function: Callable[..., Any], gradient: npt.NDArray[Any], *arrays: npt.NDArray[Any]
    ) -> dict[str, Any]:
        """Return a call of the gradient of a function, with respect to all its arguments."""
        return self.call(
            lambda incoming, *values: self.vjp(function, incoming, *values)[1], gradient, *arrays
        )

    def either(
        self,
        direction: str,
        function: Callable[..., Any],
        gradient: npt.NDArray[Any],
        *arrays: npt.NDArray[Any],
    ) -> dict[str, Any]:
        """Return a call of a function, or that of its gradient."""
        if direction == "forward":
            return self.call(function, *arrays)
        return self.gradient(function, gradient, *arrays)

    def update(
        self, function: Callable[..., Any], state: Any, *arrays: npt.NDArray[Any]
    ) -> Callable[[], Any]:
        """Return a call of a function of a state and of arrays, which returns the next state.

        That may take the memory of the one before. A state is what `array` gives, in lists.
        """
        compiled, finish = self.compiled_update(function), self.finish
        values = [self.array(array) for array in arrays]

        def run() -> Any:
            nonlocal state
            state = compiled(state, *values)
            return finish(state)

        return run

    def normalized(self, x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
        """Return what has mean 0 and variance 1 over some axes, in float32."""
        x = x.astype(self.numpy.float32)
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        return (x - mean) * (1 / self.numpy.sqrt(variance + epsilon))

    def read(self, result: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return an array, or what a function gives, as an array in our order."""
        return np.array(result() if callable(result) else result).reshape(shape)


class Jax(_Compiled):
    """JAX on the CPU."""

    name = "jax"
    module = "jax"
    install = "pip install jax"

    def __init__(self, threads: int) -> None:  # noqa: ARG002  it takes the processors it may use
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        self.jax: Any = jax
        self.numpy = jax.numpy
        self.lax: Any = jax.lax
        self.nn = jax.nn
        self.compiled = jax.jit
        self.compiled_update = functools.partial(jax.jit, donate_argnums=0)
        self.finish = jax.block_until_ready
        self.version: str = jax.__version__

    def vjp(self, function: Callable[..., Any], gradient: Any, *values: Any) -> tuple[Any, Any]:
        """Return a function's result, and its gradients with respect to all its arguments."""
        result, backward = self.jax.vjp(function, *values)
        return result, backward(gradient)

    def convolve(
        self, x: Any, w: Any, stride: Pair, pad: Pair, dilation: Pair = (1, 1), groups: int = 1
    ) -> Any:
        """Return a convolution with OHWI weights."""
        return self.lax.conv_general_dilated(
            x,
            w,
            stride,
            [(zeros, zeros) for zeros in pad],
            rhs_dilation=dilation,
            dimension_numbers=("NHWC", "OHWI", "NHWC"),
            feature_group_count=groups,
        )


class Mlx(_Compiled):
    """MLX on the CPU."""

    name = "mlx"
    module = "mlx"
    install = "pip install 'mlx[cpu]'"

    def __init__(self, threads: int) -> None:  # noqa: ARG002  it takes the processors it may use
        from importlib import metadata

        try:
            import mlx.core as mx
            import mlx.nn
        except ImportError as error:  # on Linux it brings no backend unless asked to
            raise ImportError(f"{error}; on Linux MLX needs: {self.install}") from error

        mx.set_default_device(mx.cpu)
        self.mx: Any = mx
        self.numpy = mx
        self.nn = mlx.nn
        self.compiled = self.compiled_update = mx.compile
        self.version: str = metadata.version("mlx")

    def finish(self, results: Any) -> Any:
        """Compute results, and return them."""
        self.mx.eval(results)
        return results

    def vjp(self, function: Callable[..., Any], gradient: Any, *values: Any) -> tuple[Any, Any]:
        """Return a function's result, and its gradients with respect to all its arguments."""
        (result,), gradients = self.mx.vjp(function, list(values), [gradient])
        return result, gradients

    def convolve(
        self, x: Any, w: Any, stride: Pair, pad: Pair, dilation: Pair = (1, 1), groups: int = 1
    ) -> Any:
        """Return a convolution with OHWI weights."""
        return self.mx.conv2d(x, w, stride, pad, dilation, groups)


def _bound(call: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    return lambda: call(*arguments)


PEERS: dict[str, type[Any]] = {peer.name: peer for peer in (Torch, OneDnn, Jax, Mlx)}


def installed(name: str) -> bool:
    """Whether a peer can be imported."""
    peer = PEERS[name]
    if peer is OneDnn:  # a library, not a module
        return OneDnn.installed()
    return importlib.util.find_spec(peer.module) is not None


def load_peer(name: str, threads: int) -> Any:
    """Return the peer of this name.

    Raises
    ------
    ImportError
        If it cannot be imported; the message begins with its name.
    """
    try:
        return PEERS[name](threads)
    except (ImportError, OSError) as error:
        raise ImportError(f"{name}: {error}") from error
