"""The file of `mpsgrad train --checkpoint`: what training goes on from, and with which settings."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad._command_line.report import UserError

if TYPE_CHECKING:
    from mpsgrad._command_line.network import Network

__all__ = ["Checkpoint"]

_SETTINGS = "settings"  # the array of the file that holds them, as JSON


class Checkpoint:
    """A file that is written after every epoch, and read once.

    Parameters
    ----------
    path : str
        ``.npz`` is added if it is missing.
    settings : dict
        What must be the same when training goes on: options by name, and the images' shape.
    """

    def __init__(self, path: str, settings: dict[str, Any]) -> None:
        self.path = Path(path if path.endswith(".npz") else f"{path}.npz")
        self._settings = json.loads(json.dumps(settings))

    def restore(self, network: Network) -> list[float]:
        """Put the network where the file left it; return the losses of its epochs, [] if new.

        Raises
        ------
        UserError
            If the file cannot be read, or is of other settings.
        """
        if not self.path.exists():
            return []
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            settings = json.loads(str(arrays.pop(_SETTINGS)))
            losses = arrays.pop("losses").tolist()
            steps = int(arrays.pop("steps"))
        except (
            AttributeError, EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile,
        ) as error:  # fmt: skip
            raise UserError(f"{self.path}: not a checkpoint of mpsgrad train ({error})") from error
        for name, value in self._settings.items():
            if settings.get(name) != value:
                raise UserError(
                    f"{self.path}: {name} was {settings.get(name)} there, and is {value} now; "
                    "training can only continue with the same settings"
                )
        try:
            network.restore(arrays, steps)
        except ValueError as error:
            raise UserError(f"{self.path}: {error}") from error
        return [float(loss) for loss in losses]

    def write(self, network: Network, losses: list[float]) -> None:
        """Replace the file, whole or not at all.

        Raises
        ------
        UserError
            If it cannot be written.
        """
        beside = self.path.with_name(f".{self.path.name}.new")
        try:
            with beside.open("wb") as file:
                np.savez(
                    file,
                    allow_pickle=False,
                    **network.checkpoint(),
                    losses=np.array(losses),
                    steps=np.array(network.steps),
                    **{_SETTINGS: np.array(json.dumps(self._settings))},
                )
            os.replace(beside, self.path)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error})") from error
