"""``python -m conformance``."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise SystemExit("torch is not installed here; make an environment with: python requirements/install.py")

from conformance.cli import main
from conformance.closed_pipe import quietly

raise SystemExit(quietly(main))
