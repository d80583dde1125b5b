"""Convolution, transposed and fully connected, with descriptors and the sources of weights."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast, overload

import numpy as np

from mpsgrad import _core
from mpsgrad._array_source import ArraySource
from mpsgrad._arrays import ArrayGradientKernel, ArrayUnaryKernel, as_array, resolve_device
from mpsgrad._core import ConvolutionAccumulatorPrecision
from mpsgrad._kernel import KernelFacade, Settings
from mpsgrad._updates import ArrayUpdates, spend
from mpsgrad.enums import DataType
from mpsgrad.neuron import NeuronDescriptor, NeuronType

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ArrayConvolutionDataSource",
    "Convolution",
    "ConvolutionAccumulatorPrecision",
    "ConvolutionDataSource",
    "ConvolutionDescriptor",
    "ConvolutionGradient",
    "ConvolutionGradientOption",
    "ConvolutionTranspose",
    "ConvolutionTransposeGradient",
    "ConvolutionWeightsLayout",
    "DepthWiseConvolutionDescriptor",
    "FullyConnected",
    "FullyConnectedGradient",
    "SubPixelConvolutionDescriptor",
    "WeightsQuantizationType",
]


class ConvolutionGradientOption(IntFlag):
    """What a gradient kernel computes (``MPSCNNConvolutionGradientOption``)."""

    DATA = 1
    WEIGHTS_AND_BIAS = 2
    ALL = 3


class ConvolutionWeightsLayout(IntEnum):
    """Order of the axes of weights (``MPSCNNConvolutionWeightsLayout``): Apple has one."""

    OHWI = 0


class WeightsQuantizationType(IntEnum):
    """How uint8 weights stand for numbers (``MPSCNNWeightsQuantizationType``)."""

    NONE = 0
    LINEAR = 1
    LOOKUP_TABLE = 2


class ConvolutionDescriptor(Settings, _core.ConvolutionDescriptor):
    """Shape and fused activation of a convolution (``MPSCNNConvolutionDescriptor``).

    Parameters
    ----------
    kernel_width, kernel_height : int, default 3
        Taps, even numbers allowed.
    input_feature_channels, output_feature_channels : int
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
    dilation_rate_x, dilation_rate_y : int, default 1
    groups : int, default 1
        Input group g feeds only output group g; the channels of a group are multiples of 4.
    fused_neuron_descriptor : NeuronDescriptor, optional
        Applied to the result. For inference: kernels with one have no gradient.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    _depthwise = False
    _scale = 1

    def __init__(
        self,
        kernel_width: int = 3,
        kernel_height: int = 3,
        *,
        input_feature_channels: int,
        output_feature_channels: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        dilation_rate_x: int = 1,
        dilation_rate_y: int = 1,
        groups: int = 1,
        fused_neuron_descriptor: _core.NeuronDescriptor | None = None,
    ) -> None:
        super().__init__(
            kernel_width,
            kernel_height,
            input_feature_channels,
            output_feature_channels,
            stride_in_pixels_x,
            stride_in_pixels_y,
            dilation_rate_x,
            dilation_rate_y,
            groups,
            self._depthwise,
            self._scale,
            NeuronDescriptor(NeuronType.NONE)
            if fused_neuron_descriptor is None
            else fused_neuron_descriptor,
        )

    def _arguments(self) -> dict[str, Any]:
        neuron = self.fused_neuron_descriptor
        fused = NeuronDescriptor(neuron.neuron_type, neuron.a, neuron.b, neuron.c, neuron.data)
        return {
            "kernel_width": self.kernel_width,
            "kernel_height": self.kernel_height,
            "input_feature_channels": self.input_feature_channels,
            "output_feature_channels": self.output_feature_channels,
            "stride_in_pixels_x": self.stride_in_pixels_x,
            "stride_in_pixels_y": self.stride_in_pixels_y,
            "dilation_rate_x": self.dilation_rate_x,
            "dilation_rate_y": self.dilation_rate_y,
            "groups": self.groups,
            "fused_neuron_descriptor": None if fused.neuron_type == NeuronType.NONE else fused,
        }

    def copy(self) -> Self:
        """Return an equal descriptor."""
        copy = _rebuild_descriptor(type(self), self._arguments(), self._batch_normalization)
        return cast("Self", copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_descriptor, (type(self), self._arguments(), self._batch_normalization)


def _rebuild_descriptor(cls: Any, arguments: dict[str, Any], normalization: Any) -> Any:
    descriptor = cls(**arguments)
    if normalization is not None:
        arrays = [array or None for array in normalization[:4]]
        descriptor.set_batch_normalization_parameters_for_inference(*arrays, normalization[4])
    return descriptor


class DepthWiseConvolutionDescriptor(ConvolutionDescriptor):
    """One spatial filter a channel (``MPSCNNDepthWiseConvolutionDescriptor``).

    Weights have shape ``(C, kernel_height, kernel_width)``; inputs and outputs are equal in number.
    """

    _depthwise = True


class SubPixelConvolutionDescriptor(ConvolutionDescriptor):
    """Convolution followed by depth to space (``MPSCNNSubPixelConvolutionDescriptor``).

    Parameters
    ----------
    sub_pixel_scale_factor : int
        Width and height grow by it; ``output_feature_channels`` is a multiple of its square.
        Channel ``m * (r * row + column) + c`` of a result becomes channel c of one pixel of an r by
        r block. For inference: there is no gradient.
    **arguments
        As `ConvolutionDescriptor`.
    """

    def __init__(self, *args: int, sub_pixel_scale_factor: int = 1, **arguments: Any) -> None:
        self._scale = sub_pixel_scale_factor
        super().__init__(*args, **arguments)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "sub_pixel_scale_factor": self.sub_pixel_scale_factor}


