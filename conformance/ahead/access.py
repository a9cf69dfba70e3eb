"""Widths of global loads and stores in PTX, by the kernel argument that they go to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

_ACCESS = re.compile(r"\b(ld|st|red|atom)\.global((?:\.[\w:]+)*)\s+(.*)")
_BASE = re.compile(r"\[\s*(%\w+)")
_PARAMETER = re.compile(r"ld\.param\.\w+\s+(%\w+),\s*\[\w+_param_(\d+)\]")
_REGISTER = re.compile(r"%\w+")

Widths = dict[str, dict[int, int]]


def _width(kind: str) -> int:
    """Bytes that a lane moves: of ``.v4.b32`` 16."""
    count, size = 1, 0
    for part in kind.split("."):
        if re.fullmatch(r"v\d", part):
            count = int(part[1:])
        elif re.fullmatch(r"[bufs]\d+", part):
            size = int(part[1:]) // 8
    return count * size


def _statements(ptx: str) -> Iterator[str]:
    for line in ptx.splitlines():
        text = re.sub(r"//.*", "", line).strip()
        text = re.sub(r"^@!?%p\d+\s+", "", text)
        # Inline assembly of Triton stands in braces of its own.
        yield from (part.strip() for part in text.split(";") if part.strip())


def accesses(ptx: str, arguments: Sequence[str | None]) -> tuple[Widths, Widths]:
    """Loads and stores of the kernel's arguments: name to {bytes a lane moves: instructions}.

    The address of each access is followed back through the registers that it is computed of, as far
    as a pointer among the function's parameters. What a load has brought in is a value, and is followed
    no further: an address that went through shared memory is one of ``?``.

    Args:
        arguments: names of the compiled function's parameters, in order; None for those that are no
            pointers.
    """
    made: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    parameters: dict[str, str | None] = {}
    found: list[tuple[str, str, int]] = []
    for text in _statements(ptx):
        parameter = _PARAMETER.search(text)
        if parameter:
            number = int(parameter[2])
            # Beyond the kernel's own parameters are Triton's scratch buffers.
            parameters[parameter[1]] = arguments[number] if number < len(arguments) else None
            continue
        access = _ACCESS.search(text)
        if access:
            base = _BASE.search(access[3])
            if base:
                found.append((access[1], base[1], _width(access[2])))
            continue
        registers = _REGISTER.findall(text)
        if len(registers) > 1 and "ld.shared" not in text:
            made[registers[0]].append(tuple(registers[1:]))
    loads: Widths = defaultdict(lambda: defaultdict(int))
    stores: Widths = defaultdict(lambda: defaultdict(int))
    for kind, address, width in found:
        for name in _origins(address, made, parameters):
            (loads if kind == "ld" else stores)[name][width] += 1
    return _plain(loads), _plain(stores)


def _plain(widths: Widths) -> Widths:
    return {name: dict(sorted(counts.items())) for name, counts in sorted(widths.items())}


def _origins(
    base: str, made: dict[str, list[tuple[str, ...]]], parameters: dict[str, str | None]
) -> set[str]:
    """Pointers that a 64-bit register is computed of; ``?`` if none was found."""
    names: set[str] = set()
    seen: set[str] = set()
    left = [base]
    while left:
        register = left.pop()
        if register in seen:
            continue
        seen.add(register)
        if register in parameters:
            name = parameters[register]
            if name is not None:
                names.add(name)
            continue
        for operands in made[register]:
            left += [operand for operand in operands if operand.startswith("%rd")]
    return names or {"?"}
