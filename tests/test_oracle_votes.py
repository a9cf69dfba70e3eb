"""Who is outvoted: kernel, upstream or the spec model; and upstream's real faults, found by the suite."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
import torch

import conformance.formats.nf4 as nf4_module
from conformance import registry
from conformance.bits import from_bits, to_bits
from conformance.known_faults import KnownFault, load
from oracles.base import Declined, Oracle, Provenance
from oracles.spec.rounding import round_to
from tests import planted
from tests.harness_runs import CPU, FORMATS, first_failure, harness, judge

CASE = "nf4:shape=5x40"


def oracle(name: str, answer, missing: str | None = None) -> Oracle:
    """An oracle that says ``answer(weight, dtype)``."""
    provenance = Provenance("pytest", pytest.__version__, pytest.__version__, "tests", "call")
    return Oracle(name, lambda: provenance, lambda device: missing, answer)


def right(weight, dtype):
    return planted.right(weight, dtype=dtype)


def swapped(weight, dtype):
    return planted.nibbles_swapped(weight, dtype=dtype)


def shifted(weight, dtype):
    return planted.wrong(shift=-1)(weight, dtype=dtype)


def declines(weight, dtype):
    raise Declined("no odd sizes")


def raises(weight, dtype):
    raise IndexError("index 7\nis out of range")


def nothing(weight, dtype):
    return None


def flat(weight, dtype):
    return right(weight, dtype).reshape(-1)


def double(weight, dtype):
    return right(weight, dtype).double()


def entry(**changes) -> KnownFault:
    """A known fault of the oracle ``a`` on every nf4 case."""
    values = {
        "id": "a-is-wrong",
        "oracle": "a",
        "package": "pytest",
        "versions": ">=1",
        "where": "device == 'cpu'",
        "formats": ("nf4",),
        "condition": "numel > 64",
        "signature": "values",
        "effect": "",
        "link": "",
        "expires": datetime.date(9999, 1, 1),
        "case": CASE,
    }
    return KnownFault(**{**values, **changes})


def verdict(kernel, *answers, known=(), case=CASE, missing=None):
    oracles = tuple(oracle("ab"[i], answer, missing) for i, answer in enumerate(answers))
    fmt = dataclasses.replace(FORMATS["nf4"], oracles=oracles)
    return judge(kernel, case, fmt=fmt, oracles=None, known=known).verdict


VOTES = [
    (planted.right, (right,), "EXACT", "kernel = a = spec"),
    (planted.right, (right, right), "EXACT", "kernel = a = b = spec"),
    (planted.right, (swapped,), "ORACLE_FAULT", "a differs in"),
    (planted.right, (right, swapped), "ORACLE_FAULT", "from kernel = spec = a"),
    (planted.right, (swapped, shifted), "ORACLE_FAULT", "b differs in"),
    (planted.nibbles_swapped, (right,), "MISMATCH", "kernel is wrong (spec = a)"),
    (planted.nibbles_swapped, (), "MISMATCH", "kernel is wrong (spec)"),
    (planted.nibbles_swapped, (swapped,), "SPLIT", "spec disputed: kernel = a"),
    (planted.nibbles_swapped, (swapped, right), "SPLIT", "kernel = a against spec = b"),
    (planted.nibbles_swapped, (shifted,), "SPLIT", "three ways: kernel, a and spec all differ"),
]


@pytest.mark.parametrize(("kernel", "answers", "kind", "words"), VOTES)
def test_votes(kernel, answers, kind, words):
    found = verdict(kernel, *answers)
    assert found.kind == kind
    assert words in found.summary
    assert found.failed == (kind != "EXACT")


# --- an oracle without a vote -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "missing", "note"),
    [
        (right, "nothing installed", "a: missing: nothing installed"),
        (declines, None, "a: declined: no odd sizes"),
        (raises, None, "a: raised IndexError: index 7 is out of range"),
        (nothing, None, "a: raised AttributeError: 'NoneType' object has no attribute 'shape'"),
    ],
)
def test_an_oracle_without_an_answer_is_noted(answer, missing, note):
    found = verdict(planted.right, answer, missing=missing)
    assert found.kind == "EXACT"
    assert found.notes == (note,)
    assert verdict(planted.nibbles_swapped, answer, missing=missing).kind == "MISMATCH"


def test_oracles_that_answer_with_one_buffer_have_a_vote_each():
    buffer = torch.empty((5, 40), dtype=torch.float16)
    found = verdict(
        planted.right, lambda w, d: buffer.copy_(swapped(w, d)), lambda w, d: buffer.copy_(right(w, d))
    )
    assert found.kind == "ORACLE_FAULT"
    assert "a differs in" in found.summary
    assert "spec = b" in found.summary


@pytest.mark.parametrize(
    ("answer", "words"),
    [(flat, "a returned float16 [200] instead of float16 [5, 40]"), (double, "a returned float64 [5, 40]")],
)
def test_another_shape_or_dtype_is_an_oracle_fault(answer, words):
    found = verdict(planted.right, answer)
    assert found.kind == "ORACLE_FAULT"
    assert words in found.summary
    assert verdict(planted.nibbles_swapped, answer).kind == "MISMATCH"
    excused = verdict(planted.right, answer, known=(entry(signature="shape"),))
    assert excused.kind == "KNOWN_FAULT"
    assert "a-is-wrong" in excused.summary


# --- known faults -----------------------------------------------------------------------------


def test_a_known_fault_excuses_its_oracle():
    found = verdict(planted.right, swapped, known=(entry(),))
    assert (found.kind, found.failed) == ("KNOWN_FAULT", False)
    assert found.summary == "a is wrong here: a-is-wrong"


def test_a_kernel_with_the_known_fault_is_wrong():
    found = verdict(planted.nibbles_swapped, swapped, known=(entry(),))
    assert found.kind == "MISMATCH"
    assert found.causes[0].name == "nibble-swap"


@pytest.mark.parametrize(
    "changes",
    [
        {"condition": "numel > 200"},
        {"formats": ("fp4",)},
        {"oracle": "b"},
        {"versions": "<1"},
        {"where": "device == 'cuda'"},
        {"signature": "sign of zero"},
        {"signature": "subnormal flushed"},
        {"signature": "shape"},
        {"expires": datetime.date(2020, 1, 1)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_an_entry_excuses_nothing_else(changes):
    assert verdict(planted.right, swapped, known=(entry(**changes),)).kind == "ORACLE_FAULT"


def test_an_excuse_covers_its_oracle_only():
    found = verdict(planted.right, swapped, shifted, known=(entry(),))
    assert found.kind == "ORACLE_FAULT"
    assert "b differs" in found.summary
    assert "a differs" not in found.summary


@pytest.mark.parametrize(
    ("signature", "case", "answer"),
    [
        (
            "sign of zero",
            "nf4:shape=5x40,scales=zero",
            lambda w, d: planted.positive_zero(w, dtype=d),
        ),
        (
            "subnormal flushed",
            "nf4:shape=5x40,scales=subnormal(0),out=bf16",
            lambda w, d: torch.where(right(w, d).abs() < torch.finfo(d).smallest_normal, 0.0, right(w, d)),
        ),
    ],
)
def test_signatures(signature, case, answer):
    assert verdict(planted.right, answer, case=case).kind == "ORACLE_FAULT"
    known = (entry(signature=signature),)
    assert verdict(planted.right, answer, case=case, known=known).kind == "KNOWN_FAULT"


def test_a_product_flushed_before_it_rounds_up_to_a_normal_number():
    """bitsandbytes on CUDA, blockwise8 in bfloat16: just below the smallest normal number."""
    fault, least = entry(signature="subnormal flushed"), torch.finfo(torch.float32).smallest_normal
    want = torch.tensor([least, -least, 2 * least])
    for dtype, excused in ((torch.bfloat16, [True, True, False]), (torch.float32, [False] * 3)):
        got = to_bits(torch.zeros(3, dtype=dtype))
        assert fault.explains(got, to_bits(want.to(dtype)), dtype).tolist() == excused


def test_an_entry_that_is_not_true_is_reported():
    run = harness(planted.right, oracles=frozenset(), known=(entry(),))
    found = run.fixed(entry(), run.judge(FORMATS["nf4"].parse("shape=5x40")).verdict).verdict
    assert (found.kind, found.failed) == ("FIXED_FAULT", True)
    assert "a-is-wrong" in found.summary


# --- the real one -----------------------------------------------------------------------------

BLOCKS_PER_ROW = "bnb-cpu-avx512-blocks-per-row"


def real_fault() -> KnownFault:
    fault = next(fault for fault in load() if fault.id == BLOCKS_PER_ROW)
    oracle = next(o for o in FORMATS["nf4"].oracles if o.name == fault.oracle)
    reason = oracle.missing(CPU.device) or fault.applies_here(
        oracle.provenance().version, CPU.device, datetime.date(2000, 1, 1)
    )
    if reason is not None:
        pytest.skip(f"{BLOCKS_PER_ROW}: {reason}")
    return fault


def test_upstream_cpu_fault_is_found_without_being_known():
    """Any entry may be found first: with an empty file the suite reports upstream, not the kernel."""
    real_fault()
    failure = first_failure(harness(planted.right, oracles=None), "nf4", 200, out="fp16")
    assert failure is not None
    assert failure.checked.verdict.kind == "ORACLE_FAULT"
    assert "bitsandbytes" in failure.checked.verdict.summary


def test_upstream_block_fault_is_found_and_shrinks_to_a_short_row():
    """The others known: the block fault alone is left, and its least case has a few rows."""
    real_fault()
    others = tuple(fault for fault in load() if fault.id != BLOCKS_PER_ROW)
    run = harness(planted.right, oracles=None, known=others)
    failure = first_failure(run, "nf4", 300, out="fp16")
    assert failure is not None
    found = failure.checked.verdict
    assert found.kind == "ORACLE_FAULT"
    assert "bitsandbytes differs" in found.summary
    assert "= bitsandbytes-python" in found.summary
    shape = found.case["shape"]
    assert shape[-1] % 16 == 0
    assert found.elements <= 4 * found.case["blocksize"]
    assert (found.case["layout"], found.case["dest"], found.case["storage"]) == (
        "contiguous",
        "given",
        "uint8",
    )


@pytest.mark.parametrize("fault", load(), ids=lambda fault: fault.id)
def test_builtin_entries_are_known_faults_on_their_case(fault):
    fmt = next(fmt for name, fmt in FORMATS.items() if fault.case.startswith(f"{name}:"))
    oracle = next((o for o in fmt.oracles if o.name == fault.oracle), None)
    assert oracle is not None
    reason = oracle.missing(CPU.device) or fault.applies_here(
        oracle.provenance().version, CPU.device, datetime.date(2000, 1, 1)
    )
    if reason is not None:
        pytest.skip(f"{fault.id}: {reason}")

    # Not the built-in kernel, which would need the interpreter's bfloat16 to be corrected.
    def exact(weight, *, dtype):
        return from_bits(round_to(fmt.unpack(weight).values(), dtype), dtype)

    with_it = judge(exact, fault.case, oracles=None, known=load())
    assert with_it.verdict.kind == "KNOWN_FAULT"
    assert fault.id in with_it.verdict.summary
    without = judge(exact, fault.case, oracles=None)
    assert without.verdict.kind == "ORACLE_FAULT"


def test_two_oracles_of_one_name_are_refused(monkeypatch):
    nf4 = registry.formats()["nf4"]
    doubled = dataclasses.replace(nf4, oracles=(*nf4.oracles, nf4.oracles[0]))
    monkeypatch.setattr(nf4_module, "FORMATS", (doubled,))
    with pytest.raises(ValueError, match=f"'nf4' has two oracles '{nf4.oracles[0].name}'"):
        registry.formats()
