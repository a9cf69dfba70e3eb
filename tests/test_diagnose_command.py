"""``python -m conformance diagnose``: every kind of file, every bad input, exit codes."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conformance.bits import DTYPES, from_bits
from conformance.cli import main
from conformance.errors import UsageError
from conformance.faults import Context
from conformance.registry import formats, parse_case
from conformance.report import LINES
from conformance.standalone import case_for, diagnose
from kernels._packed import PackedWeight, named_tensors
from oracles.spec.rounding import round_to
from tests import checkpoints, planted
from tests.harness_runs import harness as harness_of
from tests.harness_runs import judge

pytestmark = pytest.mark.interpreter

FORMATS = formats()
GPTQ = "gptq:K=64,N=48,zeros=v2"
SET = ("--set", "zeros=v2", "--set", "bits=4", "--set", "group_size=32")
ALL = (
    "gptq:K=64,N=33,g=16,act=perm(1),zeros=v2",
    "gptq:bits=3,K=64,N=32",
    "awq_cols:K=64,N=40",
    "awq_rows:K=128,N=9",
    "awq_quads:K=128,N=12",
    "nf4:shape=5x65,absmax=nested",
    "fp4:shape=2x3x40,blocksize=32",
    "blockwise8:shape=5x65",
    "llm_int8:shape=5x33",
    "int8_affine:shape=5x33,per=group,g=16,zero=same",
    "int8_affine:shape=5x33,per=column,codes=uint8,zero=int32,sdtype=bf16",
    "squeezellm:K=64,N=7,sparse=few(1),full=1",
)


def weight_of(case: str) -> PackedWeight:
    parsed = parse_case(case)
    return FORMATS[parsed.format].words(parsed)


def output(case: str, fault: str | None = None, out: str = "fp16") -> torch.Tensor:
    """The right output of a case, or that of a fault of the catalogue."""
    fmt, weight, dtype = FORMATS[parse_case(case).format], weight_of(case), DTYPES[out]
    model = fmt.unpack(weight)
    if fault is None:
        return from_bits(round_to(model.values(), dtype), dtype)
    decode = next(item for item in fmt.faults if item.name == fault).decode
    bits = decode(Context(weight, model, dtype))
    assert bits is not None
    return from_bits(bits, dtype)


def save_weight(path: Path, case: str = GPTQ, prefix: str = "") -> str:
    tensors = {f"{prefix}{name}": t.contiguous().clone() for name, t in named_tensors(weight_of(case))}
    save_file(tensors, path)
    return str(path)


def settings(weight: Any) -> list[str]:
    """``--set`` for every field that is no tensor."""
    found = []
    for field in dataclasses.fields(weight):
        value = getattr(weight, field.name)
        if isinstance(value, torch.Tensor) or dataclasses.is_dataclass(value):
            continue
        if value is not None:
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            found += ["--set", f"{field.name}={text}"]
    return found


@pytest.fixture
def weight(tmp_path: Path) -> str:
    return save_weight(tmp_path / "weight.safetensors")


@pytest.fixture
def fails(capsys) -> Callable[..., str]:
    """The one sentence of a wrong usage."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["diagnose", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return run


# --- outputs ----------------------------------------------------------------------------------


def save_npy(path: Path, tensor: torch.Tensor) -> None:
    np.save(path, tensor.numpy())


