# Types of the extension module. Written by tools/stubs; do not edit.

"""
Compiled part of mpsgrad.
"""

from __future__ import annotations

import collections.abc
import typing

import numpy
import numpy.typing
import typing_extensions

import mpsgrad.enums

__all__: list[str] = [
    "Adam",
    "Add",
    "AddGradient",
    "Arithmetic",
    "ArithmeticGradient",
    "ArithmeticGradientState",
    "BatchNormalization",
    "BatchNormalizationGradient",
    "BatchNormalizationState",
    "BatchNormalizationStatistics",
    "BatchNormalizationStatisticsGradient",
    "BinaryGradientState",
    "BinaryKernel",
    "Buffer",
    "ChannelFormat",
    "CommandBuffer",
    "CommandBufferStatus",
    "CommandQueue",
    "Compare",
    "ComparisonType",
    "Convolution",
    "ConvolutionAccumulatorPrecision",
    "ConvolutionDescriptor",
    "ConvolutionGradient",
    "ConvolutionGradientState",
    "ConvolutionTranspose",
    "ConvolutionTransposeGradient",
    "ConvolutionTransposeGradientState",
    "ConvolutionWeightsAndBiasesState",
    "CropAndResizeBilinear",
    "CrossChannelNormalization",
    "CrossChannelNormalizationGradient",
    "DEFAULT",
    "DataLayout",
    "DefaultPadding",
    "Device",
    "DeviceArray",
    "DilatedPoolingMax",
    "DilatedPoolingMaxGradient",
    "Divide",
    "Dropout",
    "DropoutGradient",
    "DropoutGradientState",
    "EdgeMode",
    "ExplicitPadding",
    "ForwardBinaryKernel",
    "ForwardLoss",
    "ForwardLossState",
    "FullyConnected",
    "FullyConnectedGradient",
    "GradientKernel",
    "GradientState",
    "GramMatrixCalculation",
    "GramMatrixCalculationGradient",
    "Graph",
    "GridSample",
    "GroupNormalization",
    "GroupNormalizationGradient",
    "GroupNormalizationGradientState",
    "Image",
    "ImageAllocator",
    "ImageBatch",
    "ImageDescriptor",
    "InitialGradient",
    "InstanceNormalization",
    "InstanceNormalizationGradient",
    "InstanceNormalizationGradientState",
    "Kernel",
    "LabelledLoss",
    "LocalContrastNormalization",
    "LocalContrastNormalizationGradient",
    "LocalCorrelation",
    "LogSoftMax",
    "LogSoftMaxGradient",
    "Loss",
    "LossDataDescriptor",
    "LossDescriptor",
    "LossGradient",
    "LossLabels",
    "LossType",
    "Matrix",
    "MatrixDescriptor",
    "Multiply",
    "MultiplyGradient",
    "NO_CLIP",
    "Neuron",
    "NeuronDescriptor",
    "NeuronGradient",
    "NeuronType",
    "NormalizationGammaAndBetaState",
    "NormalizationMeanAndVarianceState",
    "Offset",
    "Optimizer",
    "OptimizerDescriptor",
    "Pad",
    "PadGradient",
    "Padding",
    "Pooling",
    "PoolingAverage",
    "PoolingAverageGradient",
    "PoolingGradient",
    "PoolingL2Norm",
    "PoolingL2NormGradient",
    "PoolingMax",
    "PoolingMaxGradient",
    "Predicate",
    "RMSProp",
    "ReduceBinary",
    "ReduceColumnMax",
    "ReduceColumnMean",
    "ReduceColumnMin",
    "ReduceColumnSum",
    "ReduceFeatureChannelsAndWeightsMean",
    "ReduceFeatureChannelsAndWeightsSum",
    "ReduceFeatureChannelsArgumentMax",
    "ReduceFeatureChannelsArgumentMin",
    "ReduceFeatureChannelsMax",
    "ReduceFeatureChannelsMean",
    "ReduceFeatureChannelsMin",
    "ReduceFeatureChannelsSum",
    "ReduceRowMax",
    "ReduceRowMean",
    "ReduceRowMin",
    "ReduceRowSum",
    "ReduceUnary",
    "ReductionType",
    "Region",
    "RegularizationType",
    "Reshape",
    "ReshapeGradient",
    "ResizeBilinear",
    "ResourceList",
    "Slice",
    "SoftMax",
    "SoftMaxGradient",
    "SpatialNormalization",
    "SpatialNormalizationGradient",
    "State",
    "StateResourceType",
    "StochasticGradientDescent",
    "StorageMode",
    "Subtract",
    "SubtractGradient",
    "TEMPORARY",
    "TemporaryImage",
    "TemporaryMatrix",
    "TemporaryVector",
    "TextureInfo",
    "UnaryKernel",
    "Upsampling",
    "UpsamplingBilinear",
    "UpsamplingBilinearGradient",
    "UpsamplingGradient",
    "UpsamplingNearest",
    "UpsamplingNearestGradient",
    "Vector",
    "VectorDescriptor",
    "YOLOLoss",
    "YOLOLossDescriptor",
    "copy_bandwidth",
    "cpu_instruction_set",
    "fma_peak",
    "get_num_threads",
    "increment_read_count",
    "iterate",
    "memory_statistics",
    "read_bandwidth",
    "release_cached_memory",
    "resource_size",
    "set_num_threads",
    "synchronize",
]

@typing.type_check_only
class SupportsDLPack(typing.Protocol):
    """
    An object whose memory NumPy can look at by DLPack, as a tensor of PyTorch.
    """
    def __dlpack__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    def __dlpack_device__(self) -> typing.Any: ...

class ChannelFormat(mpsgrad.enums.Enumeration):
    """
    Storage of one channel value (``MPSImageFeatureChannelFormat``).
    """

    NONE = 0
    UNORM8 = 1
    UNORM16 = 2
    FLOAT16 = 3
    FLOAT32 = 4

class EdgeMode(mpsgrad.enums.Enumeration):
    """
    What lies outside an image (``MPSImageEdgeMode``).
    """

    ZERO = 0
    CLAMP = 1
    MIRROR = 2
    MIRROR_WITH_EDGE = 3
    CONSTANT = 4

class DataLayout(mpsgrad.enums.Enumeration):
    """
    Order of axes in CPU memory (``MPSDataLayout``).
    """

    HWC = 0
    CHW = 1

class StorageMode(mpsgrad.enums.Enumeration):
    """
    Who can see an image's memory (``MTLStorageMode``).
    """

    SHARED = 0
    MANAGED = 1
    PRIVATE = 2
    MEMORYLESS = 3

class CommandBufferStatus(mpsgrad.enums.Enumeration):
    """
    Life of a command buffer (``MTLCommandBufferStatus``).
    """

    NOT_ENQUEUED = 0
    ENQUEUED = 1
    COMMITTED = 2
    SCHEDULED = 3
    COMPLETED = 4
    ERROR = 5

