"""Optimizers, one step on a vector of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .suite import COMPILED, Case, Output, Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .suite import Context, Request

__all__ = ["cases"]

RATE = 0.01
SAMPLES = 1000
HISTORIES = {"sgd": 0, "momentum": 1, "nesterov": 1, "rmsprop": 1, "adam": 2, "amsgrad": 3}


def cases(request: Request) -> Iterator[Case]:
    """Yield every optimizer on every number of parameters, which are float32."""
    if "float32" not in request.dtypes:
        return
    for line in layers.read("parameters"):
        count = layers.smaller(line.number(0)) if request.quick else line.number(0)
        for name in HISTORIES:
            yield Case(
                "optimizer",
                name,
                line.name,
                None,
                "float32",
                lambda context, o=(count, name): build(context, *o),
                (count,),
            )


def build(context: Context, count: int, name: str) -> Work:
    """Make vectors and the optimizer; values are updated in place, histories start with zeros."""
    g, w = context.normal((count,)), context.normal((count,))
    vector = lambda array: mg.Vector.from_array(context.device, array)  # noqa: E731
    gradient, values = vector(g), vector(w.copy())
    histories = [vector(np.zeros_like(w)) for _ in range(HISTORIES[name])]
    encode = _encoder(context.device, name, gradient, values, histories)

    def read() -> Any:
        context.run(values.synchronize)
        return values.to_numpy()

    index = places(context.rng, (count,), SAMPLES)
    exact = _first_step(name, g[index].astype(np.float64), w[index].astype(np.float64))
    scale = np.abs(w[index]) + 2 * np.abs(exact - w[index])
    # Gradient, values and histories are read; values and histories are written.
    moved = w.nbytes * (3 + 2 * HISTORIES[name])
    return Work(
        lambda: context.run(encode),
        [Output("values", read, Samples(index, exact, scale, 16))],
        bytes=moved,
        arrays=w.nbytes * (3 + HISTORIES[name]),
        peers={
            "torch": lambda peer: torch_calls(peer, name, g, w),
            **dict.fromkeys(COMPILED, lambda peer: compiled_calls(peer, name, g, w)),
        },
    )


def _encoder(device: mg.Device, name: str, gradient: Any, values: Any, history: list[Any]) -> Any:
    """Return a function that encodes a step in place."""
    if name in ("adam", "amsgrad"):
        adam = mg.Adam(RATE, device=device)
        maximum = {"maximum_velocity": history[2]} if name == "amsgrad" else {}
        return lambda buffer: adam.encode_vector(
            buffer, gradient, values, *history[:2], values, **maximum
        )
    optimizer: Any
    if name == "rmsprop":
        optimizer = mg.RMSProp(RATE, device=device)
    else:
        optimizer = mg.SGD(
            RATE, momentum_scale=0.9, use_nesterov_momentum=name == "nesterov", device=device
        )
    storage = history[0] if history else None
    return lambda buffer: optimizer.encode_vector(buffer, gradient, values, storage, values)


def _first_step(name: str, g: Any, w: Any) -> Any:
    """Return the values after one step from zero history."""
    rate, epsilon = float(np.float32(RATE)), float(np.float32(1e-8))
    match name:
        case "sgd" | "momentum":
            return w - rate * g
        case "nesterov":
            return w - rate * (g + float(np.float32(0.9)) * g)
        case "rmsprop":
            return w - rate * g / (np.sqrt(0.1 * g * g) + epsilon)
        case _:
            m, v = 0.1 * g, 0.001 * g * g
            return w - rate * np.sqrt(0.001) / 0.1 * m / (np.sqrt(v) + epsilon)


def torch_calls(peer: Any, name: str, g: Any, w: Any) -> dict[str, Any]:
    """PyTorch: ``step()`` of its optimizers, in their fused and their foreach form."""
    optim = peer.torch.optim
    classes = {
        "sgd": (optim.SGD, {}),
        "momentum": (optim.SGD, {"momentum": 0.9}),
        "nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True}),
        "rmsprop": (optim.RMSprop, {"alpha": 0.9}),
        "adam": (optim.Adam, {}),
        "amsgrad": (optim.Adam, {"amsgrad": True}),
    }
    cls, settings = classes[name]
    forms = ["foreach"] if name == "rmsprop" else ["fused", "foreach"]
    calls = {}
    for form in forms:
        parameter = peer.torch.nn.Parameter(peer.array(w.copy()))
        parameter.grad = peer.array(g.copy())  # which a foreach step with nesterov changes
        optimizer = cls([parameter], lr=RATE, **settings, **{form: True})

        def step(optimizer: Any = optimizer, parameter: Any = parameter) -> Any:
            optimizer.step()
            return parameter.detach()

        calls[form] = step
    return calls


def compiled_calls(peer: Any, name: str, g: Any, w: Any) -> dict[str, Any]:
    """JAX and MLX: the formulas, whose results take the place of what they were made from."""
    np_ = peer.numpy

    def adam(state: list[Any], g: Any) -> list[Any]:
        w, m, v, *maximum, time = state
        time = time + 1
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        maximum = [np_.maximum(one, v) for one in maximum]
        root = np_.sqrt(maximum[0] if maximum else v)
        rate = RATE * np_.sqrt(1 - 0.999**time) / (1 - 0.9**time)
        return [w - rate * m / (root + 1e-8), m, v, *maximum, time]

    def rmsprop(state: list[Any], g: Any) -> list[Any]:
        w, v = state
        v = 0.9 * v + 0.1 * g * g
        return [w - RATE * g / (np_.sqrt(v) + 1e-8), v]

    def sgd(state: list[Any], g: Any) -> list[Any]:
        w, *momentum = state
        momentum = [0.9 * one + g for one in momentum]
        change = g + 0.9 * momentum[0] if name == "nesterov" else [*momentum, g][0]
        return [w - RATE * change, *momentum]

    function = {"rmsprop": rmsprop, "adam": adam, "amsgrad": adam}.get(name, sgd)
    state = [w] + [np.zeros_like(w)] * HISTORIES[name]
    if function is adam:
        state.append(np.zeros((), np.float32))
    step = peer.update(function, [peer.array(array) for array in state], g)
    return {"": lambda: step()[0]}
