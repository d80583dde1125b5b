"""`python -m benchmarks`: as `mpsgrad bench`."""

import sys

from .command import main

sys.exit(main())