_SOURCE_METHODS = (
    "load",
    "purge",
    "descriptor",
    "data_type",
    "kernel_weights_data_type",
    "weights_layout",
    "weights",
    "bias_terms",
    "label",
    "weights_quantization_type",
    "ranges_for_uint8_kernel",
    "lookup_table_for_uint8_kernel",
)


def _with_methods(owner: object, source: Any) -> Any:
    """Return a data source that a kernel is about to read, if what it has of these are methods."""
    for name in _SOURCE_METHODS:
        # Not what a property makes: that may be there only after load().
        member = inspect.getattr_static(source, name, _with_methods)
        if not callable(member) and not hasattr(type(member), "__get__"):
            raise TypeError(
                f"{type(owner).__name__}: {name} of the data source {type(source).__name__} must "
                f"be a method, got {type(member).__name__}"
            )
    return source


class ConvolutionDataSource(ABC):
    """Supplies descriptor, weights and biases when a kernel asks (``MPSCNNConvolutionDataSource``).

    A kernel calls `load`, then any of the others, then `purge`, at construction and at each reload
    from the data source; on any thread. Any object with these methods will do, this class need not
    be a base. Optional: ``weights_quantization_type()`` with ``ranges_for_uint8_kernel()`` or
    ``lookup_table_for_uint8_kernel()`` for uint8 weights, and ``copy(device=None)``, which copying
    a kernel calls so that no two kernels share one set of weights.
    """

    @abstractmethod
    def descriptor(self) -> ConvolutionDescriptor:
        """Return the descriptor."""

    @abstractmethod
    def weights(self) -> npt.NDArray[Any]:
        """Return the weights, OHWI (depthwise OHW), in the dtype of `data_type`."""

    @abstractmethod
    def bias_terms(self) -> npt.NDArray[np.float32] | None:
        """Return one float32 an output channel, or None."""

    def data_type(self) -> DataType:
        """Return the type of `weights`: FLOAT32, FLOAT16 or UINT8."""
        return DataType.FLOAT32

    def kernel_weights_data_type(self) -> DataType:
        """Return the precision the kernel multiplies with. Apple's default is FLOAT16."""
        return DataType.FLOAT16

    def weights_layout(self) -> ConvolutionWeightsLayout:
        """Return the order of the axes of `weights`; Apple has one."""
        return ConvolutionWeightsLayout.OHWI

    def load(self) -> bool:
        """Prepare to be read; False makes the kernel's constructor fail."""
        return True

    def purge(self) -> None:  # noqa: B027  nothing to do for most sources
        """Release what `load` prepared."""

    def label(self) -> str | None:
        """Return a name for the kernel's label."""
        return None

    # Names as Apple's, which subclasses use.
    def update(
        self,
        command_buffer: _core.CommandBuffer,  # noqa: ARG002
        gradient_state: _core.ConvolutionGradientState,  # noqa: ARG002
        source_state: _core.ConvolutionWeightsAndBiasesState,  # noqa: ARG002
    ) -> _core.ConvolutionWeightsAndBiasesState | None:
        """Encode an update of the weights, for a graph that is being encoded.

        No gradient has been computed yet: work may only be encoded, such as an optimizer's.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient_state : ConvolutionGradientState
            Of the whole batch.
        source_state : ConvolutionWeightsAndBiasesState
            The weights as the kernel has them.

        Returns
        -------
        ConvolutionWeightsAndBiasesState or None
            What the kernels shall use from now on; None, as here, for no update.
        """
        return None

    def update_cpu(
        self,
        gradient_state: _core.ConvolutionGradientState,  # noqa: ARG002
        source_state: _core.ConvolutionWeightsAndBiasesState,  # noqa: ARG002
    ) -> bool:
        """Update the weights, when the command buffer of a graph has completed.

        Parameters
        ----------
        gradient_state : ConvolutionGradientState
            Of the whole batch; can be read.
        source_state : ConvolutionWeightsAndBiasesState
            The weights that the gradients were computed with; can be read.

        Returns
        -------
        bool
            Whether kernels shall read this source again; False, as here, for no update.
        """
        return False


