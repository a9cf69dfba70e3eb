"""Damaged layers and files: one sentence that names field, expected and found; never a traceback."""

from __future__ import annotations

import json
import struct

import pytest
import torch

from conformance.cli import main
from conformance.detect import detect
from tests import checkpoints as make


def damage(tmp_path, tensors) -> list[str]:
    folder = make.save(tmp_path, {"layer": tensors})
    found = detect(folder / "model.safetensors")
    assert main(["detect", str(folder / "model.safetensors"), "--json", "-"]) == 1
    return found.report(found.find("layer")).damage


def gptq(**changes) -> dict[str, torch.Tensor]:
    return {name: t for name, t in {**make.gptq(make.floats()), **changes}.items() if t is not None}


def group_with(row: int, value: int) -> torch.Tensor:
    g_idx = make.sequential(make.ROWS, make.GROUP)
    g_idx[row] = value
    return g_idx


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"g_idx": group_with(5, 4)}, "g_idx: expected 0 <= group < 4, found 4 at row 5"),
        ({"g_idx": group_with(7, -1)}, "g_idx: expected 0 <= group < 4, found -1 at row 7"),
        (
            {"g_idx": make.sequential(64, 32)},
            "g_idx: expected 121 to 128 rows, as qweight [16, 64] holds at 4 bit, found 64 (read as gptq 4",
        ),
        ({"g_idx": make.sequential(128, 32).long()}, "g_idx: expected dtype int32, found int64"),
        (
            {"g_idx": torch.zeros(128, 1, dtype=torch.int32)},
            "g_idx: expected 1 dimension, found shape [128, 1]",
        ),
        (
            {"scales": torch.ones(64, 4).half()},
            "scales: expected shape [4, 64], found [64, 4], which is transposed",
        ),
        ({"scales": torch.ones(0, 64).half()}, "scales: expected shape [4, 64], found [0, 64]"),
        ({"scales": None}, "scales: expected beside g_idx, qweight, qzeros, found none"),
        (
            {"scales": torch.ones(4, 64, dtype=torch.int32)},
            "scales: expected dtype one of float32, float16, bfloat16",
        ),
        ({"qzeros": None}, "qzeros: expected beside g_idx, qweight, scales, found none"),
        (
            {"qzeros": torch.zeros(8, 4, dtype=torch.int32)},
            "qzeros: expected shape [8, 8], found [8, 4]",
        ),
        ({"qweight": torch.zeros(16, 64, dtype=torch.int64)}, "qweight: expected dtype int32, found int64"),
    ],
    ids=[
        "group too large",
        "group negative",
        "g_idx too short",
        "g_idx of int64",
        "g_idx of 2 dimensions",
        "scales transposed",
        "no groups",
        "scales missing",
        "scales of int32",
        "qzeros missing",
        "qzeros transposed",
        "qweight of int64",
    ],
)
def test_gptq_damage(tmp_path, changes, text):
    found = damage(tmp_path, gptq(**changes))
    assert any(text in sentence for sentence in found), found


def test_transposed_scales_of_a_square_layer(tmp_path):
    """K = N: decided by the shape as long as there are not as many groups as columns."""
    tensors = make.gptq(make.floats(128, 128))
    found = damage(tmp_path / "gptq", {**tensors, "scales": tensors["scales"].t()})
    assert "which is transposed" in found[0]
    tensors = make.awq(make.floats(128, 128), "awq_cols")
    found = damage(tmp_path / "awq", {**tensors, "scales": tensors["scales"].t()})
    assert found == [
        "scales: expected shape [4, 128], found [128, 4], which is transposed (read as awq_cols)"
    ]


def state_blob(**changes) -> torch.Tensor:
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [64, 128], "dtype": "float16", **changes}
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


NAME = "weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({NAME: None}, "expected one quantization state, found none"),
        ({NAME: torch.tensor([123, 1], dtype=torch.uint8)}, f"{NAME}: expected JSON, found"),
        (
            {NAME: state_blob(quant_type="fp4")},
            f"{NAME}: expected quant_type 'nf4' as it is named, found 'fp4'",
        ),
        ({NAME: state_blob(blocksize=128)}, "weight.absmax: expected shape [64], found [128]"),
        ({NAME: state_blob(blocksize=48)}, "expected blocksize one of (32, 64, 128"),
        ({NAME: state_blob(blocksize="64")}, "expected blocksize of type int, found '64'"),
        (
            {NAME: state_blob(shape=[64, 64])},
            "weight: expected 2048 bytes for shape [64, 64] of quant_state, found 4096",
        ),
        (
            {"weight.absmax": torch.zeros(128, dtype=torch.uint8)},
            "weight.absmax: expected dtype float32, found uint8",
        ),
        ({"weight.quant_map": torch.zeros(15)}, "weight.quant_map: expected shape [16], found [15]"),
        ({"weight": None}, "weight: expected beside"),
    ],
)
def test_bitsandbytes_damage(tmp_path, changes, text):
    tensors = {**make.blockwise(make.floats(), "nf4"), **changes}
    found = damage(tmp_path, {name: t for name, t in tensors.items() if t is not None})
    assert any(text in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"SCB": torch.ones(63)}, "SCB: expected shape [64], found [63]"),
        ({"weight": torch.ones(64, 128)}, "weight: expected int8 of 2 dimensions, found float32 [64, 128]"),
        (
            {"weight_format": torch.tensor(2, dtype=torch.uint8)},
            "weight_format: expected 0 (rows), found [2]",
        ),
    ],
)
def test_llm_int8_damage(tmp_path, changes, text):
    assert any(text in sentence for sentence in damage(tmp_path, {**make.int8(make.floats()), **changes}))


