"""Build and run the C++ programs beside this file: loops that no Python name reaches on their own.

Every ``*_simd.cpp`` they need is compiled once per instruction set of the machine that the compiler
makes programs for, with the flags of cmake/InstructionSets.cmake. If that is another machine,
``MPSGRAD_RUNNER`` names what runs its programs; tools/arm64 uses both.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import toolchain

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CMAKE = ROOT / "cmake/InstructionSets.cmake"
OPTIONS = ["-std=c++20", "-Wall", "-Wextra", "-Wconversion", "-Werror", f"-I{ROOT / 'csrc'}"]
THREADS = [f"csrc/cpu/{name}.cpp" for name in ("memory", "placement", "scratch", "threads")]
pytestmark = pytest.mark.skipif(not CMAKE.exists(), reason="needs the C++ sources of a checkout")


def compiler() -> str:
    """Name the C++ compiler: $CXX, else the first that is there."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    pytest.fail("no C++ compiler found; set CXX")


def run(command, **environment):
    """Run a command, keep what it prints."""
    if isinstance(command[0], Path):
        command = [*shlex.split(os.environ.get("MPSGRAD_RUNNER", "")), *command]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in toolchain.environment().items() if k != "MPSGRAD_CPU"} | environment,
    )


def machine() -> str:
    """Name the machine that the compiler makes programs for."""
    return run([compiler(), "-dumpmachine"]).stdout.split("-")[0].replace("arm64", "aarch64")