_WEIGHTS_TYPES = {
    np.dtype(np.float32): DataType.FLOAT32,
    np.dtype(np.float16): DataType.FLOAT16,
    np.dtype(np.uint8): DataType.UINT8,
}


class ArrayConvolutionDataSource(ArraySource, ConvolutionDataSource):
    """Weights and biases in NumPy arrays.

    Parameters
    ----------
    weights : array_like, shape (O, kernel_height, kernel_width, I / groups)
        float32, float16 or uint8 arrays keep their dtype, anything else becomes float32. Depthwise
        weights have shape ``(O, kernel_height, kernel_width)``. Kept, not copied: `weights_array`
        may be changed, and a reload reads it again; what an optimizer trains, after `load`.
    biases : array_like, shape (O,), optional
        float32; kept as `bias_array`.
    descriptor : ConvolutionDescriptor, optional
        By default a plain convolution of the weights' shape with stride 1 (depthwise for three
        axes).
    kernel_weights_data_type : DataType, optional
        Precision the kernel multiplies with: by default FLOAT32 for float32 weights, and FLOAT16,
        which is Apple's default, for uint8 and float16 ones, which need it.
    quantization : WeightsQuantizationType, default NONE
        How uint8 weights stand for numbers.
    ranges : array_like, shape (O, 2), optional
        (minimum, maximum) of each output channel, for LINEAR.
    lookup_table : array_like, shape (256,), optional
        For LOOKUP_TABLE.
    label : str, optional
    optimizer : Optimizer, optional
        Trains weights and biases, which are float32 then, where a graph updates by the GPU: in full
        precision, whatever the kernel multiplies with. It may serve several sources. The arrays
        show what it has done after a reload.

    Raises
    ------
    TypeError
        If weights or biases are no numbers, the descriptor or the optimizer is of another class,
        or what it trains is not float32.
    ValueError
        If the weights' shape is not the descriptor's or none that one can be made for, the biases'
        is not (O,), or what an optimizer trains is read-only.
    """

    _arrays: ClassVar[dict[str, str]] = {"weights": "weights_array", "biases": "bias_array"}

    def __init__(
        self,
        weights: npt.ArrayLike,
        biases: npt.ArrayLike | None = None,
        *,
        descriptor: ConvolutionDescriptor | None = None,
        kernel_weights_data_type: DataType | None = None,
        quantization: WeightsQuantizationType = WeightsQuantizationType.NONE,
        ranges: npt.ArrayLike | None = None,
        lookup_table: npt.ArrayLike | None = None,
        label: str | None = None,
        optimizer: Any = None,
    ) -> None:
        who = type(self).__name__
        array = as_array(who, weights, "weights")
        if array.dtype not in (np.float32, np.float16, np.uint8):
            array = array.astype(np.float32)
        if not isinstance(descriptor, _core.ConvolutionDescriptor | None):
            raise TypeError(
                f"{who}: descriptor must be a ConvolutionDescriptor or None, "
                f"got {type(descriptor).__name__}"
            )
        if descriptor is None:
            if array.ndim not in (3, 4):
                raise ValueError(
                    f"{who}: weights must have shape (O, H, W, I), or (O, H, W) for a depthwise "
                    f"convolution, got {array.shape}"
                )
            depthwise = array.ndim == 3
            cls = DepthWiseConvolutionDescriptor if depthwise else ConvolutionDescriptor
            descriptor = cls(
                array.shape[2],
                array.shape[1],
                input_feature_channels=array.shape[0 if depthwise else 3],
                output_feature_channels=array.shape[0],
            )
        if array.shape != descriptor.weight_shape:
            raise ValueError(
                f"{who}: weights must have shape {descriptor.weight_shape}, got {array.shape}"
            )
        bias_array = None
        if biases is not None:
            bias_array = np.asarray(as_array(who, biases, "biases"), np.float32)
        if bias_array is not None and bias_array.shape != array.shape[:1]:
            raise ValueError(
                f"{who}: biases must have shape {array.shape[:1]}, got {bias_array.shape}"
            )
        self.weights_array = array
        self.bias_array = bias_array
        self._descriptor = descriptor
        exact = DataType.FLOAT32 if array.dtype == np.float32 else DataType.FLOAT16
        self._kernel_type = exact if kernel_weights_data_type is None else kernel_weights_data_type
        self._quantization = quantization
        self._ranges = ranges
        self._lookup_table = lookup_table
        self._label = label
        self._updates = None if optimizer is None else self._train(optimizer)

    def _train(self, optimizer: Any) -> ArrayUpdates:
        trained = {
            name: attribute
            for name, attribute in self._arrays.items()
            if getattr(self, attribute) is not None
        }
        return ArrayUpdates(type(self).__name__, optimizer, self, trained)

    def update(
        self,
        command_buffer: _core.CommandBuffer,
        gradient_state: _core.ConvolutionGradientState,
        source_state: _core.ConvolutionWeightsAndBiasesState,
    ) -> _core.ConvolutionWeightsAndBiasesState | None:
        """Encode a step of the optimizer on the master copy; reads both states once.

        None without an optimizer, and where a `GradientBucket` takes the gradient.
        """
        spend([source_state])
        if self._updates is None:
            spend([gradient_state])
            return None
        return self._updates.step_convolution(command_buffer, gradient_state)

    def descriptor(self) -> ConvolutionDescriptor:
        """Return the descriptor."""
        return self._descriptor

    def data_type(self) -> DataType:
        """Return the type of the weights."""
        return _WEIGHTS_TYPES[self._checked_weights().dtype]

    def kernel_weights_data_type(self) -> DataType:
        """Return the precision the kernel multiplies with."""
        return self._kernel_type

    def weights(self) -> npt.NDArray[Any]:
        """Return the weights."""
        return self._checked_weights()

    def _checked_weights(self) -> npt.NDArray[Any]:
        array = self.weights_array
        if not isinstance(array, np.ndarray) or array.dtype not in _WEIGHTS_TYPES:
            wanted = "an array of float32, float16 or uint8"
            raise self._wrong_array("weights_array", wanted, array)
        if array.shape != self._descriptor.weight_shape:
            raise ValueError(
                f"{type(self).__name__}: weights_array must have shape "
                f"{self._descriptor.weight_shape}, got {array.shape}"
            )
        return array

    def bias_terms(self) -> npt.NDArray[np.float32] | None:
        """Return the biases, or None."""
        array: Any = self.bias_array
        if array is not None and not (isinstance(array, np.ndarray) and array.dtype == np.float32):
            raise self._wrong_array("bias_array", "an array of float32 or None", array)
        return self.bias_array

    def _wrong_array(self, attribute: str, wanted: str, value: Any) -> TypeError:
        kind = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
        return TypeError(
            f"{type(self).__name__}: {attribute} must be {wanted}, got {type(value).__name__}{kind}"
        )

    def label(self) -> str | None:
        """Return the name for the kernel's label."""
        return self._label

    def weights_quantization_type(self) -> WeightsQuantizationType:
        """Return how uint8 weights stand for numbers."""
        return self._quantization

    def ranges_for_uint8_kernel(self) -> npt.NDArray[np.float32]:
        """Return (minimum, maximum) of each output channel."""
        return np.asarray([] if self._ranges is None else self._ranges, np.float32)

    def lookup_table_for_uint8_kernel(self) -> npt.NDArray[np.float32]:
        """Return the 256 numbers the bytes stand for."""
        return np.asarray([] if self._lookup_table is None else self._lookup_table, np.float32)

    def __repr__(self) -> str:
        """Show shape and precision, what of the descriptor is unusual, label and optimizer."""
        d = self._descriptor
        steps = d.stride_in_pixels_x, d.stride_in_pixels_y
        dilation = d.dilation_rate_x, d.dilation_rate_y
        weights = np.asarray(self.weights_array)  # whatever was put there
        parts = [
            f"{weights.dtype} {weights.shape}",
            "no biases" if self.bias_array is None else "biases",
            "" if steps == (1, 1) else f"stride {steps}",
            "" if dilation == (1, 1) else f"dilation {dilation}",
            "" if d.groups == 1 else f"{d.groups} groups",
            "" if d.sub_pixel_scale_factor == 1 else f"sub-pixel {d.sub_pixel_scale_factor}",
            *self._shown(self._label),
        ]
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"


