"""Where wrong elements are: spread evenly over an axis, or concentrated in a few of its labels.

An axis gives every element an integer label: its row, column, group, slot in its packed word. The
hypothesis is that the W wrong elements are a random subset of the N compared ones, so that the
counts by label are multivariate hypergeometric. The statistic is Pearson's,

    X2 = (N - 1) / (N - W) * sum over labels of (wrong - expected)**2 / expected
    expected = W * size of the label / N

whose factor gives it the mean of a chi-square with (labels - 1) degrees of freedom exactly.

- Where every expected count, of wrong and of right elements, is 5 or more (Cochran's rule), p is
  the tail of that chi-square. For an integer number of degrees of freedom the tail is a finite sum.
- Elsewhere the chi-square is far off (two wrong elements in one of 4096 rows would have p = 0), and
  p is (1 + draws at least as extreme) / (1 + draws) over :data:`DRAWS` seeded draws from the
  hypothesis itself, which holds its level whatever the counts are.

Words for the outcome, which are statements and judge no kernel:

``uniform``
    p is above :data:`LEVEL`: 1 in 200, so that the four axes of a case accuse an even spread in one
    case of 50 at most. 999 draws can reach 0.001, five times below.
``concentrated``
    p is at most :data:`LEVEL`, and half of the wrong elements are in labels that hold at most
    :data:`SHARE` of the elements. An even spread has 1/2 there; 3/8 admits six of a word's eight
    slots. The bound is needed because in a large output the least unevenness is significant.
``uneven``
    significant, but not that strong.
``everything``, ``one element``, ``nothing``
    no test: all, one or none of the elements is wrong.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

LEVEL = 0.005
SHARE = 0.375
DRAWS = 999
# More labels are taken together in runs of neighbours: the draws cost time for each label.
MOST_LABELS = 1024
# NumPy draws from fewer; the chi-square is used beyond, whatever the counts are.
MOST_ELEMENTS = 10**9
_BLOCK = 64


@dataclasses.dataclass(frozen=True)
class Concentration:
    """How the wrong elements are spread over one axis.

    Attributes:
        axis: its name.
        labels: number of different labels, after neighbours were taken together.
        merged: labels that were taken together into one; 1 for none.
        touched: labels with a wrong element.
        reach: share of all elements that those labels hold.
        half: fewest labels that hold half of the wrong elements.
        share: share of all elements that those labels hold; about 1/2 for an even spread.
        statistic: X2 of the module's text.
        p: probability of this statistic or a larger one under the hypothesis.
        method: ``chi-square``, ``draws``, or ``none``.
        verdict: one of the module's words.
        first: the first few touched labels, those with most wrong elements first.
    """

    axis: str
    labels: int
    merged: int
    touched: int
    reach: float
    half: int
    share: float
    statistic: float
    p: float
    method: str
    verdict: str
    first: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "first": list(self.first)}

    @property
    def width(self) -> float:
        """How much of the output must be looked at: what the touched labels hold, or, where they
        hold nearly all, twice what half of the wrong elements are in."""
        return self.reach if self.reach <= 0.75 else min(1.0, 2 * self.share)

    def words(self) -> str:
        """Such as ``all in 2 of 8 groups``; empty unless concentrated."""
        if self.verdict != "concentrated":
            return ""
        plural = f"{self.axis}s" if self.merged == 1 else f"runs of {self.merged} {self.axis}s"
        if self.touched == 1:
            which = f" ({self.axis} {self.first[0]})" if self.merged == 1 else ""
            return f"all in 1 of {self.labels} {plural}{which}"
        if self.reach <= 0.75:
            return f"all in {self.touched} of {self.labels} {plural}"
        return f"half of them in {self.half} of {self.labels} {plural}"


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(chi-square with ``freedom`` degrees of freedom >= ``statistic``).

    The tail is Q(freedom / 2, x) with x = statistic / 2, by the recurrence Q(a + 1, x) = Q(a, x) +
    x**a * exp(-x) / gamma(a + 1) from Q(1/2, x) = erfc(sqrt(x)) or Q(1, x) = exp(-x). Every term is
    positive, so nothing cancels.
    """
    if freedom < 1 or statistic <= 0:
        return 1.0
    x = statistic / 2
    total = math.erfc(math.sqrt(x)) if freedom % 2 else math.exp(-x)
    a = 0.5 if freedom % 2 else 1.0
    while a < freedom / 2:
        total += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(total, 1.0)


