"""A new format is a kernel, a model and a registration: everything else follows from those three."""

import sys
import textwrap

import pytest
import torch

import conformance.formats
from conformance.harness import Harness
from conformance.known_faults import BUILTIN, load
from conformance.registry import builtin_kernel, formats, parse_case
from conformance.running import run_drawn
from conformance.runtime import Runtime
from conformance.strategies import cases

REGISTRATION = """
    import dataclasses

    import numpy as np
    import torch

    from conformance.dims import Patterned, Shape
    from conformance.patterns import WORD_PATTERNS, Pattern, word_bytes
    from conformance.registry import Format
    from kernels._packed import PackedWeight, expect_tensor


    @dataclasses.dataclass(frozen=True)
    class ToyWeight(PackedWeight):
        codes: torch.Tensor

        @property
        def output_shape(self):
            return tuple(self.codes.shape)

        def validate(self, *, deep=False):
            expect_tensor("codes", self.codes, dtype=torch.uint8)


    def dequantize(weight, *, dtype, out=None):
        result = (weight.codes.float() - 128).to(dtype)
        return result if out is None else out.copy_(result)


    @dataclasses.dataclass(frozen=True)
    class ToyModel:
        codes: np.ndarray

        def values(self):
            return (self.codes.astype(np.int64) - 128).astype(np.float32)

        def steps(self):
            return np.ones(self.codes.shape)


    def words(case):
        data = word_bytes(case["words"], int(np.prod(case["shape"])))
        return ToyWeight(torch.from_numpy(data).reshape(case["shape"]))


    FORMATS = (
        Format(
            name="toyformat",
            summary="codes minus 128",
            weight_type=ToyWeight,
            kernel=dequantize,
            oracles=(),
            unpack=lambda weight: ToyModel(weight.codes.numpy()),
            dims=(Shape("shape", (2, 8)), Patterned("words", Pattern("random", 0), known=WORD_PATTERNS)),
            words=words,
            pack=None,
            pack_real=None,
            locate=lambda weight, index: f"code {int(weight.codes[index])}",
            tiles={"case": {}, "small": {}, "default": {}},
        ),
    )
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy format, registered by one file in a folder of its own."""
    (tmp_path / "toyformat.py").write_text(textwrap.dedent(REGISTRATION), encoding="utf-8")
    monkeypatch.setattr(conformance.formats, "__path__", [*conformance.formats.__path__, str(tmp_path)])
    yield formats()["toyformat"]
    sys.modules.pop("conformance.formats.toyformat", None)


def test_registration_is_all_it_takes(toy):
    case = parse_case("toyformat:shape=3x5,words=ramp,out=bf16,layout=strided")
    assert parse_case(case.id) == case
    harness = Harness(
        runtime=Runtime(torch.device("cpu"), True),
        formats={"toyformat": toy},
        kernels={"toyformat": builtin_kernel(toy)},
        known_faults=load(BUILTIN),
    )
    assert harness.judge(case).verdict.kind == "EXACT"
    run_drawn(harness, "toy", cases(toy, out="fp16", route="words"))
