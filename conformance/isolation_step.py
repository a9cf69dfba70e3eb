"""A step of a matrix product and the inputs that show it alone."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the chain and the inputs that show it alone.

    Attributes:
        name: as in the report.
        shown_by: what the other steps have to do meanwhile.
        cases: field texts of cases, without the output dtype.
        out: output dtypes that show it; None: the first that the kernel gives.
    """

    name: str
    shown_by: str
    cases: tuple[str, ...]
    out: tuple[str, ...] | None = None
