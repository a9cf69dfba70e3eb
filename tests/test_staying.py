"""What a call of a kernel must leave as it is for the whole process, and what is put back."""

import os
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.staying import Shared
from tests.test_cheating_kernels import judged, right


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise RuntimeError("no functions under me")


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise RuntimeError("no operations under me")


def does(change, then=None):
    def kernel(weight, *, dtype, out=None):
        result = right(weight, dtype)
        if out is not None:
            result = out.copy_(result)
        change()
        if then is not None:
            raise then
        return result

    return kernel


def enters(*modes):
    def change():
        for mode in modes:
            mode().__enter__()

    return change


def goes(folder):
    def change():
        Path(folder).mkdir(exist_ok=True)
        os.chdir(folder)

    return change


@pytest.mark.parametrize("dest", ["given", "new"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            "torch's default dtype as float32, found it set to float64",
        ),
        (lambda: torch.set_default_device("meta"), "torch's default device as cpu, found it set to meta"),
        (enters(Functions), "torch's modes as they were, found Functions entered and not left"),
        (enters(Dispatches), "torch's modes as they were, found Dispatches entered and not left"),
        (enters(FakeTensorMode), "torch's modes as they were, found FakeTensorMode entered and not left"),
        (enters(Functions, Functions, Dispatches), "found Dispatches, Functions entered and not left"),
        (enters(lambda: torch.device("meta")), "as they were, found DeviceContext entered and not left"),
        (
            lambda: (torch.set_default_device("meta"), enters(Functions)()),
            "found Functions entered and not left; torch's default device as cpu, found it set to meta",
        ),
        (goes("elsewhere"), "/elsewhere"),
    ],
)
def test_a_call_that_changes_what_is_everyones(change, words, dest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = Shared.now()
    verdict = judged(does(change), f"dest={dest}")
    assert verdict.kind == "MISMATCH"
    assert "expected the call to leave " in verdict.summary
    assert words in verdict.summary
    # Where it raises, that is what is said.
    assert judged(does(change, ValueError("no")), f"dest={dest}").kind == "CRASH_LAUNCH"
    assert Shared.now() == before
    made = torch.empty(0)
    assert (made.dtype, made.device.type) == (torch.float32, "cpu")


def test_a_mode_that_was_there_before_stays():
    class Sees(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Sees():
        before = Shared.now()
        assert judged(does(lambda: None), "").kind == "EXACT"
        assert judged(does(enters(Sees)), "").kind == "MISMATCH"
        assert Shared.now() == before


def test_a_working_directory_that_is_gone_is_no_fault_of_the_kernel(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert judged(does(lambda: None), "").kind == "EXACT"
