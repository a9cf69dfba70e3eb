"""Grids of tiles whose programs find their tile without a division, which is what small weights wait for.

Columns lie on the first axis, so that neighbouring programs write neighbouring columns. The second axis
ends at 65535, fewer than an embedding has rows: the third one goes on. The row of tiles of a program is
``tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)``; it may lie behind the last.
"""

from __future__ import annotations

AXIS_LIMIT = 65535  # of the second and the third


def grid_of(col_tiles: int, row_tiles: int) -> tuple[int, int, int]:
    """Grid of at least ``row_tiles`` rows of ``col_tiles`` tiles."""
    folds = -(-row_tiles // AXIS_LIMIT)
    return (col_tiles, -(-row_tiles // folds), folds)


def grouped_grid(col_tiles: int, row_tiles: int, n_groups: int) -> tuple[int, int, int] | None:
    """As :func:`grid_of`, with groups of ``row_tiles`` on the third axis; None where an axis is too short."""
    if max(row_tiles, n_groups) > AXIS_LIMIT:
        return None
    return (col_tiles, row_tiles, n_groups)
