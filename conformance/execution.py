"""What the calls of a kernel did: a record, and what an adapter raises to say it."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.registry import NO_REMARKS, Remarks
from conformance.verdict import Cause


@dataclasses.dataclass(frozen=True)
class Execution:
    """What two runs of a kernel did.

    Attributes:
        bits: output of the first run as bit patterns, or None when there is none.
        crash: ``compile`` or ``launch`` when the kernel raised, with ``error`` as its text.
        lost: what the device answers after a crash that it did not survive, or empty.
        unsupported: the kernel's own reason for not doing this case.
        contract: what the returned tensor should have been, when it is another.
        stray: writes outside the output and the inputs.
        mutated: inputs that were written.
        strayed: reads outside the inputs, where they can be seen (:mod:`conformance.reads`).
        unwritten: mask of elements that neither run wrote, or None when not observable.
        unstable: mask of elements that differ from run to run.
        causes: of a breach of contract, where it has a name.
        remarks: what the kernel's adapter adds.
    """

    bits: np.ndarray | None = None
    crash: str | None = None
    error: str = ""
    lost: str = ""
    unsupported: str | None = None
    contract: str | None = None
    stray: tuple[str, ...] = ()
    mutated: tuple[str, ...] = ()
    strayed: tuple[str, ...] = ()
    unwritten: np.ndarray | None = None
    unstable: np.ndarray | None = None
    causes: tuple[Cause, ...] = ()
    remarks: Remarks = NO_REMARKS


class Breach(Exception):
    """Raised by an adapter around a user's function for what that did against its contract; the
    arguments are those of :class:`Execution`."""

    def __init__(
        self, contract: str | None = None, *, mutated: tuple[str, ...] = (), causes: tuple[Cause, ...] = ()
    ) -> None:
        super().__init__(contract or "; ".join(mutated))
        self.contract = contract
        self.mutated = mutated
        self.causes = causes
