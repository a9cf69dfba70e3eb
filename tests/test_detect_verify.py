"""Real layers from a checkpoint file: detected, built under the detected reading, verified."""

from __future__ import annotations

import json

import pytest
import torch

from conformance import realmodel
from conformance.cli import main
from conformance.detect import detect, load_layer
from oracles.spec import gptq as spec_gptq
from tests import awq_weights
from tests import checkpoints as make

pytestmark = pytest.mark.interpreter

LAYERS = (
    "encoder.layer.0.attention.self.query.weight",
    "encoder.layer.3.intermediate.dense.weight",
)
AWQ_CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}


@pytest.fixture(scope="module")
def real() -> dict[str, torch.Tensor]:
    """A few linear layers [K, N] of the packaged model."""
    path = realmodel.packaged_file()
    if path is None:
        pytest.skip(f"the package {realmodel.PACKAGE} is not installed")
    # The first 192 outputs are enough for layers that are not square, and quick in the interpreter.
    return {
        name.removesuffix(".weight"): realmodel.load_layer(path, name)[:192].t().contiguous()
        for name in LAYERS
    }


def verified(folder, capsys, *options: str) -> str:
    """Output of ``verify``, which must pass."""
    capsys.readouterr()
    assert main(["verify", str(folder), "--device", "cpu", *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("act_order", [False, True], ids=["sequential", "act-order"])
@pytest.mark.parametrize(
    ("packer", "stated", "sym"),
    [("autogptq", "gptq", True), ("gptqmodel", "gptq_v2", False), ("gptqmodel", "gptq_v2", True)],
)
def test_real_layers_packed_by_gptq_libraries(tmp_path, real, capsys, packer, stated, sym, act_order):
    layers = {}
    for name, values in real.items():
        g_idx = make.order(values.shape[0], 64) if act_order else None
        layers[name] = make.gptq(values, group_size=64, g_idx=g_idx, sym=sym, packer=packer)
    config = make.gptq_config(group_size=64, desc_act=act_order, sym=sym, checkpoint_format=stated)
    folder = make.save(tmp_path, layers, config, shards=2)
    found = detect(folder)
    for report in found.reports():
        assert report.status == "ok", (report.contradictions, report.undecidable)
        assert report.evidence["g_idx"]["order"] == ("permuted" if act_order else "sequential")
        [reading] = report.chosen
        assert reading.zeros == ("v1" if stated == "gptq" else "v2")
        weight = load_layer(folder, report.layer)
        scales = weight.scales[weight.g_idx.long()].float()
        values = torch.from_numpy(spec_gptq.unpack(weight).values()).float()
        error = (values - real[report.layer]).abs()
        assert bool((error <= scales.abs() * 1.5).all()), "decoded to another weight than was packed"
    assert main(["detect", str(folder)]) == 0
    out = verified(folder, capsys)
    assert out.count("EXACT") + out.count("KNOWN_FAULT") == len(real)
    assert "gptqmodel" in out


@pytest.mark.parametrize("layout", list(make.AWQ_PACKERS))
def test_real_layers_packed_by_autoawq(tmp_path, real, capsys, layout):
    layers = {name: make.awq(values, layout, group_size=64) for name, values in real.items()}
    folder = make.save(tmp_path, layers, {**AWQ_CONFIG, "version": make.AWQ_VERSIONS[layout]})
    for report in detect(folder).reports():
        assert report.status == "ok", (report.contradictions, report.undecidable)
        [reading] = report.chosen
        assert (reading.format, reading.group_size) == (layout, 64)
        weight = load_layer(folder, report.layer)
        values = torch.from_numpy(awq_weights.unpack(weight).values()).float()
        values = values if layout == "awq_cols" else values.t()
        error = (values - real[report.layer]).abs()
        assert float(error.max()) < 0.1, "decoded to another weight than was packed"
    assert verified(folder, capsys, "--out", "fp32").count("EXACT") == len(real)


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
def test_real_layers_packed_by_bitsandbytes(tmp_path, real, capsys, kind):
    config = {"quant_method": "bitsandbytes", "load_in_4bit": kind != "int8", "load_in_8bit": kind == "int8"}
    if kind == "int8":
        layers = {name: make.int8(values) for name, values in real.items()}
    else:
        config |= {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": True}
        layers = {name: make.blockwise(values, kind, nested=True) for name, values in real.items()}
    folder = make.save(tmp_path, layers, config)
    assert main(["detect", str(folder)]) == 0
    out = verified(folder, capsys)
    assert out.count("EXACT") + out.count("KNOWN_FAULT") == len(real)


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_other_widths_are_verified_under_every_reading_left(tmp_path, capsys, bits):
    folder = make.save(tmp_path, {"layer": make.gptq(make.floats(), bits)})
    out = verified(folder / "model.safetensors", capsys)
    assert out.count("EXACT") == 2
    assert f"gptq {bits} bit, group 32, zeros v1" in out
    assert f"gptq {bits} bit, group 32, zeros v2" in out


def test_a_wrong_kernel_fails(tmp_path, capsys):
    file = tmp_path / "wrong.py"
    file.write_text(
        "import torch\n"
        "from kernels.nf4 import dequantize as right\n"
        "def dequantize(weight, *, dtype, out=None):\n"
        "    result = right(weight, dtype=dtype, out=out)\n"
        "    result.reshape(-1)[0] = 7\n"
        "    return result\n"
    )
    folder = make.save(tmp_path / "c", {"layer": make.blockwise(make.floats(), "nf4")})
    path = str(folder / "model.safetensors")
    kernel = f"nf4={file}:dequantize"
    assert main(["verify", path, "--device", "cpu", "--kernel", kernel]) == 1
    assert "kernel is wrong" in capsys.readouterr().out


def test_a_damaged_layer_fails_and_nothing_to_judge_is_an_error(tmp_path, capsys):
    tensors = make.gptq(make.floats())
    tensors["g_idx"][3] = 99
    folder = make.save(tmp_path / "a", {"layer": tensors}, make.gptq_config())
    assert main(["verify", str(folder), "--device", "cpu"]) == 1
    assert "DAMAGED" in capsys.readouterr().out
    folder = make.save(tmp_path / "b", {"layer": {"weight": torch.ones(4, 4)}})
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert main(["verify", str(folder), "--device", "cpu"]) == 2
    assert "expected a layer that a kernel here decodes" in capsys.readouterr().err
    assert main(["verify", str(folder), "--device", "cpu", "--layer", "x"]) == 2


def test_stored_maxq_is_verified_by_both_v1_readings(tmp_path, capsys):
    tensors = make.gptq(make.floats())
    tensors["qzeros"][0, 0] |= 0xF
    out = verified(make.save(tmp_path, {"layer": tensors}, make.gptq_config()), capsys)
    assert "zeros v1-nowrap" in out
