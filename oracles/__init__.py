"""Adapters over upstream libraries' own pack and dequantize functions, and the exact model.

One module a library. An oracle calls upstream; it never re-derives it. Nothing here
imports from ``conformance``.
"""
