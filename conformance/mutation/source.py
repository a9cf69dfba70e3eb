"""Mutants of the Triton sources: a changed ``@triton.jit`` function in a module of its own, put in place of
the original wherever a module of ``kernels`` refers to it."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance.mutation.operators import OPERATORS, Place, removable, sizes, walk
from conformance.registry import Format


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one function.

    Attributes:
        module: name within ``kernels``, such as ``awq_cols``.
        function: the ``@triton.jit`` function.
        operator: a key of :data:`OPERATORS`, ``sizes`` or ``statement``.
        before, after: the statement (of a compound one its first line) without and with the change.
        line: of the statement, for reading only: mutants are told apart by content.
        digest: of the mutated function, so that names stay as they are under changes elsewhere.
        text: source of the whole mutated module.
    """

    module: str
    function: str
    operator: str
    before: str
    after: str
    line: int
    digest: str
    text: str = dataclasses.field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.module}.{self.function}:{self.operator}:{self.digest}"

    @property
    def change(self) -> str:
        return f"{self.before}  ->  {self.after}"


def _places(body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int]]:
    """``(body, position)`` of each ``@triton.jit`` function, those under a condition included."""
    for position, node in enumerate(body):
        if isinstance(node, ast.If):
            yield from _places(node.body)
            yield from _places(node.orelse)
        elif isinstance(node, ast.FunctionDef) and any(
            "triton.jit" in ast.unparse(d) for d in node.decorator_list
        ):
            yield body, position


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The ``@triton.jit`` functions of a module."""
    for body, position in _places(tree.body):
        function = body[position]
        assert isinstance(function, ast.FunctionDef)
        yield function


def _at(root: ast.AST, place: Place) -> ast.AST:
    for field, position in place:
        value = getattr(root, field)
        root = value if position is None else value[position]
    return root


def _replaced(function: ast.FunctionDef, place: Place, new: ast.AST) -> ast.FunctionDef:
    changed = copy.deepcopy(function)
    owner = _at(changed, place[:-1])
    field, position = place[-1]
    if position is None:
        setattr(owner, field, new)
    else:
        getattr(owner, field)[position] = new
    return ast.fix_missing_locations(changed)


def _heading(statement: ast.AST) -> str:
    if isinstance(statement, (ast.If, ast.For)):
        statement = copy.deepcopy(statement)
        statement.body, statement.orelse = [ast.Pass()], []
        return ast.unparse(statement).splitlines()[0]
    return ast.unparse(statement)


def mutations(function: ast.FunctionDef) -> Iterator[tuple[str, str, str, int, ast.FunctionDef]]:
    """``(operator, before, after, line, changed function)`` for each change of ``function``; those that give
    the same source come once."""
    parameters = sizes(function)
    removals = removable(function)
    seen = {ast.unparse(function)}
    for node, parent, place, statement in walk(function, function):
        changes = [(name, new) for name, operator in OPERATORS.items() for new in operator(node, parent)]
        if isinstance(node, ast.Name) and node.id in parameters and len(parameters) > 1:
            after = parameters[(parameters.index(node.id) + 1) % len(parameters)]
            changes.append(("sizes", ast.Name(after, ast.Load())))
        if id(node) in removals:
            changes.append(("statement", ast.Pass()))
        for operator, new in changes:
            changed = _replaced(function, place, new)
            text = ast.unparse(changed)
            if text in seen:
                continue
            seen.add(text)
            original = _at(function, statement)
            assert isinstance(original, ast.stmt)
            yield operator, _heading(original), _heading(_at(changed, statement)), original.lineno, changed


@functools.cache
def mutants(module: str) -> tuple[Mutant, ...]:
    """All mutants of a module of ``kernels``, in order of the source."""
    path = Path(importlib.import_module(f"kernels.{module}").__file__ or "")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for body, position in _places(tree.body):
        function = body[position]
        assert isinstance(function, ast.FunctionDef)
        for operator, before, after, line, changed in mutations(function):
            body[position] = changed
            text = ast.unparse(tree)
            body[position] = function
            digest = hashlib.sha256(ast.unparse(changed).encode()).hexdigest()[:6]
            found.append(Mutant(module, function.name, operator, before, after, line, digest, text))
    return tuple(found)


@functools.cache
def modules() -> tuple[str, ...]:
    """Modules of ``kernels`` with Triton functions."""
    package = importlib.import_module("kernels")
    found = []
    for info in pkgutil.iter_modules(package.__path__):
        path = Path(package.__path__[0]) / f"{info.name}.py"
        if any(functions(ast.parse(path.read_text(encoding="utf-8")))):
            found.append(info.name)
    return tuple(sorted(found))


def _plain(value: Any) -> Any:
    """The Python function behind a function of Triton or a function; None for other things."""
    value = value if inspect.isfunction(value) else getattr(value, "fn", None)
    return value if inspect.isfunction(value) and value.__module__.startswith("kernels.") else None


@functools.cache
def reached(kernel: Any) -> frozenset[tuple[str, str]]:
    """``(module, function)`` of each Triton function that a built-in kernel may call."""
    found: set[tuple[str, str]] = set()
    pending, seen = [_plain(kernel)], set()
    while pending:
        function = pending.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        found.add((function.__module__.removeprefix("kernels."), function.__name__))
        pending += [_plain(function.__globals__.get(name)) for name in function.__code__.co_names]
    return frozenset(found)


def modules_of(formats: Mapping[str, Format]) -> frozenset[str]:
    """Modules of ``kernels`` with functions that built-in kernels of ``formats`` may call."""
    return frozenset(module for fmt in formats.values() for module, _ in reached(fmt.kernel))


def users(formats: Mapping[str, Format], mutant: Mutant) -> list[str]:
    """Formats whose built-in kernel may call the mutated function."""
    key = (mutant.module, mutant.function)
    return [name for name, fmt in formats.items() if key in reached(fmt.kernel)]


def plant(mutant: Mutant, folder: Path) -> None:
    """Put the mutated function in place of the original, in this process and for good.

    Raises:
        Exception: whatever the mutated module raises when it is imported.
    """
    alias = f"_mutated_{mutant.module}"
    path = folder / f"{alias}.py"
    path.write_text(mutant.text, encoding="utf-8")  # Triton reads the source of what it compiles
    spec = importlib.util.spec_from_file_location(alias, path)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    sys.modules[alias] = fresh
    spec.loader.exec_module(fresh)
    original = getattr(importlib.import_module(f"kernels.{mutant.module}"), mutant.function)
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__name__.startswith("kernels"):
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, getattr(fresh, mutant.function))
