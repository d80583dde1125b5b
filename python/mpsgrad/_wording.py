"""Words for calls that do not fit: in place of pybind11's signatures and of Python's one detail."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from mpsgrad import _core

__all__ = ["has_buffer", "misfit", "no_such_name", "padding_meant", "wrong_call"]

_INT = "typing.SupportsInt | typing.SupportsIndex"
_FLOAT = "typing.SupportsFloat | typing.SupportsIndex"
_ARRAY = "numpy.ndarray | typing_extensions.Buffer"
_OWN = "mpsgrad._core."
_SIGNATURE = re.compile(r"^(?:\d+\. )?\w*(\(.*\)) -> .*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?:\(|, )(\w+): ")
_UNNAMED = re.compile(r"arg\d+")
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", _VAR_KEYWORD: "**"}
_PLAIN = {
    _INT: "int",
    _FLOAT: "float",
    _OWN: "",
    "collections.abc.": "",
    _ARRAY: "NumPy array, or have a buffer or DLPack",
    "numpy.typing.NDArray[numpy.float32]": "NumPy array of float32",
    "typing.Annotated[numpy.typing.ArrayLike, numpy.float32]": "array of numbers",
}


# What is in place of some of torch.nn's names.
_OF_PYTORCH = {
    "AvgPool2d": "PoolingAverage",
    "BatchNorm2d": "BatchNormalization",
    "Conv2d": "Convolution",
    "ConvTranspose2d": "ConvolutionTranspose",
    "CrossEntropyLoss": "Loss, of LossType.SOFT_MAX_CROSS_ENTROPY,",
    "Flatten": "Reshape",
    "GroupNorm": "GroupNormalization",
    "InstanceNorm2d": "InstanceNormalization",
    "Linear": "FullyConnected",
    "LocalResponseNorm": "CrossChannelNormalization",
    "MSELoss": "Loss, of LossType.MEAN_SQUARED_ERROR,",
    "MaxPool2d": "PoolingMax",
    "ReLU": "Neuron, of NeuronType.RELU,",
    "Sigmoid": "Neuron, of NeuronType.SIGMOID,",
    "Tanh": "Neuron, of NeuronType.TANH,",
    "Upsample": "UpsamplingNearest or UpsamplingBilinear",
}


# What is in place of some of its arguments' names.
_ARGUMENTS_OF_PYTORCH = {
    "alpha": "decay",
    "betas": "beta1 and beta2",
    "eps": "epsilon",
    "lr": "learning_rate",
    "momentum": "momentum_scale",
    "nesterov": "use_nesterov_momentum",
    "weight_decay": "regularization_scale of an OptimizerDescriptor, of regularization_type L2",
}


class _Parameter(NamedTuple):
    name: str
    wanted: str  # its type in pybind11's words
    required: bool
    positional: bool


class _Complaint(NamedTuple):
    fitting: int  # arguments before the one that is wrong
    words: str
    error: type[Exception] = TypeError


def no_such_name(module: str, name: str, names: Sequence[str]) -> AttributeError:
    """Return an error for a name that a module has not, with the one that may be meant."""
    message = f"module {module!r} has no attribute {name!r}"
    if not name.startswith("_"):
        meant = _OF_PYTORCH.get(name) if module == "mpsgrad" else None
        if meant is not None:
            message += f"; PyTorch's {name} is {meant} here"
        elif meant := _like(name, names):
            message += f"; did you mean {meant!r}?"
    return AttributeError(message, name=name)


def _like(name: str, names: Sequence[str]) -> str | None:
    """Return which of the names, of this module or ``a.b``, one of Apple's or a misspelt one is."""
    own = name.removeprefix("MPS").removeprefix("CNN").removeprefix("NN").lower()
    by_letters = {each.rpartition(".")[2].lower(): each for each in reversed(names)}
    if own not in by_letters:
        own = own.removeprefix("optimizer")
    close = difflib.get_close_matches(own, by_letters, 1, 0.8)
    close += [  # whole words at the end
        letters
        for letters, each in by_letters.items()
        if letters.endswith(own) and each[-len(own)].isupper()
    ]
    return by_letters[close[0]] if close else None


