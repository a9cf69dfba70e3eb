"""Read machine code: spills, registers, fused operations, ways through shared memory."""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import tempfile
from pathlib import Path

import triton

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# An opcode of SASS, behind the address of the instruction and its predicate.
_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_FUSED = re.compile(r"(?:FFMA|HFMA2|DFMA)")


@dataclasses.dataclass(frozen=True)
class Code:
    """What the machine code of a kernel does.

    Attributes:
        registers: of a thread (AMD: vector registers).
        spills: instructions that move registers to local memory or back (AMD: vector registers spilled).
        shared: instructions that read or write shared memory.
        fused: multiply-adds that round once where a product and a sum would round twice. Those with a
            zero for a summand or of constants alone only move or multiply, and do not count.
        store_bytes: bytes that a lane writes in one instruction to global memory, to their number.
    """

    registers: int
    spills: int
    shared: int
    fused: int
    store_bytes: dict[int, int]


@functools.cache
def _tool(name: str) -> str:
    path = _TOOLS / name
    if not path.is_file():
        raise FileNotFoundError(f"{name}: expected it in Triton's wheel, found nothing at {path}")
    return str(path)


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([_tool(tool), *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{tool} failed: {' '.join((done.stderr or done.stdout).split())[:300]}")
    return done.stdout


def read_cubin(cubin: bytes) -> Code:
    """Disassemble with the tools of Triton's wheel.

    Raises:
        FileNotFoundError: the wheel has no such tool.
        RuntimeError: the tool failed, or printed no instructions.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        sass = _run("nvdisasm", "-c", str(path))
        usage = _run("cuobjdump", "-res-usage", str(path))
    registers = re.search(r"\bREG:(\d+)", usage)
    code = read_sass(sass, int(registers[1]) if registers else 0)
    if not registers or not _SASS.search(sass):
        raise RuntimeError("nvdisasm and cuobjdump: expected instructions and registers, found none")
    return code


def read_sass(sass: str, registers: int) -> Code:
    """Count in the text of ``nvdisasm -c``."""
    spills = shared = fused = 0
    stores: dict[int, int] = {}
    for opcode, operands in _SASS.findall(sass):
        name, *suffixes = opcode.split(".")
        if name in ("LDL", "STL"):
            spills += 1
        elif name in ("LDS", "STS", "LDSM", "STSM"):
            shared += 1
        elif name == "STG":
            width = _store_width(suffixes)
            stores[width] = stores.get(width, 0) + 1
        elif _FUSED.match(name) and _adds(operands):
            fused += 1
    return Code(registers, spills, shared, fused, dict(sorted(stores.items())))


def _store_width(suffixes: list[str]) -> int:
    for suffix in suffixes:
        if suffix in ("64", "128", "256"):
            return int(suffix) // 8
        if suffix in ("U8", "S8"):
            return 1
        if suffix in ("U16", "S16"):
            return 2
    return 4


def _adds(operands: str) -> bool:
    """Whether a fused operation multiplies two registers and adds something that is no zero."""
    _, *sources = (operand.strip() for operand in operands.split(","))
    return not any(re.match(r"-?RZ\b|-?\|?RZ|-0\b|[+-]?0(\s|$)", source) for source in sources)


def read_amd(assembly: str) -> Code:
    """Count in AMD assembly."""

    def metadata(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", assembly)
        return int(found[1]) if found else 0

    stores: dict[int, int] = {}
    shared = fused = 0
    widths = {"byte": 1, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
    widths |= {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16}
    for line in assembly.splitlines():
        text = line.strip()
        store = re.match(r"(?:global|buffer|flat)_store_(\w+?)(?:_d16_hi)?\s", text)
        if store:
            width = widths[store[1]]
            stores[width] = stores.get(width, 0) + 1
        elif re.match(r"ds_(read|write|load|store)", text):
            shared += 1
        elif re.match(r"v_(pk_)?(fma|fmac|mad|fma_mix\w*)_(f16|f32|f64|bf16)", text) and _sums(text):
            fused += 1
    # Scalar registers are spilled to lanes of vector registers, which is no way through memory.
    spills = metadata("vgpr_spill_count")
    return Code(metadata("vgpr_count"), spills, shared, fused, dict(sorted(stores.items())))


def _sums(text: str) -> bool:
    """Whether the summand, the fourth operand, is no zero: ``neg(0)`` makes a product of it."""
    operands = text.split(None, 1)[1].split(",")
    return not re.match(r"\s*(-?0|neg\(0\))(\s|$)", operands[3] if len(operands) > 3 else "x")
