"""Machine code is read rightly: kernels made to show each thing, compiled for GPUs that are not there."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.ahead.access import accesses
from conformance.ahead.check import violations
from conformance.ahead.compare import compare
from conformance.ahead.expect import EXCUSES, PRODUCTS, WORDS, Expected, expected
from conformance.ahead.machine import read_amd, read_sass
from conformance.ahead.result import Compiled

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, Compiled]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.compiled_kernels"],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for name, fields in json.loads(done.stdout.splitlines()[-1]).items():
        for way in ("loads", "stores"):
            fields[way] = {
                argument: {int(width): n for width, n in counts.items()}
                for argument, counts in fields[way].items()
            }
        found[name] = Compiled(**{**fields, "narrow": tuple(fields["narrow"])})
    return found


def wrong(result: Compiled, **limits: object) -> list[str]:
    """What is said of a result, without where."""
    return [line.split(": ", 1)[1] for line in violations(result, Expected(**limits))]


NVIDIA = ("sm_80", "sm_90", "sm_100", "sm_120")


def on(compiled: dict[str, Compiled], kernel: str, *targets: str) -> list[Compiled]:
    found = [compiled[f"{kernel}@{target}"] for target in targets if f"{kernel}@{target}" in compiled]
    assert found, "no target compiled"
    return found


def test_a_kernel_without_faults(compiled):
    for result in on(compiled, "clean", *NVIDIA):
        assert wrong(result, loads={"x": 16}) == []
        assert result.stores == {"out": {16: 1}}
    for result in on(compiled, "clean", "gfx942"):
        assert wrong(result, store=8) == []  # 64 lanes share what 32 have elsewhere
        assert result.stores == {"*": {8: 1}}


def test_spills(compiled):
    for result in on(compiled, "hungry", *NVIDIA):
        assert wrong(result) == [f"expected no spills, found {result.spills}"]
        assert wrong(result, spills=result.spills) == []


def test_stores_of_single_elements(compiled):
    for result in on(compiled, "every_other", *NVIDIA, "gfx942"):
        name = "*" if result.target == "gfx942" else "out"
        assert wrong(result, shared=None) == [f"expected stores of 16 bytes to {name}, found 2"]
        assert wrong(result, shared=None, store=2) == []


def test_narrow_loads(compiled):
    for result in on(compiled, "clean", *NVIDIA):
        assert wrong(result, loads={"x": 32}) == ["expected loads of at least 32 bytes from x, found 16"]


def test_shared_memory(compiled):
    for result in on(compiled, "transposed", *NVIDIA, "gfx942"):
        assert wrong(result) == ["expected no bytes of shared memory, found 8192"]
        assert wrong(result, shared=1024) == ["expected at most 1024 bytes of shared memory, found 8192"]


def test_fused_operations(compiled):
    for result in on(compiled, "multiply_add", *NVIDIA, "gfx942"):
        assert wrong(result) == [f"expected no fused multiply-adds, found {result.fused}"]


NARROW = [
    ("clean 4194304", ""),
    ("narrow_program 1048576", ""),
    ("narrow_program 4194304", "i32 muli reaches 4294966272"),
    ("narrow_loaded 65536", "i32 muli of a loaded value"),
    ("narrow_carried 1", "i32 muli reaches 4294934528"),
    ("wide_carried 1", ""),
    ("narrow_branch 131072", "i32 muli reaches 4294934528"),
]


@pytest.mark.parametrize(("kernel", "flaw"), NARROW)
def test_addresses_in_32_bits(compiled, kernel, flaw):
    result = compiled[f"{kernel}@sm_90"]
    found = wrong(result)
    if not flaw:
        assert found == []
        return
    assert len(found) == 1
    assert found[0].startswith("expected addresses in enough bits, found compiled_kernels.py:")
    assert found[0].endswith(flaw)


def test_worse_than_before(compiled):
    (clean,) = on(compiled, "clean", "sm_90")
    (hungry,) = on(compiled, "hungry", "sm_90")
    (other,) = on(compiled, "every_other", "sm_90")

    def lines(now: Compiled, **then: object) -> list[str]:
        before = dataclasses.replace(now, triton="3.0.1", **then)
        return list(compare([now], [before], "Triton 3.0.1"))

    assert lines(clean) == []
    (line,) = lines(hungry, spills=0)
    assert line == (
        f"test hungry, hungry 1, sm_90: {hungry.spills} spills, were 0 "
        f"(Triton {hungry.triton} against Triton 3.0.1)"
    )
    assert "stores of 2 bytes to out, were 16" in lines(other, stores={"out": {16: 1}})[0]
    assert "2048 bytes of shared memory, were none" in lines(other, shared=0)[0]
    assert lines(other, shared=1024) == []
    assert lines(dataclasses.replace(clean, registers=40), registers=32) == []
    assert "41 registers, were 32" in lines(dataclasses.replace(clean, registers=41), registers=32)[0]
    assert "does not compile any more: no" in lines(dataclasses.replace(clean, error="no"), error="")[0]
    assert lines(clean, error="no") == []
    flaw = lines(compiled["narrow_loaded 65536@sm_90"], narrow=())
    assert "an address in too few bits, was none: compiled_kernels.py:" in flaw[0]
    # What the earlier file does not have is compared with nothing.
    assert list(compare([clean], [hungry], "Triton 3.0.1")) == []


def test_sass():
    text = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.SYS R4, [R2] ;
        /*0020*/                   HFMA2.MMA R5, -RZ, RZ, 0, 5.9604644775390625e-08 ;
        /*0030*/                   FFMA R6, R4, R5, R7 ;
        /*0040*/                   FFMA R6, R4, R5, -RZ ;
        /*0050*/              @P1  STG.E.U16 desc[UR4][R2.64], R6 ;
        /*0060*/                   STG.E.64.SYS [R2], R6 ;
        /*0070*/                   STL [R1], R6 ;
        /*0080*/                   STS.128 [R1], R6 ;
        /*0090*/                   STG.E [R2], R6 ;
        /*00a0*/                   IMAD R6, R4, R5, R7 ;
    """
    code = read_sass(text, 40)
    assert (code.registers, code.spills, code.shared, code.fused) == (40, 1, 1, 1)
    assert code.store_bytes == {2: 1, 4: 1, 8: 1}


