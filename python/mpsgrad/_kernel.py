"""What every kernel class of the package shares: copying, pickling, bytes and ``repr``."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import pickle
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from mpsgrad import _core
from mpsgrad._wording import misfit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Explaining", "KernelFacade", "Settings", "copied_source", "shown"]

_ANY_KERNEL = ("options", "label")
_UNARY = (
    "offset",
    "clip_rect",
    "edge_mode",
    "source_feature_channel_offset",
    "source_feature_channel_max_count",
    "destination_feature_channel_offset",
    "padding",
    "destination_image_allocator",
)
_BINARY = (
    *(
        f"{source}_{name}"
        for source in ("primary", "secondary")
        for name in (
            "offset",
            "edge_mode",
            "source_feature_channel_offset",
            "source_feature_channel_max_count",
            "stride_in_pixels_x",
            "stride_in_pixels_y",
        )
    ),
    "clip_rect",
    "destination_feature_channel_offset",
    "padding",
    "destination_image_allocator",
)
_GRADIENT = ("kernel_offset_x", "kernel_offset_y")


def _rebuild(
    cls: type[KernelFacade], arguments: dict[str, Any], settings: dict[str, Any]
) -> KernelFacade:
    kernel = cls(**arguments)
    for name, value in settings.items():
        setattr(kernel, name, value)
    return kernel


def _has_pickle(value: Any) -> bool:
    try:
        pickle.dumps(value, protocol=5)
    except Exception:
        return False
    return True


def _rebuild_padding(cls: type[_core.Padding]) -> _core.Padding:
    """Make a policy of the user's own without its constructor; pickle fills in the attributes."""
    policy = cls.__new__(cls)
    _core.Padding.__init__(policy)
    return policy


def _rebuild_tensorflow_padding(valid_only: bool) -> _core.DefaultPadding:
    """Make one of the ready-made policies that have the custom bit."""
    if valid_only:
        return _core.DefaultPadding.tensorflow_average_pooling_valid_only()
    return _core.DefaultPadding.tensorflow_average_pooling()


def _is_private(method: FunctionType) -> bool:
    """Whether a method is of a class that users do not know."""
    package, _, module = method.__module__.partition(".")
    return package == "mpsgrad" and (module.startswith("_") or method.__qualname__.startswith("_"))


def _declared(cls: type) -> set[str]:
    """Find the attributes that a class annotates, for only its objects have them."""
    return {name for base in cls.__mro__ for name in getattr(base, "__annotations__", ())}


def copied_source(source: Any, device: _core.Device | None) -> Any:
    """Copy a data source as well as it can be: for a device, anyhow, or not at all."""
    if not hasattr(source, "copy"):
        return copy.copy(source) if hasattr(source, "__copy__") else source
    try:
        parameters = inspect.signature(source.copy).parameters.values()
    except ValueError:  # compiled
        return source.copy()
    takes_device = any(
        each.name == "device" or each.kind == each.VAR_KEYWORD for each in parameters
    )
    return source.copy(device=device) if takes_device else source.copy()