def failure(capsys, *arguments: str) -> str:
    """The one sentence of a usage error."""
    capsys.readouterr()
    assert main(["detect", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_files_that_are_none(tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    assert "found nothing at" in failure(capsys, str(file))
    for content, text in (
        (b"", "found 0 bytes"),
        (b"PK\x03\x04 a zip file, that is a torch checkpoint", "foreign"),
        (struct.pack("<Q", 64) + b"{", "expected a header of 64 bytes, found 1: truncated"),
        (struct.pack("<Q", 4) + b"\x00\xff\x00\x00", "expected a JSON header, found another kind of file"),
        (struct.pack("<Q", 2) + b"[]", "expected a JSON object as header, found a list"),
        (struct.pack("<Q", 13) + b'{"a": {"b":1}', "expected a JSON header"),
        (struct.pack("<Q", 14) + b'{"a": {"b":1}}', "expected dtype, shape and data_offsets of 'a'"),
    ):
        file.write_bytes(content)
        assert text in failure(capsys, str(file)), content


def test_truncated_and_padded_files(tmp_path, capsys):
    file = make.save(tmp_path, {"layer": make.gptq(make.floats())}) / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert f"expected {len(whole)} bytes by its header, found {len(whole) - 1}: truncated" in failure(
        capsys, str(file)
    )
    file.write_bytes(whole + b"more")
    assert "foreign data" in failure(capsys, str(file))
    file.write_bytes(whole[:100])
    assert "truncated" in failure(capsys, str(file))


def test_sizes_in_the_header_that_disagree(tmp_path, capsys):
    header = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert "expected 12 bytes of 'a' (float32 [3]), found 8" in failure(capsys, str(file))


def test_folders(tmp_path, capsys):
    layers = {"layer": make.gptq(make.floats())}
    assert "found none in" in failure(capsys, str(tmp_path))
    folder = make.save(tmp_path / "a", layers)
    assert "config.json or quantize_config.json: expected in a folder" in failure(capsys, str(folder))
    (folder / "config.json").write_text("{not json")
    assert "config.json: expected JSON, found" in failure(capsys, str(folder))
    (folder / "config.json").write_text("[]")
    assert "config.json: expected a JSON object, found a list" in failure(capsys, str(folder))
    for config, text in (
        ({"bits": "4"}, "config.json: quantization_config.bits: expected int, found '4'"),
        ({"bits": 4, "group_size": 0}, "group_size: expected -1 or at least 1, found 0"),
        ({"bits": 4, "desc_act": 1}, "desc_act: expected bool, found 1"),
        ({"bits": 4, "dynamic": {"+:(": {}}}, "dynamic: expected patterns, found '+:('"),
    ):
        make.save(folder, layers, config)
        assert text in failure(capsys, str(folder))
    (folder / "config.json").write_text('{"quantization_config": 4}')
    assert "quantization_config: expected an object, found 4" in failure(capsys, str(folder))


def test_indexes_that_do_not_fit(tmp_path, capsys):
    folder = make.save(tmp_path, {"layer": make.gptq(make.floats())}, make.gptq_config(), shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    listed = dict(content["weight_map"])

    def write(weight_map) -> None:
        index.write_text(json.dumps({"weight_map": weight_map}))

    write({**listed, "other.weight": "model-00001-of-00002.safetensors"})
    assert "expected tensor 'other.weight' in model-00001-of-00002" in failure(capsys, str(folder))
    write({**listed, "other.weight": "model-00009.safetensors"})
    assert "expected the shard model-00009.safetensors" in failure(capsys, str(folder))
    write([1])
    assert "expected an object 'weight_map' of file names" in failure(capsys, str(folder))
    missing = next(iter(listed))
    write({name: file for name, file in listed.items() if name != missing})
    assert f"1 not listed, the first {missing!r}" in detect(folder).contradictions[0]


def test_an_output_that_cannot_be_written(tmp_path, capsys):
    folder = make.save(tmp_path, {"layer": make.gptq(make.floats())}, make.gptq_config())
    assert "--json: expected a file that can be written" in failure(
        capsys, str(folder), "--json", str(tmp_path)
    )
