"""List the devices that can run kernels here.

The first one is what `Device()` picks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad
from mpsgrad._command_line.report import print_json

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """List the devices."""
    default = mpsgrad.Device()
    rows: list[dict[str, Any]] = []
    for kind in ("metal", "cpu"):
        try:
            device = mpsgrad.Device(kind)
        except mpsgrad.errors.DeviceError as error:
            rows.append({"kind": kind, "available": False, "name": str(error), "default": False})
        else:
            rows.append(
                {
                    "kind": kind,
                    "available": True,
                    "name": device.name,
                    "default": device == default,
                }
            )
    rows.sort(key=lambda row: not row["default"])
    if options.json:
        print_json({"version": mpsgrad.__version__, "devices": rows})
        return 0
    for row in rows:
        mark = "default" if row["default"] else "" if row["available"] else "absent"
        print(f"{row['kind']:<6} {mark:<8} {row['name']}")
    return 0
