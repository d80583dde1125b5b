"""Dropout, and its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad import _core
from mpsgrad._arrays import ArrayGradientKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._kernel import KernelFacade

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Dropout", "DropoutGradient"]


class _DropoutFacade(KernelFacade):
    """What both kernels share."""

    def _arguments(self) -> dict[str, Any]:
        return {
            # The shortest number that is the same float32.
            "keep_probability": float(str(np.float32(self.keep_probability))),  # type: ignore[attr-defined]
            "seed": self.seed,  # type: ignore[attr-defined]
            "mask_stride_in_pixels": self.mask_stride_in_pixels,  # type: ignore[attr-defined]
        }


class Dropout(_DropoutFacade, ArrayUnaryKernel, _core.Dropout):
    """Keeps elements at random, scaled up, and drops the others (``MPSCNNDropout``).

    The result is ``x / keep_probability`` for elements that are kept, each with that probability,
    and 0 for the others. Every encode draws fresh masks, one for each image. There is no inference
    mode: leave the kernel out.

    On one device, kernels with equal arguments draw equal masks in equal sequences of encodes. A
    copy, whether by `copy` or pickled, begins at the start of its sequence.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    keep_probability : float
        Probability that an element is kept, between 0 and 1, both excluded; a float32.
    seed : int, optional
        From 0 to ``2**64 - 1``. Either this or ``rng`` is needed.
    mask_stride_in_pixels : sequence of int, default (1, 1, 1)
        (width, height, depth): 1 for a random value of its own at every position along x, y or the
        channels, 0 for one value along all of them. ``(0, 0, 1)`` drops whole channels.
    rng : numpy.random.Generator, or what ``numpy.random.default_rng`` takes, optional
        Where to take a seed from.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If there is neither a seed nor an ``rng``, or both, or an argument is not a number.
    ValueError
        If a number is out of range.
    """

    def __init__(
        self,
        keep_probability: float,
        seed: int | None = None,
        mask_stride_in_pixels: Sequence[int] = (1, 1, 1),
        *,
        rng: Any = None,
        device: _core.Device | str | None = None,
    ) -> None:
        if (seed is None) == (rng is None):
            raise TypeError("Dropout: give either a seed or an rng")
        if seed is None:
            seed = int(np.random.default_rng(rng).integers(2**64, dtype=np.uint64))
        super().__init__(
            resolve_device(device, self), keep_probability, seed, mask_stride_in_pixels
        )


class DropoutGradient(_DropoutFacade, ArrayGradientKernel, _core.DropoutGradient):
    """Gradient of `Dropout` with respect to its source (``MPSCNNDropoutGradient``).

    The result is ``g / keep_probability`` for an incoming gradient g where the forward kernel kept
    the element, and 0 elsewhere. Masks come from the state; the source is not read.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    keep_probability : float
        That of the forward kernel.
    seed : int, default 0
        Not used, and kept for likeness with `Dropout`.
    mask_stride_in_pixels : sequence of int, default (1, 1, 1)
        That of the forward kernel.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If an argument is not a number.
    ValueError
        If a number is out of range.
    """

    def __init__(
        self,
        keep_probability: float,
        seed: int = 0,
        mask_stride_in_pixels: Sequence[int] = (1, 1, 1),
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        super().__init__(
            resolve_device(device, self), keep_probability, seed, mask_stride_in_pixels
        )
