"""What the catalogue says of triggers is so: each case shows its fault, or hides it."""

from __future__ import annotations

import pytest

from conformance.bits import DTYPES
from conformance.faults import Context
from oracles.spec.rounding import round_to
from tests.harness_runs import FORMATS

# format, fault, cases that show it, cases in which it hides.
TRIGGERS = [
    ("nf4", "nibble-swap", ["shape=2"], ["shape=4x64,words=zeros", "shape=4x64,words=ones"]),
    ("nf4", "nibbles-split-by-32", ["shape=1x32"], ["shape=4x64,words=zeros"]),
    ("nf4", "nibbles-split-in-halves", ["shape=4"], ["shape=1", "shape=2", "shape=4x64,words=ones"]),
    ("nf4", "odd-tail-low-nibble", ["shape=65"], ["shape=64", "shape=66"]),
    ("nf4", "tail-block-absmax-previous", ["shape=65"], ["shape=128", "shape=63", "shape=65,scales=one"]),
    ("nf4", "tail-block-absmax-zero", ["shape=63"], ["shape=128"]),
    ("nf4", "tail-block-absmax-one", ["shape=63"], ["shape=128", "shape=63,scales=one"]),
    ("nf4", "first-block-everywhere", ["shape=128"], ["shape=64", "shape=128,scales=one"]),
    ("nf4", "absmax-index-by-byte", ["shape=65", "shape=128"], ["shape=64", "shape=128,scales=one"]),
    ("nf4", "block-boundary-early", ["shape=128"], ["shape=63", "shape=128,scales=one"]),
    ("nf4", "blocksize-64-fixed", ["shape=128,blocksize=32"], ["shape=128", "shape=96,blocksize=128"]),
    ("nf4", "blocksize-inferred", ["shape=65"], ["shape=128", "shape=127", "shape=64"]),
    ("nf4", "blocks-restart-at-rows", ["shape=2x96"], ["shape=2x64", "shape=1x96"]),
    ("nf4", "nested-absmax-skipped", ["shape=64,absmax=nested"], ["shape=64"]),
    (
        "nf4",
        "nested-first-group",
        ["shape=1x8256,blocksize=32,absmax=nested"],
        ["shape=1x8192,absmax=nested"],
    ),
    ("nf4", "scale-through-fp16", ["shape=64"], ["shape=64,scales=one"]),
    ("nf4", "codebook: bitsandbytes nf4", ["shape=64,codebook=rounded4"], ["shape=64"]),
    ("nf4", "lut-literal-1", ["shape=4x64,words=ramp"], ["shape=4x64,words=zeros", "shape=4x64,words=ones"]),
    ("llm_int8", "scale-by-column", ["shape=8x8"], ["shape=8x9", "shape=1x1", "shape=8x8,scales=one"]),
    ("llm_int8", "row-plus-one", ["shape=2x8"], ["shape=1x8", "shape=2x8,scales=one"]),
    ("gptq", "zero-plus-one-missing", ["zeros=v1,zp=mid", "zeros=v1-nowrap"], ["zeros=v2"]),
    ("gptq", "zero-plus-one-extra", ["zeros=v2,zp=mid"], ["zeros=v1"]),
    ("gptq", "zero-wrap-unmasked", ["zeros=v1,zp=maxq"], ["zeros=v1,zp=mid", "zeros=v1,zp=below(1)"]),
    ("gptq", "zero-wrap-masked", ["zeros=v1-nowrap,zp=maxq"], ["zeros=v1-nowrap,zp=below(1)"]),
    (
        "gptq",
        "zero-word-carry",
        ["zeros=v1,zp=ramp,N=32", "zeros=v1-nowrap,zp=maxq"],
        ["zeros=v1,zp=below(1)"],
    ),
    ("gptq", "zero-max-one", ["zeros=v2,zp=ramp"], ["zeros=v2,zp=mid"]),
    ("gptq", "zero-always-mid", ["zeros=v2,zp=ramp"], ["zeros=v2,zp=mid"]),
    ("gptq", "zeros-flat", ["zeros=v2,N=9,K=64,g=32"], ["zeros=v2,N=16", "zeros=v2,N=9,K=32"]),
    ("gptq", "zero-repack-smear", ["zeros=v2,zp=ramp"], ["zeros=v2,zp=mid", "zeros=v1-nowrap,zp=ramp"]),
    ("gptq", "zero-not-scaled", ["zeros=v2"], ["zeros=v2,scales=one"]),
    ("gptq", "scale-ignored", ["zeros=v2"], ["zeros=v2,scales=one"]),
    ("gptq", "sign-extend-top", ["words=ones", "bits=3,K=32,words=ones"], ["words=zeros"]),
    ("gptq", "sign-extend-top-zeros", ["zeros=v2,zp=maxq"], ["zeros=v1,zp=maxq", "zeros=v2,zp=below(1),N=1"]),
    ("gptq", "straddle-3bit-dropped", ["bits=3,K=32,words=ones"], ["words=ones", "bits=3,K=32,words=zeros"]),
    ("gptq", "straddle-3bit-signed", ["bits=3,K=32"], ["bits=3,K=32,words=ones", "bits=3,K=32,words=zeros"]),
    ("gptq", "codes-saturate-signed", ["words=ones"], ["words=zeros"]),
    ("gptq", "codes-plus-mid-saturate", ["words=zeros"], ["words=ones"]),
    ("gptq", "difference-borrows", ["zeros=v2,words=zeros"], ["words=ones", "bits=8", "zeros=v1,zp=maxq"]),
    ("gptq", "codes-strided", ["K=16"], ["K=8", "bits=3,K=32", "words=zeros"]),
    ("gptq", "pack-axis-swapped", ["K=32,N=32"], ["K=64,N=32", "K=33,N=33"]),
    ("gptq", "group-per-tile-32", ["g=16,K=32"], ["g=32", "g=64", "g=16,K=32,scales=one,zp=mid"]),
    ("gptq", "group-size-fixed-128", ["g=32,K=64"], ["g=32,K=32", "g=-1", "g=32,K=64,scales=one,zp=mid"]),
    ("gptq", "codes-of-first-group", ["g=32,K=64"], ["g=-1", "g=32,K=32"]),
    ("gptq", "group-size-minus-one-per-row", ["g=-1,K=2"], ["g=-1,K=1", "g=32"]),
    ("gptq", "group-size-minus-one-per-tile", ["g=-1,K=33"], ["g=-1,K=32", "g=32"]),
    ("gptq", "scales-transposed", ["g=8,K=32,N=4"], ["g=8,K=32,N=5", "g=8,K=32,N=4,scales=one"]),
    ("gptq", "g_idx-ignored", ["act=perm(1),g=16"], ["act=none,g=16", "act=sequential,g=16"]),
    ("gptq", "g_idx-scale-only", ["act=perm(1),g=16"], ["act=sequential,g=16", "act=perm(1),g=16,zp=mid"]),
    ("gptq", "g_idx-zero-only", ["act=perm(1),g=16"], ["act=perm(1),g=16,scales=one"]),
    ("gptq", "group-count-floor-previous", ["K=33,g=32"], ["K=64,g=32", "K=31,g=32"]),
    ("gptq", "group-size-inferred", ["K=33,g=32"], ["K=64,g=32", "K=59,g=20", "K=31,g=32"]),
    ("gptq", "hoist-zs", ["zeros=v2,zp=maxq", "sdtype=fp32"], ["scales=one"]),
    (
        "gptq",
        "scale-through-fp16",
        ["sdtype=fp32", "sdtype=bf16,scales=over(1)"],
        ["sdtype=fp16", "sdtype=fp32,scales=one"],
    ),
    ("gptq", "scale-through-bf16", ["sdtype=fp16"], ["sdtype=bf16", "scales=one"]),
    (
        "gptq",
        "scale-subnormals-flushed",
        ["scales=subnormal(1)"],
        ["scales=ordinary(1)", "sdtype=bf16,scales=subnormal(1)"],
    ),
    ("gptq", "product-through-bf16", ["out=fp16"], ["out=bf16"]),
    ("gptq", "through-fp16", ["out=bf16,scales=over(1),sdtype=bf16", "out=fp32,sdtype=fp32"], ["out=fp16"]),
    ("gptq", "bf16-truncate", ["out=bf16"], ["out=fp32", "out=fp16"]),
    (
        "gptq",
        "fp16-saturate",
        ["out=fp16,scales=inf(1)", "out=fp16,scales=huge(1)"],
        ["out=fp16", "scales=huge(1)"],
    ),
    ("awq_cols", "awq-order-linear", [""], ["words=zeros,zp=mid"]),
    ("awq_cols", "zeros-order-linear", [""], ["zp=mid"]),
    ("awq_cols", "codes-order-linear", [""], ["words=zeros"]),
    ("awq_cols", "zero-minus-one-clamped", ["zp=mid"], []),
    ("awq_cols", "difference-borrows", ["words=zeros"], ["words=ones"]),
    ("awq_rows", "zeros-flat", ["g=32,K=64,N=8"], ["g=32,K=64,N=1", "g=32,K=64,zp=mid,N=1"]),
    ("awq_rows", "difference-borrows", ["words=zeros"], ["words=ones"]),
    ("awq_quads", "quads-outputs-in-turn", [""], ["words=zeros"]),
    ("awq_quads", "scaled-zero-as-integer", [""], ["scales=one"]),
    ("int8_affine", "zero-ignored", ["zero=same"], ["zero=none", "zero=same,codes=uint8,zp=lowest"]),
    (
        "int8_affine",
        "zero-other-signedness",
        ["zero=same"],
        ["zero=int32", "zero=none", "zero=same,zp=highest"],
    ),
    ("int8_affine", "zero-of-first-place", ["zero=same"], ["zero=same,per=tensor", "zero=same,zp=mid"]),
    ("int8_affine", "zero-absent-as-mid", ["codes=uint8"], ["codes=int8", "codes=uint8,zero=same"]),
    ("int8_affine", "codes-saturate-signed", ["codes=uint8"], ["codes=int8", "codes=uint8,words=zeros"]),
    (
        "int8_affine",
        "scale-wrong-axis",
        ["shape=8x8"],
        ["shape=8x9", "shape=8x8,scales=one", "per=tensor,shape=8x8"],
    ),
    ("int8_affine", "group-of-tile-16", ["per=group,g=8"], ["per=group,g=16", "per=group,g=32,shape=3x64"]),
    (
        "int8_affine",
        "groups-over-flat-weight",
        ["per=group,g=16,shape=2x33"],
        ["per=group,g=16", "per=group,shape=1x33"],
    ),
    (
        "int8_affine",
        "group-scales-transposed",
        ["per=group,g=16"],
        ["per=group,g=32", "per=group,g=16,shape=1x32"],
    ),
    ("int8_affine", "tail-group-zero", ["per=group,g=16,shape=2x33"], ["per=group,g=16"]),
    (
        "int8_affine",
        "group-size-inferred",
        ["per=group,g=32,shape=2x33"],
        ["per=group", "per=group,g=20,shape=2x59"],
    ),
    (
        "int8_affine",
        "zero-times-scale-hoisted",
        ["zero=same,sdtype=fp32", "shape=1x1,zero=same,words=zeros,zp=mid,scales=negative(1),sdtype=fp32"],
        ["zero=same,sdtype=bf16"],
    ),
    ("int8_affine", "scale-reciprocal", [""], ["scales=one"]),
    (
        "int8_affine",
        "product-in-scale-dtype",
        ["sdtype=bf16,out=fp32"],
        ["sdtype=fp16,out=fp16", "sdtype=fp32"],
    ),
    ("squeezellm", "table-of-row", ["N=32"], ["N=17"]),
    ("squeezellm", "sparse-dropped", ["sparse=few(1)"], ["sparse=none"]),
    ("squeezellm", "full-rows-along-columns", ["N=32,full=3"], ["N=17,full=3", "N=32"]),
    (
        "squeezellm",
        "sparse-after-rounding",
        ["sparse=few(1),out=bf16,N=17"],
        ["sparse=few(1),out=fp32", "out=bf16"],
    ),
    (
        "squeezellm",
        "straddle-signed-shift",
        ["bits=3"],
        ["bits=4", "bits=3,words=ones", "bits=3,words=zeros"],
    ),
    ("squeezellm", "straddle-carry-dropped", ["bits=3,words=ones"], ["bits=3,words=zeros", "words=ones"]),
    ("squeezellm", "sign-extend-top", ["words=ones"], ["words=zeros", "bits=3,words=ones"]),
]


def shown(name: str, fault: str, fields: str) -> bool:
    """Whether the output of the case changes; float32 unless the case says otherwise."""
    fmt = FORMATS[name]
    case = fmt.parse(fields)
    case = case if "out=" in fields else case.replace(out="fp32")
    weight, dtype = fmt.words(case), DTYPES[case["out"]]
    model = fmt.unpack(weight)
    bits = next(f for f in fmt.faults if f.name == fault).decode(Context(weight, model, dtype))
    return bits is not None and bool((bits != round_to(model.values(), dtype)).any())


@pytest.mark.parametrize(
    ("name", "fault", "shows", "hides"), TRIGGERS, ids=[f"{n}-{f}" for n, f, _, _ in TRIGGERS]
)
def test_trigger(name: str, fault: str, shows: list[str], hides: list[str]):
    assert [fields for fields in shows if not shown(name, fault, fields)] == []
    assert [fields for fields in hides if shown(name, fault, fields)] == []
