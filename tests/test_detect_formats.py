"""Detection from tensors alone: every format of an upstream packer is named, others are ruled out."""

from __future__ import annotations

import json
import weakref

import pytest
import torch
from safetensors.torch import save_file

from conformance.cli import main
from conformance.detect import Report, detect, load_layer
from conformance.detect.source import Checkpoint
from kernels import nf4
from tests import checkpoints as make


def report(tmp_path, tensors: dict[str, torch.Tensor], config=None) -> Report:
    """What detection says of one layer, as a single file (without metadata) or a folder."""
    folder = make.save(tmp_path / "one", {"layer": tensors}, config)
    found = detect(folder if config is not None else folder / "model.safetensors")
    return found.report(found.find("layer"))


def excluded(found: Report) -> set[str]:
    return {item.reading for item in found.excluded}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("act_order", [False, True], ids=["sequential", "act-order"])
@pytest.mark.parametrize("packer", ["autogptq", "gptqmodel"])
def test_gptq_width_and_groups(tmp_path, bits, act_order, packer):
    g_idx = make.order(make.ROWS, make.GROUP) if act_order else None
    found = report(tmp_path, make.gptq(make.floats(), bits, g_idx=g_idx, packer=packer))
    assert {(r.format, r.bits, r.group_size) for r in found.admitted} == {("gptq", bits, make.GROUP)}
    assert {r.zeros for r in found.admitted} == {"v1", "v1-nowrap", "v2"}
    others = {f"gptq {b} bit" for b in range(2, 9) if b != bits}
    assert excluded(found) == others | {"awq_cols", "awq_rows", "awq_quads"}
    assert found.evidence["g_idx"]["order"] == ("permuted" if act_order else "sequential")
    assert found.status == "undecidable"
    assert any("v1 or v2" in text for text in found.undecidable)
    looks = [text for text in found.hints if text.startswith("no proof")]
    if bits == 8:
        assert not looks, "so few codes of so wide a range prove nothing"
    else:
        assert looks[0].endswith("looks like v1" if packer == "autogptq" else "looks like v2")


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("packer", "convention"), [("autogptq", "v1"), ("gptqmodel", "v2")])
def test_symmetric_zeros_are_a_hint_alone(tmp_path, bits, packer, convention):
    found = report(tmp_path, make.gptq(make.floats(), bits, sym=True, packer=packer))
    stored = 2 ** (bits - 1) - (convention == "v1")
    assert found.evidence["stored_zeros"][str(bits)]["histogram"] == {str(stored): 4 * make.COLS}
    assert any(
        f"every stored zero is {stored}" in t and t.endswith(f"if it is {convention}") for t in found.hints
    )
    assert {r.zeros for r in found.chosen} == {"v1", "v2"}


def test_one_group(tmp_path):
    found = report(tmp_path, make.gptq(make.floats(), group_size=-1))
    assert {r.group_size for r in found.admitted} == {-1}
    assert found.admitted[0].allows_group_size(make.ROWS)
    assert found.admitted[0].allows_group_size(4096)
    assert not found.admitted[0].allows_group_size(64)


def test_stored_maxq_is_undecidable_and_says_what_each_reading_gives(tmp_path):
    tensors = make.gptq(make.floats())
    tensors["qzeros"][0, 0] |= 0xF
    found = report(tmp_path, tensors, make.gptq_config())
    assert {r.zeros for r in found.chosen} == {"v1", "v1-nowrap"}
    assert (
        "1 of 256 stored zeros are 15, which is 0 by v1, 16 by v1-nowrap (and 15 by v2)"
        in found.undecidable[0]
    )
    assert not found.failed


def test_smeared_words_are_noticed(tmp_path):
    tensors = make.gptq(make.floats())
    tensors["qzeros"][1, 2] |= -(2**16)
    found = report(tmp_path, tensors)
    assert any("1 words of qzeros end in a run of 15" in text for text in found.hints)


