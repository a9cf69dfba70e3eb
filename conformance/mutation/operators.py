"""Mutation operators: one small change of one node of a ``@triton.jit`` function.

An operator gets a node and its parent and gives the nodes that may stand in its place. Trees that it gives
share no node with the original.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence

Place = tuple[tuple[str, int | None], ...]
"""The way from a function to a node in it: fields, and positions where a field is a list."""

FLIPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
}
NEIGHBOUR: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
NARROWER = {"float32": "float16", "int32": "int8", "int64": "int32", "uint32": "int32"}
HINTS = ("max_contiguous", "multiple_of")


def called(node: ast.AST) -> str:
    """``name`` of a call ``tl.name(...)``, or empty."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        value = node.func.value
        if isinstance(value, ast.Name) and value.id == "tl":
            return node.func.attr
    return ""


def _plus(node: ast.expr, amount: int) -> ast.expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return ast.Constant(node.value + amount)
    operator = ast.Add() if amount > 0 else ast.Sub()
    return ast.BinOp(copy.deepcopy(node), operator, ast.Constant(abs(amount)))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_int(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _bits(node: ast.AST) -> bool:
    """``x & 15`` and ``x & MAXQ``, as against ``a & b`` of two conditions."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.BitAnd):
        return False
    return _is_int(node.right) or (isinstance(node.right, ast.Name) and node.right.id.isupper())


def index(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """Off by one: lanes, programs, the address of a load or store, the end of a loop."""
    if called(node) in ("arange", "program_id"):
        assert isinstance(node, ast.expr)
        yield _plus(node, 1)
        yield _plus(node, -1)
    if called(node) in ("load", "store"):
        assert isinstance(node, ast.Call)
        for amount in (1, -1):
            yield _with(node, args=[_plus(node.args[0], amount), *copy.deepcopy(node.args[1:])])
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
        end = node.iter.args[-1]
        yield _with(node, iter=_with(node.iter, args=[*copy.deepcopy(node.iter.args[:-1]), _plus(end, -1)]))


def mask(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """The mask of a load or store left out, or one of its conditions."""
    if called(node) in ("load", "store"):
        assert isinstance(node, ast.Call)
        kept = [word for word in node.keywords if word.arg not in ("mask", "other")]
        if len(kept) < len(node.keywords):
            yield _with(node, keywords=copy.deepcopy(kept))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd) and not _bits(node):
        yield copy.deepcopy(node.left)
        yield copy.deepcopy(node.right)


def other(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """Another value where a load is masked off."""
    if isinstance(node, ast.keyword) and node.arg == "other":
        text = ast.unparse(node.value)
        new: float = {"0": 1, "0.0": 1.0, "-1": 0}.get(text, 0.0)
        yield ast.keyword("other", ast.Constant(new))


def shift(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """A shift by one more or less, or the other way."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.RShift, ast.LShift)):
        yield _with(node, right=_plus(node.right, 1))
        yield _with(node, right=_plus(node.right, -1))
        yield _with(node, op=ast.LShift() if isinstance(node.op, ast.RShift) else ast.RShift())


def bits(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """A bit mask left out, or of one bit more or less."""
    if _bits(node):
        assert isinstance(node, ast.BinOp)
        yield copy.deepcopy(node.left)
        if isinstance(node.right, ast.Constant):
            value = node.right.value
            assert isinstance(value, int)
            yield _with(node, right=ast.Constant(value >> 1))
            yield _with(node, right=ast.Constant(2 * value + 1))


def cast(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """A narrower type, another signedness, no bit cast, or no cast to a float."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to"):
        return
    target = node.args[0]
    if isinstance(target, ast.Attribute) and target.attr in NARROWER:
        yield _with(node, args=[_with(target, attr=NARROWER[target.attr])])
        if target.attr == "float32" and not node.keywords:
            yield copy.deepcopy(node.func.value)
    elif ast.unparse(target).endswith("element_ty"):
        half = ast.parse("x.to(tl.float16)", mode="eval").body
        assert isinstance(half, ast.Call)
        assert isinstance(half.func, ast.Attribute)
        half.func.value = copy.deepcopy(node.func.value)
        yield _with(node, func=_with(node.func, value=half))
    if node.keywords:
        yield _with(node, keywords=[])


def axis(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """Two things in each other's place: halves of a join, axes of a broadcast."""
    if called(node) in ("join", "interleave"):
        assert isinstance(node, ast.Call)
        if ast.dump(node.args[0]) != ast.dump(node.args[1]):
            yield _with(node, args=copy.deepcopy(node.args[::-1]))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
        yield _with(node, slice=ast.Tuple(copy.deepcopy(node.slice.elts[::-1]), ast.Load()))


def arithmetic(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """``+`` for ``-``, ``//`` for ``%`` and so on."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in FLIPPED:
        yield _with(node, op=FLIPPED[type(node.op)]())


def compare(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """``<`` for ``<=`` and so on."""
    if isinstance(node, ast.Compare):
        yield _with(node, ops=[NEIGHBOUR[type(op)]() for op in node.ops])


def constant(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """An integer one more or less. Those of bit masks and shifts have operators of their own."""
    if not _is_int(node) or _bits(parent):
        return
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.RShift, ast.LShift)):
        return
    if isinstance(parent, ast.keyword) or called(parent) in ("arange", "program_id", *HINTS):
        return
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    yield ast.Constant(node.value + 1)
    if not isinstance(parent, ast.Call):  # the start of a range
        yield ast.Constant(node.value - 1)


def condition(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """A condition negated."""
    if isinstance(node, ast.If):
        yield _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))
    if isinstance(node, ast.IfExp):
        yield _with(node, body=copy.deepcopy(node.orelse), orelse=copy.deepcopy(node.body))
    if called(node) == "where":
        assert isinstance(node, ast.Call)
        first, yes, no = copy.deepcopy(node.args)
        yield _with(node, args=[first, no, yes])


def clamp(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """Only one side of a minimum or maximum."""
    if called(node) in ("minimum", "maximum"):
        assert isinstance(node, ast.Call)
        yield from copy.deepcopy(node.args)


OPERATORS: dict[str, Callable[[ast.AST, ast.AST], Iterator[ast.AST]]] = {
    "index": index,
    "mask": mask,
    "other": other,
    "shift": shift,
    "bits": bits,
    "cast": cast,
    "axis": axis,
    "arithmetic": arithmetic,
    "compare": compare,
    "constant": constant,
    "condition": condition,
    "clamp": clamp,
}


def sizes(function: ast.FunctionDef) -> list[str]:
    """Parameters that are sizes; one in another's place is a swapped axis or stride."""
    return [argument.arg for argument in function.args.args if argument.arg.startswith("n_")]


def removable(function: ast.FunctionDef) -> set[int]:
    """``id`` of each statement without which the function still has all its names: stores, and
    assignments to what was assigned before."""
    found: set[int] = set()
    seen: set[str] = set()

    def visit(body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.AugAssign) or (
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            ):
                found.add(id(statement))
            elif isinstance(statement, ast.Assign):
                names = {
                    node.id
                    for target in statement.targets
                    for node in ast.walk(target)
                    if isinstance(node, ast.Name)
                }
                if names <= seen and called(statement.value) not in HINTS:
                    found.add(id(statement))
                seen.update(names)
            elif isinstance(statement, (ast.If, ast.For)):
                visit(statement.body)
                # Names of one branch are not there in the other.
                visit(statement.orelse)

    visit(function.body)
    return found


def walk(
    node: ast.AST, parent: ast.AST, place: Place = (), statement: Place = ()
) -> Iterator[tuple[ast.AST, ast.AST, Place, Place]]:
    """Nodes that may be mutated: ``(node, parent, place, place of its statement)``. Annotations, the
    signature and hints to the compiler are left out."""
    if isinstance(node, ast.stmt):
        statement = place
    if place:
        yield node, parent, place, statement
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "args", "returns", "annotation", "target", "targets", "ctx", "func"):
            # The object that a method is called on is an operand; what ``args`` of a call has, too.
            if field == "func" and isinstance(value, ast.Attribute):
                yield from walk(value.value, node, (*place, ("func", None), ("value", None)), statement)
                continue
            if not (field == "args" and isinstance(node, ast.Call)):
                continue
        if isinstance(value, list):
            kept = value[:1] if called(node) in HINTS else value
            for position, child in enumerate(kept):
                if isinstance(child, ast.AST):
                    yield from walk(child, node, (*place, (field, position)), statement)
        elif isinstance(value, ast.AST):
            yield from walk(value, node, (*place, (field, None)), statement)
