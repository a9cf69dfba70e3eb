"""Upstream imports beside our ``kernels``: hidden from it, and back afterwards."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from oracles.upstream import ROOT, Missing, hidden, load, version_of


def run(code: str, *extra: pathlib.Path) -> str:
    """Run ``code`` in a new process in our root, ``extra`` on its path; return its output."""
    path = os.pathsep.join([str(entry) for entry in extra] + [os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.fixture
def hub_metadata(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory in which Hugging Face's ``kernels`` seems installed, by its metadata."""
    info = tmp_path / "kernels-0.18.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n")
    return tmp_path


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A package whose ``__init__`` fails and whose submodules work, but for one."""
    root = tmp_path / "upstream_with_init"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('the init ran')\n")
    (root / "inner" / "__init__.py").write_text("raise RuntimeError('the inner init ran')\n")
    (root / "plain.py").write_text("VALUE = 3\n")
    (root / "inner" / "deep.py").write_text("from ..plain import VALUE\n")
    (root / "broken.py").write_text("from . import plain\nimport no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == root.name]:
        del sys.modules[name]


@pytest.mark.skipif(version_of("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_bitsandbytes_beside_the_metadata_of_the_other_kernels(hub_metadata):
    out = run(
        """
        import importlib.metadata, os, sys
        assert importlib.metadata.version("kernels") == "0.18.2"
        import kernels.nf4
        ours = sys.modules["kernels"]
        from oracles.upstream import load
        functional = load("bitsandbytes.functional")
        import kernels, kernels.fp4
        assert kernels is ours and hasattr(kernels.fp4, "dequantize")
        assert hasattr(functional, "dequantize_4bit")
        # Nothing of the import's environment stays: torch.compile works as before for others.
        assert "TORCHDYNAMO_DISABLE" not in os.environ
        import torch
        assert not torch._dynamo.config.disable
        """,
        hub_metadata,
    )
    assert "kernels-community" not in out


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers_beside_the_metadata_of_the_other_kernels(hub_metadata):
    # This module looks for the other package and imports names from it when its version fits.
    run(
        """
        from oracles.upstream import load
        load("transformers.integrations.hub_kernels")
        import kernels
        assert hasattr(kernels, "__path__") and "site-packages" not in kernels.__file__
        """,
        hub_metadata,
    )


@pytest.mark.parametrize("ours_first", [True, False])
def test_the_other_kernels_and_ours_live_side_by_side(tmp_path, ours_first):
    site = tmp_path / "site"
    (site / "kernels").mkdir(parents=True)
    (site / "kernels" / "__init__.py").write_text("def get_kernel(name):\n    return 'hub ' + name\n")
    (site / "kernels" / "late.py").write_text("VALUE = 7\n")
    (site / "first.py").write_text("import kernels\n")
    (site / "second.py").write_text(
        "import kernels\n\ndef late():\n    from kernels.late import VALUE\n    return VALUE\n"
    )
    run(
        f"""
        import sys
        sys.path.remove({str(site)!r}); sys.path.append({str(site)!r})
        if {ours_first}:
            import kernels.nf4
        from oracles.upstream import ROOT, hidden, load
        first, second = load("first"), load("second")
        import kernels, kernels.nf4
        assert kernels.__file__.startswith(str(ROOT / "kernels"))
        assert first.kernels.get_kernel("x") == "hub x" and first.kernels is second.kernels
        with hidden(), hidden():
            assert second.late() == 7
        assert sys.modules["kernels"] is kernels and "kernels.late" not in sys.modules
        """,
        site,
    )


def test_hidden_restores_the_path_and_our_modules():
    import kernels

    path = list(sys.path)

    def fail() -> None:
        with hidden():
            assert "kernels" not in sys.modules
            assert str(ROOT) not in sys.path
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sys.path == path
    assert sys.modules["kernels"] is kernels


def test_missing_package():
    with pytest.raises(Missing) as caught:
        load("no_such_upstream.quant.utils")
    assert caught.value.reason == "the package no_such_upstream is not installed"


def test_bare_parents_do_not_run_their_init(package):
    parents = ("upstream_with_init", "upstream_with_init.inner")
    module = load("upstream_with_init.inner.deep", bare_parents=parents)
    assert module.VALUE == 3
    assert load("upstream_with_init.inner.deep") is module
    # Libraries that ask whether the package exists must get an answer.
    assert importlib.util.find_spec("upstream_with_init") is not None


def test_failed_import_is_precise_and_leaves_nothing(package):
    before = set(sys.modules)
    with pytest.raises(Missing) as caught:
        load("upstream_with_init.broken", bare_parents=("upstream_with_init",))
    assert caught.value.reason == (
        "import of upstream_with_init.broken failed with ModuleNotFoundError: "
        "No module named 'no_such_dependency'"
    )
    assert set(sys.modules) == before
    with pytest.raises(Missing, match="RuntimeError: the init ran"):
        load("upstream_with_init.plain")


def test_missing_subpackage(package):
    with pytest.raises(Missing) as caught:
        load("upstream_with_init.gone.x", bare_parents=("upstream_with_init", "upstream_with_init.gone"))
    assert caught.value.reason == "the installed upstream_with_init has no package upstream_with_init.gone"


def test_version_of():
    assert version_of("no-such-distribution") is None
    assert version_of("torch") is not None