def _explaining(init: FunctionType) -> Callable[..., None]:
    """Return a constructor that says what it takes where a call does not fit."""

    @functools.wraps(init)
    def explained(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            _, *parameters = inspect.signature(init).parameters.values()
            wrong = misfit(parameters, args, kwargs)
            if wrong is None:
                raise
            raise TypeError(f"{type(self).__name__}: {wrong}") from None

    return explained


class Explaining:
    """Mixed into classes whose constructors say what they take where a call does not fit."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap the constructor of a class of the package."""
        super().__init_subclass__(**kwargs)
        init = vars(cls).get("__init__")
        if cls.__module__.partition(".")[0] == "mpsgrad" and isinstance(init, FunctionType):
            cls.__init__ = _explaining(init)  # type: ignore[method-assign]


class Settings(Explaining):
    """Mixed into classes whose attributes are settings, where a misspelt one is an error."""

    if not TYPE_CHECKING:  # type checkers would let any name be set

        def __setattr__(self, name: str, value: Any) -> None:
            known = name.startswith("_") or hasattr(type(self), name)
            if not known and type(self).__module__.partition(".")[0] == "mpsgrad":
                declared = _declared(type(self))
                if name not in declared:
                    text = f"{type(self).__name__} has no attribute {name!r}"
                    if close := difflib.get_close_matches(name, [*dir(type(self)), *declared], 1):
                        text += f"; did you mean {close[0]!r}?"
                    raise AttributeError(text, name=name, obj=self)
            try:
                super().__setattr__(name, value)
            except AttributeError as error:
                if "has no setter" not in str(error):
                    raise
                text = f"{type(self).__name__}.{name} is read-only"
                raise AttributeError(text, name=name, obj=self) from None


def shown(value: Any) -> str:
    """Show a number that was rounded to float32 in as few digits as tell it from others."""
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            single = np.float32(value)
        if float(single) == value:
            return repr(float(str(single)))
    return repr(value)


def _name_after(cls: type, shared: FunctionType) -> FunctionType:
    """Copy a method of a base for a class, so that messages of Python name the class."""
    own = FunctionType(
        shared.__code__,
        shared.__globals__,
        shared.__name__,
        shared.__defaults__,
        shared.__closure__,
    )
    functools.update_wrapper(own, shared)
    own.__kwdefaults__ = shared.__kwdefaults__
    own.__qualname__ = f"{cls.__name__}.{shared.__name__}"
    return own


class KernelFacade(Settings):
    """Mixed into every kernel class; `_arguments` names what its constructor was given."""

    _own_settings: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have messages about a `__call__` that classes share name the class that was called."""
        super().__init_subclass__(**kwargs)
        shared = cls.__call__
        if cls.__name__.startswith("_") or not isinstance(shared, FunctionType):
            return
        if _is_private(shared):
            cls.__call__ = _name_after(cls, shared)  # type: ignore[method-assign]

    def _arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, without the device."""
        return {}

    def _settings(self) -> dict[str, Any]:
        """Return every settable property."""
        names: tuple[str, ...] = _ANY_KERNEL if isinstance(self, _core.Kernel) else ()
        if isinstance(self, _core.UnaryKernel):
            names += _UNARY
        if isinstance(self, _core.BinaryKernel):
            names += _BINARY
        if isinstance(self, _core.GradientKernel):
            names += _GRADIENT
        return {name: getattr(self, name) for name in (*names, *self._own_settings)}

    def copy(self, device: _core.Device | None = None) -> Self:
        """Return a kernel with equal parameters and properties (``copyWithZone:device:``).

        Parameters
        ----------
        device : Device, optional
            Where the copy runs; by default where this kernel does.

        Returns
        -------
        Kernel
            Of the same class. Padding and allocator are the same objects; a data source is copied
            if it can be, and read: what has been reloaded from a state is not in it.
        """
        arguments = {
            name: copied_source(value, device) if hasattr(value, "load") else value
            for name, value in self._arguments().items()
        }
        chosen = device if device is not None else self.device  # type: ignore[attr-defined]
        return cast("Self", _rebuild(type(self), {**arguments, "device": chosen}, self._settings()))

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._arguments(), self._settings())

    def to_bytes(self) -> bytes:
        """Return class, parameters and properties in a portable form; the device is left out.

        Raises
        ------
        pickle.PicklingError
            If one of them cannot be pickled, as an allocator cannot that is a lambda.
        """
        try:
            return pickle.dumps(self, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # versions differ
            parts = {"class": type(self), **self._arguments(), **self._settings()}
            wrong = next((name for name, part in parts.items() if not _has_pickle(part)), "kernel")
            raise pickle.PicklingError(
                f"{type(self).__name__}: {wrong} cannot be pickled: {error}"
            ) from error

    @classmethod
    def from_bytes(cls, data: bytes, device: _core.Device | None = None) -> Self:
        """Return the kernel that `to_bytes` described. Only for bytes you trust: they are a pickle.

        Raises
        ------
        ValueError
            If ``data`` does not hold a kernel of this class.
        """
        try:
            kernel = pickle.loads(data)
        except Exception as error:
            raise ValueError(
                f"{cls.__name__}: data is not a kernel written by to_bytes: {error}"
            ) from error
        if not isinstance(kernel, cls):
            raise ValueError(
                f"{cls.__name__}: data must hold this class, got {type(kernel).__name__}"
            )
        return kernel if device is None else kernel.copy(device)

    def __repr__(self) -> str:
        """Show the class, its parameters and its device."""
        if not _core._is_constructed(self):
            return f"<{type(self).__name__} that was never constructed>"
        arguments = [f"{name}={shown(value)}" for name, value in self._arguments().items()]
        device = self.device.kind  # type: ignore[attr-defined]
        return f"{type(self).__name__}({', '.join([*arguments, f'device={device!r}'])})"
