"""A record as the page shows it: every field there, in the type that the template expects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# A finding shows so many elements.
LOCATED = 8
MEASURES = {
    "compared": "elements compared",
    "wrong": "wrong",
    "zero_sign": "wrong in the sign of a zero alone",
    "snr_db": "SNR (dB)",
    "max_abs": "largest absolute error",
    "mean_abs": "mean absolute error",
    "max_rel": "largest relative error",
    "mean_rel": "mean relative error",
}


def whole_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with every field that the template reads, in the type that it expects."""
    lists = {name: _list(record, name) for name in ("causes", "located", "votes", "notes")}
    texts = {
        name: str(record.get(name) or "")
        for name in ("verdict", "case", "kernel", "device", "summary", "apart", "reading", "neighbour")
    }
    causes = [
        {
            **{name: str(cause.get(name) or "") for name in ("name", "text", "effect", "fix")},
            "links": [link for link in _list(cause, "links") if is_link(link)],
        }
        for cause in lists["causes"]
        if isinstance(cause, dict)
    ]
    located = [_located(item) for item in lists["located"] if isinstance(item, dict)]
    measures = record.get("measures")
    return {
        **texts,
        "causes": causes,
        "located": located[:LOCATED],
        "located_left": max(0, len(located) - LOCATED),
        "votes": [_vote(vote) for vote in lists["votes"] if isinstance(vote, dict)],
        "notes": [str(note) for note in lists["notes"]],
        "elements": record.get("elements", 0),
        "measures": measures if isinstance(measures, dict) else {},
        "flaky": record.get("flaky") is True,
    }


def _located(item: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: str(item.get(name) or "") for name in ("where", "got", "want")}
    return {"index": ", ".join(map(str, _list(item, "index"))), **texts}


def _vote(vote: Mapping[str, Any]) -> dict[str, str]:
    gates = vote.get("gates")
    passed = gates.items() if isinstance(gates, dict) else ()
    numbers = {name: number(vote.get(name, "")) for name in ("wrong", "compared", "max_ulp", "max_abs")}
    return {
        "reference": str(vote.get("reference", "")),
        **numbers,
        "gates": ", ".join(f"{gate} {'pass' if ok else 'fail'}" for gate, ok in passed),
    }


def measure_rows(found: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Rows of the table of measures: numbers, then where the error concentrates."""
    rows = [(words, number(found[name])) for name, words in MEASURES.items() if name in found]
    for axis in _list(found, "axes"):
        if isinstance(axis, dict) and axis.get("method") not in (None, "none"):
            spread = f"{axis.get('verdict', '')}, in {axis.get('touched', '')} of {axis.get('labels', '')}"
            rows.append((f"by {axis.get('axis', '')}", f"{spread} (p {number(axis.get('p', ''))})"))
    return tuple(rows)


def number(value: Any) -> str:
    """A measure in text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _list(record: Mapping[str, Any], name: str) -> list[Any]:
    found = record.get(name)
    return found if isinstance(found, list) else []


def is_link(text: Any) -> bool:
    """Whether a text may be the target of a link on the page."""
    return isinstance(text, str) and re.match(r"https?://[^\s/]", text) is not None


def slug(text: str) -> str:
    """A text as part of an id or file name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "x"