class Device:
    """
    A device that runs kernels (``MTLDevice``).

    Parameters
    ----------
    kind : {"cpu", "metal"}, optional
        Which device; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    DeviceError
        If this build or this machine has no such device.
    """

    def __eq__(self, arg0: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __init__(self, kind: str = "") -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def command_queue(self) -> CommandQueue:
        """
        Return a new `CommandQueue`.
        """

    @property
    def kind(self) -> str:
        """
        ``"cpu"`` or ``"metal"``.
        """

    @property
    def name(self) -> str:
        """
        What runs the work: instruction set and threads, or the GPU.
        """

class Buffer:
    """
    Plain device memory (``MTLBuffer``).

    Exports the buffer protocol and DLPack without a copy, as a one-dimensional float32 array.

    Parameters
    ----------
    device : Device
    data : ndarray of float32, uint32 or int32, or what has a buffer or DLPack
        Initial contents, copied.
    size : int
        In place of ``data``: bytes, a multiple of 4, zero-filled.

    Raises
    ------
    TypeError, ValueError
        If ``data`` is no array, is empty or has items of other than 4 bytes, or ``size`` is not a positive multiple of 4.
    MemoryError, DeviceError
        If the device has no room for so many bytes, or takes no buffer of that size.
    """

    def __array__(
        self, dtype: typing.Any = None, copy: typing.Any = None
    ) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]: ...
    def __dlpack__(self, **kwargs: typing.Any) -> typing.Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @typing.overload
    def __init__(
        self,
        device: Device,
        data: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
    ) -> None: ...
    @typing.overload
    def __init__(self, device: Device, size: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def to_numpy(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        Return a copy as a one-dimensional float32 array.

        Raises
        ------
        RuntimeError
            If the command buffer that writes it has not been waited for, or the memory is private to the device.
        """

    def write(
        self,
        data: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
        offset: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None:
        """
        Copy an array's bytes into the buffer.

        Parameters
        ----------
        data : ndarray of float32, uint32 or int32
        offset : int, default 0
            Where in the buffer, bytes.

        Raises
        ------
        TypeError, ValueError
            If the items are not of 4 bytes, or the bytes do not fit.
        RuntimeError
            If committed work that nobody has waited for uses the buffer, or the memory is private to the device.
        """

    @property
    def device(self) -> Device:
        """
        `Device` whose memory it is; read only.
        """

    @property
    def nbytes(self) -> int:
        """
        Bytes of memory; read only.
        """

class CommandQueue:
    """
    Runs command buffers in the order they are enqueued (``MTLCommandQueue``).

    Parameters
    ----------
    device : Device
        What runs them.
    """

    def __init__(self, device: Device) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def command_buffer(self) -> CommandBuffer:
        """
        Return a new `CommandBuffer`.

        Waits while 64 buffers of this queue are under way.

        Raises
        ------
        CommandBufferError
            If 64 buffers exist of which none is committed.
        """

    @property
    def device(self) -> Device:
        """
        `Device` that runs the command buffers; read only.
        """

    @property
    def label(self) -> str:
        """
        Free text, empty by default; Metal's tools show it.
        """

    @label.setter
    def label(self, arg0: str) -> None: ...

class CommandBuffer:
    """
    Work that is encoded now and runs after `commit` (``MPSCommandBuffer``).

    Use it as a context manager to commit on a clean exit; that does not wait.

    Parameters
    ----------
    queue : CommandQueue
        Where the work will run.
    """

    def __enter__(self) -> CommandBuffer: ...
    def __exit__(self, arg0: typing.Any, arg1: typing.Any, arg2: typing.Any) -> None: ...
    def __init__(self, queue: CommandQueue) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def add_completed_handler(self, handler: collections.abc.Callable[..., typing.Any]) -> None:
        """
        Call ``handler(command_buffer)`` when the work has ended, on any thread.

        What it raises goes to ``sys.unraisablehook``, which prints it: nobody waits for a handler.
        """

    def add_scheduled_handler(self, handler: collections.abc.Callable[..., typing.Any]) -> None:
        """
        Call ``handler(command_buffer)`` when the work starts, on any thread.
        """

    def commit(self) -> None:
        """
        Hand the work to the device.
        """

    def commit_and_continue(self) -> None:
        """
        Commit what is encoded and go on encoding; temporaries stay usable.
        """

    def enqueue(self) -> None:
        """
        Reserve this buffer's place in the queue.
        """

    def wait_until_completed(self) -> None:
        """
        Wait for everything committed.

        Raises
        ------
        CommandBufferError
            If the work failed, or would never end because it is not committed.
        """

    def wait_until_scheduled(self) -> None:
        """
        Wait until the device starts on the work, or has failed to.

        Raises
        ------
        CommandBufferError
            If the wait would never end because the work is not committed.
        """

    @property
    def device(self) -> Device:
        """
        `Device` that runs the work, that of the queue; read only.
        """

    @property
    def error(self) -> typing.Any:
        """
        The `CommandBufferError` that waiting would raise, or None.
        """

    @property
    def label(self) -> str:
        """
        Free text, empty by default; Metal's tools show it if it is set before `commit`.
        """

    @label.setter
    def label(self, arg0: str) -> None: ...
    @property
    def predicate(self) -> Predicate:
        """
        `Predicate` of the kernels encoded from now on, or None.
        """

    @predicate.setter
    def predicate(self, arg1: Predicate) -> None: ...
    @property
    def queue(self) -> CommandQueue:
        """
        `CommandQueue` where the work runs; read only.
        """

    @property
    def status(self) -> CommandBufferStatus:
        """
        `CommandBufferStatus` of the current root.
        """

class Predicate:
    """
    Decides on the device whether kernels run (``MPSPredicate``).

    Parameters
    ----------
    buffer : Buffer
        Holds the condition.
    offset : int, default 0
        Byte offset of a uint32, a multiple of 4. Kernels encoded while the predicate is set on a command buffer run if it
        is not 0 when their turn comes.
    """

    def __init__(
        self, buffer: Buffer, offset: typing.SupportsInt | typing.SupportsIndex = 0
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    @property
    def buffer(self) -> Buffer:
        """
        `Buffer` that holds the condition; read only.
        """

    @property
    def offset(self) -> int:
        """
        Bytes from the buffer's start to the uint32 that decides, a multiple of 4; read only.
        """

class TextureInfo:
    """
    Texture of a state (``MPSStateTextureInfo``).

    Its numbers are checked when a `State` is made with it.

    Parameters
    ----------
    width : int
        Columns in texels.
    height, depth, array_length : int, default 1
        Rows in texels, layers of a 3D texture, slices of a texture array.
    pixel_format : int, default 55
        ``MTLPixelFormat`` number; 55 is one float32 a texel.
    texture_type : int, default 2
        ``MTLTextureType`` number; 2 is 2D.
    usage : int, default 3
        Bits of `TextureUsage`: SHADER_READ and SHADER_WRITE.
    """

    def __init__(
        self,
        width: typing.SupportsInt | typing.SupportsIndex,
        height: typing.SupportsInt | typing.SupportsIndex = 1,
        depth: typing.SupportsInt | typing.SupportsIndex = 1,
        array_length: typing.SupportsInt | typing.SupportsIndex = 1,
        pixel_format: typing.SupportsInt | typing.SupportsIndex = 55,
        texture_type: typing.SupportsInt | typing.SupportsIndex = 2,
        usage: typing.SupportsInt | typing.SupportsIndex = 3,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    @property
    def array_length(self) -> int:
        """
        Slices of a texture array, 1 by default; a state takes 1 to 2048. Read only.
        """

    @property
    def depth(self) -> int:
        """
        Layers of a 3D texture, 1 by default; a state takes 1 to 2048. Read only.
        """

    @property
    def height(self) -> int:
        """
        Rows in texels, 1 by default; a state takes 1 to 16384. Read only.
        """

    @property
    def pixel_format(self) -> int:
        """
        ``MTLPixelFormat`` number, by default 55, one float32 a texel; read only.
        """

    @property
    def texture_type(self) -> int:
        """
        ``MTLTextureType`` number, by default 2, which is 2D; read only.
        """

    @property
    def usage(self) -> int:
        """
        Bits of `TextureUsage`, by default SHADER_READ and SHADER_WRITE; read only.
        """

    @property
    def width(self) -> int:
        """
        Columns in texels; a state takes 1 to 16384. Read only.
        """

class StateResourceType(mpsgrad.enums.Enumeration):
    """
    Kind of a state's resource (``MPSStateResourceType``).
    """

    NONE = 0
    BUFFER = 1
    TEXTURE = 2

class ResourceList:
    """
    Resources a state shall have (``MPSStateResourceList``); textures come first.
    """

    def __init__(self) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def append_buffer(self, size: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Add a buffer of so many bytes, 1 to 2**48, or ValueError; in the state it comes after those added before.
        """

    def append_texture(self, info: TextureInfo) -> None:
        """
        Add a texture; in the state it comes after those added before, and before all buffers.
        """

class State:
    """
    Opaque carrier of buffers between kernels (``MPSState``).

    Parameters
    ----------
    device : Device
    resources : int, TextureInfo, ResourceList or Buffer
        Size of one buffer, one texture, several of both, or an existing buffer. Storage is allocated when first needed.
    """

    @staticmethod
    def temporary(
        command_buffer: CommandBuffer,
        resources: typing.SupportsInt
        | typing.SupportsIndex
        | TextureInfo
        | ResourceList
        | None = None,
    ) -> State:
        """
        Return a state that lives on one command buffer.

        Parameters
        ----------
        command_buffer : CommandBuffer
        resources : int, TextureInfo or ResourceList, optional
            As for the constructor.

        Returns
        -------
        State

        Raises
        ------
        TypeError, ValueError
            If ``resources`` is something else, or one of its numbers is out of range.
        CommandBufferError
            If the command buffer has been committed.
        """

    def __init__(
        self,
        device: Device,
        resources: typing.SupportsInt | typing.SupportsIndex | TextureInfo | ResourceList | Buffer,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def buffer_size_at(self, index: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return the bytes of one resource, 0 if it is not a buffer; IndexError if there is none of that index.
        """

    def resource_at(
        self, index: typing.SupportsInt | typing.SupportsIndex, allocate: bool = True
    ) -> Buffer:
        """
        Return the memory of one resource.

        Parameters
        ----------
        index : int
            Which one, textures first.
        allocate : bool, default True
            Make the memory if it does not exist yet.

        Returns
        -------
        Buffer or None
            None if it does not exist yet and ``allocate`` is False.

        Raises
        ------
        IndexError
            If there is no resource of that index.
        ReadCountError
            If the memory of a temporary state would have to be made, and its read count is 0.
        CommandBufferError
            If it would have to be made, and the command buffer of the state has been committed.
        """

    def resource_type_at(
        self, index: typing.SupportsInt | typing.SupportsIndex
    ) -> StateResourceType:
        """
        Return the `StateResourceType` of one resource; IndexError if there is none of that index.
        """

    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """
        Make the device's results visible to the CPU when the command buffer has completed.
        """

    def texture_info_at(self, index: typing.SupportsInt | typing.SupportsIndex) -> TextureInfo:
        """
        Return the `TextureInfo` of one resource, all zero if it is not a texture; IndexError if there is none of that index.
        """

    @property
    def device(self) -> Device:
        """
        `Device` that holds the resources; read only.
        """

    @property
    def is_temporary(self) -> bool:
        """
        Whether it lives on one command buffer; a plain `State` without resources never does. Read only.
        """

    @property
    def label(self) -> str:
        """
        Free text, empty by default.
        """

    @label.setter
    def label(self, arg0: str) -> None: ...
    @property
    def read_count(self) -> int:
        """
        How many more encodes may read a temporary state, 1 at first; at 0 its contents are gone, and any change is a ReadCountError. 0 for an ordinary state, which has no count to set: RuntimeError.
        """

    @read_count.setter
    def read_count(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def resource_count(self) -> int:
        """
        How many buffers and textures it has; read only.
        """

    @property
    def resource_size(self) -> int:
        """
        Bytes of all resources.
        """

class ImageDescriptor:
    """
    An image before it exists (``MPSImageDescriptor``).

    Parameters
    ----------
    width, height : int, default 1
        Pixels, 1 to 16384.
    feature_channels : int, default 1
        Channels of one image.
    number_of_images : int, default 1
        Images in one container; at most 2048 slices of four channels in all.
    channel_format : ChannelFormat, default FLOAT32
        Storage of the texels; not NONE.
    storage_mode : StorageMode, default MANAGED
        Python can read and write the texels of SHARED and MANAGED images only.
    usage : int, default SHADER_READ and SHADER_WRITE
        Bits of `TextureUsage`, those two among them.

    Raises
    ------
    ValueError
        If a field is out of range.
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __copy__(self) -> ImageDescriptor: ...
    def __deepcopy__(self, memo: dict[typing.Any, typing.Any]) -> ImageDescriptor: ...
    def __eq__(self, arg0: object) -> bool: ...
    def __init__(
        self,
        width: typing.SupportsInt | typing.SupportsIndex = 1,
        height: typing.SupportsInt | typing.SupportsIndex = 1,
        feature_channels: typing.SupportsInt | typing.SupportsIndex = 1,
        number_of_images: typing.SupportsInt | typing.SupportsIndex = 1,
        channel_format: ChannelFormat = ChannelFormat.FLOAT32,
        storage_mode: StorageMode = StorageMode.MANAGED,
        usage: typing.SupportsInt | typing.SupportsIndex = 3,
    ) -> None: ...
    def __reduce__(
        self,
    ) -> tuple[type, tuple[typing.Any, ...], tuple[None, dict[typing.Any, typing.Any]]]: ...
    def __repr__(self) -> str: ...
    def copy(self) -> ImageDescriptor:
        """
        Return an equal descriptor.
        """

    @property
    def array_length(self) -> int:
        """
        Slices of four channels in all images of the container; read only.
        """

    @property
    def channel_format(self) -> ChannelFormat:
        """
        `ChannelFormat` of the texels, FLOAT32 by default; ValueError for NONE.
        """

    @channel_format.setter
    def channel_format(self, arg1: ChannelFormat) -> None: ...
    @property
    def cpu_cache_mode(self) -> int:
        """
        ``MTLCPUCacheMode`` on Metal: 0 (default), or 1 for write combined; ValueError for others.
        """

    @cpu_cache_mode.setter
    def cpu_cache_mode(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def feature_channels(self) -> int:
        """
        Channels of one image, at least 1; ValueError if that makes more than 2048 slices of four in all images.
        """

    @feature_channels.setter
    def feature_channels(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def height(self) -> int:
        """
        Rows in pixels, 1 (default) to 16384, or ValueError.
        """

    @height.setter
    def height(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def number_of_images(self) -> int:
        """
        Images in one container, at least 1; ValueError if that makes more than 2048 slices of four channels.
        """

    @number_of_images.setter
    def number_of_images(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def pixel_format(self) -> int:
        """
        ``MTLPixelFormat`` number.
        """

    @property
    def slices(self) -> int:
        """
        Slices of four channels in one image.
        """

    @property
    def storage_mode(self) -> StorageMode:
        """
        `StorageMode` of the texels, MANAGED by default; Python can read and write those of SHARED and MANAGED images only.
        """

    @storage_mode.setter
    def storage_mode(self, arg1: StorageMode) -> None: ...
    @property
    def texture_type(self) -> int:
        """
        ``MTLTextureType``: 2 is 2D, 3 is a 2D array.
        """

    @property
    def usage(self) -> int:
        """
        Bits of `TextureUsage`; ValueError without SHADER_READ and SHADER_WRITE, the default.
        """

    @usage.setter
    def usage(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def width(self) -> int:
        """
        Columns in pixels, 1 (default) to 16384, or ValueError.
        """

    @width.setter
    def width(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class Image:
    """
    Multi-channel image on a device (``MPSImage``).

    Parameters
    ----------
    device : Device
    descriptor : ImageDescriptor
    """

    @staticmethod
    def from_array(
        device: Device,
        array: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
    ) -> Image:
        """
        Return an image over an array.

        Parameters
        ----------
        device : Device
        array : ndarray, or what has a buffer or DLPack, shape (H, W, C), C-contiguous
            float32, float16, uint8 or uint16. The CPU device uses it in place; Metal copies it.

        Returns
        -------
        Image

        Raises
        ------
        TypeError, ValueError
            If the array is of another kind.
        """

    def __array__(
        self, dtype: typing.Any = None, copy: typing.Any = None
    ) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]: ...
    def __init__(self, device: Device, descriptor: ImageDescriptor) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def batch_representation(
        self,
        first: typing.SupportsInt | typing.SupportsIndex | None = None,
        count: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> ImageBatch:
        """
        Return views of the contained images as a batch.

        Parameters
        ----------
        first : int, default 0
            The first image that is shown.
        count : int, optional
            How many are; by default all from ``first`` on.

        Returns
        -------
        ImageBatch

        Raises
        ------
        TypeError, ValueError
            If a number is not an integer, or the container does not have these images.
        ReadCountError
            If it is a temporary image whose texels are gone.
        """

    def read(
        self,
        layout: DataLayout = DataLayout.HWC,
        image_index: typing.SupportsInt | typing.SupportsIndex | None = None,
        dtype: typing.Any = None,
    ) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return the texels, in the storage encoding.

        Parameters
        ----------
        layout : DataLayout, default HWC
        image_index : int, optional
            One image of a container; by default all of them, along a leading axis.
        dtype : dtype, optional
            Convert with NumPy afterwards; unorm values stay 0 to 255 or 65535.

        Returns
        -------
        ndarray, shape (H, W, C) or (C, H, W)
            float32, float16, uint8 or uint16, as the channel format says.

        Raises
        ------
        TypeError
            If ``image_index`` is not an integer.
        IndexError
            If the container has no such image.
        RuntimeError
            If the work that writes the image has not been waited for, or the image is temporary or hidden by its storage mode.
        """

    def sub_image_with_feature_channel_range(
        self,
        first: typing.SupportsInt | typing.SupportsIndex,
        channels: typing.SupportsInt | typing.SupportsIndex,
    ) -> Image:
        """
        Return a view of some channels of every image.

        Parameters
        ----------
        first : int
            The first channel that is shown, a multiple of 4.
        channels : int
            How many are, a positive multiple of 4; those beyond the last are left out.

        Returns
        -------
        Image

        Raises
        ------
        ValueError
            If a number is no such multiple, or the image does not have the first channel.
        ReadCountError
            If it is a temporary image whose texels are gone.
        """

    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """
        Make the device's results visible to the CPU when the command buffer has completed.
        """

    def write(
        self,
        array: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
        layout: DataLayout = DataLayout.HWC,
        image_index: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> None:
        """
        Replace the texels; visible to work that has been encoded but not committed.

        Parameters
        ----------
        array : ndarray, or what has a buffer or DLPack
            Exactly the dtype and shape that `read` returns; nothing is converted.
        layout : DataLayout, default HWC
            Order of the array's axes.
        image_index : int, optional
            One image of a container; by default all of them, along a leading axis.

        Raises
        ------
        TypeError, ValueError
            If dtype or shape differ, ``image_index`` is not an integer, or the image is over a read-only array.
        IndexError
            If the container has no such image.
        RuntimeError
            If committed work that nobody has waited for uses the image, or it is temporary or hidden by its storage mode.
        """

    @property
    def descriptor(self) -> ImageDescriptor:
        """
        A copy of it.
        """

    @property
    def device(self) -> Device:
        """
        `Device` that holds the texels; read only.
        """

    @property
    def feature_channel_format(self) -> ChannelFormat:
        """
        `ChannelFormat` of the texels, which decides the dtype of `read` and `write`; read only.
        """

    @property
    def feature_channels(self) -> int:
        """
        Channels of one image; read only.
        """

    @property
    def height(self) -> int:
        """
        Rows in pixels; read only.
        """

    @property
    def is_temporary(self) -> bool:
        """
        Whether it lives on one command buffer and cannot be read from Python; read only.
        """

    @property
    def label(self) -> str:
        """
        Free text, empty by default.
        """

    @label.setter
    def label(self, arg0: str) -> None: ...
    @property
    def number_of_images(self) -> int:
        """
        Images in this container; those of a batch hold one each. Read only.
        """

    @property
    def parent(self) -> Image:
        """
        The image this one is a view of, or None.
        """

    @property
    def pixel_format(self) -> int:
        """
        ``MTLPixelFormat`` number, by channel format and channels; read only.
        """

    @property
    def pixel_size(self) -> int:
        """
        Bytes of one texel of one slice.
        """

    @property
    def precision(self) -> int:
        """
        Bits of significand: 8, 16, 11 or 24.
        """

    @property
    def resource_size(self) -> int:
        """
        Bytes of backing store; 0 for views.
        """

    @property
    def texture_type(self) -> int:
        """
        ``MTLTextureType``: 2 is 2D, 3 is a 2D array, of several images or more than four channels; read only.
        """

    @property
    def usage(self) -> int:
        """
        Bits of `TextureUsage`; read only.
        """

    @property
    def width(self) -> int:
        """
        Columns in pixels; read only.
        """

class ImageBatch:
    """
    Images of one kind (``MPSImageBatch``).

    Parameters
    ----------
    images : sequence of Image
        Any images; an encode checks that they match.
    """

    @staticmethod
    def allocate(
        device: Device,
        descriptor: ImageDescriptor,
        count: typing.SupportsInt | typing.SupportsIndex,
    ) -> ImageBatch:
        """
        Return a batch of new zero-filled images, in one allocation where the device can.

        Parameters
        ----------
        device : Device
        descriptor : ImageDescriptor
            Of each of them, with one image.
        count : int
            How many, at least 1.

        Returns
        -------
        ImageBatch

        Raises
        ------
        ValueError
            If a number is out of range.
        """

    @staticmethod
    def from_array(
        device: Device,
        array: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
    ) -> ImageBatch:
        """
        Return a batch over an array.

        Parameters
        ----------
        device : Device
        array : ndarray, or what has a buffer or DLPack, shape (N, H, W, C), C-contiguous
            float32, float16, uint8 or uint16. The CPU device uses it in place; Metal copies it.

        Raises
        ------
        TypeError, ValueError
            If the array is of another kind.
        """

    @staticmethod
    def temporary(
        command_buffer: CommandBuffer,
        descriptor: ImageDescriptor,
        count: typing.SupportsInt | typing.SupportsIndex,
    ) -> ImageBatch:
        """
        Return a batch of new `TemporaryImage` objects.

        Parameters
        ----------
        command_buffer : CommandBuffer
            They live on it.
        descriptor : ImageDescriptor
            Of each of them, with one image.
        count : int
            How many, at least 1.

        Returns
        -------
        ImageBatch

        Raises
        ------
        ValueError
            If a number is out of range.
        CommandBufferError
            If the command buffer has been committed.
        """

    def __array__(self, dtype: typing.Any = None, copy: typing.Any = None) -> typing.Any: ...
    def __dlpack__(self, **kwargs: typing.Any) -> typing.Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @typing.overload
    def __getitem__(self, index: typing.SupportsInt | typing.SupportsIndex) -> Image: ...
    @typing.overload
    def __getitem__(self, index: slice) -> ImageBatch: ...
    def __init__(self, images: ImageBatch | collections.abc.Sequence[Image]) -> None: ...
    def __iter__(self) -> collections.abc.Iterator[Image]: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def to_array(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return the texels as one array, shape (N, H, W, C).

        The CPU device returns its own memory, 64-byte aligned and writable, where the batch is one allocation; otherwise a copy.

        Raises
        ------
        ValueError
            If the images differ in size or format, or hold several each.
        RuntimeError
            If the work that writes the batch has not been waited for.
        """

    @property
    def shape(self) -> tuple[typing.Any, ...]:
        """
        Of an array of the texels, (N, H, W, C); read only. ValueError if the images differ in size or format.
        """

class TemporaryImage(Image):
    """
    Scratch image of one command buffer (``MPSTemporaryImage``).

    Parameters
    ----------
    command_buffer : CommandBuffer
    descriptor : ImageDescriptor
    """

    def __init__(self, command_buffer: CommandBuffer, descriptor: ImageDescriptor) -> None: ...
    @property
    def read_count(self) -> int:
        """
        How many more encodes may read it; at 0 the texels are gone.
        """

    @read_count.setter
    def read_count(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class VectorDescriptor:
    """
    Shape of a `Vector` (``MPSVectorDescriptor``).

    Parameters
    ----------
    length : int
        Elements of one vector.
    vectors : int, default 1
        How many vectors.
    vector_bytes : int, default 0
        Bytes from one vector to the next; 0 stands for no gap.
    data_type : DataType, default FLOAT32

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    def __init__(
        self,
        length: typing.SupportsInt | typing.SupportsIndex,
        vectors: typing.SupportsInt | typing.SupportsIndex = 1,
        vector_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
        data_type: typing.Any = 268435488,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    @property
    def data_type(self) -> typing.Any:
        """
        `DataType` of an element; read only.
        """

    @property
    def length(self) -> int:
        """
        Elements of one vector; read only.
        """

    @property
    def vector_bytes(self) -> int:
        """
        Bytes from the start of one vector to that of the next; read only.
        """

    @property
    def vectors(self) -> int:
        """
        How many vectors; read only.
        """

class MatrixDescriptor:
    """
    Shape of a `Matrix` (``MPSMatrixDescriptor``).

    Parameters
    ----------
    rows, columns : int
    matrices : int, default 1
        How many matrices.
    row_bytes, matrix_bytes : int, default 0
        Bytes from one row, or matrix, to the next; 0 stands for no gap. ``matrix_bytes`` is a multiple of ``row_bytes``.
    data_type : DataType, default FLOAT32

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    def __init__(
        self,
        rows: typing.SupportsInt | typing.SupportsIndex,
        columns: typing.SupportsInt | typing.SupportsIndex,
        matrices: typing.SupportsInt | typing.SupportsIndex = 1,
        row_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
        matrix_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
        data_type: typing.Any = 268435488,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    @property
    def columns(self) -> int:
        """
        Elements of one row; read only.
        """

    @property
    def data_type(self) -> typing.Any:
        """
        `DataType` of an element; read only.
        """

    @property
    def matrices(self) -> int:
        """
        How many matrices; read only.
        """

    @property
    def matrix_bytes(self) -> int:
        """
        Bytes from the start of one matrix to that of the next; read only.
        """

    @property
    def row_bytes(self) -> int:
        """
        Bytes from the start of one row to that of the next; read only.
        """

    @property
    def rows(self) -> int:
        """
        Rows of one matrix; read only.
        """

class DeviceArray:
    """
    What `Vector` and `Matrix` have in common.
    """

    def __array__(
        self, dtype: typing.Any = None, copy: typing.Any = None
    ) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]: ...
    def __dlpack__(self, **kwargs: typing.Any) -> typing.Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """
        Make the device's results visible to the CPU when the command buffer has completed.
        """

    def to_numpy(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a copy as an array of `shape`.

        Raises
        ------
        RuntimeError
            If the command buffer that writes it has not been waited for, or it is temporary.
        """

    def write(
        self,
        array: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
    ) -> None:
        """
        Replace the elements; visible to work that has been encoded but not committed.

        Raises
        ------
        TypeError, ValueError
            If dtype or shape differ; nothing is converted.
        RuntimeError
            If committed work that nobody has waited for uses it, or it is temporary.
        """

    @property
    def data(self) -> Buffer:
        """
        The `Buffer` that holds the elements.
        """

    @property
    def data_type(self) -> typing.Any:
        """
        `DataType` of an element; read only.
        """

    @property
    def device(self) -> Device:
        """
        `Device` that holds the elements; read only.
        """

    @property
    def label(self) -> str:
        """
        Free text, empty by default.
        """

    @label.setter
    def label(self, arg0: str) -> None: ...
    @property
    def offset(self) -> int:
        """
        Bytes from the buffer's start to the first element.
        """

    @property
    def shape(self) -> tuple[typing.Any, ...]:
        """
        Shape as an array: (length,) or (rows, columns), after the number of vectors or matrices where there are several; read only.
        """

class Vector(DeviceArray):
    """
    Numbers in a row on a device (``MPSVector``).

    Two forms: on a device, zero-filled and allocated when first needed, or over a `Buffer`.

    Parameters
    ----------
    device : Device
        Or ``buffer``, a `Buffer`.
    descriptor : VectorDescriptor
    offset : int, default 0
        With a buffer: bytes from its start to the first element.

    Raises
    ------
    ValueError
        If the elements do not fit the buffer.
    """

    @staticmethod
    def from_array(
        device: Device,
        array: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
    ) -> Vector:
        """
        Return a vector over an array.

        Parameters
        ----------
        device : Device
        array : ndarray, or what has a buffer or DLPack, shape (length,) or (vectors, length)
            Writable, rows without gaps. The CPU device uses it in place, so that it also sees results;
            Metal copies it.

        Raises
        ------
        TypeError, ValueError
            If the array is of another kind.
        """

    @typing.overload
    def __init__(self, device: Device, descriptor: VectorDescriptor) -> None: ...
    @typing.overload
    def __init__(
        self,
        buffer: Buffer,
        descriptor: VectorDescriptor,
        offset: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    @property
    def length(self) -> int:
        """
        Elements of one vector; read only.
        """

    @property
    def vector_bytes(self) -> int:
        """
        Bytes from one vector to the next.
        """

    @property
    def vectors(self) -> int:
        """
        How many vectors it holds; read only.
        """

class Matrix(DeviceArray):
    """
    Numbers in rows on a device (``MPSMatrix``).

    Two forms: on a device, zero-filled and allocated when first needed, or over a `Buffer`.

    Parameters
    ----------
    device : Device
        Or ``buffer``, a `Buffer`.
    descriptor : MatrixDescriptor
    offset : int, default 0
        With a buffer: bytes from its start to the first element.

    Raises
    ------
    ValueError
        If the elements do not fit the buffer.
    """

    @staticmethod
    def from_array(
        device: Device,
        array: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
    ) -> Matrix:
        """
        Return a matrix over an array.

        Parameters
        ----------
        device : Device
        array : ndarray, or what has a buffer or DLPack, shape (rows, columns) or (matrices, rows, columns)
            Writable, in C order, rows without gaps inside. The CPU device uses it in place, so that it
            also sees results; Metal copies it.

        Raises
        ------
        TypeError, ValueError
            If the array is of another kind.
        """

    @typing.overload
    def __init__(self, device: Device, descriptor: MatrixDescriptor) -> None: ...
    @typing.overload
    def __init__(
        self,
        buffer: Buffer,
        descriptor: MatrixDescriptor,
        offset: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    @property
    def columns(self) -> int:
        """
        Elements of one row; read only.
        """

    @property
    def matrices(self) -> int:
        """
        How many matrices it holds; read only.
        """

    @property
    def matrix_bytes(self) -> int:
        """
        Bytes from one matrix to the next.
        """

    @property
    def row_bytes(self) -> int:
        """
        Bytes from one row to the next.
        """

    @property
    def rows(self) -> int:
        """
        Rows of one matrix; read only.
        """

class TemporaryVector(Vector):
    """
    Scratch vector of one command buffer (``MPSTemporaryVector``).

    Parameters
    ----------
    command_buffer : CommandBuffer
    descriptor : VectorDescriptor
    """

    def __init__(self, command_buffer: CommandBuffer, descriptor: VectorDescriptor) -> None: ...
    @property
    def read_count(self) -> int:
        """
        How many more encodes may read it; at 0 it is gone.
        """

    @read_count.setter
    def read_count(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class TemporaryMatrix(Matrix):
    """
    Scratch matrix of one command buffer (``MPSTemporaryMatrix``).

    Parameters
    ----------
    command_buffer : CommandBuffer
    descriptor : MatrixDescriptor
    """

    def __init__(self, command_buffer: CommandBuffer, descriptor: MatrixDescriptor) -> None: ...
    @property
    def read_count(self) -> int:
        """
        How many more encodes may read it; at 0 it is gone.
        """

    @read_count.setter
    def read_count(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class Offset:
    """
    Signed pixels (``MPSOffset``); z selects an image.

    Parameters
    ----------
    x, y, z : int, default 0
        Or all in one tuple, which is taken wherever an `Offset` is: (x, y) or (x, y, z).
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    @typing.overload
    def __init__(
        self,
        x: typing.SupportsInt | typing.SupportsIndex = 0,
        y: typing.SupportsInt | typing.SupportsIndex = 0,
        z: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    @typing.overload
    def __init__(self, arg0: tuple[typing.Any, ...]) -> None: ...
    def __iter__(self) -> collections.abc.Iterator[typing.Any]: ...
    def __reduce__(self) -> tuple[type, tuple[int, int, int]]: ...
    def __repr__(self) -> str: ...
    @property
    def x(self) -> int:
        """
        Columns to the right, or if negative to the left; read only.
        """

    @property
    def y(self) -> int:
        """
        Rows downwards, or if negative upwards; read only.
        """

    @property
    def z(self) -> int:
        """
        Images of a batch or container passed over; read only.
        """

class Region:
    """
    Part of an image (``MTLRegion``).

    Parameters
    ----------
    origin : (x, y) or (x, y, z)
    size : (width, height) or (width, height, depth)
        Parts left out have no limit.
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    def __init__(
        self,
        origin: collections.abc.Sequence[typing.Any],
        size: collections.abc.Sequence[typing.Any],
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    @property
    def origin(self) -> tuple[int, int, int]:
        """
        First column, row and image, as (x, y, z); read only.
        """

    @property
    def size(self) -> tuple[int | None, int | None, int | None]:
        """
        None stands for no limit.
        """

class NeuronType(mpsgrad.enums.Enumeration):
    """
    Activation functions (``MPSCNNNeuronType``).
    """

    NONE = 0
    RELU = 1
    LINEAR = 2
    SIGMOID = 3
    HARD_SIGMOID = 4
    TANH = 5
    ABSOLUTE = 6
    SOFT_PLUS = 7
    SOFT_SIGN = 8
    ELU = 9
    PRELU = 10
    RELUN = 11
    POWER = 12
    EXPONENTIAL = 13
    LOGARITHM = 14
    GELU = 15

class NeuronDescriptor:
    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    def __init__(
        self,
        type: NeuronType,
        a: typing.SupportsFloat | typing.SupportsIndex,
        b: typing.SupportsFloat | typing.SupportsIndex,
        c: typing.SupportsFloat | typing.SupportsIndex,
        data: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex],
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    @property
    def a(self) -> float:
        """
        Slope below zero of RELU and RELUN, factor of TANH, SOFT_PLUS and ELU, factor of x in LINEAR, HARD_SIGMOID, POWER, EXPONENTIAL and LOGARITHM; dimensionless.
        """

    @a.setter
    def a(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def b(self) -> float:
        """
        Limit of RELUN, factor of x in TANH and SOFT_PLUS, summand in LINEAR, HARD_SIGMOID, POWER, EXPONENTIAL and LOGARITHM; dimensionless.
        """

    @b.setter
    def b(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def c(self) -> float:
        """
        Exponent of POWER, base of EXPONENTIAL and LOGARITHM, where -1 stands for e; dimensionless.
        """

    @c.setter
    def c(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def data(self) -> list[float]:
        """
        Slope of PRELU below zero, one float for each channel read; a new list each time, so assign to change it.
        """

    @data.setter
    def data(
        self, arg0: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]
    ) -> None: ...
    @property
    def neuron_type(self) -> NeuronType:
        """
        `NeuronType` that says which function it is; a new one leaves the parameters as they are.
        """

    @neuron_type.setter
    def neuron_type(self, arg0: NeuronType) -> None: ...

class Padding:
    """
    How a creating encode sizes its result (``MPSNNPadding``).

    Subclass it for a policy of your own: ``padding_method()`` returns `PaddingMethod` bits; with ``CUSTOM`` among them,
    ``destination_descriptor(source_images, source_states, kernel, suggested_descriptor)`` returns the descriptor and may
    set properties of the kernel, which keep their values.
    """

    def __init__(self) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def inverse(self) -> Padding:
        """
        Return the policy that undoes this one's size, or None.
        """

    def label(self) -> str:
        """
        Return the words that messages name the policy by; empty if a policy of your own has none.
        """

    def padding_method(self) -> int:
        """
        Return the `PaddingMethod` bits as an int; TypeError if a policy of your own has no such method.
        """

class DefaultPadding(Padding):
    """
    Ready-made policies (``MPSNNDefaultPadding``).

    Parameters
    ----------
    method : PaddingMethod
        Alignment, remainder side and size bits; ``CUSTOM`` is refused.
    """

    @staticmethod
    def tensorflow_average_pooling() -> DefaultPadding:
        """
        Return TensorFlow's SAME for average pooling: 0x401C, and the kernel's edge mode becomes CLAMP.
        """

    @staticmethod
    def tensorflow_average_pooling_valid_only() -> DefaultPadding:
        """
        Return TensorFlow's VALID for average pooling: 0x400C, and the kernel's edge mode becomes CLAMP.
        """

    def __init__(self, method: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...

class ExplicitPadding(Padding):
    """
    Pixels of padding on each side.

    Parameters
    ----------
    pixels : int
        Of all sides, where it is the only argument.
    left, right, top, bottom : int, default 0
        There are ``(size + left + right - extent) // stride + 1`` columns of windows, and rows likewise. The result has as
        many, or what a kernel that enlarges or resizes makes of them. These pixels are cut off the result of a transposed
        convolution, whose columns are ``(size - 1) * stride + extent - left - right``; there ``right`` and ``bottom`` may
        be negative. In PyTorch's words they are ``padding - output_padding``, ``left`` and ``top`` ``padding``.

    Raises
    ------
    ValueError
        If a number is beyond 16384, or ``left`` or ``top`` negative. Encodes of other kernels than transposed
        convolutions refuse a negative ``right`` or ``bottom``, too.
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    @typing.overload
    def __init__(self, pixels: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @typing.overload
    def __init__(
        self,
        left: typing.SupportsInt | typing.SupportsIndex = 0,
        right: typing.SupportsInt | typing.SupportsIndex = 0,
        top: typing.SupportsInt | typing.SupportsIndex = 0,
        bottom: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    @property
    def bottom(self) -> int:
        """
        Rows added below the source, or cut off the result, -16384 to 16384; read only.
        """

    @property
    def left(self) -> int:
        """
        Columns added before the source's first, or cut off the result, 0 to 16384; read only.
        """

    @property
    def right(self) -> int:
        """
        Columns added after the source's last, or cut off the result, -16384 to 16384; read only.
        """

    @property
    def top(self) -> int:
        """
        Rows added above the source, or cut off the result, 0 to 16384; read only.
        """

class ImageAllocator:
    """
    Makes the destinations of creating encodes (``MPSImageAllocator``).
    """

    def __reduce__(self) -> str: ...
    def __repr__(self) -> str: ...

class Kernel:
    """
    Root of all kernels (``MPSKernel``); never made directly.
    """

    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    @property
    def device(self) -> Device:
        """
        `Device` it runs on, and where all that an encode is given must be; read only.
        """

    @property
    def label(self) -> str:
        """
        Free text; at first the label of the data source where there is one, else empty.
        """

    @label.setter
    def label(self, arg0: str) -> None: ...
    @property
    def options(self) -> int:
        """
        Bits of `KernelOptions`.
        """

    @options.setter
    def options(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class UnaryKernel(Kernel):
    """
    A kernel with one source and one destination (``MPSCNNKernel``).
    """

    def _result_descriptor(
        self, arg0: Image | ImageBatch | collections.abc.Sequence[Image]
    ) -> ImageDescriptor: ...
    def destination_descriptor(
        self,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        states: State | collections.abc.Sequence[State] | None = None,
    ) -> ImageDescriptor:
        """
        Return the descriptor the padding policy gives, and set `offset` accordingly.

        Parameters
        ----------
        sources : Image or list of one Image
            One image, not a batch.
        states : State or list of State, optional
            Shown to a policy of your own.

        Returns
        -------
        ImageDescriptor

        Raises
        ------
        TypeError, ValueError
            If the arguments are of another kind or number, images do not fit each other or the kernel, or the padding policy
            is not one for it.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> Image:
        """
        Encode the kernel.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source : Image, or batch
            A list or `ImageBatch` selects the batch form.
        destination : Image, or batch, optional
            Written with `offset` as it stands. Without it, the padding policy sizes a new one and sets `offset`.
        destination_state : State, or list, optional
            From `result_state`; only together with ``destination``.
        with_state, temporary_state : bool, default False
            Create a state for the gradient kernel as well.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        Image or ImageBatch, or with ``with_state`` a pair of it and the state or list of states
            The destination. Nothing in it is valid before the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, images do not fit each other or the kernel, a
            destination is read-only or shares memory with a source, or a property has a value that the kernel cannot use. A
            state to fill needs a destination, and ``with_state`` one that is created.
        StateError
            If a state to fill was made by a kernel of another class or with other properties.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[Image, typing.Any]: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. All are of one length, and so is the list of states: one for each image, or where
        `is_result_state_reused_across_batch` one and the same as often.

        Returns
        -------
        ImageBatch, or with ``with_state`` a pair of it and the list of states, None for a kernel without any
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[ImageBatch, typing.Any]: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    def encoding_storage_size(
        self,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> int:
        """
        Best guess at scratch bytes; 0, as none is known.
        """

    def result_state(
        self,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the state that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        source, destination : Image
            What the encode will be given.
        source_states : State or list of State, optional
            Not used.

        Returns
        -------
        State, or None for a kernel without one

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        """

    def result_state_batch(
        self,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the states of a batch that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        sources, destinations : batch of images
            What the encode will be given.
        source_states : State or list of State, optional
            Not used.

        Returns
        -------
        list of State, or None for a kernel without any
            One for each image, or one and the same as often where `is_result_state_reused_across_batch`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        """

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the state that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        command_buffer : CommandBuffer
            Where the work will be encoded; the result lives no longer.
        source, destination : Image
            What the encode will be given.
        source_states : State or list of State, optional
            Not used.

        Returns
        -------
        State, or None for a kernel without one

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        CommandBufferError
            If the command buffer has been committed.
        """

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the states of a batch that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        command_buffer : CommandBuffer
            Where the work will be encoded; the result lives no longer.
        sources, destinations : batch of images
            What the encode will be given.
        source_states : State or list of State, optional
            Not used.

        Returns
        -------
        list of State, or None for a kernel without any
            One for each image, or one and the same as often where `is_result_state_reused_across_batch`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        CommandBufferError
            If the command buffer has been committed.
        """

    @property
    def append_batch_barrier(self) -> bool:
        """
        Whether the whole batch must be done before its result is used, as with batch statistics; read only.
        """

    @property
    def clip_rect(self) -> Region:
        """
        Part of the destination that is written; `NO_CLIP`, the default, for all of it.
        """

    @clip_rect.setter
    def clip_rect(self, arg1: Region) -> None: ...
    @property
    def destination_feature_channel_offset(self) -> int:
        """
        First channel written, a multiple of 4 below 8192; ValueError for others.
        """

    @destination_feature_channel_offset.setter
    def destination_feature_channel_offset(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def destination_image_allocator(
        self,
    ) -> ImageAllocator | collections.abc.Callable[..., typing.Any] | None:
        """
        `DEFAULT`, `TEMPORARY` (the default), or a callable that takes command buffer, descriptor and kernel and returns an `Image`; TypeError for others.
        """

    @destination_image_allocator.setter
    def destination_image_allocator(
        self, arg1: ImageAllocator | collections.abc.Callable[..., typing.Any] | None
    ) -> None: ...
    @property
    def dilation_rate_x(self) -> int:
        """
        Columns from one tap of the window to the next, 1 without dilation; read only.
        """

    @property
    def dilation_rate_y(self) -> int:
        """
        Rows from one tap of the window to the next, 1 without dilation; read only.
        """

    @property
    def edge_mode(self) -> EdgeMode:
        """
        What lies outside the source: ZERO or CLAMP, in `Pad` any mode; ValueError for others.
        """

    @edge_mode.setter
    def edge_mode(self, arg1: EdgeMode) -> None: ...
    @property
    def is_backwards(self) -> bool:
        """
        Whether strides count pixels of the destination, as in transposed convolution and in most gradient kernels; read only.
        """

    @property
    def is_result_state_reused_across_batch(self) -> bool:
        """
        Whether one state serves all images of a batch, as in convolution, instead of one for each; read only.
        """

    @property
    def is_state_modified(self) -> bool:
        """
        Whether an encode writes into the state it is given, as one that sums up weight gradients does; read only.
        """

    @property
    def kernel_height(self) -> int:
        """
        Height of the window in pixels, before dilation; 1 for kernels without one. Read only.
        """

    @property
    def kernel_width(self) -> int:
        """
        Width of the window in pixels, before dilation; 1 for kernels without one. Read only.
        """

    @property
    def offset(self) -> Offset:
        """
        Source pixel under the centre of the first window. Encodes that create their destination replace it by what the padding policy says; `Slice` keeps the corner that is set.
        """

    @offset.setter
    def offset(self, arg1: Offset) -> None: ...
    @property
    def padding(self) -> Padding:
        """
        `Padding` policy of encodes that create their destination; SIZE_SAME by default.
        """

    @padding.setter
    def padding(self, arg1: Padding) -> None: ...
    @property
    def source_feature_channel_max_count(self) -> int | None:
        """
        Most channels read; None for no limit.
        """

    @source_feature_channel_max_count.setter
    def source_feature_channel_max_count(
        self, arg1: typing.SupportsInt | typing.SupportsIndex | None
    ) -> None: ...
    @property
    def source_feature_channel_offset(self) -> int:
        """
        First channel read, below 8192 and a multiple of 4, in `Pad` any; ValueError for others.
        """

    @source_feature_channel_offset.setter
    def source_feature_channel_offset(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def stride_in_pixels_x(self) -> int:
        """
        Columns of the source from one window to the next; of the destination if `is_backwards`. Read only.
        """

    @property
    def stride_in_pixels_y(self) -> int:
        """
        Rows of the source from one window to the next; of the destination if `is_backwards`. Read only.
        """

class BinaryKernel(Kernel):
    """
    A kernel with a primary and a secondary source (``MPSCNNBinaryKernel``).
    """

    @property
    def append_batch_barrier(self) -> bool:
        """
        Whether the whole batch must be done before its result is used, as with batch statistics; read only.
        """

    @property
    def clip_rect(self) -> Region:
        """
        Part of the destination that is written; `NO_CLIP`, the default, for all of it.
        """

    @clip_rect.setter
    def clip_rect(self, arg1: Region) -> None: ...
    @property
    def destination_feature_channel_offset(self) -> int:
        """
        First channel written, a multiple of 4 below 8192; ValueError for others.
        """

    @destination_feature_channel_offset.setter
    def destination_feature_channel_offset(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def destination_image_allocator(
        self,
    ) -> ImageAllocator | collections.abc.Callable[..., typing.Any] | None:
        """
        `DEFAULT`, `TEMPORARY` (the default), or a callable that takes command buffer, descriptor and kernel and returns an `Image`; TypeError for others.
        """

    @destination_image_allocator.setter
    def destination_image_allocator(
        self, arg1: ImageAllocator | collections.abc.Callable[..., typing.Any] | None
    ) -> None: ...
    @property
    def is_backwards(self) -> bool:
        """
        Whether strides count pixels of the destination, as in transposed convolution and in most gradient kernels; read only.
        """

    @property
    def is_result_state_reused_across_batch(self) -> bool:
        """
        Whether one state serves all images of a batch, as in convolution, instead of one for each; read only.
        """

    @property
    def is_state_modified(self) -> bool:
        """
        Whether an encode writes into the state it is given, as one that sums up weight gradients does; read only.
        """

    @property
    def padding(self) -> Padding:
        """
        `Padding` policy of encodes that create their destination; SIZE_SAME by default.
        """

    @padding.setter
    def padding(self, arg1: Padding) -> None: ...
    @property
    def primary_dilation_rate_x(self) -> int:
        """
        Columns of the primary source from one tap of its window to the next, 1 without dilation; read only.
        """

    @property
    def primary_dilation_rate_y(self) -> int:
        """
        Rows of the primary source from one tap of its window to the next, 1 without dilation; read only.
        """

    @property
    def primary_edge_mode(self) -> EdgeMode:
        """
        What lies outside the primary source: ZERO (default) or CLAMP; ValueError for others.
        """

    @primary_edge_mode.setter
    def primary_edge_mode(self, arg1: EdgeMode) -> None: ...
    @property
    def primary_kernel_height(self) -> int:
        """
        Height of the window over the primary source in pixels, before dilation; read only.
        """

    @property
    def primary_kernel_width(self) -> int:
        """
        Width of the window over the primary source in pixels, before dilation; read only.
        """

    @property
    def primary_offset(self) -> Offset:
        """
        `Offset` of the first window in the primary source, in a gradient kernel the incoming gradient. Forward encodes that create their destination replace it.
        """

    @primary_offset.setter
    def primary_offset(self, arg1: Offset) -> None: ...
    @property
    def primary_source_feature_channel_max_count(self) -> int | None:
        """
        Most channels read of the primary source, at least 1, or ValueError; None (default) for no limit.
        """

    @primary_source_feature_channel_max_count.setter
    def primary_source_feature_channel_max_count(
        self, arg1: typing.SupportsInt | typing.SupportsIndex | None
    ) -> None: ...
    @property
    def primary_source_feature_channel_offset(self) -> int:
        """
        First channel read of the primary source, below 8192 and a multiple of 4; ValueError for others.
        """

    @primary_source_feature_channel_offset.setter
    def primary_source_feature_channel_offset(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def primary_stride_in_pixels_x(self) -> int:
        """
        Columns of the primary source from one window to the next: 1, or the forward stride in a gradient kernel; 0 repeats the first where arithmetic allows it. ValueError for what the kernel does not take.
        """

    @primary_stride_in_pixels_x.setter
    def primary_stride_in_pixels_x(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def primary_stride_in_pixels_y(self) -> int:
        """
        Rows of the primary source from one window to the next: 1, or the forward stride in a gradient kernel; 0 repeats the first where arithmetic allows it. ValueError for what the kernel does not take.
        """

    @primary_stride_in_pixels_y.setter
    def primary_stride_in_pixels_y(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def secondary_dilation_rate_x(self) -> int:
        """
        Columns of the secondary source from one tap of its window to the next, 1 without dilation; read only.
        """

    @property
    def secondary_dilation_rate_y(self) -> int:
        """
        Rows of the secondary source from one tap of its window to the next, 1 without dilation; read only.
        """

    @property
    def secondary_edge_mode(self) -> EdgeMode:
        """
        What lies outside the secondary source: ZERO (default) or CLAMP, in `PadGradient` any mode; ValueError for others.
        """

    @secondary_edge_mode.setter
    def secondary_edge_mode(self, arg1: EdgeMode) -> None: ...
    @property
    def secondary_kernel_height(self) -> int:
        """
        Height of the window over the secondary source in pixels, before dilation; read only.
        """

    @property
    def secondary_kernel_width(self) -> int:
        """
        Width of the window over the secondary source in pixels, before dilation; read only.
        """

    @property
    def secondary_offset(self) -> Offset:
        """
        `Offset` of the first window in the secondary source, in a gradient kernel the forward image. Forward encodes that create their destination replace it.
        """

    @secondary_offset.setter
    def secondary_offset(self, arg1: Offset) -> None: ...
    @property
    def secondary_source_feature_channel_max_count(self) -> int | None:
        """
        Most channels read of the secondary source, at least 1, or ValueError; None (default) for no limit.
        """

    @secondary_source_feature_channel_max_count.setter
    def secondary_source_feature_channel_max_count(
        self, arg1: typing.SupportsInt | typing.SupportsIndex | None
    ) -> None: ...
    @property
    def secondary_source_feature_channel_offset(self) -> int:
        """
        First channel read of the secondary source, below 8192 and a multiple of 4 (in `PadGradient` any); ValueError for others.
        """

    @secondary_source_feature_channel_offset.setter
    def secondary_source_feature_channel_offset(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def secondary_stride_in_pixels_x(self) -> int:
        """
        Columns of the secondary source from one window to the next: 1, or the forward stride in a gradient kernel; 0 repeats the first where arithmetic allows it. ValueError for what the kernel does not take.
        """

    @secondary_stride_in_pixels_x.setter
    def secondary_stride_in_pixels_x(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def secondary_stride_in_pixels_y(self) -> int:
        """
        Rows of the secondary source from one window to the next: 1, or the forward stride in a gradient kernel; 0 repeats the first where arithmetic allows it. ValueError for what the kernel does not take.
        """

    @secondary_stride_in_pixels_y.setter
    def secondary_stride_in_pixels_y(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...

class ForwardBinaryKernel(BinaryKernel):
    """
    The encodes of ``MPSCNNBinaryKernel``, which gradient kernels do not share.
    """

    def _result_descriptor(
        self, arg0: Image | ImageBatch | collections.abc.Sequence[Image]
    ) -> ImageDescriptor: ...
    def destination_descriptor(
        self,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        states: State | collections.abc.Sequence[State] | None = None,
    ) -> ImageDescriptor:
        """
        Return the descriptor the padding policy gives, and set the offsets accordingly.

        Parameters
        ----------
        sources : [primary, secondary]
            One image of each.
        states : State or list of State, optional
            Shown to a policy of your own.

        Returns
        -------
        ImageDescriptor

        Raises
        ------
        TypeError, ValueError
            If the arguments are of another kind or number, images do not fit each other or the kernel, or the padding policy
            is not one for it.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary: Image,
        secondary: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> Image:
        """
        Encode the kernel.

        Parameters
        ----------
        command_buffer : CommandBuffer
        primary, secondary : Image, or batch
            Lists or `ImageBatch` objects select the batch form.
        destination : Image, or batch, optional
            Written with the offsets as they stand. Without it, the padding policy sizes a new one and sets them.
        destination_state : State, or list, optional
            From `result_state`; only together with ``destination``.
        with_state, temporary_state : bool, default False
            Create a state for the gradient kernels as well.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        Image or ImageBatch, or with ``with_state`` a pair of it and the state or list of states
            The destination. Nothing in it is valid before the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, images do not fit each other or the kernel, a
            destination is read-only or shares memory with a source, or a property has a value that the kernel cannot use. A
            state to fill needs a destination, and ``with_state`` one that is created.
        StateError
            If a state to fill was made by a kernel of another class or with other properties.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary: Image,
        secondary: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[Image, typing.Any]: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary: Image | ImageBatch | collections.abc.Sequence[Image],
        secondary: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primaries: ImageBatch | collections.abc.Sequence[Image],
        secondaries: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. All are of one length, and so is the list of states: one for each image, or where
        `is_result_state_reused_across_batch` one and the same as often.

        Returns
        -------
        ImageBatch, or with ``with_state`` a pair of it and the list of states, None for a kernel without any
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primaries: ImageBatch | collections.abc.Sequence[Image],
        secondaries: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[ImageBatch, typing.Any]: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primaries: Image | ImageBatch | collections.abc.Sequence[Image],
        secondaries: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    def encoding_storage_size(
        self,
        primary: Image | ImageBatch | collections.abc.Sequence[Image],
        secondary: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> int:
        """
        Best guess at scratch bytes; 0, as none is known.
        """

    def result_state(
        self,
        primary: Image | ImageBatch | collections.abc.Sequence[Image],
        secondary: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the state that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        primary, secondary, destination : Image
            What the encode will be given.
        source_states : State or list of State, optional
            Not used.

        Returns
        -------
        State, or None for a kernel without one

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        """

    def result_state_batch(
        self,
        primaries: Image | ImageBatch | collections.abc.Sequence[Image],
        secondaries: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the states of a batch that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        primaries, secondaries, destinations : batch of images
            What the encode will be given.
        source_states : State or list of State, optional
            Not used.

        Returns
        -------
        list of State, or None for a kernel without any
            One for each image, or one and the same as often where `is_result_state_reused_across_batch`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        """

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        primary: Image | ImageBatch | collections.abc.Sequence[Image],
        secondary: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the state that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        command_buffer : CommandBuffer
            Where the work will be encoded; the result lives no longer.
        primary, secondary, destination : Image
            What the encode will be given.
        source_states : State or list of State, optional
            Not used.

        Returns
        -------
        State, or None for a kernel without one

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        CommandBufferError
            If the command buffer has been committed.
        """

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        primaries: Image | ImageBatch | collections.abc.Sequence[Image],
        secondaries: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the states of a batch that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        command_buffer : CommandBuffer
            Where the work will be encoded; the result lives no longer.
        primaries, secondaries, destinations : batch of images
            What the encode will be given.
        source_states : State or list of State, optional
            Not used.

        Returns
        -------
        list of State, or None for a kernel without any
            One for each image, or one and the same as often where `is_result_state_reused_across_batch`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        CommandBufferError
            If the command buffer has been committed.
        """

class BinaryGradientState(State):
    """
    A forward binary kernel's configuration for its gradient kernels (``MPSNNBinaryGradientState``).
    """

    def __repr__(self) -> str: ...
    @property
    def clip_rect(self) -> Region:
        """
        `Region` of the destination that the forward kernel wrote, cut to its size; read only.
        """

    @property
    def primary_edge_mode(self) -> EdgeMode:
        """
        What the forward kernel took to lie outside the primary source; read only.
        """

    @property
    def primary_feature_channels(self) -> int:
        """
        Channels of the primary source image, those not read included; read only.
        """

    @property
    def primary_height(self) -> int:
        """
        Rows of the primary source image, pixels; read only.
        """

    @property
    def primary_offset(self) -> Offset:
        """
        What `primary_offset` of the forward kernel was at its encode; read only.
        """

    @property
    def primary_width(self) -> int:
        """
        Columns of the primary source image, pixels; read only.
        """

    @property
    def secondary_edge_mode(self) -> EdgeMode:
        """
        What the forward kernel took to lie outside the secondary source; read only.
        """

    @property
    def secondary_feature_channels(self) -> int:
        """
        Channels of the secondary source image, those not read included; read only.
        """

    @property
    def secondary_height(self) -> int:
        """
        Rows of the secondary source image, pixels; read only.
        """

    @property
    def secondary_offset(self) -> Offset:
        """
        What `secondary_offset` of the forward kernel was at its encode; read only.
        """

    @property
    def secondary_width(self) -> int:
        """
        Columns of the secondary source image, pixels; read only.
        """

class GradientKernel(BinaryKernel):
    """
    The backward pass of a kernel (``MPSCNNGradientKernel``).
    """

    def configure(
        self,
        source_gradient: Image | ImageBatch | collections.abc.Sequence[Image],
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        state: State | collections.abc.Sequence[State],
    ) -> None:
        """
        Copy the forward configuration into the properties, as an encode with a given destination needs.

        Parameters
        ----------
        source_gradient, source : Image, or batch
            As for `encode`; the first of a batch stands for all.
        state : State, or list
            The first of a list stands for all.

        Raises
        ------
        TypeError, ValueError
            If the arguments are of another kind or number, or the state is of another kernel or one with other parameters.
        StateError
            If the kernel needs a state that a forward encode has filled and this one is not, or an optimizer has used its
            gradients.
        """

    def destination_descriptor(
        self,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        states: State | collections.abc.Sequence[State] | None,
    ) -> ImageDescriptor:
        """
        Return the result's descriptor and copy the forward configuration into the properties.

        Parameters
        ----------
        sources : [gradient, source]
            One image of each.
        states : [state]

        Returns
        -------
        ImageDescriptor

        Raises
        ------
        TypeError, ValueError
            If the arguments are of another kind or number, or the state is of another kernel or one with other parameters.
        StateError
            If the kernel needs a state that a forward encode has filled and this one is not, or an optimizer has used its
            gradients.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source: Image,
        state: State | collections.abc.Sequence[State],
        destination: Image | None = None,
        *,
        configure: bool = True,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> Image:
        """
        Encode the gradient.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source_gradient : Image, or batch
            Gradient of the loss with respect to the forward result.
        source : Image, or batch
            The image of the forward pass that the class names.
        state : State, or list
            From the forward kernel; one state stands for a whole batch.
        destination : Image, or batch, optional
            Written with the properties as they stand, so `configure` must have been called for the state.
        configure : bool, default True
            False: the caller has set the properties, without `configure`.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        Image or ImageBatch
            Gradient of the loss with respect to the forward source. Nothing in it is valid before the command buffer has
            completed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, the state is of another kernel or one with other
            parameters, images do not fit it or each other, a destination is read-only or shares memory with an image that is
            read, or a property has a value that the kernel cannot use.
        StateError
            If the kernel needs a state that a forward encode has filled and this one is not, an optimizer has used its
            gradients, or ``destination`` is given and `configure` has not been called for the state.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image | ImageBatch | collections.abc.Sequence[Image],
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        state: State | collections.abc.Sequence[State],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        configure: bool = True,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: ImageBatch | collections.abc.Sequence[Image],
        sources: ImageBatch | collections.abc.Sequence[Image],
        states: State | collections.abc.Sequence[State],
        destinations: ImageBatch | None = None,
        *,
        configure: bool = True,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. All are of one length, and so is ``states`` unless it is one for the whole batch.

        Returns
        -------
        ImageBatch
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: Image | ImageBatch | collections.abc.Sequence[Image],
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        states: State | collections.abc.Sequence[State],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        configure: bool = True,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @property
    def kernel_offset_x(self) -> int:
        """
        Offset in the zero-inserted gradient, pixels.
        """

    @kernel_offset_x.setter
    def kernel_offset_x(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def kernel_offset_y(self) -> int:
        """
        Offset in the zero-inserted gradient, pixels.
        """

    @kernel_offset_y.setter
    def kernel_offset_y(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class GradientState(State):
    """
    A forward kernel's configuration for its gradient kernel (``MPSNNGradientState``).
    """

    def __repr__(self) -> str: ...
    @property
    def clip_rect(self) -> Region:
        """
        `Region` of the destination that the forward kernel wrote, cut to its size; read only.
        """

    @property
    def edge_mode(self) -> EdgeMode:
        """
        What the forward kernel took to lie outside its source; read only.
        """

    @property
    def kernel_height(self) -> int:
        """
        Height of the forward kernel's window in pixels, before dilation; read only.
        """

    @property
    def kernel_width(self) -> int:
        """
        Width of the forward kernel's window in pixels, before dilation; read only.
        """

    @property
    def offset(self) -> Offset:
        """
        Source pixel under the centre of the forward kernel's first window; read only.
        """

    @property
    def source_feature_channels(self) -> int:
        """
        Channels of the forward source image, those not read included; read only.
        """

    @property
    def source_height(self) -> int:
        """
        Rows of the forward source image, pixels; read only.
        """

    @property
    def source_width(self) -> int:
        """
        Columns of the forward source image, pixels; read only.
        """

class NormalizationGammaAndBetaState(State):
    """
    Scale and offset on their way into a kernel (``MPSCNNNormalizationGammaAndBetaState``).

    Optimizers write them, and ``reload_gamma_and_beta`` of a normalization kernel copies them from here.

    Parameters
    ----------
    gamma, beta : array_like or Buffer, float32, shape (C,)
        Of equal lengths. Arrays are copied, buffers are used where they are. They may be longer than a kernel needs.
    device : Device or str, optional
        Of the arrays; by default that of the buffers, else Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError, ValueError
        If one of them holds no numbers, has other than one axis, or is of another length or device.
    """

    @staticmethod
    def temporary(
        command_buffer: CommandBuffer,
        number_of_feature_channels: typing.SupportsInt | typing.SupportsIndex,
    ) -> NormalizationGammaAndBetaState:
        """
        Return a state that lives on one command buffer, for up to so many channels.
        """

    def __init__(
        self,
        gamma: Buffer | typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        beta: Buffer | typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        *,
        device: Device | str | None = None,
    ) -> None: ...
    @property
    def beta(self) -> Buffer:
        """
        `Buffer` of one float32 a channel.
        """

    @property
    def gamma(self) -> Buffer:
        """
        `Buffer` of one float32 a channel.
        """

class NormalizationMeanAndVarianceState(State):
    """
    Statistics on their way into a kernel (``MPSCNNNormalizationMeanAndVarianceState``).

    ``BatchNormalization.reload_mean_and_variance`` copies them from here.

    Parameters
    ----------
    mean, variance : array_like or Buffer, float32, shape (C,)
        Of equal lengths. Arrays are copied, buffers are used where they are. They may be longer than a kernel needs.
    device : Device or str, optional
        Of the arrays; by default that of the buffers, else Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError, ValueError
        If one of them holds no numbers, has other than one axis, or is of another length or device.
    """

    @staticmethod
    def temporary(
        command_buffer: CommandBuffer,
        number_of_feature_channels: typing.SupportsInt | typing.SupportsIndex,
    ) -> NormalizationMeanAndVarianceState:
        """
        Return a state that lives on one command buffer, for up to so many channels.
        """

    def __init__(
        self,
        mean: Buffer | typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        variance: Buffer | typing.Annotated[numpy.typing.ArrayLike, numpy.float32],
        *,
        device: Device | str | None = None,
    ) -> None: ...
    @property
    def mean(self) -> Buffer:
        """
        `Buffer` of one float32 a channel.
        """

    @property
    def variance(self) -> Buffer:
        """
        `Buffer` of one float32 a channel.
        """

class Arithmetic(ForwardBinaryKernel):
    """
    Element by element, with broadcasting by stride (``MPSCNNArithmetic``); never made directly.

    The result r of ``primary_scale * x`` and ``secondary_scale * y``, plus ``bias``, is limited to
    ``minimum_value`` and ``maximum_value``. A source with a stride of 0 along an axis is read at one place for all of it:
    at its offset.
    """

    @property
    def bias(self) -> float:
        """
        Added to the result, float32.
        """

    @bias.setter
    def bias(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def maximum_value(self) -> float:
        """
        Greatest result, float32; at first FLT_MAX.
        """

    @maximum_value.setter
    def maximum_value(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def minimum_value(self) -> float:
        """
        Least result, float32; at first -FLT_MAX.
        """

    @minimum_value.setter
    def minimum_value(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def primary_scale(self) -> float:
        """
        Factor of the primary source, float32.
        """

    @primary_scale.setter
    def primary_scale(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def primary_stride_in_feature_channels(self) -> int:
        """
        1, or 0 to use the first channel read for all channels of the result.
        """

    @primary_stride_in_feature_channels.setter
    def primary_stride_in_feature_channels(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def secondary_scale(self) -> float:
        """
        Factor of the secondary source, float32.
        """

    @secondary_scale.setter
    def secondary_scale(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def secondary_stride_in_feature_channels(self) -> int:
        """
        1, or 0 to use the first channel read for all channels of the result.
        """

    @secondary_stride_in_feature_channels.setter
    def secondary_stride_in_feature_channels(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...

class Add(Arithmetic):
    def __init__(self, device: Device) -> None: ...

class Subtract(Arithmetic):
    def __init__(self, device: Device) -> None: ...

class Multiply(Arithmetic):
    def __init__(self, device: Device) -> None: ...

class Divide(Arithmetic):
    def __init__(self, device: Device) -> None: ...

class ComparisonType(mpsgrad.enums.Enumeration):
    """
    What `Compare` asks, the primary source on the left (``MPSNNComparisonType``).
    """

    EQUAL = 0
    NOT_EQUAL = 1
    LESS = 2
    LESS_OR_EQUAL = 3
    GREATER = 4
    GREATER_OR_EQUAL = 5

class Compare(Arithmetic):
    def __init__(self, device: Device) -> None: ...
    @property
    def comparison_type(self) -> ComparisonType:
        """
        A `ComparisonType`; at first EQUAL.
        """

    @comparison_type.setter
    def comparison_type(self, arg1: ComparisonType) -> None: ...
    @property
    def threshold(self) -> float:
        """
        Largest difference of values that count as equal, float32; at first 0.
        """

    @threshold.setter
    def threshold(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class ArithmeticGradient(GradientKernel):
    """
    Gradient of an `Arithmetic` kernel with respect to one source (``MPSCNNArithmeticGradient``).

    Never made directly. The scales are the caller's to set; they are not copied from the forward kernel.
    """

    @property
    def bias(self) -> float:
        """
        Not used by the backward pass, float32.
        """

    @bias.setter
    def bias(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def is_secondary_source_filter(self) -> bool:
        """
        Whether the gradient is with respect to the secondary source.
        """

    @property
    def maximum_value(self) -> float:
        """
        Greatest result, float32; at first FLT_MAX.
        """

    @maximum_value.setter
    def maximum_value(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def minimum_value(self) -> float:
        """
        Least result, float32; at first -FLT_MAX.
        """

    @minimum_value.setter
    def minimum_value(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def primary_scale(self) -> float:
        """
        Factor of the incoming gradient, float32.
        """

    @primary_scale.setter
    def primary_scale(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def secondary_scale(self) -> float:
        """
        Factor of the source that a product's gradient reads, float32.
        """

    @secondary_scale.setter
    def secondary_scale(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def secondary_stride_in_feature_channels(self) -> int:
        """
        1, or 0 where the forward kernel broadcast the image passed as ``source``.
        """

    @secondary_stride_in_feature_channels.setter
    def secondary_stride_in_feature_channels(
        self, arg1: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...

class AddGradient(ArithmeticGradient):
    def __init__(self, device: Device, is_secondary_source_filter: bool) -> None: ...

class SubtractGradient(ArithmeticGradient):
    def __init__(self, device: Device, is_secondary_source_filter: bool) -> None: ...

class MultiplyGradient(ArithmeticGradient):
    def __init__(self, device: Device, is_secondary_source_filter: bool) -> None: ...

class ArithmeticGradientState(BinaryGradientState):
    """
    What the gradients of an `Arithmetic` kernel need of its encode, one an image: sizes, strides and offsets, and where the result was clamped (``MPSCNNArithmeticGradientState``).
    """

class BatchNormalizationState(GradientState):
    """
    Statistics and weight gradients of one batch (``MPSCNNBatchNormalizationState``).

    Made by `BatchNormalization`. One object serves the whole batch, and any number of batches after another.
    """

    def __repr__(self) -> str: ...
    def reset(self) -> None:
        """
        Forget everything accumulated. Work that is encoded already is not affected.
        """

    @property
    def batch_normalization(self) -> Kernel:
        """
        The kernel that made it.
        """

    @property
    def beta(self) -> Buffer:
        """
        `Buffer` of the kernel's offset as it is now; None where its data source has none.
        """

    @property
    def gamma(self) -> Buffer:
        """
        `Buffer` of the kernel's scale as it is now, float32, one a channel; None where its data source has none.
        """

    @property
    def gradient_for_beta(self) -> Buffer:
        """
        `Buffer` of the sum over the images processed so far; None before the first.
        """

    @property
    def gradient_for_gamma(self) -> Buffer:
        """
        `Buffer` of the sum over the images processed so far; None before the first.
        """

    @property
    def mean(self) -> Buffer:
        """
        `Buffer` of the batch's mean; before there is one, the kernel's stored mean, or None.
        """

    @property
    def variance(self) -> Buffer:
        """
        `Buffer` of the batch's variance, biased, without epsilon; before there is one, the kernel's stored variance, or None.
        """

class BatchNormalizationStatistics(UnaryKernel):
    def __init__(self, device: Device) -> None: ...
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: ImageBatch | collections.abc.Sequence[Image],
        batch_normalization_state: State | collections.abc.Sequence[State],
    ) -> None:
        """
        Encode the statistics of some images of the batch.

        Added to what the state holds, unless it has been used since: then a new batch starts.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source_images : ImageBatch or list of Image
            All images of a batch have one size.
        batch_normalization_state : BatchNormalizationState
            Overwritten or added to; not counted as read.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, device or size, has other channels than the kernel that made the state, or
            ``offset`` or ``clip_rect`` is set.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

class BatchNormalization(UnaryKernel):
    def __init__(
        self, device: Device, data_source: typing.Any, fused_neuron_descriptor: NeuronDescriptor
    ) -> None: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        batch_normalization_state: State | collections.abc.Sequence[State] | None = None,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> Image:
        """
        Encode the kernel.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source : Image, or batch
            A list or `ImageBatch` selects the batch form.
        destination : Image, or batch, optional
            Written with `offset` as it stands. Without it, the padding policy sizes a new one and sets `offset`.
        batch_normalization_state : BatchNormalizationState, optional
            Normalizes with its statistics, instead of the kernel's stored ones; only together with ``destination``. Reads
            the state once.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        Image or ImageBatch
            The destination. Nothing in it is valid before the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, an image has other channels than the kernel or another
            size than its batch, a destination is read-only or shares memory with a source, or the state was made by another
            kernel or comes without a destination.
        StateError
            If there are no statistics to normalize with, neither in the state nor stored in the kernel, or if `epsilon` or
            another property is not what it was when the state was made.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        batch_normalization_state: State | collections.abc.Sequence[State] | None = None,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        batch_normalization_state: State | collections.abc.Sequence[State] | None = None,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. All are of one length. ``batch_normalization_state`` is one for the whole batch, or a list that repeats it.

        Returns
        -------
        ImageBatch
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        batch_normalization_state: State | collections.abc.Sequence[State] | None = None,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    def reload_gamma_and_beta(
        self, command_buffer: CommandBuffer, gamma_and_beta_state: NormalizationGammaAndBetaState
    ) -> None:
        """
        Encode a copy of a state's scale and offset into the kernel, for the encodes after it. Reads the state once.
        """

    def reload_gamma_and_beta_from_data_source(self) -> None:
        """
        Read scale and offset from the data source again; work that is encoded already keeps those it was encoded with.
        """

    def reload_mean_and_variance(
        self,
        command_buffer: CommandBuffer,
        mean_and_variance_state: NormalizationMeanAndVarianceState,
    ) -> None:
        """
        Encode a copy of a state's mean and variance into the kernel's stored statistics, for the encodes after it. Reads the state once.
        """

    def reload_mean_and_variance_from_data_source(self) -> None:
        """
        Read the stored statistics from the data source again; work that is encoded already keeps those it was encoded with.
        """

    @property
    def _neuron(self) -> NeuronDescriptor: ...
    @property
    def data_source(self) -> typing.Any:
        """
        The object given to the constructor, read again by every reload from the data source; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the variance under the root; float32, finite and not negative. A state keeps the value it was made with, and no other may be used with it.
        """

    @epsilon.setter
    def epsilon(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def number_of_feature_channels(self) -> int:
        """
        Channels of the data source.
        """

class BatchNormalizationStatisticsGradient(GradientKernel):
    def __init__(self, device: Device, fused_neuron_descriptor: NeuronDescriptor) -> None: ...
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: ImageBatch | collections.abc.Sequence[Image],
        source_images: ImageBatch | collections.abc.Sequence[Image],
        batch_normalization_state: State | collections.abc.Sequence[State],
    ) -> None:
        """
        Encode the sums over some images of the batch, in any order and any partition.

        The first encode of a batch overwrites the state's gradients, later ones add to them. Nothing else is written.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source_gradients : ImageBatch or list of Image
            Gradient of the loss with respect to the forward result.
        source_images : ImageBatch or list of Image
            Images that the statistics are of.
        batch_normalization_state : BatchNormalizationState
            Read once.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, device, size or number of channels, or a property other than the channel
            windows is set.
        StateError
            If the state has no statistics, or those of fewer images, or `BatchNormalizationGradient` has used its sums.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @property
    def _neuron(self) -> NeuronDescriptor: ...

class BatchNormalizationGradient(GradientKernel):
    def __init__(self, device: Device, fused_neuron_descriptor: NeuronDescriptor) -> None: ...
    @property
    def _neuron(self) -> NeuronDescriptor: ...

class ConvolutionDescriptor:
    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    def __init__(
        self,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        input_feature_channels: typing.SupportsInt | typing.SupportsIndex,
        output_feature_channels: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
        dilation_rate_x: typing.SupportsInt | typing.SupportsIndex,
        dilation_rate_y: typing.SupportsInt | typing.SupportsIndex,
        groups: typing.SupportsInt | typing.SupportsIndex,
        depthwise: bool,
        sub_pixel_scale_factor: typing.SupportsInt | typing.SupportsIndex,
        fused_neuron_descriptor: NeuronDescriptor,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def __repr__(self) -> str: ...
    def set_batch_normalization_parameters_for_inference(
        self,
        mean: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None,
        variance: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None,
        gamma: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None,
        beta: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None,
        epsilon: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None:
        """
        Fold batch normalization into weights and biases, before the fused neuron.

        For inference: kernels of such a descriptor have no gradient. Four times None undoes it.

        Parameters
        ----------
        mean, variance, gamma, beta : array_like of float32, shape (O,), or None
            One number for each output channel, copied; None stands for 0, 1, 1 and 0.
        epsilon : float
            Added to the variance under the root.

        Raises
        ------
        ValueError
            If an array has another length than there are output channels.
        """

    @property
    def _batch_normalization(self) -> typing.Any: ...
    @property
    def channel_multiplier(self) -> int:
        """
        Outputs of each input channel in a depthwise convolution, 1; 0 in a regular one. Read only.
        """

    @property
    def dilation_rate_x(self) -> int:
        """
        Columns of the source from one tap to the next, 1 without dilation; at least 1, or ValueError.
        """

    @dilation_rate_x.setter
    def dilation_rate_x(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def dilation_rate_y(self) -> int:
        """
        Rows of the source from one tap to the next, 1 without dilation; at least 1, or ValueError.
        """

    @dilation_rate_y.setter
    def dilation_rate_y(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def fused_neuron_descriptor(self) -> NeuronDescriptor:
        """
        Activation applied to the result, a copy each time; ValueError for PRELU with fewer slopes than output channels.
        """

    @fused_neuron_descriptor.setter
    def fused_neuron_descriptor(self, arg1: NeuronDescriptor) -> None: ...
    @property
    def groups(self) -> int:
        """
        Parts that inputs and outputs are divided into, each fed by its own inputs alone; ValueError unless it divides both, into multiples of 4 if it is above 1.
        """

    @groups.setter
    def groups(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def input_feature_channels(self) -> int:
        """
        Channels read of the source, at least 1; ValueError if `groups`, or the outputs of a depthwise convolution, do not allow the number.
        """

    @input_feature_channels.setter
    def input_feature_channels(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def kernel_height(self) -> int:
        """
        Taps of the window in a column, before dilation; at least 1, or ValueError.
        """

    @kernel_height.setter
    def kernel_height(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def kernel_width(self) -> int:
        """
        Taps of the window in a row, before dilation; at least 1, or ValueError.
        """

    @kernel_width.setter
    def kernel_width(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def output_feature_channels(self) -> int:
        """
        Channels of the result before depth to space, at least 1; ValueError if `groups` or another property does not allow the number.
        """

    @output_feature_channels.setter
    def output_feature_channels(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def stride_in_pixels_x(self) -> int:
        """
        Columns of the source from one window to the next (in a transposed convolution, of the destination); at least 1, or ValueError.
        """

    @stride_in_pixels_x.setter
    def stride_in_pixels_x(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def stride_in_pixels_y(self) -> int:
        """
        Rows of the source from one window to the next (in a transposed convolution, of the destination); at least 1, or ValueError.
        """

    @stride_in_pixels_y.setter
    def stride_in_pixels_y(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def sub_pixel_scale_factor(self) -> int:
        """
        Growth of width and height by depth to space, 1 for none; ValueError if its square does not divide the output channels.
        """

    @sub_pixel_scale_factor.setter
    def sub_pixel_scale_factor(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def weight_shape(self) -> tuple[typing.Any, ...]:
        """
        (O, kernel_height, kernel_width, I / groups), or without the last for a depthwise convolution; read only.
        """

class ConvolutionGradientState(GradientState):
    """
    Weight and bias gradients of one batch (``MPSCNNConvolutionGradientState``).

    Made by `Convolution` or `FullyConnected`. One object serves the whole batch; every gradient encode adds to it.
    """

    @property
    def convolution(self) -> Kernel:
        """
        The kernel that made it.
        """

    @property
    def gradient_for_biases(self) -> Buffer:
        """
        `Buffer` of float32, one an output channel.
        """

    @property
    def gradient_for_weights(self) -> Buffer:
        """
        `Buffer` of float32 in the layout of the weights.
        """

    @property
    def gradient_for_weights_layout(self) -> typing.Any:
        """
        `ConvolutionWeightsLayout` of the weight gradients.
        """

    @property
    def weight_shape(self) -> tuple[typing.Any, ...]:
        """
        (O, kernel_height, kernel_width, I / groups), or without the last for a depthwise convolution; read only.
        """

class ConvolutionTransposeGradientState(ConvolutionGradientState):
    """
    As `ConvolutionGradientState`, of `ConvolutionTranspose` (``MPSCNNConvolutionTransposeGradientState``).
    """

    @property
    def convolution(self) -> Kernel:
        """
        The convolution whose state the forward encode was given, or None.
        """

    @property
    def convolution_transpose(self) -> Kernel:
        """
        The kernel that made it.
        """

class ConvolutionWeightsAndBiasesState(State):
    """
    Weights and biases on the device (``MPSCNNConvolutionWeightsAndBiasesState``).

    Parameters
    ----------
    weights : Buffer
        Exactly the weights, float32, in the layout of the data source.
    biases : Buffer, optional
        Exactly the biases, float32.
    """

    @staticmethod
    def for_descriptor(
        device: Device, descriptor: ConvolutionDescriptor
    ) -> ConvolutionWeightsAndBiasesState:
        """
        Return a zero-filled state for the weights and biases a descriptor describes.
        """

    @staticmethod
    def temporary(
        command_buffer: CommandBuffer, descriptor: ConvolutionDescriptor
    ) -> ConvolutionWeightsAndBiasesState:
        """
        Return a state that lives on one command buffer.
        """

    @staticmethod
    def with_offsets(
        weights: Buffer,
        weights_offset: typing.SupportsInt | typing.SupportsIndex,
        biases: Buffer,
        biases_offset: typing.SupportsInt | typing.SupportsIndex,
        descriptor: ConvolutionDescriptor,
    ) -> ConvolutionWeightsAndBiasesState:
        """
        Return a state over parts of buffers; offsets in bytes, multiples of 4. Both may be one buffer.
        """

    def __init__(self, weights: Buffer, biases: Buffer | None = None) -> None: ...
    @property
    def biases(self) -> Buffer:
        """
        None where the state has none.
        """

    @property
    def biases_offset(self) -> int:
        """
        Bytes.
        """

    @property
    def weights(self) -> Buffer:
        """
        `Buffer` of float32, from `weights_offset` on in the layout of the data source; ReadCountError if a temporary state has been used up.
        """

    @property
    def weights_offset(self) -> int:
        """
        Bytes.
        """

class ConvolutionAccumulatorPrecision(mpsgrad.enums.Enumeration):
    """
    Precision of sums (``MPSNNConvolutionAccumulatorPrecisionOption``).
    """

    HALF = 0
    FLOAT = 1

class Convolution(UnaryKernel):
    def __init__(self, device: Device, weights: typing.Any) -> None: ...
    def export_weights_and_biases(
        self, command_buffer: CommandBuffer, temporary_ok: bool = False
    ) -> ConvolutionWeightsAndBiasesState:
        """
        Encode a copy of the weights and biases the kernel computes with, as float32.

        Parameters
        ----------
        command_buffer : CommandBuffer
        temporary_ok : bool, default False
            Whether the state may live on the command buffer.

        Returns
        -------
        ConvolutionWeightsAndBiasesState
            Temporary only if ``temporary_ok``; its ``biases`` are None if the data source has none. The numbers are there once
            the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If the command buffer is none, or on another device.
        CommandBufferError
            If the command buffer has been committed.
        """

    def reload_weights_and_biases(
        self, command_buffer: CommandBuffer, state: ConvolutionWeightsAndBiasesState
    ) -> None:
        """
        Encode a copy of a state's weights and biases into the kernel, for the encodes after it.

        Parameters
        ----------
        command_buffer : CommandBuffer
        state : ConvolutionWeightsAndBiasesState
            Read once. If it has no biases, those of the kernel stay.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, device or command buffer, or the state has more or fewer weights or biases than
            the kernel.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def reload_weights_and_biases_from_data_source(self) -> None:
        """
        Read the data source again; work that is encoded already keeps the weights it was encoded with.
        """

    @property
    def accumulator_precision(self) -> ConvolutionAccumulatorPrecision:
        """
        Precision that sums need: FLOAT (default), or HALF, which permits less and is a ValueError for kernel weights of FLOAT32.
        """

    @accumulator_precision.setter
    def accumulator_precision(self, arg1: ConvolutionAccumulatorPrecision) -> None: ...
    @property
    def data_source(self) -> typing.Any:
        """
        The object given to the constructor, read again by every reload from the data source; read only.
        """

    @property
    def descriptor(self) -> ConvolutionDescriptor:
        """
        A copy of the data source's descriptor, as it was when the kernel was made; read only.
        """

class FullyConnected(Convolution):
    def __init__(self, device: Device, weights: typing.Any) -> None: ...

class ConvolutionGradient(GradientKernel):
    def __init__(self, device: Device, weights: typing.Any) -> None: ...
    def _keep_weights(self) -> None: ...
    def reload_weights_and_biases(
        self, command_buffer: CommandBuffer, state: ConvolutionWeightsAndBiasesState
    ) -> None:
        """
        Encode a copy of a state's weights and biases into the kernel, for the encodes after it.

        Parameters
        ----------
        command_buffer : CommandBuffer
        state : ConvolutionWeightsAndBiasesState
            Read once. If it has no biases, those of the kernel stay.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, device or command buffer, or the state has more or fewer weights or biases than
            the kernel.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def reload_weights_and_biases_from_data_source(self) -> None:
        """
        Read the data source again; work that is encoded already keeps the weights it was encoded with.
        """

    @property
    def data_source(self) -> typing.Any:
        """
        The object given to the constructor, read again by every reload from the data source; read only.
        """

    @property
    def descriptor(self) -> ConvolutionDescriptor:
        """
        A copy of the data source's descriptor, as it was when the kernel was made; read only.
        """

    @property
    def gradient_option(self) -> int:
        """
        `ConvolutionGradientOption` bits of what an encode computes, as an int; ALL (3) by default, ValueError for no bit or others.
        """

    @gradient_option.setter
    def gradient_option(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class FullyConnectedGradient(ConvolutionGradient):
    def __init__(self, device: Device, weights: typing.Any) -> None: ...

class ConvolutionTranspose(UnaryKernel):
    def __init__(self, device: Device, weights: typing.Any) -> None: ...
    def destination_descriptor(
        self,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        states: State | collections.abc.Sequence[State] | None = None,
    ) -> ImageDescriptor:
        """
        Return the result's descriptor; set `offset` to 0 and the kernel offset accordingly.

        Parameters
        ----------
        sources : Image or list of one Image
            One image, not a batch.
        states : ConvolutionGradientState, or list of it, optional
            Of the convolution to undo: the result has the size of its source. Without it the padding policy
            decides.

        Returns
        -------
        ImageDescriptor

        Raises
        ------
        TypeError, ValueError
            If the arguments are of another kind or number, images do not fit each other or the kernel, or the padding policy
            is not one for it.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        convolution_gradient_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> Image:
        """
        Encode the kernel.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source : Image, or batch
            A list or `ImageBatch` selects the batch form.
        destination : Image, or batch, optional
            Written with `offset` and the kernel offset as they stand. Without it a new one is sized by
            ``convolution_gradient_state``, else by the padding policy, and the offsets are set.
        destination_state : State, or list, optional
            From `result_state`; only together with ``destination``.
        convolution_gradient_state : ConvolutionGradientState, or list of one object, optional
            Of the convolution to undo; a temporary one is read once. Not with ``destination_state``, which
            knows its own.
        with_state, temporary_state : bool, default False
            Create a state for the gradient kernel as well.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        Image or ImageBatch, or with ``with_state`` a pair of it and the state or list of states
            The destination. Nothing in it is valid before the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, images do not fit each other or the kernel, a
            destination is read-only or shares memory with a source, or a property has a value that the kernel cannot use. A
            state to fill needs a destination, and ``with_state`` one that is created.
            ``convolution_gradient_state`` must be one object, of a convolution, and not come with a
            state to fill.
        StateError
            If a state to fill was made by a kernel of another class or with other properties.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        convolution_gradient_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[Image, typing.Any]: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        convolution_gradient_state: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        convolution_gradient_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. All are of one length, and so is the list of states: one for each image, or where
        `is_result_state_reused_across_batch` one and the same as often.

        Returns
        -------
        ImageBatch, or with ``with_state`` a pair of it and the list of states, None for a kernel without any
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        convolution_gradient_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[ImageBatch, typing.Any]: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        convolution_gradient_states: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    def export_weights_and_biases(
        self, command_buffer: CommandBuffer, temporary_ok: bool = False
    ) -> ConvolutionWeightsAndBiasesState:
        """
        Encode a copy of the weights and biases the kernel computes with, as float32.

        Parameters
        ----------
        command_buffer : CommandBuffer
        temporary_ok : bool, default False
            Whether the state may live on the command buffer.

        Returns
        -------
        ConvolutionWeightsAndBiasesState
            Temporary only if ``temporary_ok``; its ``biases`` are None if the data source has none. The numbers are there once
            the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If the command buffer is none, or on another device.
        CommandBufferError
            If the command buffer has been committed.
        """

    def reload_weights_and_biases(
        self, command_buffer: CommandBuffer, state: ConvolutionWeightsAndBiasesState
    ) -> None:
        """
        Encode a copy of a state's weights and biases into the kernel, for the encodes after it.

        Parameters
        ----------
        command_buffer : CommandBuffer
        state : ConvolutionWeightsAndBiasesState
            Read once. If it has no biases, those of the kernel stay.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, device or command buffer, or the state has more or fewer weights or biases than
            the kernel.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def reload_weights_and_biases_from_data_source(self) -> None:
        """
        Read the data source again; work that is encoded already keeps the weights it was encoded with.
        """

    def result_state(
        self,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the state that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        source, destination : Image
            What the encode will be given.
        source_states : State or list of State, optional
            `ConvolutionGradientState` of the convolution that is undone, where there is one.

        Returns
        -------
        State, or None for a kernel without one

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        """

    def result_state_batch(
        self,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the states of a batch that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        sources, destinations : batch of images
            What the encode will be given.
        source_states : State or list of State, optional
            `ConvolutionGradientState` of the convolution that is undone, where there is one.

        Returns
        -------
        list of State, or None for a kernel without any
            One for each image, or one and the same as often where `is_result_state_reused_across_batch`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        """

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the state that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        command_buffer : CommandBuffer
            Where the work will be encoded; the result lives no longer.
        source, destination : Image
            What the encode will be given.
        source_states : State or list of State, optional
            `ConvolutionGradientState` of the convolution that is undone, where there is one.

        Returns
        -------
        State, or None for a kernel without one

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        CommandBufferError
            If the command buffer has been committed.
        """

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image],
        source_states: State | collections.abc.Sequence[State] | None = None,
    ) -> typing.Any:
        """
        Return the states of a batch that the gradient kernels need.

        Every property must have its final value: an encode refuses a state to fill if one has changed since.

        Parameters
        ----------
        command_buffer : CommandBuffer
            Where the work will be encoded; the result lives no longer.
        sources, destinations : batch of images
            What the encode will be given.
        source_states : State or list of State, optional
            `ConvolutionGradientState` of the convolution that is undone, where there is one.

        Returns
        -------
        list of State, or None for a kernel without any
            One for each image, or one and the same as often where `is_result_state_reused_across_batch`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
            value that does not suit the images.
        CommandBufferError
            If the command buffer has been committed.
        """

    @property
    def accumulator_precision(self) -> ConvolutionAccumulatorPrecision:
        """
        Precision that sums need: FLOAT (default), or HALF, which permits less and is a ValueError for kernel weights of FLOAT32.
        """

    @accumulator_precision.setter
    def accumulator_precision(self, arg1: ConvolutionAccumulatorPrecision) -> None: ...
    @property
    def data_source(self) -> typing.Any:
        """
        The object given to the constructor, read again by every reload from the data source; read only.
        """

    @property
    def descriptor(self) -> ConvolutionDescriptor:
        """
        A copy of the data source's descriptor, as it was when the kernel was made; read only.
        """

    @property
    def kernel_offset_x(self) -> int:
        """
        Offset in the source with zeros inserted, pixels; replaced by every encode that creates its destination.
        """

    @kernel_offset_x.setter
    def kernel_offset_x(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def kernel_offset_y(self) -> int:
        """
        Offset in the source with zeros inserted, pixels.
        """

    @kernel_offset_y.setter
    def kernel_offset_y(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class ConvolutionTransposeGradient(GradientKernel):
    def __init__(self, device: Device, weights: typing.Any) -> None: ...
    def _keep_weights(self) -> None: ...
    def reload_weights_and_biases(
        self, command_buffer: CommandBuffer, state: ConvolutionWeightsAndBiasesState
    ) -> None:
        """
        Encode a copy of a state's weights and biases into the kernel, for the encodes after it.

        Parameters
        ----------
        command_buffer : CommandBuffer
        state : ConvolutionWeightsAndBiasesState
            Read once. If it has no biases, those of the kernel stay.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, device or command buffer, or the state has more or fewer weights or biases than
            the kernel.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def reload_weights_and_biases_from_data_source(self) -> None:
        """
        Read the data source again; work that is encoded already keeps the weights it was encoded with.
        """

    @property
    def data_source(self) -> typing.Any:
        """
        The object given to the constructor, read again by every reload from the data source; read only.
        """

    @property
    def descriptor(self) -> ConvolutionDescriptor:
        """
        A copy of the data source's descriptor, as it was when the kernel was made; read only.
        """

    @property
    def gradient_option(self) -> int:
        """
        `ConvolutionGradientOption` bits of what an encode computes, as an int; ALL (3) by default, ValueError for no bit or others.
        """

    @gradient_option.setter
    def gradient_option(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class DropoutGradientState(GradientState):
    """
    What a forward encode has kept (``MPSCNNDropoutGradientState``).

    Made by `Dropout`. One object serves the whole batch, and holds a mask for each of its images.
    """

    @property
    def keep_probability(self) -> float:
        """
        The forward kernel's.
        """

    @property
    def mask(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        The masks, float32, shape (N, H, W, C), 1 where an element was kept and 0 where not.

        N, H, W and C are those of the clipped forward result, 1 along dimensions that share values. Reading gives a copy;
        on Metal it asks the gradient kernel. An array of zeros and ones can be assigned, on the CPU device only, and makes do
        for a forward encode: work encoded since the last forward encode, and committed later, finds it.

        Raises
        ------
        StateError
            If no forward encode has filled the state.
        RuntimeError
            If unfinished work uses the state, or the state is temporary.
        TypeError, ValueError
            If what is assigned is not an array of numbers, has another shape, or values other than 0 and 1.
        UnsupportedError
            If the device takes no masks.
        """

    @mask.setter
    def mask(self, arg1: typing.Annotated[numpy.typing.ArrayLike, numpy.float32]) -> None: ...
    @property
    def mask_stride_in_pixels(self) -> tuple[int, int, int]:
        """
        The forward kernel's.
        """

class Dropout(UnaryKernel):
    def __init__(
        self,
        device: Device,
        keep_probability: typing.SupportsFloat | typing.SupportsIndex,
        seed: typing.SupportsInt | typing.SupportsIndex,
        mask_stride_in_pixels: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None: ...
    @property
    def keep_probability(self) -> float:
        """
        Probability that an element is kept, a float32.
        """

    @property
    def mask_stride_in_pixels(self) -> tuple[int, int, int]:
        """
        (width, height, depth): 1 for a random value at every position, 0 for a shared one.
        """

    @property
    def seed(self) -> int:
        """
        Seed of the random numbers.
        """

class DropoutGradient(GradientKernel):
    def __init__(
        self,
        device: Device,
        keep_probability: typing.SupportsFloat | typing.SupportsIndex,
        seed: typing.SupportsInt | typing.SupportsIndex,
        mask_stride_in_pixels: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None: ...
    @property
    def keep_probability(self) -> float:
        """
        Probability that an element is kept, a float32.
        """

    @property
    def mask_stride_in_pixels(self) -> tuple[int, int, int]:
        """
        (width, height, depth): 1 for a random value at every position, 0 for a shared one.
        """

    @property
    def seed(self) -> int:
        """
        Seed of the random numbers.
        """

class GramMatrixCalculation(UnaryKernel):
    def __init__(
        self, device: Device, alpha: typing.SupportsFloat | typing.SupportsIndex = 1.0
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """
        Factor of the result.
        """

    @alpha.setter
    def alpha(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class GramMatrixCalculationGradient(GradientKernel):
    def __init__(
        self, device: Device, alpha: typing.SupportsFloat | typing.SupportsIndex = 1.0
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """
        Factor of the result; the state that an encode is given replaces it.
        """

    @alpha.setter
    def alpha(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class InstanceNormalizationGradientState(GradientState):
    """
    One image's weight gradients (``MPSCNNInstanceNormalizationGradientState``).

    Made by `InstanceNormalization`, one for each image. The gradient of a batch is the sum over its states.
    """

    @property
    def beta(self) -> Buffer:
        """
        `Buffer` of the kernel's offset as it is now; None where its data source has none.
        """

    @property
    def gamma(self) -> Buffer:
        """
        `Buffer` of the kernel's scale as it is now, float32, one a channel; None where its data source has none.
        """

    @property
    def gradient_for_beta(self) -> Buffer:
        """
        `Buffer` of this image's gradient, float32, one a channel; a StateError before a gradient encode.
        """

    @property
    def gradient_for_gamma(self) -> Buffer:
        """
        `Buffer` of this image's gradient, float32, one a channel; a StateError before a gradient encode.
        """

    @property
    def instance_normalization(self) -> Kernel:
        """
        The kernel that made it.
        """

class GroupNormalizationGradientState(GradientState):
    """
    One image's weight gradients (``MPSCNNGroupNormalizationGradientState``).

    Made by `GroupNormalization`, one for each image. The gradient of a batch is the sum over its states.
    """

    @property
    def beta(self) -> Buffer:
        """
        `Buffer` of the kernel's offset as it is now; None where its data source has none.
        """

    @property
    def gamma(self) -> Buffer:
        """
        `Buffer` of the kernel's scale as it is now, float32, one a channel; None where its data source has none.
        """

    @property
    def gradient_for_beta(self) -> Buffer:
        """
        `Buffer` of this image's gradient, float32, one a channel; a StateError before a gradient encode.
        """

    @property
    def gradient_for_gamma(self) -> Buffer:
        """
        `Buffer` of this image's gradient, float32, one a channel; a StateError before a gradient encode.
        """

    @property
    def group_normalization(self) -> Kernel:
        """
        The kernel that made it.
        """

class InstanceNormalization(UnaryKernel):
    def __init__(self, device: Device, data_source: typing.Any) -> None: ...
    def reload_gamma_and_beta(
        self, command_buffer: CommandBuffer, gamma_and_beta_state: NormalizationGammaAndBetaState
    ) -> None:
        """
        Encode a copy of a state's scale and offset into the kernel, for the encodes after it. Reads the state once.
        """

    def reload_gamma_and_beta_from_data_source(self) -> None:
        """
        Read scale and offset from the data source again; work that is encoded already keeps those it was encoded with.
        """

    @property
    def data_source(self) -> typing.Any:
        """
        The object given to the constructor, read again by every reload from the data source; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the variance under the root; float32, finite and not negative. A state keeps the value it was made with.
        """

    @epsilon.setter
    def epsilon(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def number_of_feature_channels(self) -> int:
        """
        Channels of the data source.
        """

class GroupNormalization(UnaryKernel):
    def __init__(self, device: Device, data_source: typing.Any) -> None: ...
    def reload_gamma_and_beta(
        self, command_buffer: CommandBuffer, gamma_and_beta_state: NormalizationGammaAndBetaState
    ) -> None:
        """
        Encode a copy of a state's scale and offset into the kernel, for the encodes after it. Reads the state once.
        """

    def reload_gamma_and_beta_from_data_source(self) -> None:
        """
        Read scale and offset from the data source again; work that is encoded already keeps those it was encoded with.
        """

    @property
    def data_source(self) -> typing.Any:
        """
        The object given to the constructor, read again by every reload from the data source; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the variance under the root; float32, finite and not negative. A state keeps the value it was made with.
        """

    @epsilon.setter
    def epsilon(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def number_of_feature_channels(self) -> int:
        """
        Channels of the data source.
        """

    @property
    def number_of_groups(self) -> int:
        """
        Groups of consecutive channels; read from the data source once.
        """

class InstanceNormalizationGradient(GradientKernel):
    def __init__(self, device: Device) -> None: ...

class GroupNormalizationGradient(GradientKernel):
    def __init__(self, device: Device) -> None: ...

class CrossChannelNormalization(UnaryKernel):
    def __init__(
        self, device: Device, kernel_size: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """
        Weight of the window.
        """

    @alpha.setter
    def alpha(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def beta(self) -> float:
        """
        Exponent of the denominator.
        """

    @beta.setter
    def beta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def delta(self) -> float:
        """
        What the denominator's base begins with.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def kernel_size(self) -> int:
        """
        Channels in a window.
        """

class CrossChannelNormalizationGradient(GradientKernel):
    def __init__(
        self, device: Device, kernel_size: typing.SupportsInt | typing.SupportsIndex
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """
        Weight of the window.
        """

    @alpha.setter
    def alpha(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def beta(self) -> float:
        """
        Exponent of the denominator.
        """

    @beta.setter
    def beta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def delta(self) -> float:
        """
        What the denominator's base begins with.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def kernel_size(self) -> int:
        """
        Channels in a window.
        """

class SpatialNormalization(UnaryKernel):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """
        Weight of the window.
        """

    @alpha.setter
    def alpha(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def beta(self) -> float:
        """
        Exponent of the denominator.
        """

    @beta.setter
    def beta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def delta(self) -> float:
        """
        What the denominator's base begins with.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class SpatialNormalizationGradient(GradientKernel):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """
        Weight of the window.
        """

    @alpha.setter
    def alpha(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def beta(self) -> float:
        """
        Exponent of the denominator.
        """

    @beta.setter
    def beta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def delta(self) -> float:
        """
        What the denominator's base begins with.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class LocalContrastNormalization(UnaryKernel):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """
        Weight of the window.
        """

    @alpha.setter
    def alpha(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def beta(self) -> float:
        """
        Exponent of the denominator.
        """

    @beta.setter
    def beta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def delta(self) -> float:
        """
        What the denominator's base begins with.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def p0(self) -> float:
        """
        Weight of the mean.
        """

    @p0.setter
    def p0(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def pm(self) -> float:
        """
        Added to the result.
        """

    @pm.setter
    def pm(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def ps(self) -> float:
        """
        Scale of the result.
        """

    @ps.setter
    def ps(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class LocalContrastNormalizationGradient(GradientKernel):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """
        Weight of the window.
        """

    @alpha.setter
    def alpha(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def beta(self) -> float:
        """
        Exponent of the denominator.
        """

    @beta.setter
    def beta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def delta(self) -> float:
        """
        What the denominator's base begins with.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def p0(self) -> float:
        """
        Weight of the mean.
        """

    @p0.setter
    def p0(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def pm(self) -> float:
        """
        Added to the result.
        """

    @pm.setter
    def pm(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def ps(self) -> float:
        """
        Scale of the result.
        """

    @ps.setter
    def ps(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class LossType(mpsgrad.enums.Enumeration):
    """
    A loss function (``MPSCNNLossType``).
    """

    MEAN_ABSOLUTE_ERROR = 0
    MEAN_SQUARED_ERROR = 1
    SOFT_MAX_CROSS_ENTROPY = 2
    SIGMOID_CROSS_ENTROPY = 3
    CATEGORICAL_CROSS_ENTROPY = 4
    HINGE = 5
    HUBER = 6
    COSINE_DISTANCE = 7
    LOG = 8
    KULLBACK_LEIBLER_DIVERGENCE = 9

class ReductionType(mpsgrad.enums.Enumeration):
    """
    How element losses become one number (``MPSCNNReductionType``).
    """

    NONE = 0
    SUM = 1
    MEAN = 2
    SUM_BY_NON_ZERO_WEIGHTS = 3

class LossDescriptor:
    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    def __init__(
        self,
        loss_type: LossType,
        reduction_type: ReductionType,
        reduce_across_batch: bool,
        weight: typing.SupportsFloat | typing.SupportsIndex,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex,
        number_of_classes: typing.SupportsInt | typing.SupportsIndex,
        epsilon: typing.SupportsFloat | typing.SupportsIndex,
        delta: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    @property
    def delta(self) -> float:
        """
        Distance of prediction and label from which HUBER is linear, above 0, or ValueError; 1 by default.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def epsilon(self) -> float:
        """
        Added to the arguments of LOG's logarithms, not negative, or ValueError; 1e-7 by default.
        """

    @epsilon.setter
    def epsilon(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def label_smoothing(self) -> float:
        """
        Share of the labels, 0 to 1, that SOFT_MAX_CROSS_ENTROPY and SIGMOID_CROSS_ENTROPY spread evenly over the classes. 0 by default, ValueError outside its range.
        """

    @label_smoothing.setter
    def label_smoothing(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def loss_type(self) -> LossType:
        """
        `LossType` of an element.
        """

    @loss_type.setter
    def loss_type(self, arg1: LossType) -> None: ...
    @property
    def number_of_classes(self) -> int:
        """
        Classes that SOFT_MAX_CROSS_ENTROPY spreads smoothed labels over, at least 1. 1 by default, ValueError below.
        """

    @number_of_classes.setter
    def number_of_classes(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def reduce_across_batch(self) -> bool:
        """
        Whether the losses of a batch become one, in the first loss image, unless the reduction is NONE. False by default.
        """

    @reduce_across_batch.setter
    def reduce_across_batch(self, arg1: bool) -> None: ...
    @property
    def reduction_type(self) -> ReductionType:
        """
        `ReductionType`: how the losses of all elements of an image become one number, if at all.
        """

    @reduction_type.setter
    def reduction_type(self, arg1: ReductionType) -> None: ...
    @property
    def weight(self) -> float:
        """
        Factor of every element, in loss and gradient; 1 by default, ValueError for NaN.
        """

    @weight.setter
    def weight(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class LossDataDescriptor:
    """
    A block of label or weight numbers (``MPSCNNLossDataDescriptor``).

    Parameters
    ----------
    data : ndarray of float32, C-contiguous
        Kept, not copied; read when `LossLabels` are made from it.
    layout : DataLayout, default HWC
    size : (width, height, channels), optional
        By default that of ``data``, of shape (H, W, C) or (C, H, W). With a size, ``data`` may be longer, for rows with
        gaps: then set `bytes_per_row` and `bytes_per_image`.

    Raises
    ------
    TypeError
        If ``data`` is not float32.
    ValueError
        If ``data`` does not hold ``size``.
    """

    def __copy__(self) -> LossDataDescriptor: ...
    def __init__(
        self,
        data: numpy.typing.NDArray[numpy.float32],
        layout: DataLayout = DataLayout.HWC,
        size: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None = None,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    def to_array(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        Return the numbers as a new (H, W, C) array.
        """

    @property
    def bytes_per_image(self) -> int:
        """
        CHW: bytes from one channel to the next; preset for dense data.
        """

    @bytes_per_image.setter
    def bytes_per_image(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def bytes_per_row(self) -> int:
        """
        Bytes from one row to the next; preset for dense data.
        """

    @bytes_per_row.setter
    def bytes_per_row(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def data(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        The float32 array itself, not a copy; read only.
        """

    @property
    def layout(self) -> DataLayout:
        """
        `DataLayout`: order of the numbers in the array; read only.
        """

    @property
    def size(self) -> tuple[int, int, int]:
        """
        (width, height, channels) of the block, whatever the layout; read only.
        """

class LossLabels(State):
    """
    Labels, weights and the loss of one image (``MPSCNNLossLabels``).

    Parameters
    ----------
    device : Device
    labels : ndarray of float32, shape (H, W, C), LossDataDescriptor or Image
        Arrays and descriptors are copied; an image is kept, and read when the kernel runs.
    weights : as labels, optional
        One factor for each element.
    loss_image_size : (width, height, channels), default (1, 1, 1)
        The source's size if the loss has no reduction.

    Raises
    ------
    TypeError
        If an array is not float32; nothing is converted.
    ValueError
        If labels and weights differ in shape.
    """

    @staticmethod
    def batch(
        device: Device,
        labels: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
        weights: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack
        | None = None,
        *,
        loss_image_size: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = (
            1,
            1,
            1,
        ),
        copy: bool = True,
    ) -> list[LossLabels]:
        """
        Return one object for each image of a batch, over one allocation where the device can.

        Parameters
        ----------
        device : Device
        labels : ndarray of float32, shape (N, H, W, C)
        weights : ndarray of float32, shape (N, H, W, C), optional
        loss_image_size : (width, height, channels), default (1, 1, 1)
            The source's size if the loss has no reduction.
        copy : bool, default True
            False: the CPU device reads the arrays themselves, which must be C-contiguous, when the kernel runs.

        Returns
        -------
        list of LossLabels
        """

    def __init__(
        self,
        device: Device,
        labels: LossDataDescriptor
        | Image
        | numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack,
        weights: LossDataDescriptor
        | Image
        | numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]
        | typing_extensions.Buffer
        | SupportsDLPack
        | None = None,
        loss_image_size: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = (
            1,
            1,
            1,
        ),
    ) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def labels(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Copy as float32, shape (H, W, C).
        """

    @property
    def labels_image(self) -> Image:
        """
        `Image` of the labels: the one that was given, or a float32 one of the array's numbers; read only.
        """

    @property
    def loss(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Copy as float32, shape (1, 1, 1), or (H, W, C) without reduction. RuntimeError before a kernel has written it, and `synchronize` and the wait have followed.
        """

    @property
    def loss_image(self) -> Image:
        """
        float32 `Image` of ``loss_image_size`` that a loss kernel writes into; read only.
        """

    @property
    def weights(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]] | None:
        """
        Copy as float32, shape (H, W, C), or None.
        """

    @property
    def weights_image(self) -> Image:
        """
        None if there are none.
        """

class LabelledLoss(UnaryKernel):
    """
    Base class of `Loss` and `YOLOLoss`, whose labels are a state an image.
    """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        labels: LossLabels | collections.abc.Sequence[LossLabels],
        destination: Image | None = None,
        *,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> Image:
        """
        Encode loss and gradient.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source : Image, or batch
            Predictions. A list or `ImageBatch` selects the batch form.
        labels : LossLabels, or list
            One for each image; their loss images receive the losses.
        destination : Image, or batch, optional
            Receives the gradient; of the source's size.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        Image or ImageBatch
            The gradient of the summed loss with respect to the source, whatever the reduction.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, size, device or command buffer, labels come twice, only some have weights, or
            they do not fit the reduction; if a result is read-only or shares memory with another image; or if `clip_rect` is
            set, or `offset` for a destination that is given.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        labels: LossLabels | collections.abc.Sequence[LossLabels],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        labels: LossLabels | collections.abc.Sequence[LossLabels],
        destinations: ImageBatch | None = None,
        *,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. All are of one length, and so is ``labels``.

        Returns
        -------
        ImageBatch
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        labels: LossLabels | collections.abc.Sequence[LossLabels],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...

class Loss(LabelledLoss):
    def __init__(self, device: Device, descriptor: LossDescriptor) -> None: ...
    @property
    def delta(self) -> float:
        """
        Distance of prediction and label from which HUBER is linear, above 0; read only.
        """

    @property
    def descriptor(self) -> LossDescriptor:
        """
        A copy of the loss with its settings as they are now; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the arguments of LOG's logarithms, not negative; read only.
        """

    @property
    def label_smoothing(self) -> float:
        """
        Share of the labels, 0 to 1, that SOFT_MAX_CROSS_ENTROPY and SIGMOID_CROSS_ENTROPY spread evenly over the classes; read only.
        """

    @property
    def loss_type(self) -> LossType:
        """
        `LossType` of an element; read only.
        """

    @property
    def number_of_classes(self) -> int:
        """
        Classes that SOFT_MAX_CROSS_ENTROPY spreads smoothed labels over, at least 1; read only.
        """

    @property
    def reduce_across_batch(self) -> bool:
        """
        Whether the losses of a batch become one, in the first loss image, unless the reduction is NONE; read only.
        """

    @property
    def reduction_type(self) -> ReductionType:
        """
        `ReductionType`: how the losses of all elements of an image become one number, if at all; read only.
        """

    @property
    def weight(self) -> float:
        """
        Factor of every element, in loss and gradient; read only.
        """

class YOLOLossDescriptor:
    def __init__(
        self,
        reduction_type: ReductionType,
        anchor_boxes: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | bytes,
        reduce_across_batch: bool,
        rescore: bool,
        scale_xy: typing.SupportsFloat | typing.SupportsIndex,
        scale_wh: typing.SupportsFloat | typing.SupportsIndex,
        scale_no_object: typing.SupportsFloat | typing.SupportsIndex,
        scale_object: typing.SupportsFloat | typing.SupportsIndex,
        scale_class: typing.SupportsFloat | typing.SupportsIndex,
        min_iou_for_object_presence: typing.SupportsFloat | typing.SupportsIndex,
        max_iou_for_object_absence: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    @property
    def anchor_boxes(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Width and height of each anchor in grid cells, a float32 copy of shape (boxes, 2) that cannot be written to; takes pairs of positive numbers, or float32 bytes, and raises TypeError or ValueError for others.
        """

    @anchor_boxes.setter
    def anchor_boxes(
        self, arg1: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | bytes
    ) -> None: ...
    @property
    def max_iou_for_object_absence(self) -> float:
        """
        Intersection over union below which a box that is not present is absent; it does not count otherwise. 0.3 by default.
        """

    @max_iou_for_object_absence.setter
    def max_iou_for_object_absence(
        self, arg1: typing.SupportsFloat | typing.SupportsIndex
    ) -> None: ...
    @property
    def min_iou_for_object_presence(self) -> float:
        """
        Intersection over union with the object of its cell above which a box is present; one whose anchor fits best always is. 0.7 by default.
        """

    @min_iou_for_object_presence.setter
    def min_iou_for_object_presence(
        self, arg1: typing.SupportsFloat | typing.SupportsIndex
    ) -> None: ...
    @property
    def number_of_anchor_boxes(self) -> int:
        """
        Boxes that each cell of the grid predicts; read only.
        """

    @property
    def reduce_across_batch(self) -> bool:
        """
        Whether the losses of a batch become one, in the first loss image, unless the reduction is NONE. False by default.
        """

    @reduce_across_batch.setter
    def reduce_across_batch(self, arg1: bool) -> None: ...
    @property
    def reduction_type(self) -> ReductionType:
        """
        `ReductionType` of the elements of all parts together.
        """

    @reduction_type.setter
    def reduction_type(self, arg1: ReductionType) -> None: ...
    @property
    def rescore(self) -> bool:
        """
        Whether a present box should have for confidence its label times the intersection over union of predicted and true box, not the label alone; True by default.
        """

    @rescore.setter
    def rescore(self, arg1: bool) -> None: ...
    @property
    def scale_class(self) -> float:
        """
        Factor of loss and gradient of the classes of boxes that are present; 2 by default.
        """

    @scale_class.setter
    def scale_class(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def scale_no_object(self) -> float:
        """
        Factor of loss and gradient of the confidence of boxes that are absent; 5 by default.
        """

    @scale_no_object.setter
    def scale_no_object(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def scale_object(self) -> float:
        """
        Factor of loss and gradient of the confidence of boxes that are present; 100 by default.
        """

    @scale_object.setter
    def scale_object(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def scale_wh(self) -> float:
        """
        Factor of loss and gradient of the sizes of boxes that are present; 10 by default.
        """

    @scale_wh.setter
    def scale_wh(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def scale_xy(self) -> float:
        """
        Factor of loss and gradient of the centres of boxes that are present; 10 by default.
        """

    @scale_xy.setter
    def scale_xy(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class YOLOLoss(LabelledLoss):
    def __init__(
        self,
        device: Device,
        descriptor: YOLOLossDescriptor,
        xy: LossDescriptor,
        wh: LossDescriptor,
        confidence: LossDescriptor,
        classes: LossDescriptor,
    ) -> None: ...
    @property
    def anchor_boxes(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Width and height of each anchor in grid cells, a float32 copy of shape (boxes, 2) that cannot be written to; read only.
        """

    @property
    def max_iou_for_object_absence(self) -> float:
        """
        Intersection over union below which a box that is not present is absent; it does not count otherwise; read only.
        """

    @property
    def min_iou_for_object_presence(self) -> float:
        """
        Intersection over union with the object of its cell above which a box is present; one whose anchor fits best always is; read only.
        """

    @property
    def number_of_anchor_boxes(self) -> int:
        """
        Boxes that each cell of the grid predicts; read only.
        """

    @property
    def reduce_across_batch(self) -> bool:
        """
        Whether the losses of a batch become one, in the first loss image, unless the reduction is NONE; read only.
        """

    @property
    def reduction_type(self) -> ReductionType:
        """
        `ReductionType` of the elements of all parts together; read only.
        """

    @property
    def scale_class(self) -> float:
        """
        Factor of loss and gradient of the classes of boxes that are present; read only.
        """

    @property
    def scale_no_object(self) -> float:
        """
        Factor of loss and gradient of the confidence of boxes that are absent; read only.
        """

    @property
    def scale_object(self) -> float:
        """
        Factor of loss and gradient of the confidence of boxes that are present; read only.
        """

    @property
    def scale_wh(self) -> float:
        """
        Factor of loss and gradient of the sizes of boxes that are present; read only.
        """

    @property
    def scale_xy(self) -> float:
        """
        Factor of loss and gradient of the centres of boxes that are present; read only.
        """

class ForwardLossState(GradientState):
    """
    Settings of a `ForwardLoss` at an encode, for its `LossGradient`.
    """

    @property
    def delta(self) -> float:
        """
        Distance of prediction and label from which HUBER is linear, above 0; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the arguments of LOG's logarithms, not negative; read only.
        """

    @property
    def label_smoothing(self) -> float:
        """
        Share of the labels, 0 to 1, that SOFT_MAX_CROSS_ENTROPY and SIGMOID_CROSS_ENTROPY spread evenly over the classes; read only.
        """

    @property
    def weight(self) -> float:
        """
        Factor of every element, in loss and gradient; read only.
        """

class ForwardLoss(UnaryKernel):
    def __init__(self, device: Device, descriptor: LossDescriptor) -> None: ...
    def encode(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """
        Not offered: there are batch forms only.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        labels: ImageBatch | collections.abc.Sequence[Image],
        weights: ImageBatch | collections.abc.Sequence[Image] | None = None,
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode the losses of a batch.

        Parameters
        ----------
        command_buffer : CommandBuffer
        sources, labels : batch of images
            Predictions and labels, of one size.
        weights : batch of images, optional
            One factor for each element.
        destinations : batch of images, optional
            Receive the losses: 1x1x1, or of the sources' size without reduction.
        destination_states : list of State, optional
            From `result_state_batch`; only together with ``destinations``.
        with_state, temporary_state : bool, default False
            Create states for `LossGradient` as well.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        ImageBatch, or with ``with_state`` a pair of it and the list of states
            The losses.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, images do not fit each other or the kernel, a
            destination is read-only or shares memory with a source, or a property has a value that the kernel cannot use. A
            state to fill needs a destination, and ``with_state`` one that is created.
            Labels and weights must have the sources' size, and COSINE_DISTANCE takes no weights.
        StateError
            If a state to fill was made by a kernel of another class or with other properties.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        labels: ImageBatch | collections.abc.Sequence[Image],
        weights: ImageBatch | collections.abc.Sequence[Image] | None = None,
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[ImageBatch, typing.Any]: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        labels: ImageBatch | collections.abc.Sequence[Image],
        weights: ImageBatch | collections.abc.Sequence[Image] | None = None,
        destinations: ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @property
    def delta(self) -> float:
        """
        Distance of prediction and label from which HUBER is linear, above 0; a new value holds for the encodes that follow, one out of range is a ValueError.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def descriptor(self) -> LossDescriptor:
        """
        A copy of the loss with its settings as they are now; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the arguments of LOG's logarithms, not negative; a new value holds for the encodes that follow, one out of range is a ValueError.
        """

    @epsilon.setter
    def epsilon(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def label_smoothing(self) -> float:
        """
        Share of the labels, 0 to 1, that SOFT_MAX_CROSS_ENTROPY and SIGMOID_CROSS_ENTROPY spread evenly over the classes; a new value holds for the encodes that follow, one out of range is a ValueError.
        """

    @label_smoothing.setter
    def label_smoothing(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def loss_type(self) -> LossType:
        """
        `LossType` of an element; read only.
        """

    @property
    def number_of_classes(self) -> int:
        """
        Classes that SOFT_MAX_CROSS_ENTROPY spreads smoothed labels over, at least 1; read only.
        """

    @property
    def reduce_across_batch(self) -> bool:
        """
        Whether the losses of a batch become one, in the first loss image, unless the reduction is NONE; read only.
        """

    @property
    def reduction_type(self) -> ReductionType:
        """
        `ReductionType`: how the losses of all elements of an image become one number, if at all; read only.
        """

    @property
    def weight(self) -> float:
        """
        Factor of every element, in loss and gradient; a new value holds for the encodes that follow, one out of range is a ValueError.
        """

    @weight.setter
    def weight(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class LossGradient(BinaryKernel):
    def __init__(self, device: Device, descriptor: LossDescriptor) -> None: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: ImageBatch | collections.abc.Sequence[Image],
        sources: ImageBatch | collections.abc.Sequence[Image],
        labels: ImageBatch | collections.abc.Sequence[Image],
        weights: ImageBatch | collections.abc.Sequence[Image] | None = None,
        source_states: State | collections.abc.Sequence[State] | None = None,
        destination_gradients: ImageBatch | None = None,
        *,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode the gradients of a batch.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source_gradients : batch of images
            Gradient with respect to the loss images, and of their size.
        sources, labels, weights : batch of images
            As given to `ForwardLoss`.
        source_states : list of ForwardLossState, optional
            From the forward encode; their settings override the kernel's.
        destination_gradients : batch of images, optional
            Receive the gradients; of the sources' size.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        ImageBatch
            Gradients with respect to the sources, or to the labels if `compute_label_gradients`.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, size, device or command buffer, ``source_states`` are of another loss or have
            different settings, a destination is read-only or shares memory with another image, COSINE_DISTANCE is given
            weights, or an offset or `clip_rect` is set.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_gradients: ImageBatch | collections.abc.Sequence[Image],
        sources: ImageBatch | collections.abc.Sequence[Image],
        labels: ImageBatch | collections.abc.Sequence[Image],
        weights: ImageBatch | collections.abc.Sequence[Image] | None = None,
        source_states: State | collections.abc.Sequence[State] | None = None,
        destination_gradients: ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @property
    def compute_label_gradients(self) -> bool:
        """
        Gradients with respect to the labels instead of the predictions.
        """

    @compute_label_gradients.setter
    def compute_label_gradients(self, arg0: bool) -> None: ...
    @property
    def delta(self) -> float:
        """
        Distance of prediction and label from which HUBER is linear, above 0; a new value holds for the encodes that follow, one out of range is a ValueError.
        """

    @delta.setter
    def delta(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def descriptor(self) -> LossDescriptor:
        """
        A copy of the loss with its settings as they are now; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the arguments of LOG's logarithms, not negative; a new value holds for the encodes that follow, one out of range is a ValueError.
        """

    @epsilon.setter
    def epsilon(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def label_smoothing(self) -> float:
        """
        Share of the labels, 0 to 1, that SOFT_MAX_CROSS_ENTROPY and SIGMOID_CROSS_ENTROPY spread evenly over the classes; a new value holds for the encodes that follow, one out of range is a ValueError.
        """

    @label_smoothing.setter
    def label_smoothing(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def loss_type(self) -> LossType:
        """
        `LossType` of an element; read only.
        """

    @property
    def number_of_classes(self) -> int:
        """
        Classes that SOFT_MAX_CROSS_ENTROPY spreads smoothed labels over, at least 1; read only.
        """

    @property
    def reduce_across_batch(self) -> bool:
        """
        Whether the losses of a batch become one, in the first loss image, unless the reduction is NONE; read only.
        """

    @property
    def reduction_type(self) -> ReductionType:
        """
        `ReductionType`: how the losses of all elements of an image become one number, if at all; read only.
        """

    @property
    def weight(self) -> float:
        """
        Factor of every element, in loss and gradient; a new value holds for the encodes that follow, one out of range is a ValueError.
        """

    @weight.setter
    def weight(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class InitialGradient(UnaryKernel):
    def __init__(self, device: Device) -> None: ...

class Neuron(UnaryKernel):
    def __init__(self, device: Device, descriptor: NeuronDescriptor) -> None: ...
    @property
    def descriptor(self) -> NeuronDescriptor:
        """
        A copy of the activation it was made with; read only.
        """

class NeuronGradient(GradientKernel):
    def __init__(self, device: Device, descriptor: NeuronDescriptor) -> None: ...
    @property
    def descriptor(self) -> NeuronDescriptor:
        """
        A copy of the activation it was made with; read only.
        """

class RegularizationType(mpsgrad.enums.Enumeration):
    """
    What is added to the gradient of a value (``MPSNNRegularizationType``).
    """

    NONE = 0
    L1 = 1
    L2 = 2

class OptimizerDescriptor:
    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, arg0: object) -> bool: ...
    def __init__(
        self,
        learning_rate: typing.SupportsFloat | typing.SupportsIndex,
        gradient_rescale: typing.SupportsFloat | typing.SupportsIndex,
        apply_gradient_clipping: bool,
        gradient_clip_max: typing.SupportsFloat | typing.SupportsIndex | None,
        gradient_clip_min: typing.SupportsFloat | typing.SupportsIndex | None,
        regularization_type: RegularizationType,
        regularization_scale: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, ...]: ...
    @property
    def apply_gradient_clipping(self) -> bool:
        """
        Whether the raw gradient is limited to `gradient_clip_min` and `gradient_clip_max`; False by default.
        """

    @apply_gradient_clipping.setter
    def apply_gradient_clipping(self, arg0: bool) -> None: ...
    @property
    def gradient_clip_max(self) -> float | None:
        """
        Upper bound of the raw gradient, None by default; clipping needs both bounds.
        """

    @gradient_clip_max.setter
    def gradient_clip_max(
        self, arg0: typing.SupportsFloat | typing.SupportsIndex | None
    ) -> None: ...
    @property
    def gradient_clip_min(self) -> float | None:
        """
        Lower bound of the raw gradient, None by default; clipping needs both bounds.
        """

    @gradient_clip_min.setter
    def gradient_clip_min(
        self, arg0: typing.SupportsFloat | typing.SupportsIndex | None
    ) -> None: ...
    @property
    def gradient_rescale(self) -> float:
        """
        Factor of the clipped gradient, before regularization; 1 by default.
        """

    @gradient_rescale.setter
    def gradient_rescale(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def learning_rate(self) -> float:
        """
        Step length, of any sign; 0.001 by default.
        """

    @learning_rate.setter
    def learning_rate(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def regularization_scale(self) -> float:
        """
        Factor of the regularization term, of any sign; 0 by default.
        """

    @regularization_scale.setter
    def regularization_scale(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def regularization_type(self) -> RegularizationType:
        """
        `RegularizationType` of the term added to the rescaled gradient; NONE by default.
        """

    @regularization_type.setter
    def regularization_type(self, arg0: RegularizationType) -> None: ...

class Optimizer(Kernel):
    """
    Base class of all optimizers (``MPSNNOptimizer``); never made directly.
    """

    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def apply_gradient_clipping(self) -> bool:
        """
        Whether gradients are clipped.
        """

    @apply_gradient_clipping.setter
    def apply_gradient_clipping(self, arg1: bool) -> None: ...
    @property
    def gradient_clip_max(self) -> float | None:
        """
        Upper bound of the raw gradient, or None.
        """

    @property
    def gradient_clip_min(self) -> float | None:
        """
        Lower bound of the raw gradient, or None.
        """

    @property
    def gradient_rescale(self) -> float:
        """
        Factor of the clipped gradient.
        """

    @property
    def learning_rate(self) -> float:
        """
        Step length; a new value holds for the encodes that follow (``setLearningRate:``).
        """

    @learning_rate.setter
    def learning_rate(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def optimizer_descriptor(self) -> OptimizerDescriptor:
        """
        A copy of the settings as they are now, with `learning_rate` and clipping as last set; read only.
        """

    @property
    def regularization_scale(self) -> float:
        """
        Factor of the regularization term; read only.
        """

    @property
    def regularization_type(self) -> RegularizationType:
        """
        `RegularizationType` of the term added to the rescaled gradient; read only.
        """

class StochasticGradientDescent(Optimizer):
    def __init__(
        self,
        device: Device,
        optimizer_descriptor: OptimizerDescriptor,
        momentum_scale: typing.SupportsFloat | typing.SupportsIndex,
        use_nesterov_momentum: bool,
    ) -> None: ...
    def encode_batch_normalization(
        self,
        command_buffer: CommandBuffer,
        batch_normalization_state: State,
        momentum_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
        *,
        source_state: State | None = None,
    ) -> None:
        """
        Encode one update of a batch normalization's gamma and beta.

        Parameters
        ----------
        command_buffer : CommandBuffer
        batch_normalization_state : BatchNormalizationState
            Holds the gradients of the whole batch, and shows the kernel's gamma and beta. Read once.
        momentum_vectors : list of Vector, or None
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
            None for descent without momentum, biases (beta) included where there are some.
        result_state : NormalizationGammaAndBetaState
            Where the new values go. The kernel sees them after ``reload_gamma_and_beta``.
        source_state : BatchNormalizationState, optional
            Shows the current values instead.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, shares memory with a history, or the kernel has no gamma.
        StateError
            If the gradients are not those of the whole batch.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_convolution(
        self,
        command_buffer: CommandBuffer,
        gradient_state: State,
        source_state: State,
        momentum_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
    ) -> None:
        """
        Encode one update of a convolution's weights and biases.

        The gradient state is finished by this: no gradients may be added to it any more.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient_state : ConvolutionGradientState
            Holds the gradients.
        source_state : ConvolutionWeightsAndBiasesState
            Holds the current weights and biases.
        momentum_vectors : list of Vector, or None
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
            None for descent without momentum, biases (beta) included where there are some.
        result_state : ConvolutionWeightsAndBiasesState
            Where the new ones go; may be ``source_state``. Kernels see them after a reload.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, or shares memory with a history.
        StateError
            If no gradients have been encoded into ``gradient_state``.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_gamma_beta(
        self,
        command_buffer: CommandBuffer,
        states: State | collections.abc.Sequence[State],
        source_state: State,
        momentum_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
    ) -> None:
        """
        Encode one update of gamma and beta by the sum of several states' gradients.

        Apple's optimizers have no such encode: instance and group normalization keep the gradients of each image in a state of its
        own, which are added up here before a single step.

        Parameters
        ----------
        command_buffer : CommandBuffer
        states : list of State
            Of instance or group normalization, one an image, or a `BatchNormalizationState`. Each is read once.
        source_state : NormalizationGammaAndBetaState
            Holds the current values.
        momentum_vectors : list of Vector, or None
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
            None for descent without momentum, biases (beta) included where there are some.
        result_state : NormalizationGammaAndBetaState
            Where the new ones go; may be ``source_state``. The kernel sees them after ``reload_gamma_and_beta``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, a state comes twice, or memory is shared with a history.
        StateError
            If a state has no gradients, or not those of the whole batch.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_matrix(
        self,
        command_buffer: CommandBuffer,
        gradient: Matrix,
        values: Matrix,
        momentum: Matrix | None,
        result: Matrix,
    ) -> None:
        """
        Encode one update.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient, values : Matrix
            Gradient of the loss and current values, float32, of one shape.
        momentum : Matrix, or None
            Overwritten; None for descent without momentum, whatever `momentum_scale` says.
        result : Matrix
            Where the new values go; may be ``values``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, shape or device, or shares memory with a history.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_vector(
        self,
        command_buffer: CommandBuffer,
        gradient: Vector,
        values: Vector,
        momentum: Vector | None,
        result: Vector,
    ) -> None:
        """
        Encode one update.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient, values : Vector
            Gradient of the loss and current values, float32, of one shape.
        momentum : Vector, or None
            Overwritten; None for descent without momentum, whatever `momentum_scale` says.
        result : Vector
            Where the new values go; may be ``values``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, shape or device, or shares memory with a history.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @property
    def momentum_scale(self) -> float:
        """
        Factor of the old momentum in the new one; no effect without momentum storage. Read only.
        """

    @property
    def use_nesterov_momentum(self) -> bool:
        """
        Whether a step looks ahead by the momentum; no effect without momentum storage. Read only.
        """

class RMSProp(Optimizer):
    def __init__(
        self,
        device: Device,
        optimizer_descriptor: OptimizerDescriptor,
        decay: typing.SupportsFloat | typing.SupportsIndex,
        epsilon: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...
    def encode_batch_normalization(
        self,
        command_buffer: CommandBuffer,
        batch_normalization_state: State,
        sum_of_squares_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
        *,
        source_state: State | None = None,
    ) -> None:
        """
        Encode one update of a batch normalization's gamma and beta.

        Parameters
        ----------
        command_buffer : CommandBuffer
        batch_normalization_state : BatchNormalizationState
            Holds the gradients of the whole batch, and shows the kernel's gamma and beta. Read once.
        sum_of_squares_vectors : list of Vector
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
        result_state : NormalizationGammaAndBetaState
            Where the new values go. The kernel sees them after ``reload_gamma_and_beta``.
        source_state : BatchNormalizationState, optional
            Shows the current values instead.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, shares memory with a history, or the kernel has no gamma.
        StateError
            If the gradients are not those of the whole batch.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_convolution(
        self,
        command_buffer: CommandBuffer,
        gradient_state: State,
        source_state: State,
        sum_of_squares_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
    ) -> None:
        """
        Encode one update of a convolution's weights and biases.

        The gradient state is finished by this: no gradients may be added to it any more.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient_state : ConvolutionGradientState
            Holds the gradients.
        source_state : ConvolutionWeightsAndBiasesState
            Holds the current weights and biases.
        sum_of_squares_vectors : list of Vector
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
        result_state : ConvolutionWeightsAndBiasesState
            Where the new ones go; may be ``source_state``. Kernels see them after a reload.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, or shares memory with a history.
        StateError
            If no gradients have been encoded into ``gradient_state``.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_gamma_beta(
        self,
        command_buffer: CommandBuffer,
        states: State | collections.abc.Sequence[State],
        source_state: State,
        sum_of_squares_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
    ) -> None:
        """
        Encode one update of gamma and beta by the sum of several states' gradients.

        Apple's optimizers have no such encode: instance and group normalization keep the gradients of each image in a state of its
        own, which are added up here before a single step.

        Parameters
        ----------
        command_buffer : CommandBuffer
        states : list of State
            Of instance or group normalization, one an image, or a `BatchNormalizationState`. Each is read once.
        source_state : NormalizationGammaAndBetaState
            Holds the current values.
        sum_of_squares_vectors : list of Vector
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
        result_state : NormalizationGammaAndBetaState
            Where the new ones go; may be ``source_state``. The kernel sees them after ``reload_gamma_and_beta``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, a state comes twice, or memory is shared with a history.
        StateError
            If a state has no gradients, or not those of the whole batch.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_matrix(
        self,
        command_buffer: CommandBuffer,
        gradient: Matrix,
        values: Matrix,
        sum_of_squares: Matrix,
        result: Matrix,
    ) -> None:
        """
        Encode one update.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient, values : Matrix
            Gradient of the loss and current values, float32, of one shape.
        sum_of_squares : Matrix
            Overwritten.
        result : Matrix
            Where the new values go; may be ``values``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, shape or device, or shares memory with a history.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_vector(
        self,
        command_buffer: CommandBuffer,
        gradient: Vector,
        values: Vector,
        sum_of_squares: Vector,
        result: Vector,
    ) -> None:
        """
        Encode one update.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient, values : Vector
            Gradient of the loss and current values, float32, of one shape.
        sum_of_squares : Vector
            Overwritten.
        result : Vector
            Where the new values go; may be ``values``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, shape or device, or shares memory with a history.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @property
    def decay(self) -> float:
        """
        Factor of the old mean of squares in the new one, 0 to 1; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the root of the mean of squares that a step is divided by, not negative; read only.
        """

class Adam(Optimizer):
    def __init__(
        self,
        device: Device,
        optimizer_descriptor: OptimizerDescriptor,
        beta1: typing.SupportsFloat | typing.SupportsIndex,
        beta2: typing.SupportsFloat | typing.SupportsIndex,
        epsilon: typing.SupportsFloat | typing.SupportsIndex,
        time_step: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def encode_batch_normalization(
        self,
        command_buffer: CommandBuffer,
        batch_normalization_state: State,
        momentum_vectors: collections.abc.Sequence[Vector] | None,
        velocity_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
        *,
        maximum_velocity_vectors: collections.abc.Sequence[Vector] | None = None,
        source_state: State | None = None,
    ) -> None:
        """
        Encode one update of a batch normalization's gamma and beta.

        Parameters
        ----------
        command_buffer : CommandBuffer
        batch_normalization_state : BatchNormalizationState
            Holds the gradients of the whole batch, and shows the kernel's gamma and beta. Read once.
        momentum_vectors, velocity_vectors : list of Vector
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
        maximum_velocity_vectors : list of Vector, optional
            Overwritten; makes it AMSGrad.
        result_state : NormalizationGammaAndBetaState
            Where the new values go. The kernel sees them after ``reload_gamma_and_beta``.
        source_state : BatchNormalizationState, optional
            Shows the current values instead.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, shares memory with a history, or the kernel has no gamma.
        StateError
            If the gradients are not those of the whole batch.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_convolution(
        self,
        command_buffer: CommandBuffer,
        gradient_state: State,
        source_state: State,
        momentum_vectors: collections.abc.Sequence[Vector] | None,
        velocity_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
        *,
        maximum_velocity_vectors: collections.abc.Sequence[Vector] | None = None,
    ) -> None:
        """
        Encode one update of a convolution's weights and biases.

        The gradient state is finished by this: no gradients may be added to it any more.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient_state : ConvolutionGradientState
            Holds the gradients.
        source_state : ConvolutionWeightsAndBiasesState
            Holds the current weights and biases.
        momentum_vectors, velocity_vectors : list of Vector
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
        maximum_velocity_vectors : list of Vector, optional
            Overwritten; makes it AMSGrad.
        result_state : ConvolutionWeightsAndBiasesState
            Where the new ones go; may be ``source_state``. Kernels see them after a reload.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, or shares memory with a history.
        StateError
            If no gradients have been encoded into ``gradient_state``.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_gamma_beta(
        self,
        command_buffer: CommandBuffer,
        states: State | collections.abc.Sequence[State],
        source_state: State,
        momentum_vectors: collections.abc.Sequence[Vector] | None,
        velocity_vectors: collections.abc.Sequence[Vector] | None,
        result_state: State,
        *,
        maximum_velocity_vectors: collections.abc.Sequence[Vector] | None = None,
    ) -> None:
        """
        Encode one update of gamma and beta by the sum of several states' gradients.

        Apple's optimizers have no such encode: instance and group normalization keep the gradients of each image in a state of its
        own, which are added up here before a single step.

        Parameters
        ----------
        command_buffer : CommandBuffer
        states : list of State
            Of instance or group normalization, one an image, or a `BatchNormalizationState`. Each is read once.
        source_state : NormalizationGammaAndBetaState
            Holds the current values.
        momentum_vectors, velocity_vectors : list of Vector
            For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With one
            vector the biases (beta) stay.
        maximum_velocity_vectors : list of Vector, optional
            Overwritten; makes it AMSGrad.
        result_state : NormalizationGammaAndBetaState
            Where the new ones go; may be ``source_state``. The kernel sees them after ``reload_gamma_and_beta``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another class, size or device, a state comes twice, or memory is shared with a history.
        StateError
            If a state has no gradients, or not those of the whole batch.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_matrix(
        self,
        command_buffer: CommandBuffer,
        gradient: Matrix,
        values: Matrix,
        momentum: Matrix,
        velocity: Matrix,
        result: Matrix,
        *,
        maximum_velocity: Matrix | None = None,
    ) -> None:
        """
        Encode one update.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient, values : Matrix
            Gradient of the loss and current values, float32, of one shape.
        momentum, velocity : Matrix
            First and second moments, zero before the first step; overwritten.
        maximum_velocity : Matrix, optional
            Overwritten; makes it AMSGrad.
        result : Matrix
            Where the new values go; may be ``values``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, shape or device, or shares memory with a history.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    def encode_vector(
        self,
        command_buffer: CommandBuffer,
        gradient: Vector,
        values: Vector,
        momentum: Vector,
        velocity: Vector,
        result: Vector,
        *,
        maximum_velocity: Vector | None = None,
    ) -> None:
        """
        Encode one update.

        Parameters
        ----------
        command_buffer : CommandBuffer
        gradient, values : Vector
            Gradient of the loss and current values, float32, of one shape.
        momentum, velocity : Vector
            First and second moments, zero before the first step; overwritten.
        maximum_velocity : Vector, optional
            Overwritten; makes it AMSGrad.
        result : Vector
            Where the new values go; may be ``values``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, shape or device, or shares memory with a history.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @property
    def beta1(self) -> float:
        """
        Factor of the old momentum in the new one, 0 to below 1; read only.
        """

    @property
    def beta2(self) -> float:
        """
        Factor of the old velocity, the mean of squared gradients, in the new one, 0 to below 1; read only.
        """

    @property
    def epsilon(self) -> float:
        """
        Added to the root of the velocity that a step is divided by, not negative; read only.
        """

    @property
    def time_step(self) -> int:
        """
        Number of encodes so far; the next one works with the number after it.
        """

    @time_step.setter
    def time_step(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class Pooling(UnaryKernel):
    """
    Base class of all pooling kernels (``MPSCNNPooling``); never made directly.
    """

class PoolingMax(Pooling):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class PoolingAverage(Pooling):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def zero_pad_size_x(self) -> int:
        """
        Width of a border of counted zeros on the left and on the right; only with CLAMP.
        """

    @zero_pad_size_x.setter
    def zero_pad_size_x(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def zero_pad_size_y(self) -> int:
        """
        Height of a border of counted zeros at the top and at the bottom; only with CLAMP.
        """

    @zero_pad_size_y.setter
    def zero_pad_size_y(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class PoolingL2Norm(Pooling):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class DilatedPoolingMax(Pooling):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        dilation_rate_x: typing.SupportsInt | typing.SupportsIndex,
        dilation_rate_y: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class PoolingGradient(GradientKernel):
    """
    Base class of all pooling gradients (``MPSCNNPoolingGradient``); never made directly.
    """

    @property
    def source_size(self) -> tuple[typing.Any, ...] | None:
        """
        Part of the incoming gradient that counts, from `primary_offset` on: (width, height, depth), None for no limit.
        """

    @source_size.setter
    def source_size(
        self,
        arg1: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex | None] | None,
    ) -> None: ...
    @property
    def stride_in_pixels_x(self) -> int:
        """
        Columns from one window of the forward pooling to the next; read only.
        """

    @property
    def stride_in_pixels_y(self) -> int:
        """
        Rows from one window of the forward pooling to the next; read only.
        """

class PoolingMaxGradient(PoolingGradient):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class PoolingAverageGradient(PoolingGradient):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def zero_pad_size_x(self) -> int:
        """
        Width of a border of counted zeros on the left and on the right; only with CLAMP.
        """

    @zero_pad_size_x.setter
    def zero_pad_size_x(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def zero_pad_size_y(self) -> int:
        """
        Height of a border of counted zeros at the top and at the bottom; only with CLAMP.
        """

    @zero_pad_size_y.setter
    def zero_pad_size_y(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class PoolingL2NormGradient(PoolingGradient):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class DilatedPoolingMaxGradient(PoolingGradient):
    def __init__(
        self,
        device: Device,
        kernel_width: typing.SupportsInt | typing.SupportsIndex,
        kernel_height: typing.SupportsInt | typing.SupportsIndex,
        dilation_rate_x: typing.SupportsInt | typing.SupportsIndex,
        dilation_rate_y: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_pixels_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class ReduceUnary(UnaryKernel):
    """
    One value made of many of a source (``MPSNNReduceUnary``); never made directly.

    There are no gradient kernels, and no states. `offset` is ignored but for its z, which selects an image.
    """

    @property
    def clip_rect_source(self) -> Region:
        """
        Pixels of the source that are read, as far as it has them: a `Region`, at first `NO_CLIP`.
        """

    @clip_rect_source.setter
    def clip_rect_source(self, arg1: Region) -> None: ...

class ReduceRowMin(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceRowMax(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceRowMean(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceColumnMin(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceColumnMax(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceColumnMean(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceFeatureChannelsMin(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceFeatureChannelsMax(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceFeatureChannelsMean(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceRowSum(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceColumnSum(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceFeatureChannelsArgumentMin(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceFeatureChannelsArgumentMax(ReduceUnary):
    def __init__(self, device: Device) -> None: ...

class ReduceFeatureChannelsSum(ReduceUnary):
    def __init__(self, device: Device) -> None: ...
    @property
    def weight(self) -> float:
        """
        What each sum is multiplied by, float32; at first 1.
        """

    @weight.setter
    def weight(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class ReduceBinary(ForwardBinaryKernel):
    """
    Sums over the feature channels of two sources (``MPSNNReduceBinary``); never made directly.

    There are no gradient kernels, and no states. Offsets are ignored but for their z, which select images.
    """

    @property
    def primary_source_clip_rect(self) -> Region:
        """
        Pixels of this source that are read, as far as it has them: a `Region`, at first `NO_CLIP`.
        """

    @primary_source_clip_rect.setter
    def primary_source_clip_rect(self, arg1: Region) -> None: ...
    @property
    def secondary_source_clip_rect(self) -> Region:
        """
        Pixels of this source that are read, as far as it has them: a `Region`, at first `NO_CLIP`.
        """

    @secondary_source_clip_rect.setter
    def secondary_source_clip_rect(self, arg1: Region) -> None: ...

class ReduceFeatureChannelsAndWeightsMean(ReduceBinary):
    def __init__(self, device: Device) -> None: ...

class ReduceFeatureChannelsAndWeightsSum(ReduceBinary):
    def __init__(self, device: Device, do_weighted_sum_by_non_zero_weights: bool) -> None: ...
    @property
    def do_weighted_sum_by_non_zero_weights(self) -> bool:
        """
        Whether sums are divided by the number of weights that are not 0.
        """

class LocalCorrelation(ReduceBinary):
    def __init__(
        self,
        device: Device,
        window_in_x: typing.SupportsInt | typing.SupportsIndex,
        window_in_y: typing.SupportsInt | typing.SupportsIndex,
        stride_in_x: typing.SupportsInt | typing.SupportsIndex,
        stride_in_y: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def stride_in_x(self) -> int:
        """
        Pixels from one shift to the next.
        """

    @stride_in_x.setter
    def stride_in_x(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def stride_in_y(self) -> int:
        """
        Pixels from one shift to the next.
        """

    @stride_in_y.setter
    def stride_in_y(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def window_in_x(self) -> int:
        """
        Shifts to either side of each pixel.
        """

    @window_in_x.setter
    def window_in_x(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def window_in_y(self) -> int:
        """
        Shifts to either side of each pixel.
        """

    @window_in_y.setter
    def window_in_y(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class Reshape(UnaryKernel):
    def __init__(self, device: Device) -> None: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
        reshaped_width: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_height: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_feature_channels: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> Image:
        """
        Encode the kernel, as `UnaryKernel.encode` and with a shape.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source : Image, or batch
            A list or `ImageBatch` selects the batch form.
        destination : Image, or batch, optional
            Its shape is the result's.
        destination_state : State, or list, optional
            From `result_state`; only together with ``destination``.
        with_state, temporary_state : bool, default False
            Create a state for the gradient kernel as well.
        allocator : optional
            Overrides `destination_image_allocator` for this call.
        reshaped_width, reshaped_height, reshaped_feature_channels : int, optional
            The shape of a destination that is created; all three, or none for a copy.

        Returns
        -------
        Image or ImageBatch, or with ``with_state`` a pair of it and the state or list of states
            The destination. Nothing in it is valid before the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, images do not fit each other or the kernel, a
            destination is read-only or shares memory with a source, or a property has a value that the kernel cannot use. A
            state to fill needs a destination, and ``with_state`` one that is created.
            Source and result must have equally many elements, and be taken whole.
            A shape is given complete, and without a destination.
        StateError
            If a state to fill was made by a kernel of another class or with other properties.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
        reshaped_width: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_height: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_feature_channels: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> tuple[Image, typing.Any]: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
        reshaped_width: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_height: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_feature_channels: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
        reshaped_width: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_height: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_feature_channels: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. All are of one length, and so is the list of states: one for each image, or where
        `is_result_state_reused_across_batch` one and the same as often.

        Returns
        -------
        ImageBatch, or with ``with_state`` a pair of it and the list of states, None for a kernel without any
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
        reshaped_width: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_height: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_feature_channels: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> tuple[ImageBatch, typing.Any]: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
        reshaped_width: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_height: typing.SupportsInt | typing.SupportsIndex | None = None,
        reshaped_feature_channels: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> typing.Any: ...

class ReshapeGradient(GradientKernel):
    def __init__(self, device: Device) -> None: ...

class Slice(UnaryKernel):
    def __init__(self, device: Device) -> None: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> Image:
        """
        Encode the kernel, as `UnaryKernel.encode`, and `offset` stays as it is.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source : Image, or batch
            A list or `ImageBatch` selects the batch form.
        destination : Image, or batch, optional
            The box goes to `clip_rect`. Without it a new one is made that ends where `clip_rect` does, or
            if that has no limit, where the source does.
        destination_state : None
            There is no gradient kernel that could read one.
        with_state, temporary_state : bool, default False
            Return a pair whose second part is None.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        Image or ImageBatch, or with ``with_state`` a pair of it and None
            The destination. Nothing in it is valid before the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, images do not fit each other or the kernel, a
            destination is read-only or shares memory with a source, or a property has a value that the kernel cannot use. A
            state to fill needs a destination, and ``with_state`` one that is created.
            The box must hold a pixel.
        StateError
            If a state to fill was made by a kernel of another class or with other properties.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: Image | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[Image, typing.Any]: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. All are of one length, and so is the list of states: one for each image, or where
        `is_result_state_reused_across_batch` one and the same as often.

        Returns
        -------
        ImageBatch, or with ``with_state`` a pair of it and the list of states, None for a kernel without any
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[ImageBatch, typing.Any]: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...

class Pad(UnaryKernel):
    def __init__(
        self,
        device: Device,
        padding_size_before: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        padding_size_after: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        fill_value_array: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex],
    ) -> None: ...
    @property
    def fill_value(self) -> float:
        """
        What lies outside the source with edge mode CONSTANT, unless there is an array.
        """

    @fill_value.setter
    def fill_value(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def fill_value_array(self) -> tuple[typing.Any, ...] | None:
        """
        The same for each channel that is written, from the first one on; None if there is none.
        """

    @property
    def padding_size_after(self) -> tuple[typing.Any, ...]:
        """
        Pixels on the right and at the bottom, and channels after the last: (x, y, channel).
        """

    @padding_size_after.setter
    def padding_size_after(
        self, arg1: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
    ) -> None: ...
    @property
    def padding_size_before(self) -> tuple[typing.Any, ...]:
        """
        Pixels on the left and at the top, and channels before the first: (x, y, channel).
        """

    @padding_size_before.setter
    def padding_size_before(
        self, arg1: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
    ) -> None: ...

class PadGradient(GradientKernel):
    def __init__(self, device: Device) -> None: ...

class ResizeBilinear(UnaryKernel):
    def __init__(
        self,
        device: Device,
        resize_width: typing.SupportsInt | typing.SupportsIndex,
        resize_height: typing.SupportsInt | typing.SupportsIndex,
        align_corners: bool,
    ) -> None: ...
    @property
    def align_corners(self) -> bool:
        """
        Whether the corner pixels of source and result coincide.
        """

    @property
    def resize_height(self) -> int:
        """
        Rows of the result.
        """

    @property
    def resize_width(self) -> int:
        """
        Columns of the result.
        """

class CropAndResizeBilinear(UnaryKernel):
    def __init__(
        self,
        device: Device,
        resize_width: typing.SupportsInt | typing.SupportsIndex,
        resize_height: typing.SupportsInt | typing.SupportsIndex,
        regions: collections.abc.Sequence[
            typing.Annotated[
                collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex],
                "FixedSize(4)",
            ]
        ],
    ) -> None: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: ImageBatch | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode the kernel, as `UnaryKernel.encode` and with several results.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source : Image, or batch
            Images that hold one image each.
        destination : Image, or batch, optional
            An image for each source and region, those of the first source first.
        destination_state : None
            The kernel has no state.
        with_state, temporary_state : bool, default False
            Return a pair whose second part is None.
        allocator : optional
            Overrides `destination_image_allocator` for this call.

        Returns
        -------
        ImageBatch, or with ``with_state`` a pair of it and None
            The destination. Nothing in it is valid before the command buffer has completed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of another kind, device or command buffer, there are more or fewer destinations than sources times
            regions, a destination is read-only or shares memory with a source, ``destination_state`` is not None,
            ``with_state`` comes with a destination, or a property has a value that the kernel cannot use.
        ReadCountError
            If a temporary argument has been read as often as was announced.
        CommandBufferError
            If the command buffer has been committed.
        """

    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        destination: ImageBatch | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[ImageBatch, typing.Any]: ...
    @typing.overload
    def encode(
        self,
        command_buffer: CommandBuffer,
        source: Image | ImageBatch | collections.abc.Sequence[Image],
        destination: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_state: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[False] = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> ImageBatch:
        """
        Encode a batch in one call, whatever its length.

        Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
        images. ``destinations`` holds one for each source and region. There are no states.

        Returns
        -------
        ImageBatch, or with ``with_state`` a pair of it and None
            The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
            completed.
        """

    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: ImageBatch | collections.abc.Sequence[Image],
        destinations: ImageBatch | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: typing.Literal[True],
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> tuple[ImageBatch, typing.Any]: ...
    @typing.overload
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        sources: Image | ImageBatch | collections.abc.Sequence[Image],
        destinations: Image | ImageBatch | collections.abc.Sequence[Image] | None = None,
        *,
        destination_states: State | collections.abc.Sequence[State] | None = None,
        with_state: bool = False,
        temporary_state: bool = False,
        allocator: ImageAllocator
        | ImageBatch
        | collections.abc.Callable[..., typing.Any]
        | None = None,
    ) -> typing.Any: ...
    @property
    def number_of_regions(self) -> int:
        """
        Results of one source.
        """

    @property
    def regions(self) -> tuple[typing.Any, ...]:
        """
        Of each, x, y, width and height in parts of the source.
        """

    @property
    def resize_height(self) -> int:
        """
        Rows of the result.
        """

    @property
    def resize_width(self) -> int:
        """
        Columns of the result.
        """

class GridSample(ForwardBinaryKernel):
    def __init__(self, device: Device) -> None: ...
    @property
    def use_grid_value_as_input_coordinate(self) -> bool:
        """
        Whether the grid holds positions, or displacements; at first True.
        """

    @use_grid_value_as_input_coordinate.setter
    def use_grid_value_as_input_coordinate(self, arg1: bool) -> None: ...

class SoftMax(UnaryKernel):
    def __init__(self, device: Device) -> None: ...

class LogSoftMax(UnaryKernel):
    def __init__(self, device: Device) -> None: ...

class SoftMaxGradient(GradientKernel):
    def __init__(self, device: Device) -> None: ...

class LogSoftMaxGradient(GradientKernel):
    def __init__(self, device: Device) -> None: ...

class Upsampling(UnaryKernel):
    """
    Base class of all upsampling kernels (``MPSCNNUpsampling``); never made directly.
    """

    @property
    def align_corners(self) -> bool:
        """
        Whether the corner pixels of source and result coincide.
        """

    @property
    def scale_factor_x(self) -> float:
        """
        Columns of the larger image for one of the smaller.
        """

    @property
    def scale_factor_y(self) -> float:
        """
        Rows of the larger image for one of the smaller.
        """

class UpsamplingNearest(Upsampling):
    def __init__(
        self,
        device: Device,
        integer_scale_factor_x: typing.SupportsFloat | typing.SupportsIndex,
        integer_scale_factor_y: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...

class UpsamplingBilinear(Upsampling):
    def __init__(
        self,
        device: Device,
        integer_scale_factor_x: typing.SupportsFloat | typing.SupportsIndex,
        integer_scale_factor_y: typing.SupportsFloat | typing.SupportsIndex,
        align_corners: bool,
    ) -> None: ...

class UpsamplingGradient(GradientKernel):
    """
    Base class of all upsampling gradients (``MPSCNNUpsamplingGradient``); never made directly.
    """

    @property
    def scale_factor_x(self) -> float:
        """
        Columns of the larger image for one of the smaller.
        """

    @property
    def scale_factor_y(self) -> float:
        """
        Rows of the larger image for one of the smaller.
        """

class UpsamplingNearestGradient(UpsamplingGradient):
    def __init__(
        self,
        device: Device,
        integer_scale_factor_x: typing.SupportsFloat | typing.SupportsIndex,
        integer_scale_factor_y: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...

class UpsamplingBilinearGradient(UpsamplingGradient):
    def __init__(
        self,
        device: Device,
        integer_scale_factor_x: typing.SupportsFloat | typing.SupportsIndex,
        integer_scale_factor_y: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...

class Graph(Kernel):
    """
    What a graph of nodes is compiled to; `mpsgrad.graph.Graph` is its face.
    """

    def __init__(self, device: Device) -> None: ...
    def _add_batch_normalization(
        self,
        arg0: str,
        arg1: BatchNormalization,
        arg2: BatchNormalizationStatistics,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_batch_normalization_gradient(
        self,
        arg0: str,
        arg1: BatchNormalizationStatisticsGradient,
        arg2: BatchNormalizationGradient,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
        arg6: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_binary(
        self,
        arg0: str,
        arg1: ForwardBinaryKernel,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_concatenation(
        self,
        arg0: str,
        arg1: collections.abc.Sequence[UnaryKernel],
        arg2: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_concatenation_gradient(
        self,
        arg0: str,
        arg1: UnaryKernel,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
        arg6: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_data_source(
        self, arg0: Kernel, arg1: typing.Any, arg2: typing.Any, arg3: typing.Any, arg4: typing.Any
    ) -> int: ...
    def _add_forward_loss(
        self,
        arg0: str,
        arg1: ForwardLoss,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
        arg6: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_gradient(
        self,
        arg0: str,
        arg1: GradientKernel,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_image(self, arg0: str, arg1: ChannelFormat, arg2: typing.Any, arg3: bool) -> int: ...
    def _add_loss(
        self,
        arg0: str,
        arg1: UnaryKernel,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_loss_gradient(
        self,
        arg0: str,
        arg1: LossGradient,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
        arg6: typing.SupportsInt | typing.SupportsIndex,
        arg7: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_node(
        self,
        *,
        kind: str,
        name: str,
        label: str,
        kernel: Kernel,
        sources: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        result: typing.SupportsInt | typing.SupportsIndex,
        state: typing.SupportsInt | typing.SupportsIndex,
        forward: typing.SupportsInt | typing.SupportsIndex,
        position: typing.SupportsInt | typing.SupportsIndex,
        labels: typing.SupportsInt | typing.SupportsIndex,
        undone: typing.SupportsInt | typing.SupportsIndex,
        data_source: typing.SupportsInt | typing.SupportsIndex,
        training_style: typing.SupportsInt | typing.SupportsIndex,
        padding: Padding,
        flags: typing.SupportsInt | typing.SupportsIndex,
        shape: typing.Annotated[
            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], "FixedSize(3)"
        ],
    ) -> None: ...
    def _add_reshape(
        self,
        arg0: str,
        arg1: Reshape,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
        arg6: typing.SupportsInt | typing.SupportsIndex,
        arg7: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_spatial_mean(
        self,
        arg0: str,
        arg1: typing.SupportsInt | typing.SupportsIndex,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_spatial_mean_gradient(
        self,
        arg0: str,
        arg1: typing.SupportsInt | typing.SupportsIndex,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_state(self, arg0: str, arg1: bool, arg2: bool) -> int: ...
    def _add_transpose(
        self,
        arg0: str,
        arg1: UnaryKernel,
        arg2: typing.SupportsInt | typing.SupportsIndex,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_unary(
        self,
        arg0: str,
        arg1: UnaryKernel,
        arg2: UnaryKernel,
        arg3: typing.SupportsInt | typing.SupportsIndex,
        arg4: typing.SupportsInt | typing.SupportsIndex,
        arg5: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def _add_update_now(
        self, arg0: str, arg1: typing.SupportsInt | typing.SupportsIndex, arg2: typing.Any
    ) -> None: ...
    def _add_update_on_completion(
        self, arg0: str, arg1: typing.SupportsInt | typing.SupportsIndex, arg2: typing.Any
    ) -> None: ...
    def _encode(
        self,
        command_buffer: CommandBuffer,
        source_images: collections.abc.Sequence[typing.Any],
        source_states: collections.abc.Sequence[typing.Any],
    ) -> tuple[typing.Any, ...]: ...
    def _last_descriptor(
        self, arg0: typing.SupportsInt | typing.SupportsIndex
    ) -> ImageDescriptor | None: ...
    def _make_runner(self) -> None: ...
    def _reload_runner(self) -> None: ...
    def _set_inputs(
        self,
        arg0: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        arg1: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None: ...
    def _set_results(
        self,
        arg0: typing.SupportsInt | typing.SupportsIndex,
        arg1: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        arg2: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None: ...
    def _wait_for_outstanding(self) -> None: ...
    def read_count_for_source_image(self, index: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return how many reads of a temporary source image one encode spends.
        """

    def read_count_for_source_state(self, index: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return how many reads of a source state one encode spends.
        """

    @property
    def _has_runner(self) -> bool: ...
    @property
    def _wants_description(self) -> bool: ...
    @property
    def _why_no_runner(self) -> str: ...
    @property
    def destination_image_allocator(
        self,
    ) -> ImageAllocator | collections.abc.Callable[..., typing.Any] | None:
        """
        How the first result is made; overrides that of its node.
        """

    @destination_image_allocator.setter
    def destination_image_allocator(
        self, arg1: ImageAllocator | collections.abc.Callable[..., typing.Any] | None
    ) -> None: ...
    @property
    def format(self) -> ChannelFormat:
        """
        `ChannelFormat` of images whose nodes have none, and whose sources have none.
        """

    @format.setter
    def format(self, arg1: ChannelFormat) -> None: ...
    @property
    def output_state_is_temporary(self) -> bool:
        """
        Whether exported states are temporary.
        """

    @output_state_is_temporary.setter
    def output_state_is_temporary(self, arg0: bool) -> None: ...

def _drain() -> None: ...
def _is_constructed(arg0: typing.Any) -> bool: ...
def _probe_archived_properties(device: Device) -> list[tuple[str, bool]]: ...
def _probe_descriptors(
    device: Device,
    channel_format: ChannelFormat,
    destination_feature_channel_offset: typing.SupportsInt | typing.SupportsIndex,
) -> list[typing.Any]: ...
def _probe_pooling_descriptor(
    device: Device,
    width: typing.SupportsInt | typing.SupportsIndex,
    kernel: typing.SupportsInt | typing.SupportsIndex,
    stride: typing.SupportsInt | typing.SupportsIndex,
    padding_method: typing.SupportsInt | typing.SupportsIndex,
) -> tuple[typing.Any, ...]: ...
def _probe_reads_of_shared_source(device: Device) -> int: ...
def _probe_steps_of_state_encode(device: Device) -> int: ...
def copy_bandwidth(
    bytes: typing.SupportsInt | typing.SupportsIndex,
    streaming: bool,
    seconds: typing.SupportsFloat | typing.SupportsIndex,
) -> float:
    """
    Measure how fast one thread copies an array.

    Parameters
    ----------
    bytes : int
        Size of the array.
    streaming : bool
        Whether to use stores that bypass the caches.
    seconds : float
        How long to measure; there are at least three runs.

    Returns
    -------
    float
        Bytes read plus bytes written a second, the best of the runs.

    Raises
    ------
    ValueError
        If ``bytes`` is below 4 or ``seconds`` is not a positive number.
    """

def cpu_instruction_set() -> str:
    """
    Return the instruction set the CPU device uses; ``MPSGRAD_CPU`` forces one.
    """

def fma_peak(seconds: typing.SupportsFloat | typing.SupportsIndex) -> float:
    """
    Measure the most floating-point operations a second that one thread can do.

    Multiply-adds in registers, on the selected instruction set; each counts as two operations.

    Parameters
    ----------
    seconds : float
        How long to measure.

    Returns
    -------
    float
        Operations a second, the best of many short runs.

    Raises
    ------
    ValueError
        If ``seconds`` is not a positive number.
    """

def get_num_threads() -> int:
    """
    Return how many threads the CPU device uses.
    """

def increment_read_count(
    batch: Image
    | ImageBatch
    | collections.abc.Sequence[Image]
    | State
    | collections.abc.Sequence[State]
    | None,
    amount: typing.SupportsInt | typing.SupportsIndex,
) -> int:
    """
    Add to the read count of every temporary in a batch, once per distinct object.

    Returns
    -------
    int
        Number of distinct objects (``MPSImageBatchIncrementReadCount``, ``MPSStateBatchIncrementReadCount``).
    """

def iterate(
    batch: Image | ImageBatch | collections.abc.Sequence[Image],
    visit: collections.abc.Callable[..., typing.Any],
) -> int | None:
    """
    Call ``visit(image, first_index)`` once per distinct image (``MPSImageBatchIterate``).

    Returns
    -------
    int or None
        What ``visit`` returned to stop, or None if it never did.
    """

def memory_statistics() -> dict[typing.Any, typing.Any]:
    """
    Return what the CPU device's storage takes.

    Returns
    -------
    dict of int
        ``in_use`` and ``cached`` bytes now, ``peak`` bytes ever, and ``system_requests``, how often memory was taken from
        the system: it stands still while a program repeats the same step.
    """

def read_bandwidth(
    bytes: typing.SupportsInt | typing.SupportsIndex,
    seconds: typing.SupportsFloat | typing.SupportsIndex,
) -> float:
    """
    Measure how fast one thread reads an array of which it writes nothing.

    Parameters
    ----------
    bytes : int
        Size of the array.
    seconds : float
        How long to measure; there are at least three runs.

    Returns
    -------
    float
        Bytes a second, the best of the runs.

    Raises
    ------
    ValueError
        If ``bytes`` is below 4 or ``seconds`` is not a positive number.
    """

def release_cached_memory() -> None:
    """
    Give the CPU device's unused storage back to the system.
    """

def resource_size(
    batch: Image
    | ImageBatch
    | collections.abc.Sequence[Image]
    | State
    | collections.abc.Sequence[State]
    | None,
) -> int:
    """
    Bytes of the distinct objects of a batch (``MPSImageBatchResourceSize``).
    """

def set_num_threads(count: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Set how many threads the CPU device uses.

    Results do not depend on it.

    Raises
    ------
    ValueError
        If ``count`` is below 1 or above 1024.
    """

def synchronize(
    batch: Image
    | ImageBatch
    | collections.abc.Sequence[Image]
    | State
    | collections.abc.Sequence[State]
    | None,
    command_buffer: CommandBuffer,
) -> None:
    """
    Synchronise the distinct objects of a batch (``MPSImageBatchSynchronize``).
    """

DEFAULT: ImageAllocator
NO_CLIP: Region
TEMPORARY: ImageAllocator
__version__: str = "0.1.0"
