"""Other libraries that do the same work, each behind a few helpers for the families."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .onednn import OneDnn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

__all__ = ["PEERS", "Jax", "Mlx", "OneDnn", "Torch", "load_peers"]

LAYOUTS = ("contiguous", "channels_last")


class Torch:
    """PyTorch. Images are views of the same memory, or copies in its own order, made beforehand."""

    name = "torch"
    module = "torch"

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


class Jax:
    """JAX on the CPU, compiled beforehand; images are NHWC."""

    name = "jax"
    module = "jax"

    def __init__(self, threads: int) -> None:  # noqa: ARG002  it takes the processors it may use
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax

        self.jax: Any = jax
        self.numpy: Any = jax.numpy
        self.lax: Any = jax.lax
        self.nn: Any = jax.nn
        self.version: str = jax.__version__

    def call(self, function: Callable[..., Any], *arrays: npt.NDArray[Any]) -> dict[str, Any]:
        """Return a call of a function of arrays, compiled."""
        compiled = self.jax.jit(function)
        values = [self.numpy.asarray(array) for array in arrays]
        return {"": lambda: self.jax.block_until_ready(compiled(*values))}

    def gradient(
        self, function: Callable[..., Any], gradient: npt.NDArray[Any], *arrays: npt.NDArray[Any]
    ) -> dict[str, Any]:
        """Return a call of the gradient of a function, with respect to all its arguments."""

        def backward(incoming: Any, *values: Any) -> Any:
            return self.jax.vjp(function, *values)[1](incoming)

        return self.call(backward, gradient, *arrays)

    def read(self, result: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return an array."""
        return np.asarray(result).reshape(shape)


class Mlx:
    """MLX on the CPU; images are NHWC."""

    name = "mlx"
    module = "mlx"

    def __init__(self, threads: int) -> None:  # noqa: ARG002  it takes the processors it may use
        from importlib import metadata

        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.mx: Any = mx
        self.version: str = metadata.version("mlx")

    def call(self, function: Callable[..., Any], *arrays: npt.NDArray[Any]) -> dict[str, Any]:
        """Return a call of a function of arrays, compiled."""
        compiled = self.mx.compile(function)
        values = [self.mx.array(array) for array in arrays]

        def run() -> Any:
            result = compiled(*values)
            self.mx.eval(result)
            return result

        return {"": run}

    def gradient(
        self, function: Callable[..., Any], gradient: npt.NDArray[Any], *arrays: npt.NDArray[Any]
    ) -> dict[str, Any]:
        """Return a call of the gradient of a function, with respect to all its arguments."""

        def backward(incoming: Any, *values: Any) -> Any:
            return self.mx.vjp(function, list(values), [incoming])[1]

        return self.call(backward, gradient, *arrays)

    def read(self, result: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return an array."""
        return np.array(result).reshape(shape)


def _bound(call: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    return lambda: call(*arguments)


PEERS: dict[str, type[Any]] = {peer.name: peer for peer in (Torch, OneDnn, Jax, Mlx)}


def installed(name: str) -> bool:
    """Whether a peer can be imported."""
    peer = PEERS[name]
    if peer is OneDnn:  # a library, not a module
        return OneDnn.installed()
    return importlib.util.find_spec(peer.module) is not None


def load_peers(names: Sequence[str], threads: int) -> list[Any]:
    """Return the peers of these names.

    Raises
    ------
    ImportError
        If one cannot be imported.
    """
    return [PEERS[name](threads) for name in names]
