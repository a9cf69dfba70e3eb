"""Hold a weight that upstream packed to the floats that it was packed from."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.registry import Packing
from conformance.verdict import Cause, Verdict


def hold_to_bound(verdict: Verdict, decoded: np.ndarray, packing: Packing) -> Verdict:
    """SPLIT when the ``decoded`` values are further from the floats than the format's step allows."""
    values = decoded.astype(np.float64)
    with np.errstate(invalid="ignore"):
        beyond = ~(np.abs(values - packing.floats) <= packing.bound)
    if not beyond.any():
        return verdict
    first = tuple(int(i) for i in np.argwhere(beyond)[0])
    text = (
        f"packed by upstream, {int(beyond.sum())} of {beyond.size} decoded values are further from the "
        f"float weights than half a step: at {list(first)} {values[first]:.9g} for "
        f"{packing.floats[first]:.9g}, bound {packing.bound[first]:.3g} ({packing.why})"
    )
    return dataclasses.replace(
        verdict, kind="SPLIT", summary=text, causes=(Cause("unknown", "packer, oracle and spec disagree"),)
    )