class _ConvolutionKernel(KernelFacade):
    """What all kernels of the family share."""

    descriptor: _core.ConvolutionDescriptor
    data_source: Any

    def _arguments(self) -> dict[str, Any]:
        return {"weights": self.data_source}

    def reload_weights_and_biases_from_data_source(self) -> None:
        """Read the data source again; work that is encoded already keeps the weights it has."""
        _with_methods(self, self.data_source)
        super().reload_weights_and_biases_from_data_source()  # type: ignore[misc]

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return self.descriptor.groups

    @property
    def channel_multiplier(self) -> int:
        """0 for a regular convolution, 1 for a depthwise one."""
        return self.descriptor.channel_multiplier


class _ForwardConvolution(_ConvolutionKernel):
    _own_settings: tuple[str, ...] = ("accumulator_precision",)

    def _check_array(self: Any, array: npt.NDArray[Any], single: bool = False) -> None:
        # Images may have more channels than the weights take; such an array is mostly one whose
        # axes are in another order, or the weights' are.
        wanted, offered = self.input_feature_channels, array.shape[3]
        chosen = self.source_feature_channel_max_count is not None
        if offered == wanted or chosen or self.source_feature_channel_offset != 0:
            return
        remedies = []
        if self._of_pytorch == offered and self.descriptor.kernel_width == wanted:  # square then
            remedies.append(f"are the weights {self._order_of_pytorch}? Theirs is (O, H, W, I)")
        if array.shape[1] == wanted:
            remedies.append("np.moveaxis(source, -3, -1) makes one of (N, C, H, W) fit")
        if single and wanted == 1:
            remedies.append("source[..., np.newaxis] makes images of one channel of it")
        if offered > wanted:
            remedies.append(
                f"set source_feature_channel_max_count to {wanted} to read the first of them"
            )
        elif not remedies:
            return  # the encode says what is missing
        raise ValueError(
            f"{type(self).__name__}: source must have {wanted} channels on its last axis, got "
            f"{offered} (shape {array.shape[single:]}); {'; or '.join(remedies)}"
        )

    # The order of PyTorch's weights, and how many channels they are for if these are in that order.
    _order_of_pytorch = "(O, I, H, W)"

    @property
    def _of_pytorch(self) -> int:
        return int(self.descriptor.kernel_height)

    @property
    def input_feature_channels(self) -> int:
        """Channels read."""
        return self.descriptor.input_feature_channels

    @property
    def output_feature_channels(self) -> int:
        """Channels of the convolution's result, before depth to space."""
        return self.descriptor.output_feature_channels

    @property
    def sub_pixel_scale_factor(self) -> int:
        """Growth of width and height; 1 for a plain convolution."""
        return self.descriptor.sub_pixel_scale_factor

    @property
    def fused_neuron_descriptor(self) -> NeuronDescriptor:
        """Activation applied to the result."""
        neuron = self.descriptor.fused_neuron_descriptor
        return NeuronDescriptor(neuron.neuron_type, neuron.a, neuron.b, neuron.c, neuron.data)