def test_without_g_idx_a_ragged_group_size_is_undecidable(tmp_path):
    tensors = make.gptq(make.floats(96), group_size=64)
    del tensors["g_idx"]
    found = report(tmp_path, tensors)
    assert found.admitted[0].group_sizes == (48, 95)
    assert found.admitted[0].group_size == 64
    assert any(text.startswith("group_size: 48 to 95") for text in found.undecidable)


@pytest.mark.parametrize(
    ("g_idx", "order", "hint"),
    [
        (torch.zeros(128, dtype=torch.int32), "unequal", "0 throughout"),
        (torch.arange(128, dtype=torch.int32) % 3, "unequal", "names 3 of 4 groups"),
        (torch.arange(128, dtype=torch.int32) % 4, "permuted", ""),
    ],
    ids=["all zero", "missing group", "strided"],
)
def test_g_idx_facts(tmp_path, g_idx, order, hint):
    tensors = make.gptq(make.floats())
    found = report(tmp_path, {**tensors, "g_idx": g_idx})
    assert found.evidence["g_idx"]["order"] == order
    assert not found.damage
    if hint:
        assert any(hint in text for text in found.hints)


@pytest.mark.parametrize("layout", ["awq_cols", "awq_rows", "awq_quads"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_awq_layouts(tmp_path, layout, group_size):
    found = report(tmp_path, make.awq(make.floats(512), layout, group_size=group_size))
    assert [(r.format, r.rows, r.cols, r.group_size) for r in found.admitted] == [
        (layout, 512, 64, group_size)
    ]
    assert "gptq 4 bit" in excluded(found)
    assert found.status == "ok"


def test_awq_padding_narrows_the_group_size_as_far_as_it_goes(tmp_path):
    """2 and 1 groups are padded to the same 8; a group size of 256 would have scales in its padding."""
    found = report(tmp_path, make.awq(make.floats(256), "awq_quads", group_size=128))
    assert "expected 0 as padding from group 1 on" in next(
        e.why for e in found.excluded if "group -1" in e.reading
    )
    found = report(tmp_path, make.awq(make.floats(256), "awq_quads", group_size=-1))
    assert {r.group_size for r in found.admitted} == {-1, 128}
    assert found.undecidable == ["group_size (awq_quads): -1 or 128"]
    assert any("exactly 1 groups" in text for text in found.hints)


def test_shapes_that_two_layouts_share(tmp_path):
    """K = 256 in groups of 32 pads to as many groups as an output has words of codes."""
    tensors = make.awq(make.floats(256), "awq_rows")
    found = report(tmp_path, tensors)
    assert {(r.format, r.group_size) for r in found.admitted} == {("awq_rows", 32), ("gptq", 8)}
    assert found.undecidable[0] == "format: awq_rows 4 bit or gptq 4 bit, by shapes alone"
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv", "zero_point": True}
    found = report(tmp_path, tensors, awq)
    assert [r.format for r in found.chosen] == ["awq_rows"]
    assert found.status == "ok"


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_4bit(tmp_path, kind, nested):
    found = report(tmp_path, make.blockwise(make.floats(), kind, blocksize=128, nested=nested))
    [reading] = found.admitted
    assert (reading.format, reading.group_size, reading.nested) == (kind, 128, nested)
    assert (reading.rows, reading.cols) == (make.ROWS, make.COLS)
    assert found.evidence["quant_map"] == kind
    assert excluded(found) == {"nf4", "fp4"} - {kind}


def test_which_table_a_file_carries(tmp_path):
    tensors = make.blockwise(make.floats(), "nf4")
    rounded = torch.tensor([round(float(v), 4) for v in nf4.codebook()])
    found = report(tmp_path, {**tensors, "weight.quant_map": rounded})
    assert found.evidence["quant_map"] == "nf4 rounded to 4 digits (torchao's)"
    assert any("decode other values" in text for text in found.hints)
    other = make.blockwise(make.floats(), "fp4")["weight.quant_map"]
    found = report(tmp_path, {**tensors, "weight.quant_map": other})
    assert "found the fp4 table, bit for bit" in found.contradictions[0]


def test_llm_int8(tmp_path):
    found = report(tmp_path, make.int8(make.floats()))
    assert [(r.format, r.rows, r.cols) for r in found.admitted] == [("llm_int8", make.ROWS, make.COLS)]


def test_compressed_tensors_is_named_and_has_no_kernel(tmp_path):
    tensors = {
        "weight_packed": torch.zeros(64, 16, dtype=torch.int32),
        "weight_shape": torch.tensor([64, 128]),
        "weight_scale": torch.ones(64, 4),
    }
    found = report(tmp_path, tensors)
    assert [(r.format, r.bits, r.has_kernel) for r in found.admitted] == [("compressed-tensors", 4, False)]
    assert "no kernel" in found.hints[0]
    assert not found.failed
    wrong = report(tmp_path, tensors, {"quant_method": "awq", "bits": 4})
    assert "but the tensors are compressed-tensors" in wrong.contradictions[0]


def test_float_layers_are_counted_and_others_are_not_layers(tmp_path, capsys):
    layers = {
        "head": {"weight": torch.ones(4, 8)},
        "norm": {"weight": torch.ones(8)},
        "q": make.gptq(make.floats()),
    }
    folder = make.save(tmp_path, layers, make.gptq_config())
    assert main(["detect", str(folder), "--json", "-"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["record"] for line in lines] == ["layer", "summary"]
    assert (lines[-1]["layers"], lines[-1]["float_layers"]) == (1, 1)
    assert lines[0]["chosen"][0]["zeros"] == "v1"
    assert lines[0]["evidence"]["tensors"]["qweight"] == {"dtype": "int32", "shape": [16, 64]}


def test_the_table_names_every_layer_in_natural_order(tmp_path, capsys):
    layers = {f"h.{i}.proj": make.gptq(make.floats(seed=i)) for i in (10, 2)}
    folder = make.save(tmp_path, layers, make.gptq_config(), shards=3)
    assert main(["detect", str(folder), "--json", str(tmp_path / "out.jsonl")]) == 0
    out, err = capsys.readouterr()
    assert 0 < out.index("h.2.proj") < out.index("h.10.proj")
    assert "2 quantized layers (2 ok), 0 float layers" in out
    assert err == ""  # no progress bar where there is no terminal
    assert len((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_no_more_than_one_layer_is_in_memory(tmp_path, monkeypatch):
    layers = {f"l{i}": make.gptq(make.floats(seed=i)) for i in range(4)}
    layers |= {f"n{i}": make.blockwise(make.floats(seed=i), "nf4") for i in range(2)}
    folder = make.save(tmp_path, layers, make.gptq_config(quant_method=None))
    live: dict[int, int] = {}
    peak = read = 0
    original = Checkpoint._read

    def tracked(self, name, rows):
        nonlocal peak, read
        tensor = original(self, name, rows)
        storage, size = tensor.untyped_storage(), tensor.nbytes
        live[id(storage)] = size
        weakref.finalize(tensor, live.pop, id(storage), None)
        peak, read = max(peak, sum(live.values())), read + size
        return tensor

    monkeypatch.setattr(Checkpoint, "_read", tracked)
    found = detect(folder)
    assert read == 0, "headers come first"
    for _ in found.reports():
        pass
    largest = max(layer.n_bytes for layer in found.quantized)
    assert 0 < peak <= largest
    assert read < sum(info.n_bytes for info in found.checkpoint.tensors.values())


def test_load_layer_wants_one_reading(tmp_path):
    tensors = make.gptq(make.floats(), packer="gptqmodel")
    file = tmp_path / "layer.safetensors"
    save_file({f"a.{name}": tensor for name, tensor in tensors.items()}, file)
    with pytest.raises(
        Exception, match=r"a: expected one reading, found gptq 4 bit, group 32, zeros v1; gptq"
    ):
        load_layer(file, "a")
    found = detect(file)
    reading = next(r for r in found.report(found.find("a")).admitted if r.zeros == "v2")
    weight = load_layer(file, "a", reading)
    assert weight.zeros == "v2"
    for name, tensor in tensors.items():
        assert torch.equal(getattr(weight, name), tensor)
