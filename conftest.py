"""Plumbing only: options, header, failure texts and summary live in the plugin."""

import importlib.util

missing = [name for name in ("torch", "triton", "hypothesis") if importlib.util.find_spec(name) is None]
if missing:
    # One line instead of a traceback: this is what a pytest outside the environment meets.
    raise SystemExit(
        f"{', '.join(missing)} not installed here; make an environment with: python requirements/install.py"
    )

pytest_plugins = [
    "conformance.plugin_options",
    "conformance.pytest_plugin",
    "conformance.failure_plugin",
    "conformance.crash_plugin",
]
