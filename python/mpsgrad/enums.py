"""Enumerations and bit sets of MetalPerformanceShaders, with Apple's values.

The compiled part makes its own from `Enumeration`.
"""

import difflib
from enum import Enum, EnumType, IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

__all__ = ["DataType", "Enumeration", "KernelOptions", "PaddingMethod", "TextureUsage"]


class _EnumerationType(EnumType):
    """Has words for a member that there is not, as one in Swift's letters."""

    if not TYPE_CHECKING:  # type checkers would take any name for a member

        def __getattr__(cls, name: str) -> Any:
            members = () if name.startswith("_") else cls.__members__
            if name in members:  # Python 3.11 asks here for every member
                return cls.__members__[name]
            message = f"{cls.__name__} has no member {name!r}"
            by_letters = {each.replace("_", "").lower(): each for each in members}
            letters = name.replace("_", "").lower()
            if close := difflib.get_close_matches(letters, by_letters, 1, 0.8):
                message += f"; did you mean {by_letters[close[0]]!r}?"
            elif members:
                message += f"; it has {', '.join(members)}"
            raise AttributeError(message, name=name, obj=cls)


class Enumeration(IntEnum, metaclass=_EnumerationType):
    """Integers with names, by which they are printed."""

    __str__ = Enum.__str__


class KernelOptions(IntFlag):
    """How a kernel may run (``MPSKernelOptions``); none of them changes what mpsgrad checks."""

    NONE = 0
    SKIP_API_VALIDATION = 1
    ALLOW_REDUCED_PRECISION = 2
    DISABLE_INTERNAL_TILING = 4
    INSERT_DEBUG_GROUPS = 8
    VERBOSE = 16


class PaddingMethod(IntFlag):
    """Alignment, remainder side and size of a result (``MPSNNPaddingMethod``)."""

    ALIGN_CENTERED = 0x0
    ALIGN_TOP_LEFT = 0x1
    ALIGN_BOTTOM_RIGHT = 0x2
    ADD_REMAINDER_TO_TOP_LEFT = 0x0
    ADD_REMAINDER_TO_TOP_RIGHT = 0x4
    ADD_REMAINDER_TO_BOTTOM_LEFT = 0x8
    ADD_REMAINDER_TO_BOTTOM_RIGHT = 0xC
    SIZE_VALID_ONLY = 0x0
    SIZE_SAME = 0x10
    SIZE_FULL = 0x20
    ALLOW_FOR_NODE_FUSION = 0x2000
    CUSTOM = 0x4000
    EXCLUDE_EDGES = 0x8000


class TextureUsage(IntFlag):
    """What an image's texture may be used for (``MTLTextureUsage``)."""

    UNKNOWN = 0
    SHADER_READ = 1
    SHADER_WRITE = 2
    RENDER_TARGET = 4
    PIXEL_FORMAT_VIEW = 16


class DataType(Enumeration):
    """Element type of a matrix, vector or weight array (``MPSDataType``)."""

    INVALID = 0
    FLOAT32 = 0x10000020
    FLOAT16 = 0x10000010
    COMPLEX_FLOAT32 = 0x11000040
    COMPLEX_FLOAT16 = 0x11000020
    INT8 = 0x20000008
    INT16 = 0x20000010
    INT32 = 0x20000020
    INT64 = 0x20000040
    UINT8 = 0x00000008
    UINT16 = 0x00000010
    UINT32 = 0x00000020
    UINT64 = 0x00000040
    BOOL = 0x80000008
    UNORM1 = 0x40000001
    UNORM8 = 0x40000008

    @property
    def item_size(self) -> int:
        """Bytes of one element; 0 for ``UNORM1``, whose elements are bits."""
        return (self.value & 0xFFFF) >> 3
