"""The two kinds of questions: of numbers, to both devices, and to Apple's framework alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import mpsgrad as mg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Answer", "OfFramework", "OnBoth", "Question", "column"]


@dataclass(frozen=True)
class Answer:
    """One question; `agrees` is None if the machine could not be asked."""

    id: str
    question: str
    assumed: str
    answered: str
    agrees: bool | None


class Question(Protocol):
    """What a topic's table lists."""

    @property
    def number(self) -> str:
        """The `id` of its answers, by which documentation and tests call it."""

    def ask(self, device: mg.Device) -> Iterator[Answer]:
        """Ask a device."""


@dataclass(frozen=True)
class OnBoth:
    """The same encode on both devices: what the CPU device computes is what mpsgrad assumes."""

    number: str
    question: str
    compute: Callable[[mg.Device], Any]
    """Numbers, of any shape."""

    def ask(self, device: mg.Device) -> Iterator[Answer]:
        """Compare a device's numbers with those of the CPU device."""
        assumed = self.compute(mg.Device("cpu"))
        answered, agrees = self._answer(device, assumed)
        yield Answer(self.number, self.question, _show(assumed), answered, agrees)

    def _answer(self, device: mg.Device, assumed: Any) -> tuple[str, bool | None]:
        try:
            answered = self.compute(device)
        except mg.errors.UnsupportedError as error:
            return str(error), None
        except Exception as error:  # an answer too, and the questions after it are to be asked
            return f"{type(error).__name__}: {error}", False
        expected, got = np.asarray(assumed, np.float64), np.asarray(answered, np.float64)
        agrees = expected.shape == got.shape and np.allclose(expected, got, rtol=1e-3, atol=1e-6)
        return _show(answered), bool(agrees)


def _show(values: Any) -> str:
    return " ".join(f"{value:.6g}" for value in np.ravel(values))


@dataclass(frozen=True)
class OfFramework:
    """What Apple's objects say of themselves, several of them or one."""

    number: str
    answers: Callable[[mg.Device], Iterator[tuple[str, Any, Any]]]
    """Questions, what mpsgrad assumes, and what the framework has answered."""

    def ask(self, device: mg.Device) -> Iterator[Answer]:
        """Ask the framework of a device."""
        for question, assumed, answered in self.answers(device):
            agrees = bool(assumed == answered)
            yield Answer(self.number, question, str(assumed), str(answered), agrees)


def column(*values: float) -> Any:
    """Return one pixel: (1, 1, C)."""
    return np.array(values, np.float32).reshape(1, 1, -1)
