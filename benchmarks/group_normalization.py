"""Instance and group normalization, forward and gradient.

Inputs and results count once, though statistics are found before anything else can be done; the
gradient, which is given only source and incoming gradient, finds them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .suite import COMPILED, DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

EPSILON = 1e-3
SAMPLES = 1000


def cases(request: Request) -> Iterator[Case]:
    """Yield forward pass and gradient of every layer."""
    for line in layers.read("group_normalization"):
        groups = int(line.options.get("groups", "0"))
        if request.quick:
            line, groups = line.quick(), groups and layers.smaller(groups)
        kind = "group" if groups else "instance"
        kernels = {f"{kind}_{direction}": (groups, direction) for direction in DIRECTIONS}
        yield from layer_cases(request, "group_normalization", line, kernels, build)


@dataclass
class Exact:
    """One image's numbers in float64, one a channel, some of which are those of its group."""

    mean: npt.NDArray[np.float64]
    r: npt.NDArray[np.float64]
    mean_h: npt.NDArray[np.float64]
    mean_hx: npt.NDArray[np.float64]
    by_gamma: npt.NDArray[np.float64]
    by_beta: npt.NDArray[np.float64]
    gamma_scale: npt.NDArray[np.float64]
    beta_scale: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls,
        image: npt.NDArray[Any],
        arriving: npt.NDArray[Any],
        gamma: npt.NDArray[Any],
        groups: int,
    ) -> Exact:
        """Add up over the pixels, then over each group."""
        channels = image.shape[-1]
        members = channels // groups
        x, g = (a.reshape(-1, channels).astype(np.float64) for a in (image, arriving))

        def over_group(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            """Return the mean of a group's means, for each of its channels."""
            return np.repeat(values.reshape(groups, members).mean(axis=1), members)

        mean = over_group(x.mean(axis=0))
        r = 1 / np.sqrt(over_group(((x - mean) ** 2).mean(axis=0)) + float(np.float32(EPSILON)))
        normalized = (x - mean) * r
        by_gamma, by_beta = (g * normalized).sum(axis=0), g.sum(axis=0)
        return cls(
            mean,
            r,
            over_group(gamma * by_beta / len(x)),
            over_group(gamma * by_gamma / len(x)),
            by_gamma,
            by_beta,
            (np.abs(g) * (np.abs(normalized) + np.abs(mean) * r)).sum(axis=0),
            np.abs(g).sum(axis=0),
        )


def build(
    context: Context, line: Line, batch: int, dtype: str, groups: int, direction: str
) -> Work:
    """Make arrays and kernels; no groups means instance normalization."""
    shape, channels = (batch, *line.shape), line.shape[2]
    x, g = context.normal(shape, dtype), context.normal(shape, dtype)
    gamma = np.linspace(0.5, 2, channels, dtype=np.float32)
    beta = np.linspace(-1, 1, channels, dtype=np.float32)
    forward: mg.InstanceNormalization | mg.GroupNormalization
    gradient: mg.InstanceNormalizationGradient | mg.GroupNormalizationGradient
    if groups:
        forward = mg.GroupNormalization(
            mg.ArrayGroupNormalizationDataSource(
                gamma, beta, number_of_groups=groups, epsilon=EPSILON
            ),
            device=context.device,
        )
        gradient = mg.GroupNormalizationGradient(device=context.device)
    else:
        forward = mg.InstanceNormalization(
            mg.ArrayInstanceNormalizationDataSource(gamma, beta, epsilon=EPSILON),
            device=context.device,
        )
        gradient = mg.InstanceNormalizationGradient(device=context.device)
    sources, results = context.batch(x), context.result(shape, dtype)
    exact = [Exact.of(*pair, gamma, groups or channels) for pair in zip(x, g, strict=True)]
    index = places(context.rng, shape, SAMPLES)
    n, c = index[0], index[3]

    def picked(name: str) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = np.array([getattr(image, name) for image in exact])[n, c]
        return found

    at, mean, r = x[index].astype(np.float64), picked("mean"), picked("r")
    scaled = gamma.astype(np.float64)[c] * r
    outputs: list[Output]
    if direction == "forward":

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, sources, results)

        offset = beta.astype(np.float64)[c]
        # Mean, factor and offset are rounded as well.
        samples = Samples(
            index,
            (at - mean) * scaled + offset,
            (np.abs(at) + np.abs(mean)) * scaled + np.abs(offset),
            7,
        )
        outputs = [Output("y", lambda: context.read(results), samples)]
    else:
        incoming = context.batch(g)
        states = context.states(forward, sources, g)

        def encode(buffer: mg.CommandBuffer) -> None:
            gradient.encode_batch(buffer, incoming, sources, states, allocator=results)

        def weights(name: str) -> Callable[[], npt.NDArray[np.float32]]:
            def read() -> npt.NDArray[np.float32]:
                context.run(lambda buffer: mg.synchronize(states, buffer))
                found = [getattr(state, name).to_numpy()[:channels] for state in states]
                total: npt.NDArray[np.float32] = np.sum(found, axis=0, dtype=np.float64).astype(
                    np.float32
                )
                return total

            return read

        def whole(value: str, scale: str, roundings: int) -> Samples:
            values = (sum(getattr(image, name) for image in exact) for name in (value, scale))
            return Samples((np.arange(channels),), *values, roundings)

        arriving = g[index].astype(np.float64)
        factor = gamma.astype(np.float64)[c]
        normalized = (at - mean) * r
        terms = factor * arriving, picked("mean_h"), normalized * picked("mean_hx")
        magnitudes = [np.abs(term) for term in terms]
        # The mean is subtracted from x before that is scaled.
        magnitudes[2] += np.abs(mean) * r * np.abs(picked("mean_hx"))
        samples = Samples(index, r * (terms[0] - terms[1] - terms[2]), r * sum(magnitudes), 12)
        # In double over the pixels; each image's sum is rounded.
        outputs = [
            Output("dgamma", weights("gradient_for_gamma"), whole("by_gamma", "gamma_scale", 4)),
            Output("dbeta", weights("gradient_for_beta"), whole("by_beta", "beta_scale", 4)),
            Output("dx", lambda: context.read(results), samples),
        ]
    arrays = x.nbytes * (2 if direction == "forward" else 3)
    return Work(
        lambda: context.run(encode),
        outputs,
        bytes=arrays,
        arrays=arrays,
        peers={
            "torch": lambda peer: torch_calls(peer, groups, direction, x, g, gamma, beta),
            **dict.fromkeys(
                COMPILED, lambda peer: compiled_calls(peer, groups, direction, x, g, gamma, beta)
            ),
        },
    )


