"""What detection says of a layer: readings that its tensors admit, and the evidence."""

from __future__ import annotations

import dataclasses
from typing import Any

KERNEL_FORMATS = ("gptq", "awq_cols", "awq_rows", "awq_quads", "nf4", "fp4", "llm_int8")


@dataclasses.dataclass(frozen=True)
class Reading:
    """One way to read a layer's tensors.

    Attributes:
        format: id of a format of this project, or the name of one that has no kernel here.
        rows, cols: K (in features) and N (out features).
        bits: width of a code.
        group_size: rows a scale covers, -1 for one group; the block size of blockwise formats.
        group_sizes: first and last group size that the tensors admit, where they admit
            several that decode the same; ``group_size`` is then one of them.
        zeros: convention of stored zeros (gptq).
        nested: absmax is itself quantized (nf4, fp4).
    """

    format: str
    rows: int
    cols: int
    bits: int
    group_size: int | None = None
    group_sizes: tuple[int, int] | None = None
    zeros: str | None = None
    nested: bool | None = None

    @property
    def has_kernel(self) -> bool:
        return self.format in KERNEL_FORMATS and not (self.format == "gptq" and self.bits not in (2, 3, 4, 8))

    @property
    def name(self) -> str:
        parts = [f"{self.bits} bit"]
        if self.group_size is not None:
            what = "block" if self.nested is not None else "group"
            parts.append(f"{what} {self.group_size}")
        if self.zeros is not None:
            parts.append(f"zeros {self.zeros}")
        if self.nested:
            parts.append("nested absmax")
        return f"{self.format} {', '.join(parts)}"

    def allows_group_size(self, size: int) -> bool:
        """Whether the tensors admit ``size`` with this reading; -1 stands for K."""
        if self.group_size is None:
            return True
        wanted = max(self.rows, 1) if size == -1 else size
        if self.group_sizes is not None:
            first, last = self.group_sizes
            return first <= wanted and (last == -1 or wanted <= last)
        mine = max(self.rows, 1) if self.group_size == -1 else self.group_size
        return wanted == mine


@dataclasses.dataclass(frozen=True)
class Excluded:
    """A reading that the tensors rule out, and why."""

    reading: str
    why: str


@dataclasses.dataclass
class Report:
    """What detection says of one layer.

    Attributes:
        admitted: readings that the tensors admit.
        chosen: those of them that the metadata leaves; all when it leaves none.
        excluded: readings that the tensors rule out.
        evidence: facts: shapes, g_idx, stored zeros, quantization state.
        undecidable: what the tensors do not tell, with what each reading would give.
        hints: what speaks for a reading without excluding the others.
        contradictions: metadata that the tensors contradict.
        damage: tensors that no reading accepts.
    """

    layer: str
    family: str
    admitted: list[Reading] = dataclasses.field(default_factory=list)
    chosen: list[Reading] = dataclasses.field(default_factory=list)
    excluded: list[Excluded] = dataclasses.field(default_factory=list)
    evidence: dict[str, Any] = dataclasses.field(default_factory=dict)
    undecidable: list[str] = dataclasses.field(default_factory=list)
    hints: list[str] = dataclasses.field(default_factory=list)
    contradictions: list[str] = dataclasses.field(default_factory=list)
    damage: list[str] = dataclasses.field(default_factory=list)

    @property
    def status(self) -> str:
        if self.damage:
            return "damaged"
        if self.contradictions:
            return "contradiction"
        if self.undecidable:
            return "undecidable"
        return "ok"

    @property
    def failed(self) -> bool:
        return bool(self.damage or self.contradictions)

    def exclude(self, reading: str, why: str) -> None:
        self.excluded.append(Excluded(reading, why))

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {"record": "layer", "layer": self.layer, "status": self.status}
        record["formats"] = sorted({reading.format for reading in self.chosen})
        for key in ("family", "evidence", "undecidable", "hints", "contradictions", "damage"):
            record[key] = getattr(self, key)
        for key in ("admitted", "chosen", "excluded"):
            record[key] = [dataclasses.asdict(item) for item in getattr(self, key)]
        return record
