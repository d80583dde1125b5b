"""The committed types of the extension module are those of the module that was built."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_stub_matches_the_module():
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "stubs", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
