"""Words for arguments and settings of a wrong type, where pybind11 shows signatures instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpsgrad import _core

__all__ = ["wrong_argument", "wrong_value"]

_INT = "typing.SupportsInt | typing.SupportsIndex"
_FLOAT = "typing.SupportsFloat | typing.SupportsIndex"
_OWN = "mpsgrad._core."
_PARAMETER = re.compile(r"(?:\(|, )(\w+): ")


def wrong_value(owner: str, name: str, signature: str, value: Any) -> str:
    """Return what is wrong with the value of a setting.

    Parameters
    ----------
    owner, name : str
        The class and the setting that messages name.
    signature : str
        As pybind11 writes it: ``(arg0: mpsgrad._core.Kernel, arg1: str) -> None``.
    value
        What the setting was given.
    """
    _, (wanted,) = _parameters(signature)
    return _wrong(f"{owner}.{name}", wanted, value)


def wrong_argument(
    owner: str, signature: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return what is wrong with the arguments of a constructor, None if that cannot be told.

    Parameters
    ----------
    owner : str
        The class that messages name.
    signature : str
        As pybind11 writes it: ``__init__(self: mpsgrad._core.Image, device: ...) -> None``.
    args, kwargs
        What the constructor was given, without ``self``.
    """
    names, types = _parameters(signature)
    given = dict(zip(names, args, strict=False)) | kwargs
    for name, kind in zip(names, types, strict=True):
        wanted, _, default = kind.partition(" = ")
        if name not in given:
            if not default:
                return f"{owner}: {name} is missing, which must be {_described(wanted)}"
        elif not _fits(given[name], wanted):
            return _wrong(f"{owner}: {name}", wanted, given[name])
    return None


def _wrong(what: str, wanted: str, value: Any) -> str:
    if wanted in (_INT, _FLOAT) and isinstance(value, int):
        return f"{what} is out of range: {value}"
    return f"{what} must be {_described(wanted)}, got {type(value).__name__}"


def _parameters(signature: str) -> tuple[list[str], list[str]]:
    """Return names and types of what comes after the object itself, defaults with the types."""
    words = signature.strip().splitlines()[0].removesuffix(" -> None").removesuffix(")")
    parts = _PARAMETER.split(words)
    return parts[3::2], parts[4::2]


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
        return hasattr(value, "__float__") or hasattr(value, "__index__")
    if wanted == "str":
        return isinstance(value, str)
    if wanted.startswith("collections.abc.Sequence"):
        return isinstance(value, (Sequence, np.ndarray))
    if wanted.startswith(_OWN) and wanted not in {f"{_OWN}Offset", f"{_OWN}Region"}:
        cls = getattr(_core, wanted.removeprefix(_OWN), object)
        return isinstance(value, cls)
    return True


def _described(wanted: str) -> str:
    for long, short in ((_INT, "int"), (_FLOAT, "float"), (_OWN, ""), ("collections.abc.", "")):
        wanted = wanted.replace(long, short)
    return f"{'an' if wanted[0] in 'AEIOUaeiou' else 'a'} {wanted}"
