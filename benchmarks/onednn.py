"""oneDNN as a peer, through its C interface.

Images are NHWC, over the same memory as ours. Weights are in the order that oneDNN prefers: they
are brought into it beforehand, and weight gradients are brought back only when they are read, so
neither is timed. Primitives are made once and kept.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from .layers import ConvolutionLayer

__all__ = ["OneDnn"]

PACKAGE = "onednn-cpu-gomp"

# Values of dnnl_types.h.
CPU, ANY, FORWARD_TRAINING, DIRECT, EXECUTION_ARGUMENT = 1, 1, 64, 1, 255
FORWARD_INFERENCE, BACKWARD = 96, 128
GLOBAL_STATISTICS, SCALE_AND_SHIFT = 1, 2 | 4
ACROSS_CHANNELS, WITHIN_CHANNEL = 0xAFF, 0xBFF
BINARY = {"add": 0x1FFF0, "multiply": 0x1FFF1, "divide": 0x1FFF4, "subtract": 0x1FFF5}
DATA_TYPES = {"float16": 1, "float32": 3}
SOURCE, RESULT, WEIGHTS, BIAS = 1, 17, 33, 41
SOURCE_GRADIENT, RESULT_GRADIENT, WEIGHTS_GRADIENT, BIAS_GRADIENT = 129, 145, 161, 169
SECOND_SOURCE, MEAN, VARIANCE, SCALE, SHIFT, WORKSPACE = 2, 49, 50, 51, 52, 64
SCALE_GRADIENT, SHIFT_GRADIENT = 255, 256

Dims = c_int64 * 12


class Argument(Structure):
    """What a primitive is given at one place."""

    _fields_ = [("place", c_int), ("memory", c_void_p)]


class OneDnn:
    """The library, an engine and a stream."""

    name = "onednn"
    install = "pip install onednn-cpu-gomp"

    def __init__(self, threads: int) -> None:
        self.library: Any = ctypes.CDLL(str(library_path()))
        self.version: str = metadata.version(PACKAGE)
        for name in ("dnnl_primitive_desc_query_md", "dnnl_memory_desc_get_size"):
            getattr(self.library, name).restype = c_void_p
        self.library.dnnl_memory_desc_get_size.restype = c_size_t
        # The library's own copy of the OpenMP runtime obeys this for its next parallel region.
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)
        self.engine = self._make("engine_create", c_int(CPU), c_size_t(0))
        self.stream = self._make("stream_create", self.engine, c_int(0))

    @staticmethod
    def installed() -> bool:
        """Whether the library is there."""
        try:
            return library_path() is not None
        except metadata.PackageNotFoundError:
            return False

    def read(self, result: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return a result as an array in our order."""
        return np.asarray(result()).reshape(shape)

    def convolution(
        self,
        layer: ConvolutionLayer,
        kernel: str,
        x: npt.NDArray[Any],
        w: npt.NDArray[Any],
        b: npt.NDArray[Any],
        g: npt.NDArray[Any],
    ) -> dict[str, Callable[[], Any]]:
        """Return the call of a forward pass or of gradients."""
        call = _Convolution(self, layer, x, w, b, g)
        return {"nhwc": getattr(call, kernel)()}

    def batch_normalization(
        self,
        kernel: str,
        x: npt.NDArray[Any],
        g: npt.NDArray[Any],
        numbers: Sequence[npt.NDArray[np.float32]],
        epsilon: float,
    ) -> dict[str, Callable[[], Any]]:
        """Return the call of "inference", "training", "backward" or "step".

        ``numbers`` are gamma, beta, mean and variance, which a backward pass alone takes as given.
        """
        call = _BatchNormalization(self, kernel, x, g, numbers, epsilon)
        return {"nhwc": getattr(call, kernel)()}

    def local_normalization(
        self,
        kind: str,
        size: int,
        x: npt.NDArray[Any],
        g: npt.NDArray[Any] | None,
        parameters: Sequence[float],
    ) -> dict[str, Callable[[], Any]]:
        """Return the call of a forward pass, or with ``g`` of the gradient.

        ``parameters`` are alpha, beta and the constant under the power.
        """
        which = c_int(ACROSS_CHANNELS if kind == "cross_channel" else WITHIN_CHANNEL)
        settings = (c_int64(size), *(c_float(value) for value in parameters))
        image = self.nhwc(x)
        description = self._make(
            "lrn_forward_primitive_desc_create",
            self.engine, c_int(FORWARD_TRAINING), which, image, image, *settings, None,
        )  # fmt: skip
        y = np.zeros_like(x)
        space = self.wanted(description, WORKSPACE)
        kept = self.room(space) if space.value else np.zeros(0, np.uint8)
        workspace = {WORKSPACE: self.memory(space, kept)} if kept.size else {}
        source = {SOURCE: self.memory(image, x)}
        run = self.bind(description, {**source, RESULT: self.memory(image, y), **workspace})
        if g is None:
            return {"nhwc": _Call((x, kept), run, lambda: y)}
        run()
        backward = self._make(
            "lrn_backward_primitive_desc_create",
            self.engine, which, image, image, image, *settings, description, None,
        )  # fmt: skip
        run = self.bind(
            backward,
            {
                **source,
                **workspace,
                RESULT_GRADIENT: self.memory(image, g),
                SOURCE_GRADIENT: self.memory(image, y),
            },
        )
        return {"nhwc": _Call((x, g, kept), run, lambda: y)}

    def binary(
        self, kind: str, x: npt.NDArray[Any], y: npt.NDArray[Any]
    ) -> dict[str, Callable[[], Any]]:
        """Return the call of a sum, difference, product or quotient; the second is broadcast."""
        result = np.zeros_like(x)
        images = [self.nhwc(array) for array in (x, y, result)]
        description = self._make(
            "binary_primitive_desc_create", self.engine, c_int(BINARY[kind]), *images, None
        )
        places = SOURCE, SECOND_SOURCE, RESULT
        memories = {
            place: self.memory(image, array)
            for place, image, array in zip(places, images, (x, y, result), strict=True)
        }
        return {"nhwc": _Call((x, y), self.bind(description, memories), lambda: result)}

    def check(self, what: str, status: int) -> None:
        """Raise if a call has failed."""
        if status:
            raise RuntimeError(f"oneDNN: {what} returned {status}")

    def _make(self, name: str, *arguments: Any) -> c_void_p:
        made = c_void_p()
        self.check(name, getattr(self.library, f"dnnl_{name}")(byref(made), *arguments))
        return made

    def descriptor(
        self, shape: Sequence[int], dtype: str, strides: Sequence[int] | None
    ) -> c_void_p:
        """Return a memory descriptor; no strides leave the order to the library."""
        sizes = Dims(*shape)
        kind = c_int(DATA_TYPES[dtype])
        if strides is None:
            return self._make(
                "memory_desc_create_with_tag", c_int(len(shape)), sizes, kind, c_int(ANY)
            )
        return self._make(
            "memory_desc_create_with_strides", c_int(len(shape)), sizes, kind, Dims(*strides)
        )

    def nhwc(self, array: npt.NDArray[Any]) -> c_void_p:
        """Return the descriptor of images in the order of ours."""
        n, h, w, c = array.shape
        return self.descriptor((n, c, h, w), str(array.dtype), (h * w * c, 1, w * c, c))

    def memory(self, descriptor: c_void_p, array: npt.NDArray[Any]) -> c_void_p:
        """Return a memory object over an array, which must outlive it."""
        return self._make("memory_create", descriptor, self.engine, c_void_p(array.ctypes.data))

    def room(self, descriptor: c_void_p) -> npt.NDArray[np.uint8]:
        """Return zeroed bytes for what a descriptor describes, on a cache line."""
        size = int(self.library.dnnl_memory_desc_get_size(descriptor))
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size]

    def wanted(self, primitive: c_void_p, place: int) -> c_void_p:
        """Return the descriptor that a primitive has chosen for one place."""
        found = self.library.dnnl_primitive_desc_query_md(
            primitive, c_int(EXECUTION_ARGUMENT), c_int(place)
        )
        return c_void_p(found)

    def bind(self, description: c_void_p, memories: dict[int, c_void_p]) -> Callable[[], None]:
        """Return a call of a primitive with its arguments."""
        primitive = self._make("primitive_create", description)
        arguments = (Argument * len(memories))(
            *(Argument(place, memory) for place, memory in memories.items())
        )
        execute, wait = self.library.dnnl_primitive_execute, self.library.dnnl_stream_wait
        count, stream = c_int(len(memories)), self.stream

        def run() -> None:
            self.check("primitive_execute", execute(primitive, stream, count, arguments))
            self.check("stream_wait", wait(stream))

        return run

    def reorder(
        self, source: tuple[c_void_p, c_void_p], result: tuple[c_void_p, c_void_p]
    ) -> Callable[[], None]:
        """Return a call that brings (descriptor, memory) into another order."""
        description = self._make(
            "reorder_primitive_desc_create",
            source[0],
            self.engine,
            result[0],
            self.engine,
            None,
        )
        return self.bind(description, {SOURCE: source[1], RESULT: result[1]})


