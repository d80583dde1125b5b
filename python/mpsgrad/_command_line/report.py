"""How the commands talk: errors a user can fix, JSON, and text for people."""

from __future__ import annotations

import json
from typing import Any

import mpsgrad

__all__ = ["UserError", "open_device", "print_json"]


class UserError(Exception):
    """Something in the input is wrong; its text is the one line the user sees."""


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(result, indent=2))


def open_device(kind: str) -> mpsgrad.Device:
    """Return the device of an option: ``auto``, ``cpu`` or ``metal``."""
    try:
        return mpsgrad.Device("" if kind == "auto" else kind)
    except mpsgrad.errors.DeviceError as error:
        raise UserError(str(error)) from error
