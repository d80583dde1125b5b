"""Batch normalization: each of its passes, and the passes of a step together.

Images are read and written as often as the kernels have it: the statistics read the source; results
are made from the source; the statistics gradient reads gradient and source; so does the gradient,
which writes its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, places
from .suite import COMPILED, Output, Work, layer_cases
from .timing import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

# How many arrays of images each reads and writes, and how many there are.
KERNELS = {
    "statistics": (1, 1),
    "inference": (2, 2),
    "training": (3, 2),
    "statistics_gradient": (2, 2),
    "gradient": (3, 3),
    "backward": (5, 3),
    "step": (8, 4),
}
EPSILON = 1e-3
SAMPLES = 1000


def cases(request: Request) -> Iterator[Case]:
    """Yield every kernel on every layer."""
    kernels = {name: (name,) for name in KERNELS}
    for line in request.lines("images"):
        yield from layer_cases(request, "batch_normalization", line, kernels, build)


class Exact:
    """The numbers of a step in float64: those of each channel, and some elements of images."""

    def __init__(
        self,
        context: Context,
        x: npt.NDArray[Any],
        g: npt.NDArray[Any] | None,
        gamma: npt.NDArray[Any],
        beta: npt.NDArray[Any],
        stored: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None,
    ) -> None:
        self.count, channels = x.size // x.shape[-1], x.shape[-1]
        self.all = (np.arange(channels),)
        if stored is None:
            self._find_statistics(x)
        else:
            self.mean, self.variance = stored
        self.r = 1 / np.sqrt(self.variance + float(np.float32(EPSILON)))
        self.index = places(context.rng, x.shape, SAMPLES)
        self.c = self.index[3]
        self.factor = (gamma * self.r)[self.c]
        self.offset = beta.astype(np.float64)[self.c]
        self.x = x[self.index].astype(np.float64)
        if g is not None:
            self.g = g[self.index].astype(np.float64)
            self._find_sums(x, g)

    # Image by image, so that not all are there in float64 at once.

    def _find_statistics(self, x: npt.NDArray[Any]) -> None:
        axes = (0, 1)
        self.mean = sum(image.sum(axis=axes, dtype=np.float64) for image in x) / self.count
        self.magnitude = sum(np.abs(image).sum(axis=axes, dtype=np.float64) for image in x)
        self.magnitude = self.magnitude / self.count
        squares = sum(((image.astype(np.float64) - self.mean) ** 2).sum(axis=axes) for image in x)
        self.variance = squares / self.count

    def _find_sums(self, x: npt.NDArray[Any], g: npt.NDArray[Any]) -> None:
        axes = (0, 1)
        self.by_beta = self.by_gamma = self.beta_scale = self.gamma_scale = np.zeros(x.shape[-1])
        for image, arriving in zip(x, g, strict=True):
            arriving = arriving.astype(np.float64)
            product = arriving * (image.astype(np.float64) - self.mean) * self.r
            self.by_beta = self.by_beta + arriving.sum(axis=axes)
            self.beta_scale = self.beta_scale + np.abs(arriving).sum(axis=axes)
            self.by_gamma = self.by_gamma + product.sum(axis=axes)
            self.gamma_scale = self.gamma_scale + np.abs(product).sum(axis=axes)

    def y(self) -> Samples:
        """Return elements of the result. Statistics and coefficients are rounded as well."""
        mean = self.mean[self.c]
        exact = (self.x - mean) * self.factor + self.offset
        scale = (np.abs(self.x) + np.abs(mean)) * self.factor + np.abs(self.offset)
        return Samples(self.index, exact, scale, 9)

    def dx(self) -> Samples:
        """Return elements of the gradient."""
        normalized = (self.x - self.mean[self.c]) * self.r[self.c]
        by_beta = self.by_beta[self.c] / self.count
        by_gamma = self.by_gamma[self.c] / self.count * normalized
        scale = self.factor * (np.abs(self.g) + np.abs(by_beta) + np.abs(by_gamma))
        exact = self.factor * (self.g - by_beta - by_gamma)
        return Samples(self.index, exact, scale + 1e-3 * self.factor, 16)

    # Sums are in double; what goes into them, and they themselves, are rounded to float32.

    def statistics(self) -> tuple[Samples, Samples]:
        """Return mean and variance of every channel."""
        return (
            Samples(self.all, self.mean, self.magnitude, 2),
            Samples(self.all, self.variance, self.variance, 2),
        )

    def sums(self) -> tuple[Samples, Samples]:
        """Return the gradients of gamma and beta. A mean and a factor are rounded for each term."""
        spread = self.gamma_scale + self.beta_scale * np.abs(self.mean) * self.r
        return (
            Samples(self.all, self.by_gamma, spread, 6),
            Samples(self.all, self.by_beta, self.beta_scale, 2),
        )


def build(context: Context, line: Line, batch: int, dtype: str, name: str) -> Work:
    """Make arrays and kernels."""
    shape, channels = (batch, *line.shape), line.shape[2]
    has_gradient = name in ("statistics_gradient", "gradient", "backward", "step")
    x = context.normal(shape, dtype)
    g = context.normal(shape, dtype) if has_gradient else None
    gamma = np.linspace(0.5, 2, channels, dtype=np.float32)
    beta = np.linspace(-1, 1, channels, dtype=np.float32)
    stored = (0.1 * beta.astype(float), gamma.astype(float)) if name == "inference" else None
    exact = Exact(context, x, g, gamma, beta, stored)
    numbers = [gamma, beta, *(a.astype(np.float32) for a in (exact.mean, exact.variance))]
    source = mg.ArrayBatchNormalizationDataSource(*numbers, epsilon=EPSILON)
    forward = mg.BatchNormalization(source, device=context.device)
    sources, results = context.batch(x), context.result(shape, dtype)
    if g is not None:
        incoming = context.batch(g)
        gradients = context.result(shape, dtype) if name == "step" else results
    statistics = mg.BatchNormalizationStatistics(device=context.device)
    statistics_gradient = mg.BatchNormalizationStatisticsGradient(device=context.device)
    gradient = mg.BatchNormalizationGradient(device=context.device)
    state = forward.result_state(sources[0], results[0])

    def gather(buffer: mg.CommandBuffer) -> None:
        statistics.encode_batch(buffer, sources, state)

    def normalize(buffer: mg.CommandBuffer) -> None:
        own = {} if name == "inference" else {"batch_normalization_state": state}
        forward.encode_batch(buffer, sources, results, **own)

    def add_up(buffer: mg.CommandBuffer) -> None:
        statistics_gradient.encode_batch(buffer, incoming, sources, state)

    def differentiate(buffer: mg.CommandBuffer) -> None:
        gradient.encode_batch(buffer, incoming, sources, state, allocator=gradients)

    def number(attribute: str) -> Callable[[], npt.NDArray[Any]]:
        def read() -> npt.NDArray[Any]:
            context.run(state.synchronize)
            values: npt.NDArray[Any] = getattr(state, attribute).to_numpy()[:channels]
            return values

        return read

    outputs = []
    if name == "statistics":
        of_mean, of_variance = exact.statistics()
        outputs += [
            Output("mean", number("mean"), of_mean),
            Output("variance", number("variance"), of_variance),
        ]
    if name in ("inference", "training", "step"):
        outputs.append(Output("y", lambda: context.read(results), exact.y()))
    if name in ("statistics_gradient", "backward", "step"):
        of_gamma, of_beta = exact.sums()
        outputs += [
            Output("dgamma", number("gradient_for_gamma"), of_gamma),
            Output("dbeta", number("gradient_for_beta"), of_beta),
        ]
    if name in ("gradient", "backward", "step"):
        outputs.append(Output("dx", lambda: context.read(gradients), exact.dx()))
    encodes = {
        "statistics": [gather],
        "inference": [normalize],
        "training": [gather, normalize],
        "statistics_gradient": [add_up],
        "gradient": [differentiate],
        "backward": [add_up, differentiate],
        "step": [gather, normalize, add_up, differentiate],
    }[name]

    def encode(buffer: mg.CommandBuffer) -> None:
        for one in encodes:
            one(buffer)

    run: Callable[[], Any] = lambda: context.run(encode)  # noqa: E731
    if encodes[0] is add_up:
        # A state takes each image's gradient once, then wants new statistics.
        run = Prepared(lambda: context.run(gather), run)
    elif name == "gradient":
        context.run(gather)
        context.run(add_up)
    moved, arrays = KERNELS[name]
    peers: dict[str, Callable[[Any], Mapping[str, Callable[[], Any]]]] = {}
    peers |= dict.fromkeys(COMPILED, lambda peer: compiled_calls(peer, name, x, g, exact, numbers))
    if name != "gradient":  # which PyTorch has not by itself
        peers["torch"] = lambda peer: torch_calls(peer, name, x, g, numbers)
    if name in ("inference", "training", "backward", "step"):
        peers["onednn"] = lambda peer: peer.batch_normalization(name, x, g, numbers, EPSILON)
    return Work(run, outputs, bytes=moved * x.nbytes, arrays=arrays * x.nbytes, peers=peers)


def torch_calls(peer: Any, name: str, x: Any, g: Any, numbers: list[Any]) -> dict[str, Any]:
    """PyTorch: the operators behind ``batch_norm``, in training without running averages.

    Statistics are those of ``batch_norm_update_stats`` and of ``var_mean``. The gradient of the
    statistics is the backward operator when only gamma's and beta's gradients are asked of it.
    """
    aten = peer.aten
    gamma, beta, mean, variance = (peer.array(array.astype(x.dtype)) for array in numbers)

    def forward(x: Any) -> Any:
        stored = [mean, variance] if name == "inference" else [None, None]
        training = name != "inference"
        return aten.native_batch_norm(x, gamma, beta, *stored, training, 0.1, EPSILON)

    def backward(mask: list[bool]) -> Callable[..., Any]:
        def call(x: Any, g: Any, mean: Any, inverse: Any) -> Any:
            dx, dgamma, dbeta = aten.native_batch_norm_backward(
                g, x, gamma, None, None, mean, inverse, True, EPSILON, mask
            )
            return (dgamma, dbeta, dx) if mask[0] else (dgamma, dbeta)

        return call

    def step(x: Any, g: Any) -> Any:
        y, mean, inverse = forward(x)
        return y, *backward([True] * 3)(x, g, mean, inverse)

    def var_mean(x: Any) -> Any:
        found, mean = peer.torch.var_mean(x, (0, 2, 3), correction=0)
        return mean, found

    if name == "statistics":
        update = peer.images(lambda x: aten.batch_norm_update_stats(x, None, None, 0.1), [x])
        plain = peer.images(var_mean, [x])
        return {
            **{f"update_stats {layout}": call for layout, call in update.items()},
            **{f"var_mean {layout}": call for layout, call in plain.items()},
        }
    if name == "step":
        return dict(peer.images(step, [x, g]))
    if name in ("inference", "training"):
        return dict(peer.images(lambda x: forward(x)[0], [x]))
    calls = {}
    for layout in ("contiguous", "channels_last"):
        source, incoming = peer.image(x, layout), peer.image(g, layout)
        _, *saved = forward(source)
        call = backward([name == "backward", True, True])
        calls[layout] = lambda call=call, o=(source, incoming, *saved): call(*o)
    return calls


def compiled_calls(
    peer: Any, name: str, x: Any, g: Any, exact: Exact, numbers: list[Any]
) -> dict[str, Any]:
    """JAX and MLX: the formulas of each pass in float32, those of several passes as one function.

    They are given what the passes before have found, as ours are.
    """
    axes, count = (0, 1, 2), exact.count
    gamma, beta, mean, variance = numbers
    found: list[Any] = []
    if g is not None:
        found = [exact.by_gamma.astype(np.float32), exact.by_beta.astype(np.float32)]

    def statistics(x: Any) -> tuple[Any, Any]:
        x = x.astype(peer.numpy.float32)
        return x.mean(axes), x.var(axes)

    def scale(variance: Any) -> Any:
        return 1 / peer.numpy.sqrt(variance + EPSILON)

    def normalize(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
        return ((x - mean) * (gamma * scale(variance)) + beta).astype(x.dtype)

    def train(x: Any, gamma: Any, beta: Any) -> Any:
        return normalize(x, gamma, beta, *statistics(x))

    def add_up(x: Any, g: Any, mean: Any, variance: Any) -> tuple[Any, Any]:
        g = g.astype(peer.numpy.float32)
        return (g * (x - mean)).sum(axes) * scale(variance), g.sum(axes)

    def differentiate(
        x: Any, g: Any, gamma: Any, mean: Any, variance: Any, by_gamma: Any, by_beta: Any
    ) -> Any:
        r = scale(variance)
        shared = by_beta + (x - mean) * (r * by_gamma)
        return (gamma * r * (g - shared / count)).astype(x.dtype)

    def backward(x: Any, g: Any, gamma: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        sums = add_up(x, g, mean, variance)
        return *sums, differentiate(x, g, gamma, mean, variance, *sums)

    def step(x: Any, g: Any, gamma: Any, beta: Any) -> tuple[Any, ...]:
        own = statistics(x)
        return normalize(x, gamma, beta, *own), *backward(x, g, gamma, *own)

    function, *arrays = {
        "statistics": (statistics, x),
        "inference": (normalize, x, *numbers),
        "training": (train, x, gamma, beta),
        "statistics_gradient": (add_up, x, g, mean, variance),
        "gradient": (differentiate, x, g, gamma, mean, variance, *found),
        "backward": (backward, x, g, gamma, mean, variance),
        "step": (step, x, g, gamma, beta),
    }[name]
    return dict(peer.call(function, *arrays))
