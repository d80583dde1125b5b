"""Images and labels for training: scikit-learn's digits, or a user's file, checked and split."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.report import UserError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Examples", "Split", "load_digits", "load_file", "split"]


@dataclass(frozen=True)
class Examples:
    """Labelled images.

    Attributes
    ----------
    x : ndarray of float32, shape (N, H, W, C)
    y : ndarray of int64, shape (N,)
        Labels, 0 to ``classes - 1``.
    classes : int
    """

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    classes: int

    def __len__(self) -> int:
        return len(self.y)

    def one_hot(self) -> npt.NDArray[np.float32]:
        """Return the labels as a loss takes them, shape (N, 1, 1, classes)."""
        return mg.one_hot(self.y, self.classes)


@dataclass(frozen=True)
class Split:
    """Examples to learn from, and examples held out."""

    training: Examples
    held_out: Examples


def load_digits() -> Examples:
    """Return scikit-learn's 1797 handwritten digits, 8x8, values 0 to 1."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise UserError(
            "the digits come with scikit-learn, which is not installed; "
            "run: pip install scikit-learn, or give --data FILE.npz"
        ) from error
    digits: Any = datasets.load_digits()
    x = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    return Examples(x, digits.target.astype(np.int64), 10)


def load_file(path: str) -> Examples:
    """Return the examples of an ``.npz`` file.

    Parameters
    ----------
    path : str
        Holds ``x``, shape (N, H, W, C), floating point, or uint8 for 0 to 255; and ``y``, shape
        (N,), integer labels from 0.

    Raises
    ------
    UserError
        If the file cannot be read or its arrays are not that.
    """
    try:
        with Path(path).open("rb") as file:
            if not zipfile.is_zipfile(file):  # NumPy would say how to unpickle it
                raise UserError(f"{path}: not a readable .npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                missing = {"x", "y"} - set(archive.files)
                if missing:
                    names = " and ".join(sorted(missing))
                    raise UserError(f"{path}: no array {names}; it holds {sorted(archive.files)}")
                x, y = archive["x"], archive["y"]
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a readable .npz file ({error})") from error
    return Examples(*_checked(path, x, y))


def _checked(
    path: str, x: npt.NDArray[Any], y: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], int]:
    if x.ndim != 4 or 0 in x.shape:
        raise UserError(f"{path}: x must have shape (N, H, W, C) without zeros, got {x.shape}")
    if y.shape != x.shape[:1]:
        raise UserError(f"{path}: y must have shape ({len(x)},), one label an image, got {y.shape}")
    if not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"{path}: y must hold integer labels, got {y.dtype}")
    if y.min() < 0:
        raise UserError(f"{path}: y must not be negative, got label {y.min()}")
    classes = int(y.max()) + 1
    if not 2 <= classes <= 4096:
        raise UserError(f"{path}: y must name 2 to 4096 classes, got labels up to {classes - 1}")
    if x.dtype == np.uint8:
        x = x.astype(np.float32) / np.float32(255)
    elif np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
    else:
        raise UserError(f"{path}: x must be floating point or uint8, got {x.dtype}")
    if not np.isfinite(x).all():
        raise UserError(f"{path}: x holds NaN or infinite values")
    if max(x.shape[1:3]) > 16384:
        raise UserError(f"{path}: images must be at most 16384 pixels wide and high, got {x.shape}")
    if len(x) < 10:
        raise UserError(f"{path}: at least 10 images are needed, got {len(x)}")
    return np.ascontiguousarray(x), y.astype(np.int64), classes


def split(examples: Examples, rng: np.random.Generator) -> Split:
    """Hold out a random fifth."""
    order = rng.permutation(len(examples))
    held_out, training = np.split(order, [len(order) // 5])

    def take(which: npt.NDArray[np.intp]) -> Examples:
        return Examples(examples.x[which], examples.y[which], examples.classes)

    return Split(take(training), take(held_out))
