"""Activation functions, forward and gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, places
from .suite import COMPILED, DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

SAMPLES = 1000


@dataclass(frozen=True)
class Activation:
    """A neuron type with its parameters, and its value and slope in float64."""

    type: str
    value: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    parameters: tuple[float, ...] = ()

    def descriptor(self, channels: int) -> mg.NeuronDescriptor:
        """Return the descriptor."""
        kind = getattr(mg.NeuronType, self.type)
        if self.type == "PRELU":
            return mg.NeuronDescriptor(kind, data=slopes(channels))
        return mg.NeuronDescriptor(kind, *self.parameters)


def slopes(channels: int) -> Any:
    """Return a slope for each channel."""
    return np.linspace(0.01, 0.4, channels, dtype=np.float32)


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _normal(x: Any) -> Any:
    """Return the normal distribution at x."""
    return 0.5 * (1 + np.array([math.erf(v) for v in x * math.sqrt(0.5)]))


def _leaky(a: float) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return lambda x: np.where(x >= 0, x, a * x), lambda x: np.where(x >= 0, 1.0, a)


_TENTH = float(np.float32(0.1))
_SIXTH = float(np.float32(1 / 6))

ACTIVATIONS = {
    "relu": Activation("RELU", *_leaky(0.0), (0.0,)),
    "leaky_relu": Activation("RELU", *_leaky(_TENTH), (0.1,)),
    "prelu": Activation("PRELU", *_leaky(0.0)),
    "relu6": Activation(
        "RELUN", lambda x: np.clip(x, 0, 6), lambda x: ((x > 0) & (x < 6)) * 1.0, (0.0, 6.0)
    ),
    "sigmoid": Activation("SIGMOID", _logistic, lambda x: _logistic(x) * _logistic(-x)),
    "hard_sigmoid": Activation(
        "HARD_SIGMOID",
        lambda x: np.clip(_SIXTH * x + 0.5, 0, 1),
        lambda x: (np.abs(x) < 3) * _SIXTH,
        (1 / 6, 0.5),
    ),
    "tanh": Activation("TANH", np.tanh, lambda x: 1 - np.tanh(x) ** 2, (1.0, 1.0)),
    "elu": Activation(
        "ELU",
        lambda x: np.where(x >= 0, x, np.expm1(x)),
        lambda x: np.where(x >= 0, 1, np.exp(x)),
        (1.0,),
    ),
    "softplus": Activation("SOFT_PLUS", lambda x: np.logaddexp(0, x), _logistic, (1.0, 1.0)),
    "softsign": Activation(
        "SOFT_SIGN", lambda x: x / (1 + np.abs(x)), lambda x: 1 / (1 + np.abs(x)) ** 2
    ),
    "linear": Activation(
        "LINEAR", lambda x: 0.5 * x + 0.25, lambda x: np.full(x.shape, 0.5), (0.5, 0.25)
    ),
    "absolute": Activation("ABSOLUTE", np.abs, np.sign),
    "square": Activation("POWER", np.square, lambda x: 2 * x, (1.0, 0.0, 2.0)),
    "exponential": Activation("EXPONENTIAL", np.exp, np.exp, (1.0, 0.0, -1.0)),
    "logarithm": Activation(
        "LOGARITHM",
        lambda x: np.log(0.125 * x + 2),
        lambda x: 0.125 / (0.125 * x + 2),
        (0.125, 2.0, -1.0),
    ),
    "gelu": Activation(
        "GELU",
        lambda x: x * _normal(x),
        lambda x: _normal(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi),
    ),
}


def cases(request: Request) -> Iterator[Case]:
    """Yield ReLU on every layer, and every function on some."""
    for line in request.lines("images"):
        names = tuple(ACTIVATIONS) if line.options.get("types") == "every" else ("relu",)
        kernels = {
            f"{name}_{direction}": (name, direction) for name in names for direction in DIRECTIONS
        }
        yield from layer_cases(request, "neuron", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, name: str, direction: str) -> Work:
    """Make arrays and kernels."""
    activation = ACTIVATIONS[name]
    shape = batch, *line.shape
    x = context.normal(shape, dtype)
    g = context.normal(shape, dtype)
    descriptor = activation.descriptor(line.shape[2])
    forward = mg.Neuron(descriptor, device=context.device)
    sources, results = context.batch(x), context.result(shape, dtype)
    index = places(context.rng, shape, SAMPLES)
    at = x[index].astype(np.float64)
    value, slope = activation.value(at), activation.slope(at)
    if name == "prelu":
        a = slopes(line.shape[2]).astype(np.float64)[index[3]]
        value, slope = np.where(at >= 0, at, a * at), np.where(at >= 0, 1.0, a)
    if direction == "forward":

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, sources, results)

        # Some formulas cancel: the roundings are relative to a term of the size of x, or 1.
        samples = Samples(index, value, np.abs(value) + np.abs(at) + 0.5, 4, 4)
    else:
        incoming = context.batch(g)
        gradient = mg.NeuronGradient(descriptor, device=context.device)
        states = context.states(forward, sources, g)

        def encode(buffer: mg.CommandBuffer) -> None:
            gradient.encode_batch(buffer, incoming, sources, states, allocator=results)

        arriving = g[index].astype(np.float64)
        scale = np.abs(arriving) * (1 + np.abs(at) + np.abs(slope))
        samples = Samples(index, arriving * slope, scale, 5, 4)
    # The slope of a linear function is a constant, and the CPU device leaves its source alone.
    reads_all = name != "linear" or context.device.kind != "cpu"
    needs_source = direction == "gradient" and reads_all
    return Work(
        lambda: context.run(encode),
        [Output("y" if direction == "forward" else "dx", lambda: context.read(results), samples)],
        bytes=x.nbytes * (3 if needs_source else 2),
        arrays=x.nbytes * (2 if direction == "forward" else 3),
        peers={
            "torch": lambda peer: torch_calls(peer, name, direction, x, g),
            **dict.fromkeys(COMPILED, lambda peer: compiled_calls(peer, name, direction, x, g)),
        },
    )


def torch_calls(peer: Any, name: str, direction: str, x: Any, g: Any) -> dict[str, Any]:
    """PyTorch: the function, and the backward operator behind it; no layout matters to them."""
    f, aten = peer.functional, peer.aten
    channel_slopes = peer.array(slopes(x.shape[-1]).astype(x.dtype))
    shaped = channel_slopes.reshape(1, -1)
    quarter, two = (peer.array(np.array(value, x.dtype)) for value in (0.25, 2.0))
    forward = {
        "relu": f.relu,
        "leaky_relu": lambda x: f.leaky_relu(x, 0.1),
        "prelu": lambda x: f.prelu(x, channel_slopes),
        "relu6": f.relu6,
        "sigmoid": peer.torch.sigmoid,
        "hard_sigmoid": f.hardsigmoid,
        "tanh": peer.torch.tanh,
        "elu": f.elu,
        "softplus": f.softplus,
        "softsign": f.softsign,
        "linear": lambda x: peer.torch.add(quarter, x, alpha=0.5),
        "absolute": peer.torch.abs,
        "square": peer.torch.square,
        "exponential": peer.torch.exp,
        "logarithm": lambda x: peer.torch.log(peer.torch.add(two, x, alpha=0.125)),
        "gelu": f.gelu,
    }[name]
    source, incoming = (peer.array(array.reshape(-1, array.shape[-1])) for array in (x, g))
    if direction == "forward":
        return {"": lambda: forward(source)}
    by_result = forward(source)  # what PyTorch keeps for some

    def softsign(g: Any, x: Any) -> Any:
        return g / (1 + x.abs()) ** 2

    backward = {
        "relu": lambda g, x: aten.threshold_backward(g, x, 0),
        "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
        "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, shaped)[0],
        "relu6": lambda g, x: aten.hardtanh_backward(g, x, 0, 6),
        "sigmoid": lambda g, _: aten.sigmoid_backward(g, by_result),
        "hard_sigmoid": aten.hardsigmoid_backward,
        "tanh": lambda g, _: aten.tanh_backward(g, by_result),
        "elu": lambda g, x: aten.elu_backward(g, 1, 1, 1, False, x),
        "softplus": lambda g, x: aten.softplus_backward(g, x, 1, 20),
        "softsign": softsign,
        "linear": lambda g, _: g * 0.5,
        "absolute": lambda g, x: g * x.sgn(),
        "square": lambda g, x: g * (2 * x),
        "exponential": lambda g, _: g * by_result,
        "logarithm": lambda g, x: g * 0.125 / peer.torch.add(two, x, alpha=0.125),
        "gelu": aten.gelu_backward,
    }[name]
    return {"": lambda: backward(incoming, source)}


def compiled_calls(peer: Any, name: str, direction: str, x: Any, g: Any) -> dict[str, Any]:
    """JAX and MLX: the function, and its derivative."""
    nn, np_ = peer.nn, peer.numpy
    a = peer.array(slopes(x.shape[-1]).astype(x.dtype))
    exact = {"approximate": False} if peer.name == "jax" else {}
    function = {
        "relu": nn.relu,
        "leaky_relu": lambda x: nn.leaky_relu(x, 0.1),
        "prelu": lambda x: np_.where(x >= 0, x, a * x),
        "relu6": nn.relu6,
        "sigmoid": nn.sigmoid,
        "hard_sigmoid": lambda x: nn.relu6(x + 3) / 6,
        "tanh": np_.tanh,
        "elu": nn.elu,
        "softplus": nn.softplus,
        "softsign": lambda x: x / (1 + np_.abs(x)),
        "linear": lambda x: 0.5 * x + 0.25,
        "absolute": np_.abs,
        "square": np_.square,
        "exponential": np_.exp,
        "logarithm": lambda x: np_.log(0.125 * x + 2),
        "gelu": lambda x: nn.gelu(x, **exact),
    }[name]
    return dict(peer.either(direction, function, g, x))
