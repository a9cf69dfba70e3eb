"""Metadata against tensors: what agrees, what contradicts, what a file that lies is told."""

from __future__ import annotations

import json

import pytest
import torch

from conformance.cli import main
from conformance.detect import detect
from tests import checkpoints as make

AWQ = {"quant_method": "awq", "bits": 4, "group_size": make.GROUP, "zero_point": True, "version": "gemm"}
BNB = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": False,
}


def report(tmp_path, tensors, config):
    found = detect(make.save(tmp_path, {"layer": tensors}, config))
    return found.report(found.find("layer"))


@pytest.mark.parametrize(
    ("packer", "convention", "stated", "zeros"),
    [
        ("autogptq", "v2", "gptq", "v1"),
        ("gptqmodel", "v1", "gptq", "v1"),
        ("gptqmodel", "v2", "gptq_v2", "v2"),
        ("autogptq", "v2", None, "v1"),
    ],
)
@pytest.mark.parametrize("sym", [False, True], ids=["asym", "sym"])
def test_metadata_settles_the_convention(tmp_path, packer, convention, stated, zeros, sym):
    tensors = make.gptq(make.floats(), packer=packer, convention=convention, sym=sym)
    found = report(tmp_path, tensors, make.gptq_config(checkpoint_format=stated, sym=sym))
    assert found.status == "ok", (found.contradictions, found.undecidable)
    assert [reading.zeros for reading in found.chosen] == [zeros]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bits": 8}, "config.json: quantization_config.bits: 8, but the tensors admit bits 4 only"),
        ({"group_size": 64}, "group_size: 64, but the tensors admit group_size 32 only"),
        ({"group_size": -1}, "group_size: -1, but the tensors admit group_size 32 only"),
        ({"quant_method": "awq"}, "quant_method: 'awq', but the tensors are gptq"),
        ({"quant_method": None, "version": "gemm"}, "its fields are those of awq, but the tensors are gptq"),
        ({"sym": True}, "sym: True means stored zeros of 7 (v1) or 8 (v2) at 4 bit, but qzeros has"),
        ({"checkpoint_format": "marlin"}, "'marlin' has no reading here"),
        ({"modules_to_not_convert": ["layer"]}, "names 'layer' as not quantized"),
        ({"dynamic": {"-:lay": {}}}, "dynamic['-:lay']: expected a layer that is not quantized"),
        ({"dynamic": {"+:.*": {"bits": 3}}}, "dynamic['+:.*'].bits: 3, but the tensors admit bits 4 only"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_gptq_lies(tmp_path, changes, text):
    found = report(tmp_path, make.gptq(make.floats()), make.gptq_config(**changes))
    assert found.status == "contradiction"
    assert any(text in sentence for sentence in found.contradictions), found.contradictions
    assert main(["detect", str(tmp_path)]) == 1


def test_dynamic_overrides_a_layer(tmp_path):
    layers = {"a": make.gptq(make.floats()), "b": make.gptq(make.floats(), 8)}
    dynamic = {"b": {"bits": 8}, "+:.*": {"bits": 4}}
    found = detect(make.save(tmp_path, layers, make.gptq_config(bits=2, dynamic=dynamic)))
    assert [report.status for report in found.reports()] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("packer", "stated", "text"),
    [
        ("gptqmodel", "gptq", "every stored zero 8 make it v2: read as v1, the zero of 8 becomes 9"),
        ("gptqmodel", None, "checkpoint_format missing, which means 'gptq'"),
        ("autogptq", "gptq_v2", "every stored zero 7 make it v1: read as v2, the zero of 8 becomes 7"),
    ],
)
def test_checkpoint_format_lies_where_sym_decides(tmp_path, packer, stated, text):
    """https://github.com/vllm-project/vllm/pull/38966: every weight off by one scale."""
    tensors = make.gptq(make.floats(), packer=packer, sym=True)
    found = report(tmp_path, tensors, make.gptq_config(checkpoint_format=stated, sym=True))
    assert any(text in sentence for sentence in found.contradictions), found.contradictions
    assert [r.zeros for r in found.chosen] == ["v2" if packer == "gptqmodel" else "v1"]


def test_checkpoint_format_lies_are_a_hint_where_zeros_are_arbitrary(tmp_path):
    tensors = make.gptq(make.floats(), packer="gptqmodel")
    found = report(tmp_path, tensors, make.gptq_config(checkpoint_format="gptq"))
    assert not found.failed
    assert any("no proof" in text and text.endswith("looks like v2") for text in found.hints)


@pytest.mark.parametrize("kind", ["permuted", "unequal"])
def test_desc_act_lies(tmp_path, kind):
    tensors = make.gptq(make.floats(), g_idx=make.order(make.ROWS, make.GROUP))
    if kind == "unequal":
        tensors["g_idx"] = torch.arange(make.ROWS, dtype=torch.int32) % 3
    found = report(tmp_path, tensors, make.gptq_config(desc_act=False))
    assert f"desc_act: False, but g_idx is {kind}" in found.contradictions[0]


