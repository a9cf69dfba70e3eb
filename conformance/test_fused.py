"""Products of the kernels of ``--fused`` with random activations. Their other tests, with one-hot
activations, are those of every kernel: ``test_formats.py`` and the rest."""

from conformance.products import Products
from conformance.running import drawable, run_drawn, run_each
from conformance.strategies import cases


def test_products(harness, fused_fmt, out, request):
    """y = x W within the proven bound, for one token to 128 and more."""
    kernel = harness.kernels[fused_fmt.name].name
    drawn = cases(drawable(harness, fused_fmt), out=out, route="words")
    run_drawn(Products(harness), request.node.name, drawn, kernel)


def test_case_product(harness, given_product, request):
    """The case named by ``--case``, with random activations."""
    run_each(Products(harness), request.node.name, [given_product])