def instruction_sets() -> dict[str, list[str]]:
    """Read the instruction sets that the compiler's builds have, and the flags of each."""
    text = CMAKE.read_text()
    if machine() in {"x86_64", "amd64"}:
        names = ["scalar", "avx2", "avx512"]
    elif machine() == "aarch64":
        names = ["neon"]
    else:
        return {"scalar": []}

    def variable(name):
        return re.search(rf"set\(flags_{name} ?(.*?)\)", text)[1].split()

    clang = "clang" in run([compiler(), "--version"]).stdout.lower()
    common = re.search(r"flags_fused\}\s+(-O3[^)]*)\)", text)[1].split()
    common += variable("fused_clang" if clang else "fused_gnu")
    return {name: variable(name) + common for name in names}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build a program of this folder from itself and some files of csrc."""
    folder = tmp_path_factory.mktemp("programs")
    base = [compiler(), *OPTIONS, f"-I{HERE}"]
    sets = instruction_sets()

    def checked(command):
        done = run(command)
        assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}"

    def make(program, *sources):
        commands, objects = [], []
        have = [f"-DMPSGRAD_HAVE_{name.upper()}=1" for name in sets]
        for source in sources:
            if not source.endswith("_simd.cpp"):
                objects.append(folder / f"{program}_{Path(source).stem}.o")
                commands.append([*base, "-O2", *have, "-c", ROOT / source, "-o", objects[-1]])
                continue
            for name, flags in sets.items():
                objects.append(folder / f"{program}_{Path(source).stem}_{name}.o")
                own = [*base, *flags, f"-DMPSGRAD_ISA={name}"]
                commands.append([*own, "-c", ROOT / source, "-o", objects[-1]])
        objects.append(folder / f"{program}.o")
        commands.append([*base, "-O2", *have, "-c", HERE / f"{program}.cpp", "-o", objects[-1]])
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(checked, commands))
        isa = ROOT / "csrc/cpu/isa.cpp"
        checked([*base, "-O2", *have, isa, *objects, "-pthread", "-o", folder / program])
        return folder / program

    return make


@pytest.fixture(scope="module")
def convert_test(build):
    """Build the test of the conversion loops."""
    return build("convert_test", "csrc/cpu/simd/convert_simd.cpp")


@pytest.fixture(scope="module")
def convolution_test(build):
    """Build the test of the convolution engine."""
    folder = "csrc/kernels/convolution"
    return build(
        "convolution_test",
        f"{folder}/correlation_simd.cpp",
        f"{folder}/depthwise_gradient_simd.cpp",
        f"{folder}/depthwise_simd.cpp",
        f"{folder}/grouped_gradient_simd.cpp",
        f"{folder}/weight_gradient_simd.cpp",
        f"{folder}/convolution_engine.cpp",
        f"{folder}/convolution_rows.cpp",
        f"{folder}/convolution_weight_gradient.cpp",
        f"{folder}/convolution_weights.cpp",
        f"{folder}/convolution_winograd.cpp",
        f"{folder}/convolution_winograd_gradient.cpp",
        f"{folder}/correlation.cpp",
        f"{folder}/correlation_plan.cpp",
        f"{folder}/weight_gradient_plan.cpp",
        f"{folder}/winograd_simd.cpp",
        "csrc/cpu/simd/convert_simd.cpp",
        *THREADS,
    )


@pytest.mark.parametrize(
    "source",
    sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*_simd.cpp")),
)
def test_loops_compile_for_another_machine(source, tmp_path):
    if machine() == platform.machine().lower().replace("arm64", "aarch64"):
        pytest.skip("the build of this machine has compiled them")
    for name, flags in instruction_sets().items():
        own = [compiler(), *OPTIONS, *flags, f"-DMPSGRAD_ISA={name}"]
        done = run([*own, "-c", ROOT / source, "-o", tmp_path / "loops.o"])
        assert done.returncode == 0, f"{name}\n{done.stderr}"


def passed(done) -> bool:
    """Tell whether a program checked something and found it right."""
    verdict = re.search(r"_test: (\d+) checks, 0 failed$", done.stdout.strip())
    return done.returncode == 0 and verdict is not None and int(verdict[1]) > 0


def test_conversions_of_every_format_and_instruction_set(convert_test):
    done = run([convert_test])
    assert passed(done), done.stdout


def test_mpsgrad_cpu_forces_the_instruction_set(convert_test):
    baseline = next(iter(instruction_sets()))
    done = run([convert_test], MPSGRAD_CPU=baseline)
    assert passed(done), done.stdout
    assert f"selected: {baseline}," in done.stdout


def test_empty_mpsgrad_cpu_is_the_best_set(convert_test):
    done = run([convert_test], MPSGRAD_CPU="")
    assert passed(done), done.stdout
    assert re.search(r"selected: (\w+), best: \1$", done.stdout, re.MULTILINE)


def test_unknown_mpsgrad_cpu_is_refused(convert_test):
    done = run([convert_test], MPSGRAD_CPU="quantum")
    assert done.returncode == 2
    assert "unknown instruction set 'quantum'; possible here: " in done.stdout


def test_elementary_functions_on_every_instruction_set(build):
    done = run([build("vector_math_test", "tests/cpp/vector_math_loops_simd.cpp")])
    assert passed(done), done.stdout


def test_every_chunk_of_work_runs_once(build):
    done = run([build("threads_test", *THREADS)])
    assert passed(done), done.stdout


def test_settings_of_families_are_values(build):
    done = run([build("family_settings_test")])
    assert passed(done), done.stdout


def supported_sets(program) -> list[str]:
    """Ask a program which of the built instruction sets this processor can run."""
    refusal = run([program, "0"], MPSGRAD_CPU="quantum").stdout
    return re.search(r"possible here: (.*)", refusal)[1].split(", ")


def test_column_sums_in_vectors_of_any_width(build):
    program = build("column_sums_test", "tests/cpp/column_sums_loops_simd.cpp")
    names = supported_sets(program)
    assert names
    for name in names:
        done = run([program], MPSGRAD_CPU=name)
        assert passed(done), f"{name}\n{done.stdout}"
        assert f"selected: {name}\n" in done.stdout


def test_convolutions_of_every_instruction_set(convolution_test):
    names = supported_sets(convolution_test)
    assert names
    for name in names:
        done = run([convolution_test, "400"], MPSGRAD_CPU=name)
        assert passed(done), f"{name}\n{done.stdout}"
        assert f"selected: {name}\n" in done.stdout
