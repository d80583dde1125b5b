"""Print the prefix that the onednn-devel wheel was installed into, or nothing.

Wheels put libraries under the prefix of the environment, which in an isolated build is not the
interpreter's own.
"""

from importlib import metadata
from pathlib import Path

for name in ("onednn-devel-cpu-gomp", "onednn-cpu-gomp"):
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        continue
    wanted = [file for file in files if file.name in ("libdnnl.so.3", "dnnl.hpp")]
    folders = [Path(file.locate()).resolve().parent for file in wanted]
    prefixes = {folder.parent for folder in folders if folder.name in ("lib", "include")}
    if prefixes:
        print(prefixes.pop())
        break
