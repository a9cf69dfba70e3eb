"""``python -m conformance activations`` where there is little to say, or nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformance.cli import main
from conformance.errors import UsageError
from conformance.outliers import look

INF, NAN = float("inf"), float("nan")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rule", ["scale", "full", "absmax", "minmax"])
def test_zeros_are_said_to_be_zeros(rule):
    lines = list(look(torch.zeros(4, 8), rule))
    assert lines[-1].startswith("all activations are 0: ")
    text = "\n".join(lines)
    assert "outlier" not in text
    assert "dB" not in text


def test_zeros_beside_tokens_that_are_not_finite():
    x = torch.zeros(4, 8)
    x[0, 0], x[1, 1] = NAN, INF
    lines = list(look(x))
    assert "2 tokens have an infinity or NaN" in lines[1]
    assert lines[-1].startswith("all activations are 0: ")


@pytest.mark.parametrize("fill", [INF, -INF, NAN])
def test_without_a_finite_token_nothing_is_measured(fill, tmp_path, capsys):
    x = normal(3, 8)
    x[:, 2] = fill
    with pytest.raises(
        UsageError, match=r"^x: expected a token without infinity and NaN, found none among 3"
    ):
        list(look(x))
    np.save(tmp_path / "x.npy", x.numpy())
    assert main(["activations", str(tmp_path / "x.npy")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "x: expected a token without infinity and NaN" in err
    assert len(err.splitlines()) == 1


def test_numbers_that_are_zero_are_no_sign_of_outliers():
    """As after a ReLU, and in tokens of padding."""
    x = normal(8, 512).abs()
    x[:, ::2] = 0
    x[6:] = 0
    assert "outlier" not in "\n".join(look(x))
    x[:, 3] = 500
    assert "outlier-dominated" in "\n".join(look(x))


@pytest.mark.parametrize("name", ["none.npy", "x.txt"])
def test_messages_name_the_argument_that_there_is(name, tmp_path, capsys):
    (tmp_path / "x.txt").write_text("1")
    assert main(["activations", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert "FILE: expected" in err
    assert "--got" not in err


def test_no_option_is_offered_that_is_not_there(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((2, 2), np.uint16))
    assert main(["activations", str(tmp_path / "x.npy")]) == 2
    assert "x.npy: expected float16 or float32, found uint16" in capsys.readouterr().err


def test_messages_of_diagnose_name_its_own(tmp_path, capsys):
    assert main(["diagnose", "--format", "nf4", "--weight", "w", "--got", str(tmp_path / "none.npy")]) == 2
    assert "--got: expected a file" in capsys.readouterr().err
