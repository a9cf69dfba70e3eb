"""``python -m conformance``."""

from conformance.cli import main

raise SystemExit(main())
