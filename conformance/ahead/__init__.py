"""Compile the kernels for GPUs that are not there: what the interpreter accepts, the compiler may not.

Runs in a process of its own (``python -m conformance compile``), because the interpreter and the
compiler cannot share one.
"""
