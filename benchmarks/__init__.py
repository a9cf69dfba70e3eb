"""How fast the kernels dequantize, against a device copy of the same bytes and against other libraries.

Imports go one way: this package may import everything else of the checkout, nothing imports it.
"""