class Convolution(_ForwardConvolution, ArrayUnaryKernel, _core.Convolution):
    """Convolution, in the sense of cross-correlation (``MPSCNNConvolution``).

    ``(N, H, W, I)`` becomes ``(N, ceil(H / stride_y), ceil(W / stride_x), O)`` under SIZE_SAME, the
    default `padding`; with a sub-pixel factor s it is s times as high and wide, of ``O / s**2``
    channels. Arrays are float32 or float16; the CPU device adds up in float32.

    Parameters
    ----------
    weights : ConvolutionDataSource
        Read now, and again by `reload_weights_and_biases_from_data_source`.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError, ValueError
        If the source's arrays do not fit its descriptor.
    RuntimeError
        If ``load()`` returns False.
    """

    def __init__(
        self, weights: ConvolutionDataSource, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), _with_methods(self, weights))


class FullyConnected(_ForwardConvolution, ArrayUnaryKernel, _core.FullyConnected):
    """Inner product over the whole image, with a 1x1 result (``MPSCNNFullyConnected``).

    ``(N, kernel_height, kernel_width, I)`` becomes ``(N, 1, 1, O)``, float32 or float16; the CPU
    device adds up in float32.

    Parameters
    ----------
    weights : ConvolutionDataSource
        Its window is the source's extent; strides, dilations and groups are 1. The flattening order
        is (row, column, channel).
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError, ValueError
        If the source's arrays do not fit its descriptor, or the descriptor is not of this kind.
    RuntimeError
        If ``load()`` returns False.
    """

    def __init__(
        self, weights: ConvolutionDataSource, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), _with_methods(self, weights))


