"""Nothing public is half there: a family has every file, name, test, benchmark and page it owes."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import mpsgrad
import pytest
from mpsgrad import benchmarks

ROOT = Path(__file__).resolve().parent.parent
NOT_FAMILIES = {"benchmarks", "enums", "errors", "graph"}
# Names of our own, with no class of Apple's behind them.
OURS = {
    "ArrayBatchNormalizationDataSource",
    "ArrayConvolutionDataSource",
    "ArrayGroupNormalizationDataSource",
    "ArrayInstanceNormalizationDataSource",
    "DeviceArray",
    "ExplicitPadding",
    "ForwardLossState",
    "GradientBucket",
}

FAMILIES = sorted(
    module.name
    for module in pkgutil.iter_modules(mpsgrad.__path__)
    if not module.name.startswith("_") and module.name not in NOT_FAMILIES
)
CLASSES = [name for name in mpsgrad.__all__ if inspect.isclass(getattr(mpsgrad, name))]
KERNELS = [name for name in CLASSES if issubclass(getattr(mpsgrad, name), mpsgrad.Kernel)]
# Classes with a constructor of Python's; the rest are bases, which are never made directly.
MADE_BY_USERS = [
    name for name in KERNELS if not getattr(mpsgrad, name).__module__.endswith("_core")
]
# Nodes of graphs that can be made.
NODES = [
    cls
    for cls in (getattr(mpsgrad.graph, name) for name in mpsgrad.graph.__all__)
    if inspect.isclass(cls) and issubclass(cls, mpsgrad.graph.FilterNode) and not cls._is_abstract()
]
CONSTRUCTED = [
    *(getattr(mpsgrad, name) for name in MADE_BY_USERS),
    *NODES,
    mpsgrad.graph.ImageNode,
    mpsgrad.graph.Graph,
]
ON_METAL = [
    family for family in FAMILIES if (ROOT / f"csrc/kernels/{family}/{family}_metal.mm").exists()
]


def module_of(family):
    return importlib.import_module(f"mpsgrad.{family}")


def text_of(folder, pattern):
    return "".join(path.read_text() for path in sorted((ROOT / folder).rglob(pattern)))


def test_every_family_folder_has_its_module():
    folders = {path.name for path in (ROOT / "csrc/kernels").iterdir() if path.is_dir()}
    assert folders == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_files_of_a_family(family):
    expected = [
        f"csrc/kernels/{family}/{family}.hpp",
        f"csrc/kernels/{family}/{family}.cpp",
        f"csrc/kernels/{family}/{family}_cpu.cpp",
        f"csrc/kernels/{family}/{family}_py.cpp",
        f"tests/{family}/__init__.py",
        f"tests/{family}/cases.py",
        f"tests/{family}/oracle.py",
        f"tests/{family}/test_oracle.py",
        f"tests/{family}/test_{family}.py",
        f"benchmarks/{family}.py",
        f"docs/{family}.md",
    ]
    assert [name for name in expected if not (ROOT / name).exists()] == []


def test_every_family_is_measured():
    """Of modules in `benchmarks`, only those in its list run."""
    assert [family for family in FAMILIES if family not in benchmarks.FAMILIES] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_a_family_are_public_documented_and_tested(family):
    module = module_of(family)
    tests = text_of(f"tests/{family}", "*.py")
    page = (ROOT / f"docs/{family}.md").read_text()
    for name in module.__all__:
        assert name in mpsgrad.__all__, name
        assert getattr(mpsgrad, name) is getattr(module, name), name
        assert re.search(rf"\b{name}\b", tests), f"{name} appears in no test of {family}"
        assert re.search(rf"\b{name}\b", page), f"{name} does not appear in docs/{family}.md"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_index_lists_the_page(family):
    index = (ROOT / "docs/index.md").read_text()
    assert re.search(rf"^{family}$", index, re.MULTILINE)


@pytest.mark.parametrize("name", CLASSES)
def test_docstring_names_the_class_of_apple(name):
    cls = getattr(mpsgrad, name)
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0]
    assert summary, f"{name} has no docstring"
    if name not in OURS:
        assert re.search(r"``(MPS|MTL)\w+``", summary), summary


def says_something(name, member):
    """Whether the docstring of a method or property is more than the signature of a binding."""
    lines = (inspect.getdoc(member) or "").splitlines()
    signature = re.compile(rf"(\d+\. )?({name})?\(.*\)( -> .*)?|Overloaded function\.|")
    return not all(signature.fullmatch(line.strip()) for line in lines)


def test_every_public_method_and_property_has_a_docstring():
    modules = [mpsgrad, mpsgrad.errors, mpsgrad.graph]
    public = [getattr(module, name) for module in modules for name in module.__all__]
    owners = {owner for cls in public if inspect.isclass(cls) for owner in cls.__mro__}
    missing = [
        f"{owner.__module__}.{owner.__name__}.{name}"
        for owner in owners
        if owner.__module__.startswith("mpsgrad")
        for name, member in vars(owner).items()
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property))
        if not says_something(name, member)
    ]
    assert sorted(missing) == []


def parameters_of(cls):
    """Return the names that a constructor takes, those of a gradient node's ``**`` among them."""
    for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            yield parameter.name
            continue
        yield from cls._repeats
        yield from cls._joint_repeats
        if cls._takes_policy:
            yield "padding_policy"


@pytest.mark.parametrize("cls", CONSTRUCTED, ids=lambda cls: cls.__name__)
def test_docstring_of_a_constructor_names_every_parameter(cls):
    documented = inspect.getdoc(cls) or ""
    for parameter in parameters_of(cls):
        assert re.search(rf"^\s*(\w+, )*{parameter}(, \w+)* : ", documented, re.MULTILINE), (
            f"{cls.__name__}: {parameter} is not among the Parameters of the docstring"
        )


@pytest.mark.parametrize("name", KERNELS)
def test_a_gradient_belongs_to_a_forward_kernel(name):
    """Gradient classes are named after what they are the gradient of."""
    if name.endswith("Gradient") and name != "InitialGradient":
        assert name.removesuffix("Gradient") in mpsgrad.__all__


@pytest.mark.parametrize("family", ON_METAL)
def test_metal_drives_every_kernel_of_a_family(family):
    """A family that has a Metal file names in it Apple's class of each kernel."""
    source = ROOT / f"csrc/kernels/{family}/{family}_metal.mm"
    text = source.read_text()
    for name in set(module_of(family).__all__) & set(MADE_BY_USERS):
        cls = getattr(mpsgrad, name)
        summary = (inspect.getdoc(cls) or "").split("\n\n")[0]
        apple = re.search(r"``(MPS\w+)``", summary)
        assert apple is not None
        assert re.search(rf"\b{apple.group(1)}\b", text), (
            f"{apple.group(1)} is not in {source.name}"
        )


def test_coverage_table_is_up_to_date():
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "coverage", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
