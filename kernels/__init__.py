"""Triton kernels that dequantize packed low-bit weights, one module a format.

Import the format's module (``from kernels import nf4``); importing this package
alone loads neither torch nor Triton, so that a caller can still choose between the
GPU and ``TRITON_INTERPRET=1`` before the first ``@triton.jit`` is executed.

This package must not define ``__version__``: transformers looks up a distribution of
the same name and, finding a version here, would treat this package as that library.
"""


class Unsupported(Exception):
    """Raised by a kernel that does not implement the case it was given.

    The harness counts and prints it; it is neither a pass nor a failure.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


__all__ = ["Unsupported"]