class _Convolution:
    """One layer's descriptors and memories."""

    def __init__(
        self,
        peer: OneDnn,
        layer: ConvolutionLayer,
        x: npt.NDArray[Any],
        w: npt.NDArray[Any],
        b: npt.NDArray[Any],
        g: npt.NDArray[Any],
    ) -> None:
        self.peer = peer
        self.dtype = str(x.dtype)
        groups = layer.outputs if layer.depthwise else layer.groups
        outputs, inputs = layer.outputs // groups, layer.shape[2] // groups
        height, width = layer.kernel
        self.arrays = x, w, b, g
        self.w_shape = (groups, outputs, inputs, height, width)
        area = height * width
        self.w_strides = (outputs * area * inputs, area * inputs, 1, width * inputs, inputs)
        self.x_is = peer.nhwc(x)
        self.g_is = peer.nhwc(g)
        self.w_any = peer.descriptor(self.w_shape, self.dtype, None)
        self.w_ours = peer.descriptor(self.w_shape, self.dtype, self.w_strides)
        self.b_is = peer.descriptor((layer.outputs,), "float32", (1,))
        low = layer.pad
        high = [
            (layer.size[a] - 1) * layer.stride[a]
            + (layer.kernel[a] - 1) * layer.dilation[a]
            + 1
            - layer.shape[a]
            - low[a]
            for a in (0, 1)
        ]
        self.geometry = (
            Dims(*layer.stride),
            Dims(*(rate - 1 for rate in layer.dilation)),
            Dims(*low),
            Dims(*high),
        )
        self.forward_description = peer._make(
            "convolution_forward_primitive_desc_create",
            peer.engine,
            c_int(FORWARD_TRAINING),
            c_int(DIRECT),
            self.x_is,
            self.w_any,
            self.b_is,
            self.g_is,
            *self.geometry,
            None,
        )

    def _weights(self, description: c_void_p) -> c_void_p:
        """Return the weights in the order that a primitive wants."""
        wanted = self.peer.wanted(description, WEIGHTS)
        self.blocked = self.peer.room(wanted)
        memory = self.peer.memory(wanted, self.blocked)
        w = self.arrays[1]
        self.peer.reorder((self.w_ours, self.peer.memory(self.w_ours, w)), (wanted, memory))()
        return memory

    def forward(self) -> Callable[[], Any]:
        """Return the call of the forward pass."""
        x, _, b, g = self.arrays
        y = np.zeros_like(g)
        run = self.peer.bind(
            self.forward_description,
            {
                SOURCE: self.peer.memory(self.x_is, x),
                WEIGHTS: self._weights(self.forward_description),
                BIAS: self.peer.memory(self.b_is, b),
                RESULT: self.peer.memory(self.g_is, y),
            },
        )
        return _Call(self, run, lambda: y)

    def data_gradient(self) -> Callable[[], Any]:
        """Return the call of the gradient with respect to the source."""
        x, _, _, g = self.arrays
        description = self.peer._make(
            "convolution_backward_data_primitive_desc_create",
            self.peer.engine,
            c_int(DIRECT),
            self.x_is,
            self.w_any,
            self.g_is,
            *self.geometry,
            self.forward_description,
            None,
        )
        dx = np.zeros_like(x)
        run = self.peer.bind(
            description,
            {
                RESULT_GRADIENT: self.peer.memory(self.g_is, g),
                WEIGHTS: self._weights(description),
                SOURCE_GRADIENT: self.peer.memory(self.x_is, dx),
            },
        )
        return _Call(self, run, lambda: dx)

    def weight_gradient(self) -> Callable[[], Any]:
        """Return the call of the gradient with respect to weights and biases."""
        x, w, b, g = self.arrays
        any_float = self.peer.descriptor(self.w_shape, "float32", None)
        description = self.peer._make(
            "convolution_backward_weights_primitive_desc_create",
            self.peer.engine,
            c_int(DIRECT),
            self.x_is,
            any_float,
            self.b_is,
            self.g_is,
            *self.geometry,
            self.forward_description,
            None,
        )
        wanted = self.peer.wanted(description, WEIGHTS_GRADIENT)
        blocked = self.peer.room(wanted)
        memory = self.peer.memory(wanted, blocked)
        dw, db = np.zeros(w.shape, np.float32), np.zeros_like(b)
        ours = self.peer.descriptor(self.w_shape, "float32", self.w_strides)
        unblock = self.peer.reorder((wanted, memory), (ours, self.peer.memory(ours, dw)))
        run = self.peer.bind(
            description,
            {
                SOURCE: self.peer.memory(self.x_is, x),
                RESULT_GRADIENT: self.peer.memory(self.g_is, g),
                WEIGHTS_GRADIENT: memory,
                BIAS_GRADIENT: self.peer.memory(self.b_is, db),
            },
        )

        def read_weights(kept: object = blocked) -> npt.NDArray[np.float32]:  # noqa: ARG001
            unblock()
            return dw

        return _Call(self, run, read_weights, lambda: db)

    def gradient(self) -> Callable[[], Any]:
        """Return both gradients, one call after the other."""
        data, weights = self.data_gradient(), self.weight_gradient()
        return lambda: (*data(), *weights())


