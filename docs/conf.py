"""Sphinx configuration: the Markdown pages."""

import mpsgrad

project = "mpsgrad"
author = "The mpsgrad developers"
copyright = "2026, The mpsgrad developers"
release = mpsgrad.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
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