def wrong_call(
    who: str, documentation: str, of_object: bool, args: Sequence[Any], kwargs: dict[str, Any]
) -> Exception | None:
    """Return an error that says what is wrong with a call's arguments, None without a signature.

    Parameters
    ----------
    who : str
        What the message begins with: a class, a function, a method or a setting.
    documentation : str
        The docstring that begins as pybind11 begins it, with signatures.
    of_object : bool
        Whether the first argument is the object that a method or a setting belongs to.
    args, kwargs
        What the call was given.
    """
    own = int(of_object)
    complaints = []
    for signature in _SIGNATURE.findall(documentation):
        parameters = list(_parameters(signature))[own:]
        complaint = _complaint(parameters, args[own:], kwargs)
        complaints.append(complaint or _unknown_complaint(parameters, args[own:], kwargs))
    if not complaints:
        return None
    most = max(each.fitting for each in complaints)
    nearest = [each for each in complaints if each.fitting == most]
    first, *others = dict.fromkeys(each.words for each in nearest)
    words = who + "; or ".join([first, *(each.lstrip(": ") for each in others)])
    of_value = any(each.error is ValueError for each in nearest)
    return ValueError(words) if of_value else TypeError(words)


def misfit(
    parameters: Sequence[inspect.Parameter], args: Sequence[Any], kwargs: dict[str, Any]
) -> str | None:
    """Return why a call does not fit a function's parameters, and those; None if it does."""
    kinds = {each.kind for each in parameters}
    by_place = [each.name for each in parameters if each.kind == each.POSITIONAL_OR_KEYWORD]
    names = [*by_place, *(each.name for each in parameters if each.kind == each.KEYWORD_ONLY)]
    given = {*by_place[: len(args)], *kwargs}
    missing = [
        each.name
        for each in parameters
        if each.name in names and each.default is each.empty and each.name not in given
    ]
    meant = ""
    if unknown := [name for name in kwargs if name not in names and _VAR_KEYWORD not in kinds]:
        wrong = f"has no argument {unknown[0]!r}"
        meant = _meant(unknown[0], names)
    elif len(args) > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        wrong = f"takes at most {len(by_place)} by place, got {len(args)}"
    elif twice := [name for name in by_place[: len(args)] if name in kwargs]:
        wrong = f"{twice[0]} is given twice"
    elif missing:
        wrong = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    else:
        return None
    return f"{wrong}; it takes {_shown(parameters)}{meant}"


def _shown(parameters: Sequence[inspect.Parameter]) -> str:
    """Show parameters as Python writes them, without types."""
    parts = []
    for each in parameters:
        if each.kind == each.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default: Any = each.default
        if isinstance(default, Enum):
            default = f"{type(default).__name__}.{default.name}"
        value = "" if default is each.empty else f"={default}"
        parts.append(_STARS.get(each.kind, "") + each.name + value)
    return f"({', '.join(parts)})"


def _meant(name: str, names: Sequence[str]) -> str:
    known = _ARGUMENTS_OF_PYTORCH.get(name, "")
    places = {known.partition(" ")[0]}
    if "OptimizerDescriptor" in known:
        places.add("optimizer_descriptor")
    if known and places & {*names}:
        return f"; PyTorch's {name} is {known} here"
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _parameters(signature: str) -> Iterator[_Parameter]:
    """Find what stands in ``(self: Kernel, size: int, *, name: str = '')``."""
    parts = _PARAMETER.split(signature.removesuffix(")"))
    named_only = False
    for name, words in zip(parts[1::2], parts[2::2], strict=True):
        kind, separator, default = words.removesuffix(", /").partition(" = ")
        yield _Parameter(name, kind.removesuffix(", *"), not separator, not named_only)
        named_only = named_only or (default if separator else kind).endswith(", *")


def _complaint(
    parameters: list[_Parameter], args: Sequence[Any], kwargs: dict[str, Any]
) -> _Complaint | None:
    """Return what is wrong with the first argument that does not fit, None if nothing is."""
    positional = [each.name for each in parameters if each.positional]
    if len(args) > len(positional):
        return _Complaint(0, f": takes {len(positional)} arguments at most, got {len(args)}")
    for name in kwargs:
        if name not in (each.name for each in parameters):
            meant = _meant(name, [each.name for each in parameters])
            return _Complaint(0, f": has no argument {name!r}{meant}")
    given = dict(zip(positional, args, strict=False))
    for name in given.keys() & kwargs.keys():
        return _Complaint(0, f": {name} is given twice")
    given |= kwargs
    for count, (name, wanted, required, _) in enumerate(parameters):
        what = "" if _UNNAMED.fullmatch(name) else f": {name}"
        if name not in given:
            if required:
                kind = "" if wanted == "object" else f", which must be {_described(wanted)}"
                return _Complaint(count, f"{what} is missing{kind}")
        elif not _fits(given[name], wanted):
            return _wrong(count, what, wanted, given[name])
    return None


