"""Sphinx configuration: the Markdown pages, and a reference that is made of the docstrings."""

import enum
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import mpsgrad

project = "mpsgrad"
author = "The mpsgrad developers"
copyright = "2026, The mpsgrad developers"
release = mpsgrad.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
]
exclude_patterns = ["_build"]
nitpicky = True
html_theme = "alabaster"
html_theme_options = {"description": "Training kernels of MetalPerformanceShaders for NumPy"}

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
numpydoc_show_class_members = False
autodoc_typehints = "none"
# What these have is on their own pages, not on those of every class made from them.
SHARED = (
    "BaseException", "BinaryKernel", "FilterNode", "GradientKernel", "GradientState", "Kernel",
    "KernelFacade", "Padding", "State", "UnaryKernel", "int", "str", "tuple",
)  # fmt: skip
autodoc_default_options = {
    "members": True,
    "inherited-members": ", ".join(SHARED),
    "show-inheritance": True,
    "special-members": "__call__",
}
# Python's and NumPy's own pages, which a build without a network cannot ask.
nitpick_ignore_regex = [
    ("py:.*", r"(builtins|collections|enum|numpy|os|typing|typing_extensions)\..*")
]

REFERENCE = Path(__file__).parent / "reference"


def public_modules():
    """Return mpsgrad's modules by name: a new one needs no line here."""
    found = [module.name for module in pkgutil.iter_modules(mpsgrad.__path__)]
    names = [name for name in found if not name.startswith("_") and name != "benchmarks"]
    return {name: importlib.import_module(f"mpsgrad.{name}") for name in names}


PLACES = {name: f"mpsgrad.{name}" for name in mpsgrad.__all__} | {
    name: f"{module.__name__}.{name}"
    for module in public_modules().values()
    for name in module.__all__
}


def is_public(cls):
    """Return whether it is the class that users know by its name, not what that is made from."""
    place = PLACES.get(cls.__name__, "").rpartition(".")[0]
    return place != "" and getattr(sys.modules[place], cls.__name__) is cls


def write_page(name, title, lines):
    """Write a page of the reference."""
    page = "\n".join([title, "=" * len(title), "", *lines, ""])
    (REFERENCE / f"{name}.rst").write_text(page, encoding="utf-8")


def directive(name):
    """Return the line that documents a name of `mpsgrad`."""
    found = getattr(mpsgrad, name)
    kind = "class" if inspect.isclass(found) else "function" if callable(found) else "data"
    return f".. auto{kind}:: mpsgrad.{name}"


def write_reference(_):
    """Write a page for each public module, and one for what all of them work on."""
    REFERENCE.mkdir(exist_ok=True)
    modules = public_modules()
    elsewhere = {*modules, "__version__"}.union(*(module.__all__ for module in modules.values()))
    shared = [name for name in mpsgrad.__all__ if name not in elsewhere]
    write_page("shared", "Devices, images, states", map(directive, shared))
    for name, module in modules.items():
        write_page(name, f"mpsgrad.{name}", [f".. automodule:: {module.__name__}"])
    pages = ["   shared", *(f"   {name}" for name in modules)]
    write_page("index", "Reference", [".. toctree::", "   :maxdepth: 1", "", *pages])


def name_public_bases(_app, _name, cls, _options, bases):
    """Show of a class's bases the nearest public ones."""
    found = [base for base in cls.__mro__[1:] if is_public(base)]
    nearest = [base for base in found if not any(base in other.__mro__[1:] for other in found)]
    bases[:] = [f":py:class:`~{PLACES[base.__name__]}`" for base in nearest] or [
        ":py:class:`object`"
    ]


def shorten_signatures(_app, _what, _name, _found, _options, signature, result):
    """Show compiled functions as Python's are: without self, with the names that one imports."""

    def public(match):
        return PLACES.get(match[1], match[0])

    signature = signature and re.sub(r"^\(self: [\w.]+(, )?", "(", signature)
    return tuple(
        text and re.sub(r"\bmpsgrad\._core\.(\w+)", public, text) for text in (signature, result)
    )


def list_members(_app, what, _name, shown, _options, lines):
    """Name an enumeration's members, with Apple's numbers."""
    if what == "class" and issubclass(shown, enum.Enum):
        numbers = {name: member.value for name, member in shown.__members__.items()}
        lines += [
            "",
            *(f"- ``{name}``: {n if n < 256 else hex(n)}" for name, n in numbers.items()),
            "",
        ]


def setup(app):
    """Connect what is above to Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-process-bases", name_public_bases)
    app.connect("autodoc-process-signature", shorten_signatures)
    app.connect("autodoc-process-docstring", list_members)
