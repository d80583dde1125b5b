"""oneDNN as a peer of convolution, through its C interface.

Images are NHWC, over the same memory as ours. Weights are in the order that oneDNN prefers: they
are brought into it beforehand, and weight gradients are brought back only when they are read, so
neither is timed. Primitives are made once and kept.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_int, c_int64, c_size_t, c_void_p
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
DATA_TYPES = {"float16": 1, "float32": 3}
SOURCE, RESULT, WEIGHTS, BIAS = 1, 17, 33, 41
SOURCE_GRADIENT, RESULT_GRADIENT, WEIGHTS_GRADIENT, BIAS_GRADIENT = 129, 145, 161, 169

Dims = c_int64 * 12


class Argument(Structure):
    """What a primitive is given at one place."""

    _fields_ = [("place", c_int), ("memory", c_void_p)]


class OneDnn:
    """The library, an engine and a stream."""

    name = "onednn"

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
        self.x_shape, self.g_shape = x.shape, g.shape
        self.w_shape = (groups, outputs, inputs, height, width)
        area = height * width
        self.w_strides = (outputs * area * inputs, area * inputs, 1, width * inputs, inputs)
        self.x_is = self._nhwc(x)
        self.g_is = self._nhwc(g)
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

    def _nhwc(self, array: npt.NDArray[Any]) -> c_void_p:
        n, h, w, c = array.shape
        return self.peer.descriptor((n, c, h, w), self.dtype, (h * w * c, 1, w * c, c))

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
        self.weight_blocked = blocked

        def read_weights(kept: object = blocked) -> npt.NDArray[np.float32]:  # noqa: ARG001
            unblock()
            return dw

        return _Call(self, run, read_weights, lambda: db)

    def gradient(self) -> Callable[[], Any]:
        """Return both gradients, one call after the other."""
        data, weights = self.data_gradient(), self.weight_gradient()
        return lambda: (*data(), *weights())


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
