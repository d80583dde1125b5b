"""Images read between their pixels: in another size, in parts, and where a grid says.

Apple has no gradient of these kernels, so none has a state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad import _core
from mpsgrad._arrays import ArrayBinaryKernel, ArrayUnaryKernel, as_image_array, resolve_device
from mpsgrad._kernel import KernelFacade

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CropAndResizeBilinear", "GridSample", "ResizeBilinear"]


class ResizeBilinear(KernelFacade, ArrayUnaryKernel, _core.ResizeBilinear):
    """An image in another size, between its pixels (``MPSNNResizeBilinear``).

    A source of shape (N, H, W, C) becomes (N, resize_height, resize_width, C). Along an axis of n
    source pixels and m of the result, result pixel i lies at ``i * n / m``, or with `align_corners`
    at ``i * (n - 1) / (m - 1)``: then the corner pixels of source and result coincide. Its value is
    interpolated between the two nearest pixels along each axis; behind the last pixel its value is
    repeated. Smaller results are not filtered. Where the sizes are multiples of the source's, this
    is `UpsamplingBilinear`.

    Parameters
    ----------
    resize_width, resize_height : int
        Size of the result, in pixels.
    align_corners : bool, default False
        Whether the corner pixels of source and result coincide.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the width or height is not from 1 to 16384.
    """

    def __init__(
        self,
        resize_width: int,
        resize_height: int,
        align_corners: bool = False,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        super().__init__(resolve_device(device, self), resize_width, resize_height, align_corners)

    def _arguments(self) -> dict[str, Any]:
        names = "resize_width", "resize_height", "align_corners"
        return {name: getattr(self, name) for name in names}


class CropAndResizeBilinear(KernelFacade, ArrayUnaryKernel, _core.CropAndResizeBilinear):
    """Parts of an image in another size, between its pixels (``MPSNNCropAndResizeBilinear``).

    A source of shape (N, H, W, C) and R regions become (N * R, resize_height, resize_width, C): all
    regions of the first image, then those of the second, and so on; one image (H, W, C) becomes
    (R, resize_height, resize_width, C).

    Regions are in parts of the source: along x, 0 is the centre of its first column and 1 that of
    its last, and along y likewise. The corner pixels of a result are interpolated at the corners of
    its region, or a result of one column or row in its middle. What lies outside the source is 0.
    A negative size mirrors.

    Parameters
    ----------
    resize_width, resize_height : int
        Size of the results, in pixels.
    regions : array_like of float, shape (R, 4)
        Of each region x, y, width and height, float64.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the width or height is not from 1 to 16384, if there is no region, or if one is not four
        finite numbers.
    """

    def __init__(
        self,
        resize_width: int,
        resize_height: int,
        regions: npt.ArrayLike,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        array = np.asarray(regions, np.float64)
        if array.ndim != 2 or array.shape[1] != 4:
            raise ValueError(
                "CropAndResizeBilinear: regions must have shape (R, 4), of each x, y, width and "
                f"height, got {array.shape}"
            )
        super().__init__(resolve_device(device, self), resize_width, resize_height, array.tolist())

    def _arguments(self) -> dict[str, Any]:
        names = "resize_width", "resize_height", "regions"
        return {name: getattr(self, name) for name in names}

    def _run(self, source: Any, with_state: bool, out: Any, **options: Any) -> Any:
        # The results of one image are several.
        array, _ = as_image_array(self, source, "source")
        return super()._run(array, with_state, out, **options)


class GridSample(KernelFacade, ArrayBinaryKernel, _core.GridSample):
    """An image read where a second one says (``MPSNNGridSample``).

    The primary source, of shape (N, H, W, C), is read at places that the secondary one holds, the
    grid, of shape (N, h, w, 2): channel 0 is x and channel 1 y, in pixels, (0, 0) being the centre
    of the first pixel. The result has shape (N, h, w, C). It is interpolated between the four
    nearest pixels, each of which, if outside the image, is what `primary_edge_mode` makes of it:
    zero unless it is set.

    With `use_grid_value_as_input_coordinate` the grid holds positions; without, how far each result
    is from its own place, as a flow field does. `primary_offset` is added to either. Where a
    position is NaN, so is the result.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    _own_settings = ("use_grid_value_as_input_coordinate",)

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))