class _BatchNormalization:
    """Batch normalization of one layer, with scales, shifts and statistics in float32."""

    def __init__(
        self,
        peer: OneDnn,
        kernel: str,
        x: npt.NDArray[Any],
        g: npt.NDArray[Any],
        numbers: Sequence[npt.NDArray[np.float32]],
        epsilon: float,
    ) -> None:
        self.peer, self.arrays = peer, (x, g)
        self.image = peer.nhwc(x)
        self.settings = (c_float(epsilon),)
        inference = kernel == "inference"
        self.flags = c_uint(SCALE_AND_SHIFT | (GLOBAL_STATISTICS if inference else 0))
        channels = peer.descriptor((x.shape[-1],), "float32", (1,))
        self.numbers = [number.copy() for number in numbers]
        self.by_gamma, self.by_beta = (np.zeros_like(number) for number in self.numbers[:2])
        self.y, self.dx = np.zeros_like(x), np.zeros_like(x)
        self.known = {
            place: peer.memory(channels, number)
            for place, number in zip((SCALE, SHIFT, MEAN, VARIANCE), self.numbers, strict=True)
        }
        self.sums = {
            SCALE_GRADIENT: peer.memory(channels, self.by_gamma),
            SHIFT_GRADIENT: peer.memory(channels, self.by_beta),
        }
        self.description = peer._make(
            "batch_normalization_forward_primitive_desc_create",
            peer.engine,
            c_int(FORWARD_INFERENCE if inference else FORWARD_TRAINING),
            self.image,
            self.image,
            *self.settings,
            self.flags,
            None,
        )

    def training(self) -> _Call:
        """Return the call of statistics and results."""
        memories = {
            **self.known,
            SOURCE: self.peer.memory(self.image, self.arrays[0]),
            RESULT: self.peer.memory(self.image, self.y),
        }
        return _Call(self, self.peer.bind(self.description, memories), lambda: self.y)

    inference = training

    def backward(self) -> _Call:
        """Return the call of all gradients."""
        description = self.peer._make(
            "batch_normalization_backward_primitive_desc_create",
            self.peer.engine,
            c_int(BACKWARD),
            self.image,
            self.image,
            self.image,
            *self.settings,
            self.flags,
            self.description,
            None,
        )
        memories = {
            **{place: memory for place, memory in self.known.items() if place != SHIFT},
            **self.sums,
            SOURCE: self.peer.memory(self.image, self.arrays[0]),
            RESULT_GRADIENT: self.peer.memory(self.image, self.arrays[1]),
            SOURCE_GRADIENT: self.peer.memory(self.image, self.dx),
        }
        run = self.peer.bind(description, memories)
        return _Call(self, run, lambda: self.by_gamma, lambda: self.by_beta, lambda: self.dx)

    def step(self) -> Callable[[], Any]:
        """Return both, one call after the other."""
        forward, backward = self.training(), self.backward()
        return lambda: (*forward(), *backward())


class _Call:
    """A call that gives its results as functions, so that reading them is not timed."""

    def __init__(self, owner: object, run: Callable[[], None], *results: Callable[[], Any]) -> None:
        self.owner = owner  # of the arrays that oneDNN's memories are over
        self.run = run
        self.results = results

    def __call__(self) -> tuple[Callable[[], Any], ...]:
        self.run()
        return self.results


def library_path() -> Any:
    """Return where the installed package has put the library.

    Raises
    ------
    PackageNotFoundError
        If it is not installed.
    """
    files = metadata.files(PACKAGE) or []
    names = sorted((file for file in files if file.name == "libdnnl.so.3"), key=str)
    if not names:
        raise metadata.PackageNotFoundError(PACKAGE)
    return names[0].locate()