WRITERS = {
    ".safetensors": lambda path, tensor: save_file({"y": tensor}, path),
    ".npy": save_npy,
    ".pt": lambda path, tensor: torch.save(tensor, path),
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(("fault", "code"), [(None, 0), ("zero-plus-one-extra-unmasked", 1)])
def test_kinds_of_files(suffix: str, fault: str | None, code: int, weight: str, tmp_path: Path, capsys):
    got = tmp_path / f"got{suffix}"
    WRITERS[suffix](got, output(GPTQ, fault))
    assert main(["diagnose", "--format", "gptq", "--weight", weight, "--got", str(got), *SET]) == code
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= LINES
    assert text.startswith(f"{'MISMATCH' if code else 'EXACT'}  {parse_case(GPTQ).id}\n")
    assert f"{got} on disk" in text.replace("\n           ", " ")
    assert (f"cause      {fault}" in text) == bool(code)
    assert ("constant offset of -1 step" in text.replace("\n           ", " ")) == bool(code)


@pytest.mark.parametrize("case", ALL)
def test_every_format_from_a_file_of_its_fields(case: str, tmp_path: Path, capsys):
    fmt, weight = parse_case(case).format, weight_of(case)
    path = save_weight(tmp_path / "weight.safetensors", case, prefix="packed/")
    got = output(case)
    arguments = ["diagnose", "--format", fmt, "--weight", path, *settings(weight)]
    torch.save({"layer": got, "loss": 3.5}, tmp_path / "got.pt")
    assert main([*arguments, "--got", str(tmp_path / "got.pt"), "--tensor", "layer"]) == 0
    got.reshape(-1)[-1] = 7.0
    torch.save(got, tmp_path / "got.pt")
    assert main([*arguments, "--got", str(tmp_path / "got.pt")]) == 1
    assert "1 of " in capsys.readouterr().out


@pytest.mark.parametrize("case", ALL)
def test_the_case_has_the_conventions_of_the_weight(case: str):
    parsed, weight = parse_case(case), weight_of(case)
    found = case_for(FORMATS[parsed.format], weight, "fp16")
    for name in ("K", "N", "shape", "bits", "zeros", "g", "blocksize", "absmax", "per", "codes", "zero"):
        if name in parsed and not (name == "g" and getattr(weight, "group_size", 0) is None):
            assert found[name] == parsed[name], name


@pytest.mark.parametrize(("out", "view"), [("bf16", np.uint16), ("fp16", np.uint16), ("fp32", np.uint32)])
def test_npy_of_bit_patterns(out: str, view: type, weight: str, tmp_path: Path, fails):
    bits = output(GPTQ, out=out).view(torch.int32 if out == "fp32" else torch.int16).numpy().view(view)
    np.save(tmp_path / "got.npy", bits)
    arguments = ["--format", "gptq", "--weight", weight, "--got", str(tmp_path / "got.npy"), *SET]
    assert main(["diagnose", *arguments, "--dtype", out]) == 0
    assert "with --dtype, its bit patterns" in fails(*arguments)


def test_big_endian_npy(weight: str, tmp_path: Path):
    np.save(tmp_path / "got.npy", output(GPTQ).numpy().astype(">f2"))
    arguments = ["--format", "gptq", "--weight", weight, "--got", str(tmp_path / "got.npy"), *SET]
    assert main(["diagnose", *arguments]) == 0


def test_bad_outputs(weight: str, tmp_path: Path, fails):
    def failure(name: str, *more: str) -> str:
        return fails("--format", "gptq", "--weight", weight, "--got", str(tmp_path / name), *SET, *more)

    right = output(GPTQ)
    save_file({"a": right, "b": right.clone()}, tmp_path / "two.safetensors")
    torch.save({"a": right, "b": right}, tmp_path / "two.pt")
    for name in ("two.safetensors", "two.pt"):
        assert f"--tensor: expected one tensor in {name}, found a, b" in failure(name)
        assert f"--tensor: expected a tensor 'c' in {name}, found a, b" in failure(name, "--tensor", "c")
    save_npy(tmp_path / "one.npy", right)
    assert "one.npy has one tensor without a name" in failure("one.npy", "--tensor", "y")
    assert "expected bfloat16, as --dtype says, found float16" in failure("one.npy", "--dtype", "bf16")
    save_npy(tmp_path / "wide.npy", right.double())
    assert "expected float16 or float32, found float64" in failure("wide.npy")
    torch.save(right.double(), tmp_path / "wide.pt")
    assert "got: expected dtype one of float16, bfloat16, float32, found float64" in failure("wide.pt")
    torch.save(right.to_sparse(), tmp_path / "sparse.pt")
    assert "got: expected a plain tensor, found torch.sparse_coo" in failure("sparse.pt")
    torch.save([right], tmp_path / "list.pt")
    assert "expected a tensor or named tensors, found list" in failure("list.pt")
    torch.save({"note": "no tensor"}, tmp_path / "none.pt")
    assert "found none" in failure("none.pt")
    (tmp_path / "out.bin").write_bytes(b"123")
    assert "expected a .safetensors, .npy or .pt file, found 'out.bin'" in failure("out.bin")
    assert "expected a file, found nothing at" in failure("missing.npy")


@pytest.mark.parametrize("suffix", WRITERS)
def test_truncated_outputs(suffix: str, weight: str, tmp_path: Path, fails):
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    WRITERS[suffix](whole, output(GPTQ))
    data = whole.read_bytes()
    for length in (0, 5, len(data) // 2, len(data) - 100):
        cut.write_bytes(data[:length])
        said = fails("--format", "gptq", "--weight", weight, "--got", str(cut), *SET)
        assert f"cut{suffix}: expected" in said


def test_outputs_that_no_array_can_be_made_of(weight: str, tmp_path: Path, fails):
    def failure(name: str) -> str:
        return fails("--format", "gptq", "--weight", weight, "--got", str(tmp_path / name), *SET)

    save_npy(tmp_path / "whole.npy", output(GPTQ))
    data = (tmp_path / "whole.npy").read_bytes()
    for number, header in enumerate(
        (
            b"{'descr': '<f2', 'fortran_order': False, 'shape': (9999999999999, 128), }",
            b"{{{{{{'a",
            b"(" * 110,
            b"\xff\xfe",
        )
    ):
        (tmp_path / f"{number}.npy").write_bytes(data[:10] + header.ljust(117) + b"\n" + data[128:])
        assert f"{number}.npy: expected a whole .npy file, found: " in failure(f"{number}.npy")
    torch.save(torch.empty(64, 48, device="meta", dtype=torch.float16), tmp_path / "meta.pt")
    assert "--got: expected a plain tensor, found one without data (device meta)" in failure("meta.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says torch
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    torch.save(nested, tmp_path / "nested.pt")
    assert "--got: expected a plain tensor, found a nested one" in failure("nested.pt")
    with pytest.raises(UsageError, match="got: expected a plain tensor, found a nested one"):
        diagnose("gptq", weight_of(GPTQ), nested)
    assert "--got: expected a file, found nothing at" in failure("x" * 5000 + ".npy")
    assert "expected a safetensors file or a folder" in fails(
        "--format", "gptq", "--weight", "x" * 5000, "--got", str(tmp_path / "whole.npy")
    )


def test_names_do_not_command_the_terminal(weight: str, tmp_path: Path, fails):
    save_file({"a\n\x1b[31mb": output(GPTQ), "é": output(GPTQ)}, tmp_path / "odd.safetensors")
    said = fails("--format", "gptq", "--weight", weight, "--got", str(tmp_path / "odd.safetensors"), *SET)
    assert r"found a\n\x1b[31mb, é" in said


def test_pickles_are_not_executed(weight: str, tmp_path: Path, fails):
    torch.save({"y": Path("a")}, tmp_path / "code.pt")
    said = fails("--format", "gptq", "--weight", weight, "--got", str(tmp_path / "code.pt"), *SET)
    assert "expected a file of torch.save with tensors alone" in said


def test_npy_of_objects_is_not_unpickled(weight: str, tmp_path: Path, fails):
    np.save(tmp_path / "got.npy", np.array([{}], dtype=object), allow_pickle=True)
    said = fails("--format", "gptq", "--weight", weight, "--got", str(tmp_path / "got.npy"), *SET)
    assert "expected a whole .npy file, found: Object arrays cannot be loaded" in said


def test_nan_is_a_verdict(weight: str, tmp_path: Path, capsys):
    got = output(GPTQ)
    got[3, 5] = float("nan")
    save_npy(tmp_path / "got.npy", got)
    assert (
        main(["diagnose", "--format", "gptq", "--weight", weight, "--got", str(tmp_path / "got.npy"), *SET])
        == 1
    )
    text = capsys.readouterr().out
    assert text.startswith("NONFINITE_CLASS")
    assert "NaN instead of a finite value" in text
    assert "[3, 5]" in text


# --- shapes -----------------------------------------------------------------------------------


def test_transposed_is_the_cause(weight: str, tmp_path: Path, capsys):
    save_npy(tmp_path / "got.npy", output(GPTQ).t().contiguous())
    arguments = ["diagnose", "--format", "gptq", "--weight", weight, "--got", str(tmp_path / "got.npy"), *SET]
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "expected shape [64, 48], found [48, 64], which is transposed" in text
    assert "cause      transposed" in text
    assert main([*arguments, "--transposed"]) == 0


def test_transposed_of_a_square_and_in_memory():
    square = "gptq:K=32,N=32,zeros=v2"
    verdict = diagnose("gptq", weight_of(square), output(square).t().contiguous())
    assert (verdict.kind, verdict.causes[0].name) == ("MISMATCH", "transposed")
    assert verdict.measures is not None
    reshaped = output(GPTQ).t().contiguous().reshape(64, 48)
    assert diagnose("gptq", weight_of(GPTQ), reshaped).causes[0].name == "transposed"
    assert "transposed" not in {
        cause.name for cause in diagnose("gptq", weight_of(GPTQ), output(GPTQ, "slots-reversed")).causes
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda t: (t + 1).t(),
            "expected shape [64, 48], found [48, 64], which is transposed, and 3072 of 3072 elements differ",
        ),
        (lambda t: t[:63], "expected shape [64, 48], found [63, 48], and no transposition of it fits"),
        (
            lambda t: t.reshape(-1),
            "with as many elements, which taken in order are those of",
        ),
        (lambda t: -t.reshape(32, 96), "with as many elements, which taken in order differ from"),
    ],
)
def test_wrong_shapes(change, text: str, weight: str, tmp_path: Path, fails):
    save_npy(tmp_path / "got.npy", change(output(GPTQ)).contiguous())
    assert text in fails("--format", "gptq", "--weight", weight, "--got", str(tmp_path / "got.npy"), *SET)


def test_transposed_option_needs_two_dimensions(weight: str, tmp_path: Path, fails):
    save_npy(tmp_path / "got.npy", output(GPTQ).reshape(-1))
    arguments = ("--format", "gptq", "--weight", weight, "--got", str(tmp_path / "got.npy"), *SET)
    assert "expected an output of 2 dimensions" in fails(*arguments, "--transposed")


# --- weights ----------------------------------------------------------------------------------


@pytest.fixture
def right(tmp_path: Path) -> str:
    save_npy(tmp_path / "right.npy", output(GPTQ))
    return str(tmp_path / "right.npy")


def test_detection_narrows_and_set_decides(weight: str, right: str, fails):
    arguments = ("--format", "gptq", "--weight", weight, "--got", right)
    said = fails(*arguments)
    assert "--set: expected values that leave one of: gptq 4 bit, group 32, zeros v1" in said
    assert "zeros v2" in said
    assert said.endswith("found none; --set takes zeros=v1|v1-nowrap|v2\n")
    assert main(["diagnose", *arguments, "--set", "zeros=v2"]) == 0
    assert main(["diagnose", *arguments, "--set", "zeros=v1"]) == 1
    assert "--set: expected values that name one of" in fails(
        *arguments, "--set", "zeros=v2", "--set", "bits=8"
    )


def test_bad_settings(weight: str, right: str, fails):
    arguments = ("--format", "gptq", "--weight", weight, "--got", right)
    known = "field among bits, group_size, zeros, in_features"
    for text in ("zeros", "zero=v2", "qweight=1"):
        assert known in fails(*arguments, "--set", text)
    assert "--set bits: expected an integer, found 'four'" in fails(*arguments, "--set", "bits=four")
    assert "--set zeros: expected v1 or v1-nowrap or v2, found 'v3'" in fails(*arguments, "--set", "zeros=v3")
    said = fails(*arguments, *SET, "--set", "in_features=3")
    assert "--weight: qweight: expected shape [1, 48], found [8, 48]" in said


def test_bad_weights(weight: str, right: str, tmp_path: Path, fails):
    assert "format: expected one of" in fails("--format", "gguf", "--weight", weight, "--got", right)
    assert "found nothing at" in fails("--format", "gptq", "--weight", str(tmp_path / "no"), "--got", right)
    data = Path(weight).read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[:-10])
    assert "truncated" in fails(
        "--format", "gptq", "--weight", str(tmp_path / "cut.safetensors"), "--got", right
    )
    save_file({"qweight": torch.zeros(8, 48, dtype=torch.int32)}, tmp_path / "part.safetensors")
    said = fails("--format", "squeezellm", "--weight", str(tmp_path / "part.safetensors"), "--got", right)
    assert "found no lookup_table (there are qweight)" in said
    said = fails("--format", "gptq", "--weight", str(tmp_path / "part.safetensors"), "--got", right)
    assert "qzeros: expected beside qweight, found none" in said
    plain = save_weight(tmp_path / "plain.safetensors", "squeezellm:K=64,N=7")
    said = fails("--format", "squeezellm", "--weight", plain, "--got", right)
    assert "--set: expected bits of SqueezeLLMWeight, which no tensor tells, found none" in said
    said = fails("--format", "awq_cols", "--weight", weight, "--got", right)
    assert "--format: expected one that the tensors admit (gptq 4 bit" in said
    assert "--prefix: expected a layer 'no'" in fails(
        "--format", "gptq", "--weight", weight, "--got", right, "--prefix", "no"
    )
    assert "--got: expected a file, or a bundle as --weight" in fails("--format", "gptq", "--weight", weight)