def torch_calls(
    peer: Any, groups: int, direction: str, x: Any, g: Any, gamma: Any, beta: Any
) -> dict[str, Any]:
    """PyTorch: the operators behind ``group_norm``, with one group a channel for instances.

    Its gradient is given the statistics, and adds up the weights' gradients over the batch.
    """
    weight, bias = (peer.array(array.astype(x.dtype)) for array in (gamma, beta))
    batch, height, width, channels = x.shape
    sizes = batch, channels, height * width, groups or channels

    def forward(x: Any) -> Any:
        return peer.aten.native_group_norm(x, weight, bias, *sizes, EPSILON)

    def backward(x: Any, g: Any, mean: Any, inverse: Any) -> Any:
        dx, dgamma, dbeta = peer.aten.native_group_norm_backward(
            g, x, mean, inverse, weight, *sizes, [True, True, True]
        )
        return dgamma, dbeta, dx

    if direction == "forward":
        calls = dict(peer.images(lambda x: forward(x)[0], [x]))
        if not groups:
            instance = peer.images(
                lambda x: peer.functional.instance_norm(x, None, None, weight, bias, eps=EPSILON),
                [x],
            )
            calls |= {f"instance_norm {layout}": call for layout, call in instance.items()}
        return calls
    calls = {}
    for layout in ("contiguous", "channels_last"):
        source, incoming = peer.image(x, layout), peer.image(g, layout)
        _, *saved = forward(source)
        calls[layout] = lambda o=(source, incoming, *saved): backward(*o)
    return calls


def compiled_calls(
    peer: Any, groups: int, direction: str, x: Any, g: Any, gamma: Any, beta: Any
) -> dict[str, Any]:
    """JAX and MLX: the formula in float32, and its derivatives, which find the statistics again."""
    batch, *_, channels = x.shape

    def forward(gamma: Any, beta: Any, x: Any) -> Any:
        grouped = x.reshape(batch, -1, groups, channels // groups) if groups else x
        y = peer.normalized(grouped, (1, 3) if groups else (1, 2), EPSILON)
        return (y.reshape(x.shape) * gamma + beta).astype(x.dtype)

    return dict(peer.either(direction, forward, g, gamma, beta, x))