class _BackwardConvolution(_ConvolutionKernel):
    _own_settings = ("gradient_option",)

    @property
    def source_gradient_feature_channels(self) -> int:
        """Channels of the incoming gradient."""
        return self.descriptor.output_feature_channels

    @property
    def source_image_feature_channels(self) -> int:
        """Channels of the forward source, and of the result."""
        return self.descriptor.input_feature_channels


class ConvolutionGradient(_BackwardConvolution, ArrayGradientKernel, _core.ConvolutionGradient):
    """Gradients of a convolution (``MPSCNNConvolutionGradient``).

    The result is the gradient with respect to the forward source. Those with respect to weights and
    biases are summed over the batch into the `ConvolutionGradientState`, where a later encode with
    the same state adds to them; nothing divides by the batch size. ``gradient_option`` chooses.

    The incoming gradient has the shape of the forward result, source and result are
    ``(N, H, W, I)``, all float32 or float16; gradients of weights and biases are float32.

    Parameters
    ----------
    weights : ConvolutionDataSource
        The forward kernel's. The weights are first read from the source of the convolution that
        made the first state; after that only reloads change them, so every update must go to both
        kernels.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError, ValueError
        If the source's arrays do not fit its descriptor, or the descriptor has a fused neuron,
        batch normalization or a sub-pixel factor, or uint8 weights.
    RuntimeError
        If ``load()`` returns False.
    """

    def __init__(
        self, weights: ConvolutionDataSource, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), _with_methods(self, weights))


class FullyConnectedGradient(
    _BackwardConvolution, ArrayGradientKernel, _core.FullyConnectedGradient
):
    """Gradients of a fully connected kernel (``MPSCNNFullyConnectedGradient``).

    As `ConvolutionGradient`, for states of `FullyConnected`.

    ``(N, 1, 1, O)`` becomes ``(N, kernel_height, kernel_width, I)``, float32 or float16; gradients
    of weights and biases are float32.

    Parameters
    ----------
    weights : ConvolutionDataSource
        The forward kernel's.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError, ValueError
        If the source's arrays do not fit its descriptor, or the descriptor is not one of a fully
        connected kernel, or has a fused neuron.
    RuntimeError
        If ``load()`` returns False.
    """

    def __init__(
        self, weights: ConvolutionDataSource, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), _with_methods(self, weights))