def test_desc_act_needs_g_idx(tmp_path):
    tensors = make.gptq(make.floats())
    sequential = report(tmp_path / "a", tensors, make.gptq_config(desc_act=True))
    assert not sequential.failed
    del tensors["g_idx"]
    found = report(tmp_path / "b", tensors, make.gptq_config(desc_act=True))
    assert found.contradictions[0].endswith("desc_act: True, but the layer has no g_idx")


@pytest.mark.parametrize("layout", ["awq_cols", "awq_rows", "awq_quads"])
def test_awq_versions(tmp_path, layout):
    tensors = make.awq(make.floats(512), layout)
    for version in ("gemm", "gemv", "gemv_fast"):
        found = report(tmp_path, tensors, {**AWQ, "version": version})
        if make.AWQ_VERSIONS[layout] == version:
            assert found.status == "ok"
        else:
            assert f"version: {version!r}, but the tensors are {layout}" in found.contradictions[0]
    # GPTQModel names the version in its checkpoint_format.
    config = {k: v for k, v in AWQ.items() if k != "version"} | {"checkpoint_format": "gemv_fast"}
    assert report(tmp_path, tensors, config).failed == (layout != "awq_quads")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group_size": 128}, "group_size: 128, but the tensors admit group_size 32 only"),
        ({"bits": 3}, "bits: 3, but the tensors admit bits 4 only"),
        ({"zero_point": False}, "zero_point: False, but qzeros has"),
        ({"quant_method": "gptq"}, "quant_method: 'gptq', but the tensors are awq_cols"),
    ],
    ids=["group_size", "bits", "zero_point", "quant_method"],
)
def test_awq_lies(tmp_path, changes, text):
    found = report(tmp_path, make.awq(make.floats(), "awq_cols"), {**AWQ, **changes})
    assert any(text in sentence for sentence in found.contradictions), found.contradictions


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, ""),
        ({"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type: 'fp4', but the quantization state is nf4"),
        ({"bnb_4bit_use_double_quant": True}, "bnb_4bit_use_double_quant: True, but absmax is plain float32"),
        ({"load_in_8bit": True}, "load_in_8bit: True, but the tensors are nf4"),
        ({"load_in_4bit": False}, "load_in_4bit: False, but the tensors are nf4"),
    ],
    ids=["true", "quant_type", "double_quant", "8bit", "4bit"],
)
def test_bitsandbytes_config(tmp_path, changes, text):
    found = report(tmp_path, make.blockwise(make.floats(), "nf4"), {**BNB, **changes})
    assert found.failed == bool(text)
    assert not text or any(text in sentence for sentence in found.contradictions)


def test_llm_int8_config(tmp_path):
    tensors = make.int8(make.floats())
    assert report(tmp_path, tensors, {**BNB, "load_in_4bit": False, "load_in_8bit": True}).status == "ok"
    assert len(report(tmp_path, tensors, BNB).contradictions) == 2


def test_older_files_of_metadata(tmp_path):
    """AutoGPTQ wrote quantize_config.json, AutoAWQ quant_config.json with its own names."""
    folder = make.save(tmp_path / "gptq", {"layer": make.gptq(make.floats())})
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 8, "group_size": 32, "desc_act": False}))
    found = detect(folder)
    assert "quantize_config.json: bits: 8" in found.report(found.find("layer")).contradictions[0]
    folder = make.save(tmp_path / "awq", {"layer": make.awq(make.floats(), "awq_cols")})
    old = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
    (folder / "quant_config.json").write_text(json.dumps(old))
    found = detect(folder)
    assert "q_group_size: 64" in found.report(found.find("layer")).contradictions[0]


def test_two_files_that_differ(tmp_path):
    folder = make.save(tmp_path, {"layer": make.gptq(make.floats())}, make.gptq_config())
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 64}))
    [text] = detect(folder).contradictions
    assert text.startswith(
        "quantize_config.json: group_size: expected 32 as config.json: quantization_config."
    )
    assert main(["detect", str(folder)]) == 1


def test_quantized_layers_without_quantization_config_and_the_reverse(tmp_path, capsys):
    folder = make.save(tmp_path / "a", {"layer": make.gptq(make.floats())})
    (folder / "config.json").write_text('{"model_type": "bert"}')
    assert "expected quantization_config, as 1 layers are quantized" in detect(folder).contradictions[0]
    folder = make.save(tmp_path / "b", {"layer": {"weight": torch.ones(4, 4)}}, make.gptq_config())
    assert main(["detect", str(folder)]) == 1
    assert "but no layer is quantized" in capsys.readouterr().out


def test_config_option_gives_a_single_file_its_metadata(tmp_path, capsys):
    folder = make.save(tmp_path, {"layer": make.gptq(make.floats())}, make.gptq_config(bits=8))
    file = str(folder / "model.safetensors")
    assert main(["detect", file]) == 0
    assert "no metadata was read" in capsys.readouterr().out
    assert main(["detect", file, "--config", str(folder / "config.json")]) == 1
