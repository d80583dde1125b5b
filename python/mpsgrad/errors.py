"""Exceptions of mpsgrad that are not Python's own.

Wrong kinds and dtypes are `TypeError`, wrong shapes and values `ValueError`; the classes here say
the rest.
"""

__all__ = [
    "CommandBufferError",
    "DeviceError",
    "GradientUnavailableError",
    "GraphError",
    "ReadCountError",
    "StateError",
    "UnsupportedError",
]


class UnsupportedError(NotImplementedError):
    """A legal case that this device or this build cannot run."""


class DeviceError(RuntimeError):
    """A device is missing, or reports a failure."""


class CommandBufferError(RuntimeError):
    """A call that is illegal in the command buffer's present state, or work that failed.

    Attributes
    ----------
    code : int
        ``MTLCommandBufferError`` of failed work; 0 for an illegal call.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        """Keep the code when pickled."""
        return type(self), (str(self), self.code)


class ReadCountError(RuntimeError):
    """A temporary image or state is read, written or re-counted after its last read."""


class StateError(RuntimeError):
    """A state is used in the wrong order, or its kernel has changed since it was made."""


class GraphError(ValueError):
    """A graph cannot be built from its nodes."""


class GradientUnavailableError(TypeError):
    """A kernel has no gradient."""