def concentration(axis: str, labels: np.ndarray, wrong: np.ndarray) -> Concentration:
    """How ``wrong`` (bool) is spread over ``labels`` (integers, 0 or more), both of one shape."""
    flat, mask = labels.reshape(-1).astype(np.int64), wrong.reshape(-1)
    largest = int(flat.max()) if flat.size else 0
    merged = -(-(largest + 1) // MOST_LABELS)
    if merged > 1:
        flat = flat // merged
    sizes = np.bincount(flat)
    counts = np.bincount(flat[mask], minlength=sizes.size)
    present = np.flatnonzero(sizes)  # a group that no row uses is no label
    sizes, counts = sizes[present], counts[present]
    n, w = int(sizes.sum()), int(counts.sum())
    # By density: the labels that hold half of the wrong elements in the fewest elements.
    order = np.argsort(-counts / np.maximum(sizes, 1), kind="stable")
    running = np.cumsum(counts[order])
    half = int(np.searchsorted(running, w / 2) + 1) if w else 0
    share = float(sizes[order[:half]].sum() / n) if n else 0.0
    first = tuple(int(i) for i in present[order[: min(4, int(np.count_nonzero(counts)))]])
    statistic, p, method, verdict = 0.0, 1.0, "none", "uniform"
    if w == 0:
        verdict = "nothing"
    elif w == n:
        verdict = "everything"
    elif w == 1:
        verdict = "one element"
    elif sizes.size > 1 and sizes.max() > 1:
        statistic, p, method = _test(sizes, counts, n, w)
        if p <= LEVEL:
            verdict = "concentrated" if share <= SHARE else "uneven"
    return Concentration(
        axis=axis,
        labels=int(sizes.size),
        merged=merged,
        touched=int(np.count_nonzero(counts)),
        reach=float(sizes[counts > 0].sum() / n) if n else 0.0,
        half=half,
        share=share,
        statistic=statistic,
        p=p,
        method=method,
        verdict=verdict,
        first=first,
    )


def _test(sizes: np.ndarray, counts: np.ndarray, n: int, w: int) -> tuple[float, float, str]:
    """Statistic, p and method."""
    expected = sizes * (w / n)
    factor = (n - 1) / (n - w)

    def pearson(found: np.ndarray) -> np.ndarray:
        return factor * ((found - expected) ** 2 / expected).sum(axis=-1)

    seen = float(pearson(counts))
    if min(expected.min(), (sizes - expected).min()) >= 5 or n >= MOST_ELEMENTS:
        return seen, chi_square_tail(seen, sizes.size - 1), "chi-square"
    # The seed is a constant: the same output gives the same words.
    draws = np.random.Generator(np.random.Philox(key=20))
    extreme, left = 0, DRAWS
    while left:
        size = min(left, _BLOCK)
        drawn = draws.multivariate_hypergeometric(sizes, w, size=size, method="marginals")
        extreme += int(np.count_nonzero(pearson(drawn) >= seen * (1 - 1e-12)))
        left -= size
        if (1 + extreme) / (1 + DRAWS) > 0.1:
            break  # far from significant: what is left cannot bring it back below the level
    return seen, (1 + extreme) / (1 + DRAWS - left), "draws"


def most_telling(found: tuple[Concentration, ...]) -> Concentration | None:
    """The concentrated axis to name: the first, unless a later one is more than twice as narrow.

    A fault of a group is one of its rows too, and rows are the finer axis; callers give what shares
    a scale first.
    """
    best: Concentration | None = None
    for item in found:
        if item.verdict == "concentrated" and (best is None or item.width < best.width / 2):
            best = item
    return best
