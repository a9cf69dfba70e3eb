"""Plumbing only: options, header, failure texts and summary live in the plugin."""

pytest_plugins = ["conformance.pytest_plugin"]
