"""Real trained weights: every linear layer of a real model, through upstream's own packer."""

import pytest

from conformance.profiles import FUSED_REAL
from conformance.realmodel import PACKAGE, linear_layers, thinned
from conformance.registry import FUSED
from conformance.running import run_each


def test_real_weights(harness, fmt, out, request):
    """Kernel, oracles and spec agree on every layer, and decode to within half a step of it."""
    if harness.model is None:
        pytest.skip(f"no real model: the package {PACKAGE} is not installed and --model was not given")
    cases = [
        fmt.case(out=out, route="real", layer=layer, **variant)
        for layer in linear_layers(harness.model)
        for variant in fmt.real_variants
    ]
    every = max(harness.real_every, fmt.real_step if harness.runtime.interpreter else 1)
    if harness.runtime.interpreter and harness.kernels[fmt.name].name.startswith(FUSED):
        every = max(every, FUSED_REAL)
    run_each(harness, request.node.name, thinned(cases, every, len(fmt.real_variants), out))