def test_a_group_that_is_not_there(right: str, tmp_path: Path, fails):
    broken = dataclasses.replace(weight_of(GPTQ + ",act=perm(1)"))
    tensors = {name: t.contiguous().clone() for name, t in named_tensors(broken)}
    for group in (99, -1):
        tensors["g_idx"][7] = group
        save_file(tensors, tmp_path / "broken.safetensors")
        said = fails(
            "--format", "gptq", "--weight", str(tmp_path / "broken.safetensors"), "--got", right, *SET
        )
        assert f"weight, g_idx: expected groups 0 to 1, found {group}" in said


@pytest.mark.parametrize("kind", ["gptq", "awq_cols", "nf4", "llm_int8"])
def test_layers_of_a_checkpoint(kind: str, tmp_path: Path, capsys, fails):
    """As a checkpoint has them: other names than the packed type's, several layers, metadata."""
    floats = checkpoints.floats()
    layer: dict[str, torch.Tensor] = {
        "gptq": lambda: checkpoints.gptq(floats),
        "awq_cols": lambda: checkpoints.awq(floats, "awq_cols"),
        "nf4": lambda: checkpoints.blockwise(floats, "nf4", nested=True),
        "llm_int8": lambda: checkpoints.int8(floats),
    }[kind]()
    folder = checkpoints.save(tmp_path / "model", {"a.0": layer, "a.1": layer}, checkpoints.gptq_config())
    from conformance.given_weight import read_weight

    more = ["--set", "zeros=v1"] if kind == "gptq" else []
    file = folder / "model.safetensors"
    weight = read_weight(FORMATS[kind], file, prefix="a.1", settings=more[1:])
    values = round_to(FORMATS[kind].unpack(weight).values(), torch.bfloat16)
    torch.save(from_bits(values, torch.bfloat16), tmp_path / "got.pt")
    arguments = ["--format", kind, "--weight", str(file), "--got", str(tmp_path / "got.pt"), *more]
    assert main(["diagnose", *arguments, "--prefix", "a.1"]) == 0
    assert "EXACT" in capsys.readouterr().out
    assert "--prefix: expected one of the 2 layers, found none (a.0, a.1)" in fails(*arguments)
    assert "expected a quantized layer such as 'a.0'" in fails(*arguments, "--prefix", "a") or kind == "nf4"


