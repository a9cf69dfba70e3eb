"""Imports go one way: benchmarks -> conformance -> oracles -> kernels."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "kernels": {"oracles", "conformance", "benchmarks", "tests"},
    "oracles": {"conformance", "benchmarks", "tests"},
    "conformance": {"benchmarks", "tests"},
    "benchmarks": {"tests"},
}


def imported(source: str, package: str) -> set[str]:
    """Top-level packages that ``source``, a module of ``package``, imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(package if node.level else (node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            target = node.args[0]
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                names.add(target.value.partition(".")[0])
    return names


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_import_goes_back(package: str):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        found = imported(path.read_text(encoding="utf-8"), package) & FORBIDDEN[package]
        assert not found, f"{path.relative_to(ROOT)} imports {', '.join(sorted(found))}"


@pytest.mark.parametrize(
    "source",
    [
        "import conformance",
        "import conformance.case as c",
        "from conformance import case",
        "from conformance.case import Case",
        "def f():\n    from conformance import case",
        "import importlib\nimportlib.import_module('conformance.case')",
    ],
)
def test_an_import_is_found_in_every_form(source: str):
    assert "conformance" in imported(source, "kernels")


def python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout.strip()


def test_importing_kernels_loads_neither_torch_nor_triton():
    """TRITON_INTERPRET counts at the first @triton.jit, so it can still be set afterwards."""
    code = "import sys, kernels; print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    assert python(code) == "[]"


def test_kernels_is_not_taken_for_the_library_of_that_name():
    """transformers would read the version, and then import names from this package."""
    assert python("import kernels; print(hasattr(kernels, '__version__'))") == "False"