def _unknown_complaint(
    parameters: list[_Parameter], args: Sequence[Any], kwargs: dict[str, Any]
) -> _Complaint:
    """Return what to say where each argument seems to fit: what there should be, and is."""
    given = dict(zip((each.name for each in parameters), args, strict=False)) | kwargs
    if len(parameters) == 1 and given:
        name, wanted, _, _ = parameters[0]
        what = "" if _UNNAMED.fullmatch(name) else f": {name}"
        return _wrong(0, what, wanted, given[name])
    wants = ", ".join(f"{each.name}: {_described(each.wanted)}" for each in parameters)
    kinds = ", ".join(f"{name}: {type(value).__name__}" for name, value in given.items())
    return _Complaint(0, f": takes ({wants}), got ({kinds})")


def _wrong(fitting: int, what: str, wanted: str, value: Any) -> _Complaint:
    if wanted.removesuffix(" | None") in (_INT, _FLOAT) and isinstance(value, Integral):
        return _Complaint(fitting, f"{what} is out of range: {value}", ValueError)
    if wanted == f"{_OWN}Offset" and isinstance(value, tuple):
        words = f"must be an Offset, or two or three integers of 64 bits, got {value!r}"
        if len(value) in (2, 3) and all(isinstance(each, Integral) for each in value):
            return _Complaint(fitting, f"{what} {words}", ValueError)
    else:
        kind = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
        words = f"must be {_described(wanted)}, got {type(value).__name__}{kind}"
        if wanted == f"{_OWN}Device" and isinstance(value, str) and value in ("cpu", "metal"):
            words += f"; mg.Device({value!r}) is one"
        elif wanted.startswith(f"{_OWN}Padding"):
            words += padding_meant(value)
    return _Complaint(fitting, f"{what} {words}")


def padding_meant(value: Any) -> str:
    """Return which policy a value is taken to mean, in words to be put behind others."""
    if type(value).__name__ == "PaddingMethod":
        names = [f"mg.PaddingMethod.{each.name}" for each in value]  # none: of number 0
        return f"; mg.DefaultPadding({' | '.join(names) or int(value)}) is one"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return f"; mg.ExplicitPadding({value}) is one"
    if isinstance(value, (list, tuple)):
        return "; mg.ExplicitPadding(left=, right=, top=, bottom=) is one"
    return ""


def _fits(value: Any, wanted: str) -> bool:
    """Whether pybind11 takes a value, as far as it is known; if not, it is taken to be right."""
    if wanted.endswith(" | None"):
        return value is None or _fits(value, wanted.removesuffix(" | None"))
    if wanted == _INT:
        if isinstance(value, int):
            return -(2**63) <= value < 2**63
        return hasattr(value, "__index__") and not isinstance(value, (float, np.ndarray))
    if wanted == _FLOAT:
        if isinstance(value, int):
            return abs(value) <= sys.float_info.max
        if isinstance(value, np.ndarray) and value.ndim > 0:
            return False
        return hasattr(value, "__float__") or hasattr(value, "__index__")
    if wanted == "bool":
        return value is None or (hasattr(value, "__bool__") and not isinstance(value, np.ndarray))
    if wanted == "collections.abc.Callable":
        return callable(value)
    if wanted == "numpy.typing.NDArray[numpy.float32]":
        return isinstance(value, np.ndarray) and value.dtype == np.float32
    if wanted == _ARRAY:
        return isinstance(value, np.ndarray) or hasattr(value, "__dlpack__") or has_buffer(value)
    if wanted.startswith("collections.abc.Sequence"):
        return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)
    if wanted.startswith(_OWN):
        cls = getattr(_core, wanted.removeprefix(_OWN), object)
        if cls is _core.Offset and isinstance(value, tuple):
            return len(value) in (2, 3) and all(_fits(each, _INT) for each in value)
        return isinstance(value, cls)
    plain = {"str": str, "tuple": tuple, "dict": dict}
    return isinstance(value, plain.get(wanted, object))


def has_buffer(value: Any) -> bool:
    """Return whether an object has the buffer protocol."""
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _described(wanted: str) -> str:
    for long, short in _PLAIN.items():
        wanted = wanted.replace(long, short)
    wanted = wanted.replace(" | ", " or ")
    return f"{'an' if wanted[0] in 'AEIOUaeiou' else 'a'} {wanted}"
