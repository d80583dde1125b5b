"""Sums, differences, products, quotients and comparisons of two images, and their gradients.

Forward passes make no states. A gradient reads where the forward result was clamped, one bit an
element, which its state holds.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, places
from .suite import COMPILED, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

CLASSES = {
    "add": "Add",
    "subtract": "Subtract",
    "multiply": "Multiply",
    "divide": "Divide",
    "compare": "Compare",
}
OPERATIONS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}
SAMPLES = 1000


def cases(request: Request) -> Iterator[Case]:
    """Yield every kind of every layer, forward and gradients.

    Where the second source is broadcast there is a gradient with respect to each, else with respect
    to one, as both are the same work; of differences it is the second, which has another sign.
    """
    for line in request.lines("arithmetic"):
        one_pixel = "channels" in line.options
        kernels = {}
        for kind in line.words("kinds"):
            directions = ["forward"]
            if kind in ("add", "subtract", "multiply"):
                directions.append("gradient")
            if one_pixel:
                directions.append("second_gradient")
            for direction in directions:
                name = f"{kind}_{'channels_' if one_pixel else ''}{direction}"
                kernels[name] = kind, direction
        yield from layer_cases(request, "arithmetic", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, kind: str, direction: str) -> Work:
    """Make arrays and kernels."""
    shape, channels = (batch, *line.shape), line.shape[2]
    one_pixel = "channels" in line.options
    x = context.normal(shape, dtype)
    y = context.normal((batch, 1, 1, channels) if one_pixel else shape, dtype)
    if kind == "divide":
        np.add(np.abs(y), y.dtype.type(0.5), out=y)
    forward = getattr(mg, CLASSES[kind])(device=context.device)
    if kind == "compare":
        forward.comparison_type = mg.ComparisonType.GREATER
    if one_pixel:
        forward.secondary_stride_in_pixels_x = forward.secondary_stride_in_pixels_y = 0
    sources = context.batch(x), context.batch(y)
    if direction == "forward":
        results = context.result(shape, dtype)

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, *sources, results)

        moved: tuple[npt.NDArray[Any], ...] = (x, y, x)
        output = Output(
            "z", lambda: context.read(results), forward_samples(context.rng, kind, x, y)
        )
        peers = {
            "torch": lambda peer: torch_forward(peer, kind, x, y),
            **dict.fromkeys(COMPILED, lambda peer: peer.call(OPERATIONS.get(kind, greater), x, y)),
        }
        if kind != "compare":
            peers["onednn"] = lambda peer: peer.binary(kind, x, y)
        mask = 0
    else:
        second = direction == "second_gradient" or kind == "subtract"
        g = context.normal(shape, dtype)
        wanted, other = (y, x) if second else (x, y)
        results = context.result(wanted.shape, dtype)
        gradient = getattr(mg, f"{CLASSES[kind]}Gradient")(second, device=context.device)
        if kind == "multiply" and one_pixel and not second:
            gradient.secondary_stride_in_pixels_x = gradient.secondary_stride_in_pixels_y = 0
        # Of a product the gradient needs the other source, else the size of its own.
        needed = sources[1 - second if kind == "multiply" else int(second)]
        places_ = context.result(shape, dtype)
        states = context.run(
            lambda buffer: forward.encode_batch(
                buffer, *sources, with_state=True, allocator=places_
            )
        )[1]
        incoming = context.batch(g)

        def encode(buffer: mg.CommandBuffer) -> None:
            gradient.encode_batch(buffer, incoming, needed, states, allocator=results)

        terms = (g, other) if kind == "multiply" else (g,)
        moved = (*terms, wanted)
        mask = (x.size + 7) // 8
        sign = -1 if kind == "subtract" else 1
        samples = gradient_samples(context.rng, sign, terms, wanted)
        output = Output("dx", lambda: context.read(results), samples)
        sums = wanted.shape != shape

        def formula(pixels: tuple[int, ...]) -> Callable[..., Any]:
            return gradient_formula(kind, pixels if sums else ())

        peers = {
            "torch": lambda peer: peer.images(formula((2, 3)), terms),
            **dict.fromkeys(COMPILED, lambda peer: peer.call(formula((1, 2)), *terms)),
        }
        if kind == "add" and not second:
            peers.clear()  # others hand on the incoming gradient itself
    return Work(
        lambda: context.run(encode),
        [output],
        bytes=sum(array.nbytes for array in moved) + mask,
        arrays=sum(array.nbytes for array in moved),
        peers=peers,
    )


# --- Some elements in float64 -------------------------------------------------


def forward_samples(
    rng: np.random.Generator, kind: str, x: npt.NDArray[Any], y: npt.NDArray[Any]
) -> Samples:
    """Return elements of the result."""
    index = places(rng, x.shape, SAMPLES)
    a = x[index].astype(np.float64)
    b = np.broadcast_to(y, x.shape)[index].astype(np.float64)
    if kind == "compare":
        return Samples(index, (a > b) * 1.0, np.zeros(len(a)), 0)
    # A kernel scales both and adds a bias, here by 1 and 0.
    exact = OPERATIONS[kind](a, b)
    return Samples(index, exact, np.abs(exact), 1)


def gradient_samples(
    rng: np.random.Generator,
    sign: int,
    terms: tuple[npt.NDArray[Any], ...],
    wanted: npt.NDArray[Any],
) -> Samples:
    """Return elements of the gradient: a product, added up over pixels where there is only one."""
    index = places(rng, wanted.shape, SAMPLES)
    shape = terms[0].shape
    if wanted.shape == shape:
        found = [np.broadcast_to(term, shape)[index].astype(np.float64) for term in terms]
        exact = sign * np.prod(found, axis=0)
        return Samples(index, exact, np.abs(exact), 1)
    n, c = index[0], index[3]
    exact, scale = np.empty(wanted.shape), np.empty(wanted.shape)
    for i in range(shape[0]):
        product = sign * np.prod([term[i].astype(np.float64) for term in terms], axis=0)
        exact[i] = product.sum(axis=(0, 1))
        scale[i] = np.abs(product).sum(axis=(0, 1))
    return Samples(index, exact[n, 0, 0, c], scale[n, 0, 0, c], 2)  # sums are in double


# --- Peers ----------------------------------------------------------------------


def torch_forward(
    peer: Any, kind: str, x: npt.NDArray[Any], y: npt.NDArray[Any]
) -> dict[str, Callable[[], Any]]:
    """PyTorch: the operator; a comparison is written as numbers, as ours is."""
    torch = peer.torch
    if kind in OPERATIONS:
        return dict(peer.images(OPERATIONS[kind], [x, y]))
    ways = {
        "": lambda x, y: torch.gt(x, y, out=torch.empty_like(x)),
        "converted ": lambda x, y: torch.gt(x, y).to(x.dtype),
    }
    return {
        f"{way}{layout}": call
        for way, function in ways.items()
        for layout, call in peer.images(function, [x, y]).items()
    }


def greater(x: Any, y: Any) -> Any:
    """JAX and MLX: a comparison, written as numbers."""
    return (x > y).astype(x.dtype)


def gradient_formula(kind: str, pixels: tuple[int, ...]) -> Callable[..., Any]:
    """Every library: what derivative formulas do, without where a result was clamped.

    `pixels` are the axes to add up over, where the source has one pixel.
    """

    def gradient(*terms: Any) -> Any:
        product = terms[0] * terms[1] if len(terms) > 1 else terms[0]
        if pixels:
            return product.sum(pixels, keepdims=True)
        return -product if kind == "subtract" else product

    return gradient
