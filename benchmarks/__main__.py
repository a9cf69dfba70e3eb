"""``python -m benchmarks``: see :mod:`benchmarks.cli`."""

import sys

from benchmarks.cli import main
from conformance.closed_pipe import quietly

sys.exit(quietly(main))