class ConvolutionTranspose(_ForwardConvolution, ArrayUnaryKernel, _core.ConvolutionTranspose):
    """Transposed convolution, which makes images larger (``MPSCNNConvolutionTranspose``).

    The weights ``(O, kernel_height, kernel_width, I / groups)`` slide, without rotation and pixel
    by pixel, over the source with ``stride - 1`` zeros between its pixels. By the padding policy
    the result has ``(size - 1) * stride + 1 + style * (kernel - 1)`` columns, and rows likewise,
    with style -1, 0 and 1 for VALID_ONLY, SAME and FULL; or it has the size that the state of a
    convolution to undo remembers. Either sets ``kernel_offset_x`` and ``kernel_offset_y``.

    Parameters
    ----------
    weights : ConvolutionDataSource
        float32 weights, of a descriptor without dilation that is neither depthwise nor sub-pixel.
        Read now, and again by `reload_weights_and_biases_from_data_source`.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If the weights are not float32.
    ValueError
        If the source's arrays do not fit its descriptor, or the descriptor is not of this kind.
    RuntimeError
        If ``load()`` returns False.
    """

    _own_settings = ("accumulator_precision", "kernel_offset_x", "kernel_offset_y")

    _order_of_pytorch = "(I, O, H, W)"

    @property
    def _of_pytorch(self) -> int:
        return int(self.output_feature_channels)

    def __init__(
        self, weights: ConvolutionDataSource, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), _with_methods(self, weights))

    @overload
    def __call__(
        self,
        source: Any,
        *,
        convolution_gradient_state: Any = None,
        with_state: Literal[False] = False,
        out: Any = None,
    ) -> npt.NDArray[Any]: ...
    @overload
    def __call__(
        self,
        source: Any,
        *,
        convolution_gradient_state: Any = None,
        with_state: Literal[True],
        out: Any = None,
    ) -> tuple[npt.NDArray[Any], Any]: ...
    @overload
    def __call__(
        self,
        source: Any,
        *,
        convolution_gradient_state: Any = None,
        with_state: bool,
        out: Any = None,
    ) -> Any: ...
    def __call__(
        self,
        source: Any,
        *,
        convolution_gradient_state: Any = None,
        with_state: bool = False,
        out: Any = None,
    ) -> Any:
        """Run the kernel on an array, and wait.

        Parameters
        ----------
        source : array_like, float32 or float16, shape (N, H, W, I) or (H, W, I)
            Used in place on the CPU device if it is C-contiguous.
        convolution_gradient_state : ConvolutionGradientState, optional
            Of the convolution to undo, whose source gives the result its size.
        with_state : bool, default False
            Return the `ConvolutionTransposeGradientState` for the gradient kernel as well.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the result: C-contiguous, of the result's shape.

        Returns
        -------
        ndarray, or pair of ndarray and state
            Shape (N, height, width, O), or without N; same dtype as ``source`` unless ``out`` has
            another.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape, or the state is of another kernel.
        """
        return self._run(
            source, with_state, out, convolution_gradient_states=convolution_gradient_state
        )


class ConvolutionTransposeGradient(
    _BackwardConvolution, ArrayGradientKernel, _core.ConvolutionTransposeGradient
):
    """Gradients of a transposed convolution (``MPSCNNConvolutionTransposeGradient``).

    As `ConvolutionGradient`, for states of `ConvolutionTranspose`, which alone say where windows
    lie: the offsets of this kernel must stay 0.

    Parameters
    ----------
    weights : ConvolutionDataSource
        The forward kernel's. The weights are first read from the source of the kernel that made the
        first state; after that only reloads change them, so every update must go to both kernels.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If an array is not of the type that the source says, or the weights are not float32.
    ValueError
        If the source's arrays do not fit its descriptor, or the descriptor is not of this kind, or
        has a fused neuron or batch normalization.
    RuntimeError
        If ``load()`` returns False.
    """

    def __init__(
        self, weights: ConvolutionDataSource, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), _with_methods(self, weights))
