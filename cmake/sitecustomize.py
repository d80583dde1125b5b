"""Let the package beside this file win over an editable install of mpsgrad.

Python imports this at start-up if PYTHONPATH names a build's `site` folder; otherwise the finder of
an editable install, which comes before PYTHONPATH, would quietly serve another build.
"""

import sys


def serves_mpsgrad(finder: object) -> bool:
    """Whether this is the finder that scikit-build-core installed for an editable mpsgrad."""
    names = ("known_source_files", "known_wheel_files", "known_packages")
    return any("mpsgrad" in getattr(finder, name, ()) for name in names)


sys.meta_path[:] = [finder for finder in sys.meta_path if not serves_mpsgrad(finder)]