def test_amd_assembly():
    text = """
        global_store_dwordx4 v0, v[4:7], s[2:3]
        buffer_store_short_d16_hi v0, v1, s[4:7], 0 offen
        ds_write_b128 v1, v[2:5]
        v_fma_f32 v1, v2, v3, v4
        v_fma_mixlo_f16 v1, v2, v3, neg(0)
        v_fma_mix_f32 v0, v8, v0, neg(0) op_sel_hi:[1,0,0]
        .sgpr_spill_count: 2
        .vgpr_count:     37
        .vgpr_spill_count: 3
    """
    code = read_amd(text)
    assert (code.registers, code.spills, code.shared, code.fused) == (37, 3, 1, 1)
    assert code.store_bytes == {2: 1, 16: 1}


def test_an_access_is_followed_to_its_argument():
    ptx = """
        ld.param.u64 %rd1, [kernel_param_0];
        ld.param.u64 %rd2, [kernel_param_1];
        ld.param.u32 %r1, [kernel_param_2];
        cvt.s64.s32 %rd3, %r1;
        mov.b64 %rd9, %rd2;
        shl.b64 %rd4, %rd3, 1;
        add.s64 %rd5, %rd2, %rd4;
        @%p1 ld.global.L1::evict_first.v2.b32 { %r3, %r4 }, [ %rd5 + 0 ];
        cvt.u64.u32 %rd6, %r3;
        add.s64 %rd7, %rd1, %rd6;
        @%p1 st.global.b16 [ %rd7 + 0 ], { %rs1 };
        st.global.v4.b32 [ %rd8 + 0 ], { %r1, %r1, %r1, %r1 };
    """
    loads, stores = accesses(ptx, ("out", "x", None))
    assert loads == {"x": {8: 1}}
    assert stores == {"?": {16: 1}, "out": {2: 1}}


def test_excuses_name_kernels_that_there_are():
    """And each has its reason; a kernel that nothing is known of must not spill."""
    known = {*WORDS, *PRODUCTS}
    for excuse in EXCUSES:
        assert set(excuse.kernels) <= known
        assert len(excuse.reason) > 30
        Expected(**excuse.changes)
    stranger = Compiled(*("3.9.0", "sm_90", "x", "x:", "ordinary", "strange", ""), spills=1, shared=9)
    assert [line.split(": ", 1)[1] for line in violations(stranger)] == ["expected no spills, found 1"]
    assert expected(stranger).store is None
