"""Nodes of activation functions, one class a function, and the one gradient of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mpsgrad import neuron as kernels
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, GradientStateNode
from mpsgrad.neuron import NeuronDescriptor, NeuronType

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "NeuronAbsoluteNode",
    "NeuronELUNode",
    "NeuronExponentialNode",
    "NeuronGeLUNode",
    "NeuronGradientNode",
    "NeuronHardSigmoidNode",
    "NeuronLinearNode",
    "NeuronLogarithmNode",
    "NeuronNode",
    "NeuronPReLUNode",
    "NeuronPowerNode",
    "NeuronReLUNNode",
    "NeuronReLUNode",
    "NeuronSigmoidNode",
    "NeuronSoftPlusNode",
    "NeuronSoftSignNode",
    "NeuronTanHNode",
]


class NeuronNode(FilterNode):
    """Base class of all activation nodes (``MPSCNNNeuronNode``)."""

    _abstract = True
    _kernel: ClassVar[Any] = kernels.Neuron
    _state_node = GradientStateNode
    _keeps_channels = True
    _type: ClassVar[NeuronType]
    _used: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, source: Any, *, label: str | None = None, data: Any = None, **numbers: float
    ) -> None:
        super().__init__([source], label=label)
        self._descriptor = NeuronDescriptor(self._type, data=data, **numbers)

    @classmethod
    def with_descriptor(
        cls, source: Any, descriptor: Any, *, label: str | None = None
    ) -> NeuronNode:
        """Return the node that a `NeuronDescriptor` means (``nodeWithSource:descriptor:``).

        Raises
        ------
        ValueError
            If there is no class of nodes for its type, or this is another type's class.
        """
        kind = NeuronType(descriptor.neuron_type)
        node_class = _CLASSES.get(kind)
        if node_class is None or not issubclass(node_class, cls):
            raise ValueError(f"{cls.__name__}: there is no such node for NeuronType.{kind.name}")
        if kind == NeuronType.PRELU:
            return NeuronPReLUNode(source, descriptor.data, label=label)
        numbers = {name: getattr(descriptor, name) for name in node_class._used}
        return node_class(source, label=label, **numbers)

    @property
    def descriptor(self) -> NeuronDescriptor:
        """`NeuronDescriptor` of the function."""
        return self._descriptor

    @property
    def a(self) -> float:
        """The number ``a`` in the formula of the class."""
        return self._descriptor.a

    @property
    def b(self) -> float:
        """The number ``b`` in the formula of the class."""
        return self._descriptor.b

    @property
    def c(self) -> float:
        """The number ``c`` in the formula of the class."""
        return self._descriptor.c

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"descriptor": self._descriptor}

    def _describe(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._used}


class NeuronAbsoluteNode(NeuronNode):
    """``|x|`` (``MPSCNNNeuronAbsoluteNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _type = NeuronType.ABSOLUTE

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__(source, label=label)


class NeuronSigmoidNode(NeuronNode):
    """``1 / (1 + exp(-x))`` (``MPSCNNNeuronSigmoidNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _type = NeuronType.SIGMOID

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__(source, label=label)


class NeuronSoftSignNode(NeuronNode):
    """``x / (1 + |x|)`` (``MPSCNNNeuronSoftSignNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _type = NeuronType.SOFT_SIGN

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__(source, label=label)


class NeuronGeLUNode(NeuronNode):
    """``x * (1 + erf(x / sqrt(2))) / 2`` (``MPSCNNNeuronGeLUNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _type = NeuronType.GELU

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__(source, label=label)


class NeuronReLUNode(NeuronNode):
    """``x`` from 0 on, ``a * x`` below (``MPSCNNNeuronReLUNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a : float, default 0.0
        Slope below 0.
    label : str, optional
    """

    _type = NeuronType.RELU
    _used = ("a",)

    def __init__(self, source: Any, a: float = 0.0, *, label: str | None = None) -> None:
        super().__init__(source, label=label, a=a)


class NeuronELUNode(NeuronNode):
    """``x`` from 0 on, ``a * (exp(x) - 1)`` below (``MPSCNNNeuronELUNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a : float, default 1.0
        Factor below 0, where the result tends to ``-a``.
    label : str, optional
    """

    _type = NeuronType.ELU
    _used = ("a",)

    def __init__(self, source: Any, a: float = 1.0, *, label: str | None = None) -> None:
        super().__init__(source, label=label, a=a)


class NeuronReLUNNode(NeuronNode):
    """The smaller of b and a ReLU with slope a below 0 (``MPSCNNNeuronReLUNNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a : float, default 1.0
        Slope below 0; 0 makes it ReLU6.
    b : float, default 6.0
        Upper limit.
    label : str, optional
    """

    _type = NeuronType.RELUN
    _used = ("a", "b")

    def __init__(
        self, source: Any, a: float = 1.0, b: float = 6.0, *, label: str | None = None
    ) -> None:
        super().__init__(source, label=label, a=a, b=b)


class NeuronLinearNode(NeuronNode):
    """``a * x + b`` (``MPSCNNNeuronLinearNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a : float, default 1.0
        Slope.
    b : float, default 0.0
        Value at 0.
    label : str, optional
    """

    _type = NeuronType.LINEAR
    _used = ("a", "b")

    def __init__(
        self, source: Any, a: float = 1.0, b: float = 0.0, *, label: str | None = None
    ) -> None:
        super().__init__(source, label=label, a=a, b=b)


class NeuronHardSigmoidNode(NeuronNode):
    """``a * x + b`` between 0 and 1 (``MPSCNNNeuronHardSigmoidNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a : float, default 0.2
        Slope between the limits.
    b : float, default 0.5
        Value at 0.
    label : str, optional
    """

    _type = NeuronType.HARD_SIGMOID
    _used = ("a", "b")

    def __init__(
        self, source: Any, a: float = 0.2, b: float = 0.5, *, label: str | None = None
    ) -> None:
        super().__init__(source, label=label, a=a, b=b)


class NeuronSoftPlusNode(NeuronNode):
    """``a * log(1 + exp(b * x))`` (``MPSCNNNeuronSoftPlusNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a, b : float, default 1.0
        Factors of the result and of ``x``.
    label : str, optional
    """

    _type = NeuronType.SOFT_PLUS
    _used = ("a", "b")

    def __init__(
        self, source: Any, a: float = 1.0, b: float = 1.0, *, label: str | None = None
    ) -> None:
        super().__init__(source, label=label, a=a, b=b)


class NeuronTanHNode(NeuronNode):
    """``a * tanh(b * x)`` (``MPSCNNNeuronTanHNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a, b : float, default 1.0
        Factors of the result and of ``x``.
    label : str, optional
    """

    _type = NeuronType.TANH
    _used = ("a", "b")

    def __init__(
        self, source: Any, a: float = 1.0, b: float = 1.0, *, label: str | None = None
    ) -> None:
        super().__init__(source, label=label, a=a, b=b)


class NeuronPReLUNode(NeuronNode):
    """ReLU with a slope for each channel (``MPSCNNNeuronPReLUNode``). A graph does not train them.

    Parameters
    ----------
    source : ImageNode or FilterNode
    a_data : array_like of float32, shape (C,)
        Slopes below 0.
    label : str, optional
    """

    _type = NeuronType.PRELU

    def __init__(self, source: Any, a_data: npt.ArrayLike, *, label: str | None = None) -> None:
        super().__init__(source, label=label, data=a_data)

    def _describe(self) -> dict[str, Any]:
        return {"a_data": f"{len(self._descriptor.data)} values"}


class NeuronPowerNode(NeuronNode):
    """``(a * x + b) ** c`` (``MPSCNNNeuronPowerNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a : float, default 1.0
        Factor of ``x``.
    b : float, default 0.0
        Added to it.
    c : float, default 1.0
        Exponent.
    label : str, optional
    """

    _type = NeuronType.POWER
    _used = ("a", "b", "c")

    def __init__(
        self,
        source: Any,
        a: float = 1.0,
        b: float = 0.0,
        c: float = 1.0,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(source, label=label, a=a, b=b, c=c)


class NeuronExponentialNode(NeuronNode):
    """``c ** (a * x + b)``, by e where c is -1 (``MPSCNNNeuronExponentialNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a : float, default 1.0
        Factor of ``x`` in the exponent.
    b : float, default 0.0
        Added to it.
    c : float, default -1.0
        Base; -1 stands for e.
    label : str, optional
    """

    _type = NeuronType.EXPONENTIAL
    _used = ("a", "b", "c")

    def __init__(
        self,
        source: Any,
        a: float = 1.0,
        b: float = 0.0,
        c: float = -1.0,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(source, label=label, a=a, b=b, c=c)


class NeuronLogarithmNode(NeuronNode):
    """Logarithm to base c, e where that is -1, of ``a * x + b`` (``MPSCNNNeuronLogarithmNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    a : float, default 1.0
        Factor of ``x``.
    b : float, default 0.0
        Added to it.
    c : float, default -1.0
        Base; -1 stands for e.
    label : str, optional
    """

    _type = NeuronType.LOGARITHM
    _used = ("a", "b", "c")

    def __init__(
        self,
        source: Any,
        a: float = 1.0,
        b: float = 0.0,
        c: float = -1.0,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(source, label=label, a=a, b=b, c=c)


class NeuronGradientNode(GradientFilterNode):
    """Gradient of any activation node (``MPSCNNNeuronGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
    gradient_state : GradientStateNode
    descriptor : NeuronDescriptor, optional
        The forward node's.
    label : str, optional
    """

    _kernel: ClassVar[Any] = kernels.NeuronGradient
    _forward: NeuronNode
    _repeats = ("descriptor",)

    @property
    def descriptor(self) -> NeuronDescriptor:
        """`NeuronDescriptor` of the forward node."""
        return self._forward._descriptor


NeuronNode._gradient_node = NeuronGradientNode
_CLASSES = {cls._type: cls for cls in NeuronNode.__subclasses__()}
