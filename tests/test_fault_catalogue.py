"""Every fault of the catalogue, planted in a kernel, is caught by the suite's own strategy and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from conformance.bits import from_bits
from conformance.faults import Context, Fault, blockwise
from conformance.registry import Format
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS, drawn, first_failure, harness
from tests.planted import dense

BITSANDBYTES = ("nf4", "fp4", "blockwise8", "llm_int8")
# The output dtype that shows a fault: float32 unless the fault is in the output rounding.
OUT = {"bf16-truncate": "bf16", "bf16-half-away": "bf16", "fp16-saturate": "fp16"}
# More than the default number of cases: an exact tie between two bfloat16 numbers is needed.
RARE = {"bf16-half-away": 300, "clamped-to-127": 120, "nested-first-group": 180}
# Shows beyond 256 blocks only; one case in forty is like that (and a frozen tile case, below).
NARROWED = {"nested-first-group": {"blocksize": 32, "absmax": "nested"}}


def selected(fmt: Format) -> list[Fault]:
    """fp4 shares all but its tables with nf4."""
    if fmt.name != "fp4":
        return list(fmt.faults)
    # Half of fp4's entries have no more than 5 decimals.
    own = {f"lut-literal-{code}" for code in (1, 2, 4, 6, 9, 10, 12, 14)}
    return [fault for fault in fmt.faults if fault.name.startswith("codebook: ") or fault.name in own]


def mutant(fmt: Format, fault: Fault) -> Callable[..., torch.Tensor]:
    """A kernel with the fault; right where the fault cannot show."""

    def kernel(weight, *, dtype, out=None):
        weight = dense(weight)
        model = fmt.unpack(weight)
        bits = fault.decode(Context(weight, model, dtype))
        if bits is None:
            bits = round_to(model.values(), dtype)
        result = from_bits(bits, dtype)
        return result if out is None else out.copy_(result)

    return kernel


@pytest.mark.parametrize(
    ("name", "fault"),
    [pytest.param(n, f, id=f"{n}-{f.name}") for n in BITSANDBYTES for f in selected(FORMATS[n])],
)
def test_fault_is_caught_and_named(name, fault):
    out = OUT.get(fault.name, "fp32")
    run = harness(mutant(FORMATS[name], fault))
    fixed = NARROWED.get(fault.name, {})
    failure = first_failure(run, name, RARE.get(fault.name, 60), out=out, **fixed)
    if failure is None:
        # Those that the suite runs every time.
        texts = (*FORMATS[name].tile_cases, *FORMATS[name].large)
        judged = (run.judge(FORMATS[name].parse(text).replace(out=out)).verdict for text in texts)
        verdict = next((verdict for verdict in judged if verdict.failed), None)
        assert verdict is not None, "not caught"
    else:
        verdict = failure.checked.verdict
    assert verdict.kind in ("MISMATCH", "NONFINITE_CLASS")
    assert verdict.kind == "NONFINITE_CLASS" or fault.name != "fp16-saturate"
    assert verdict.located
    # A small case may fit other faults as well (two blocks: "the block before" is also "the
    # first"; one code: every table with that entry). The planted one is always among them.
    assert fault.name in [cause.name for cause in verdict.causes]


@pytest.mark.parametrize("name", ["nf4", "fp4", "blockwise8"])
def test_a_frozen_case_has_more_than_256_blocks(name):
    fmt = FORMATS[name]
    fault = next(fault for fault in fmt.faults if fault.name == "nested-first-group")
    run = harness(mutant(fmt, fault))
    verdicts = [run.judge(fmt.parse(text).replace(out="fp32")).verdict for text in fmt.tile_cases]
    assert "MISMATCH" in [verdict.kind for verdict in verdicts]


def test_faults_of_four_bit_codes_never_show_in_eight_bit_ones():
    fmt = FORMATS["blockwise8"]
    case = fmt.parse("shape=3x257,blocksize=64")
    weight = fmt.words(case)
    for fault in (*blockwise.FOUR_BITS, *blockwise.BYTES):
        assert fault not in fmt.faults
        assert fault.decode(Context(weight, fmt.unpack(weight), torch.float32)) is None, fault.name


@pytest.mark.parametrize("name", BITSANDBYTES)
def test_names_are_distinct(name):
    names = [fault.name for fault in FORMATS[name].faults]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["nf4", "blockwise8", "llm_int8"])
def test_larger_cases_tell_causes_apart(name):
    """On a case with several blocks or rows and all codes, a cause is named for its own output only,
    but for faults that are the same arithmetic there."""
    fmt = FORMATS[name]
    # Blocks of 128: in those of 32 the byte's index is also the block of 64.
    text = (
        "shape=9x33" if name == "llm_int8" else "shape=5x300,blocksize=128,absmax=nested,scales=ordinary(3)"
    )
    weight = fmt.words(fmt.parse(text))
    ctx = Context(weight, fmt.unpack(weight), torch.float32)
    right = round_to(ctx.model.values(), torch.float32)
    outputs: dict[bytes, list[str]] = {}
    for fault in fmt.faults:
        bits = fault.decode(ctx)
        if bits is not None and (bits != right).any():
            outputs.setdefault(bits.tobytes(), []).append(fault.name)
    alike = [names for names in outputs.values() if len(names) > 1]
    assert alike == []
    assert len(outputs) >= 5


def test_sampling_differs_from_test_to_test():
    assert drawn("nf4", 60, out="fp16") != drawn("nf4", 60, out="fp32")