def test_bundle(tmp_path: Path, capsys, fails):
    run = harness_of(planted.nibbles_swapped)
    checked = judge(planted.nibbles_swapped, "nf4:shape=5x40")
    folder = run.write_bundle(tmp_path / "bundle", checked, None)
    assert folder is not None
    assert main(["diagnose", "--format", "nf4", "--weight", str(folder)]) == 1
    text = capsys.readouterr().out
    assert "nibble-swap" in text
    assert "all in" not in text
    torch.save(output("nf4:shape=5x40"), tmp_path / "fixed.pt")
    arguments = ["diagnose", "--format", "nf4", "--weight", str(folder / "case.json")]
    assert main([*arguments, "--got", str(tmp_path / "fixed.pt")]) == 0
    assert "--format: expected nf4, as the bundle, found gptq" in fails(
        "--format", "gptq", "--weight", str(folder)
    )


# --- the rest ---------------------------------------------------------------------------------


def test_json_and_picture(weight: str, tmp_path: Path, capsys):
    got = tmp_path / "got.npy"
    save_npy(got, output(GPTQ, "slots-reversed"))
    arguments = ["diagnose", "--format", "gptq", "--weight", weight, "--got", str(got), *SET]
    record = tmp_path / "verdict.json"
    assert main([*arguments, "--json", str(record), "--heatmap", str(tmp_path / "pictures")]) == 1
    text = capsys.readouterr().out
    assert f"picture    {tmp_path / 'pictures' / 'gptq.png'}" in text
    assert len(text.splitlines()) <= LINES
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"gptq.png", "gptq.svg"}
    found = json.loads(record.read_text())
    assert (found["verdict"], found["causes"][0]["name"]) == ("MISMATCH", "slots-reversed")
    assert found["measures"]["wrong"] == found["votes"][-1]["wrong"]
    assert main([*arguments, "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out) == found
    assert main([*arguments, "--json", str(record), "--heatmap", str(tmp_path / "pictures"), "--force"]) == 1
    assert json.loads(record.read_text()) == found


def test_destinations_are_looked_at_before_the_work(weight: str, right: str, tmp_path: Path, fails):
    arguments = ("--format", "gptq", "--weight", weight, "--got", right, *SET)
    kept = tmp_path / "kept"
    kept.write_text("mine")
    (tmp_path / "pictures").mkdir()
    picture = tmp_path / "pictures" / "gptq.svg"
    picture.write_text("mine")
    assert "--json: expected a file that can be written" in fails(*arguments, "--json", str(tmp_path))
    for place in (kept / "below", tmp_path / ("x" * 300)):
        assert "--json: expected a file that can be written" in fails(*arguments, "--json", str(place))
        assert "--heatmap: expected a folder to write to" in fails(*arguments, "--heatmap", str(place))
    assert f"--json: expected no file yet, found {kept}" in fails(*arguments, "--json", str(kept))
    assert f"found {picture}; --force" in fails(*arguments, "--heatmap", str(picture.parent))
    assert "--heatmap: expected a folder to write to" in fails(*arguments, "--heatmap", str(kept))
    for path in (weight, right):
        said = fails(*arguments, "--json", path, "--force")
        assert f"--json: expected another file than the input, found {path}" in said
    assert (kept.read_text(), picture.read_text()) == ("mine", "mine")
    assert main(["diagnose", *arguments]) == 0


def test_what_fails_while_it_is_written_takes_no_verdict_with_it(weight, tmp_path, capsys, monkeypatch):
    save_npy(tmp_path / "got.npy", output(GPTQ, "slots-reversed"))
    arguments = ["diagnose", "--format", "gptq", "--weight", weight, "--got", str(tmp_path / "got.npy"), *SET]
    record = tmp_path / "verdict.json"

    def full(*_, **__):
        record.unlink(missing_ok=True)
        record.mkdir()
        raise UsageError("heatmap: expected room, found none")

    monkeypatch.setattr("conformance.heatmap.draw", full)
    assert main([*arguments, "--heatmap", str(tmp_path / "pictures"), "--json", str(record)]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("MISMATCH")
    assert err == "error: heatmap: expected room, found none\n"
    record.rmdir()
    monkeypatch.setattr("conformance.heatmap.draw", lambda *_, **__: (record.mkdir(), record))
    assert main([*arguments, "--heatmap", str(tmp_path / "pictures"), "--json", str(record)]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("MISMATCH")
    assert err.startswith("error: --json: expected a file that can be written")


def test_no_picture_says_why(weight: str, right: str, tmp_path: Path, capsys):
    save_npy(tmp_path / "turned.npy", output(GPTQ).t().contiguous())
    arguments = ["diagnose", "--format", "gptq", "--weight", weight, *SET]
    arguments += ["--heatmap", str(tmp_path / "pictures"), "--got"]
    assert main([*arguments, str(tmp_path / "turned.npy")]) == 1
    said = capsys.readouterr().out
    assert "picture    none: no element differs once it is turned (--transposed)\n" in said
    assert main([*arguments, right]) == 0
    assert "picture    none: no element differs\n" in capsys.readouterr().out
    assert not (tmp_path / "pictures").exists()


def test_oracles_vote(tmp_path: Path, capsys):
    case = "nf4:shape=5x64"
    save_npy(tmp_path / "got.npy", output(case, "nibble-swap"))
    path = save_weight(tmp_path / "weight.safetensors", case)
    arguments = ["diagnose", "--format", "nf4", "--weight", path, "--got", str(tmp_path / "got.npy")]
    arguments += settings(weight_of(case))
    assert main(arguments) == 1
    assert "bitsandbytes" not in capsys.readouterr().out.splitlines()[2]
    assert main([*arguments, "--oracles"]) == 1
    assert "spec = bitsandbytes" in capsys.readouterr().out


def test_the_function_refuses_other_weights():
    with pytest.raises(UsageError, match="weight: expected NF4Weight, found GPTQWeight"):
        diagnose("nf4", weight_of(GPTQ), output(GPTQ))
    weight = dataclasses.replace(weight_of(GPTQ), bits=5)
    with pytest.raises(UsageError, match="weight, bits: expected 2, 3, 4 or 8, found 5"):
        diagnose("gptq", weight, output(GPTQ))


def test_the_function_leaves_its_input_alone():
    weight, got = weight_of(GPTQ), output(GPTQ, "zero-ignored").requires_grad_()
    before = got.detach().clone()
    verdict = diagnose("gptq", weight, got, source="mine")
    assert (verdict.kind, verdict.kernel, verdict.device) == ("MISMATCH", "mine", "cpu")
    assert torch.equal(got, before)
    assert torch.equal(weight_of(GPTQ).qweight, weight.qweight)


@pytest.mark.parametrize("out", DTYPES)
def test_every_dtype(out: str):
    assert diagnose("gptq", weight_of(GPTQ), output(GPTQ, out=out)).kind == "EXACT"
    assert diagnose("gptq", weight_of(GPTQ), output(GPTQ, "zero-ignored", out)).kind == "MISMATCH"
