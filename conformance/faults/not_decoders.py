"""Faults that are no wrong decoder: they depend on memory, devices or packers, not on the packed words."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class NotDecoder:
    """A fault without a decoder.

    Attributes:
        name: id, distinct from those of the decoders.
        arithmetic: what is done instead.
        trigger: the least input or machine that shows it, and where it hides.
        verdicts: what the harness says of a kernel that has it; empty where it cannot tell.
        check: which check that is, or what to use instead.
        links: real occurrences.
    """

    name: str
    arithmetic: str
    trigger: str
    verdicts: tuple[str, ...]
    check: str
    links: tuple[str, ...] = ()


NOT_DECODERS = (
    NotDecoder(
        "stride-ignored",
        "pointers assume contiguous memory: w[:, ::2], w.t() and views read what lies between",
        "a strided input with two elements; hides in contiguous tensors",
        ("MISMATCH", "NONFINITE_CLASS"),
        "cases with layout=strided, padded or transposed: the gaps are poison",
        (
            "https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1859",
            "https://github.com/tracel-ai/burn/issues/4491",
        ),
    ),
    NotDecoder(
        "output-stride-ignored",
        "the output is written as if it were contiguous",
        "a strided out; hides where the kernel allocates",
        ("OOB_WRITE",),
        "cases with dest=strided, padded or transposed: the bytes between the elements are compared",
    ),
    NotDecoder(
        "store-mask-missing",
        "the last tile stores past the end",
        "N % BLOCK_N != 0, or fewer elements than one store; hides in whole tiles",
        ("OOB_WRITE",),
        "the fence around the output is compared with its snapshot",
        (
            "https://github.com/vllm-project/vllm/pull/13227",
            "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2042",
        ),
    ),
    NotDecoder(
        "tail-not-stored",
        "the grid or the mask ends early: the last columns, or half of them, are never written",
        "N % BLOCK_N != 0, or a grid made for another tile; hides where old memory holds the right answer",
        ("UNWRITTEN",),
        "the output is poisoned, with another payload in each run",
        (
            "https://github.com/Avarok-Cybersecurity/atlas/pull/474",
            "https://github.com/ikawrakow/ik_llama.cpp/pull/170",
        ),
    ),
    NotDecoder(
        "return-after-first-block",
        "a return inside of the loop over blocks",
        "two blocks; hides in a weight of one block",
        ("UNWRITTEN",),
        "the output is poisoned, with another payload in each run",
        (
            "https://github.com/1bit-MONSTER/1bit-MONSTER/issues/734",
            "https://github.com/1bit-MONSTER/1bit-MONSTER/issues/483",
        ),
    ),
    NotDecoder(
        "output-accumulated",
        "the kernel adds to the output: split-K without a reset, every trial of an autotuner",
        "an output that does not begin as 0; hides where the caller zeroes it, and from the second call on",
        ("UNWRITTEN", "NONFINITE_CLASS"),
        "the output begins as NaN, and a sum with NaN stays NaN",
        (
            "https://github.com/triton-lang/triton/issues/2183",
            "https://github.com/IBM/triton-dejavu/issues/1",
        ),
    ),
    NotDecoder(
        "race",
        "programs write the same element, or read what another has not written yet",
        "depends on timing; hides in the interpreter, which runs one program after the other",
        ("NONDETERMINISTIC",),
        "two runs are compared",
    ),
    NotDecoder(
        "input-written",
        "the kernel changes its input, such as qzeros += 1 in place",
        "any call; hides where the weight is used once",
        ("INPUT_MUTATED",),
        "the inputs are compared with their snapshot",
    ),
    NotDecoder(
        "result-in-fp16",
        "the result is float16 whatever dtype was asked for",
        "bf16 or fp32 output",
        ("MISMATCH",),
        "dtype of the result; with an out of the right dtype it is through-fp16",
        (
            "https://github.com/casper-hansen/AutoAWQ/pull/740",
            "https://github.com/pytorch/ao/issues/4614",
        ),
    ),
    NotDecoder(
        "device-guard-missing",
        "the kernel is launched on the current device, the tensors are on another",
        "two GPUs, current device 0, tensors on 1; hides on every machine with one GPU",
        ("CRASH_LAUNCH", "MISMATCH", "NONDETERMINISTIC"),
        "--device cuda:1 on a machine with two GPUs: the current device stays 0",
        (
            "https://github.com/unslothai/unsloth/issues/6831",
            "https://github.com/fpgaminer/GPTQ-triton/issues/20",
            "https://github.com/casper-hansen/AutoAWQ/issues/662",
        ),
    ),
    NotDecoder(
        "packer-no-clamp",
        "round(w / s) + z of -1 or 2**bits is packed unmasked: it carries into the next field or wraps",
        "a weight at the extreme of its group, with rounding drift",
        (),
        "not seen: route pack keeps float weights within reach of the codes, since AutoGPTQ does not clamp",
        (
            "https://github.com/ModelCloud/GPTQModel/pull/2963",
            "https://github.com/intel/auto-round/pull/2273",
        ),
    ),
    NotDecoder(
        "packer-omits-zero",
        "a packer clamps round(w / s) without the zero",
        "an asymmetric weight",
        ("SPLIT",),
        "route pack: the values are further from the floats than the bound",
        ("https://github.com/intel/neural-compressor/pull/1611",),
    ),
    NotDecoder(
        "int32-offset",
        "row * stride in 32 bits wraps",
        "2**31 elements, or fewer with large strides: the last rows are wrong, or the device faults",
        (),
        "not seen: cases are small. Read the pointer arithmetic: widen to int64 before the product",
        (
            "https://github.com/unslothai/unsloth/issues/6830",
            "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1782",
            "https://github.com/kohya-ss/musubi-tuner/pull/1063",
            "https://github.com/vllm-project/vllm/pull/34279",
        ),
    ),
    NotDecoder(
        "over-read",
        "an unmasked load past the end whose value is not used, since the scale is masked to 0",
        "K % BLOCK_K != 0; no value differs; on a GPU it faults where the tensor ends its page",
        ("OOB_READ",),
        "the interpreter's loads are held against the inputs; on a GPU compute-sanitizer does that",
        (
            "https://github.com/vllm-project/vllm/issues/52576",
            "https://github.com/triton-lang/triton/issues/10336",
        ),
    ),
    NotDecoder(
        "g_idx-unchecked",
        "g_idx of a file is used without a check of its range",
        "a damaged file: a negative index wraps, one of G or more reads past the scales",
        (),
        "not seen: every case has a legal g_idx. weight.validate(deep=True) refuses such a file",
        ("https://github.com/ModelCloud/GPTQModel/issues/2949",),
    ),
    NotDecoder(
        "stale-compilation-cache",
        "the compiled kernel still has the table from before an edit",
        "a global constexpr table that was edited while the cache stayed",
        (),
        "not seen as such: the old table shows. Run with a fresh TRITON_CACHE_DIR",
        (
            "https://github.com/triton-lang/triton/issues/7322",
            "https://github.com/triton-lang/triton/pull/7332",
        ),
    ),
)
