"""Every example of the emulator holds, and every precondition it lists ends the process.

Examples and offences are C++ (``tests/*.mm``), one process each: a trap aborts. The program is
built into ``$MPSGRAD_BUILD/emulator`` (default ``build/emulator``); ``EMULATOR_SANITIZE=address``
builds it with a sanitizer.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests import toolchain

HERE = Path(__file__).parent
SOURCES = "\n".join(path.read_text() for path in sorted((HERE / "tests").glob("*.mm")))
TRAPS = re.findall(r"^  TRAP\((\w+),", (HERE / "src" / "traps.hpp").read_text(), re.MULTILINE)
EXAMPLES = re.findall(r"^EXAMPLE\((\w+)\)", SOURCES, re.MULTILINE)
OFFENCES = re.findall(r"^OFFENCE\((\w+)\)", SOURCES, re.MULTILINE)
LEAKING = "leak_fails_the_run"


@pytest.fixture(scope="session")
def program():
    """Path of the built test program."""
    sanitize = os.environ.get("EMULATOR_SANITIZE", "")
    folder = Path(os.environ.get("MPSGRAD_BUILD", HERE.parents[1] / "build"))
    build = folder / ("emulator" + ("-" + sanitize if sanitize else ""))
    configure = [
        "cmake", "-S", HERE, "-B", build, "-DCMAKE_BUILD_TYPE=Debug",
        f"-DEMULATED_METAL_SANITIZE={sanitize}",
        f"-DCMAKE_CXX_COMPILER={os.environ.get('EMULATOR_CXX', 'clang++-19')}",
    ]  # fmt: skip
    subprocess.run(configure, check=True, capture_output=True, env=toolchain.environment())
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")
    subprocess.run(
        ["cmake", "--build", build, "--target", "emulator_tests", "-j", jobs],
        check=True,
        env=toolchain.environment(),
    )
    return build / "emulator_tests"


def run(program, *arguments):
    """Run the program as a user would, without options from the outside."""
    environment = {
        k: v for k, v in toolchain.environment().items() if not k.startswith("EMULATED_METAL_")
    }
    suppressions = HERE.parents[1] / "tools" / "suppressions" / "lsan.txt"
    environment["LSAN_OPTIONS"] = f"suppressions={suppressions}:print_suppressions=0"
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )


def test_the_program_and_the_sources_list_the_same(program):
    listed = run(program, "list").stdout.split("\n")
    assert sorted(f"example {name}" for name in EXAMPLES) == sorted(
        line for line in listed if line.startswith("example")
    )
    counts = {name: int(n) for _, name, n in (line.split() for line in listed if "trap " in line)}
    assert counts == {trap: OFFENCES.count(trap) for trap in TRAPS}


def test_every_precondition_has_an_offence():
    assert set(OFFENCES) == set(TRAPS)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != LEAKING])
def test_example(program, name):
    result = run(program, "example", name)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\n"


@pytest.mark.parametrize("trap", TRAPS)
def test_offence_ends_the_process(program, trap):
    for index in range(OFFENCES.count(trap)):
        result = run(program, "trap", trap, str(index))
        assert result.returncode == -signal.SIGABRT, (index, result.stdout, result.stderr)
        assert re.search(
            rf"^(?:[-+]\[\w+ [\w:]+\]|[\w ]+): failed assertion '.+'.* \(trap {trap}\)$",
            result.stderr,
            re.MULTILINE,
        ), (index, result.stderr)


def test_a_leak_fails_the_run(program):
    result = run(program, "example", LEAKING)
    assert result.returncode == 97
    assert "1 leaked MPSImage" in result.stderr
