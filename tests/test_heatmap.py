"""Pictures of errors: one wrong element stays visible, and each panel shows what it says."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from conformance import panels
from conformance.axes import even_steps, labels
from conformance.bits import to_bits
from conformance.errors import UsageError
from conformance.faults import Context
from conformance.heatmap import CELLS, Wrong, draw, figure
from conformance.registry import formats, parse_case
from conformance.slots import found_in
from oracles.spec.rounding import round_to

FORMATS = formats()
HALF = torch.float16


def outputs(case: str, fault: str | None):
    """got, want, labels and steps of a fault of the catalogue."""
    parsed = parse_case(case)
    fmt = FORMATS[parsed.format]
    weight = fmt.words(parsed)
    model = fmt.unpack(weight)
    want = round_to(model.values(), HALF)
    got = want
    if fault is not None:
        got = next(item for item in fmt.faults if item.name == fault).decode(Context(weight, model, HALF))
    return got, want, labels(fmt, weight), even_steps(model)


def pixels(drawn) -> np.ndarray:
    from matplotlib.image import imread

    stream = io.BytesIO()
    drawn.savefig(stream, format="png", dpi=100)
    stream.seek(0)
    return imread(stream)[..., :3]


# --- cells ------------------------------------------------------------------------------------


def test_one_wrong_element_among_millions_is_a_cell():
    want = np.zeros((4096, 4096), np.uint16)
    got = want.copy()
    got[1234, 567] = 1  # the smallest subnormal
    row, column = np.indices(want.shape)
    cells = Wrong.of(got, want, HALF).grid(row, column)
    assert cells.error.shape == (CELLS, CELLS)
    assert np.argwhere(cells.wrong).tolist() == [[1234 // 16, 567 // 16]]
    assert cells.error[1234 // 16, 567 // 16] == 2.0**-24

    from matplotlib.figure import Figure

    shown = []
    for wrong in (Wrong.of(got, want, HALF), Wrong.of(want, want, HALF)):
        made = Figure(figsize=(5, 4), layout="constrained")
        panels.error_map(made.subplots(), wrong.grid(row, column), "error", ("row", "column"))
        shown.append(pixels(made))
    # The ring around it is the only red in the picture.
    red = [np.count_nonzero((picture[..., 0] > 0.75) & (picture[..., 1] < 0.25)) for picture in shown]
    assert red[0] > 20
    assert red[1] == 0


def test_a_cell_has_the_largest_error_and_its_sign():
    want = np.zeros((512, 512), np.uint16)
    got = to_bits(torch.zeros(512, 512, dtype=HALF))
    got[0, 0], got[1, 1], got[0, 1] = to_bits(torch.tensor([1.0, -3.0, 2.0], dtype=HALF))
    row, column = np.indices(want.shape)
    cells = Wrong.of(got, want, HALF).grid(row, column)
    assert cells.error[0, 0] == -3.0
    assert int(cells.wrong.sum()) == 1


def test_cells_that_are_not_finite_or_empty_are_apart():
    want = to_bits(torch.zeros(6, 6, dtype=HALF))
    got = want.copy()
    got[2, 3], got[4, 4] = to_bits(torch.tensor([math.nan, math.inf], dtype=HALF))
    row, column = np.indices(want.shape)
    cells = Wrong.of(got, want, HALF).grid(row, column)
    assert np.argwhere(cells.nonfinite).tolist() == [[2, 3], [4, 4]]
    assert np.isnan(cells.error).all()
    assert not cells.empty.any()
    diagonal = Wrong.of(got, want, HALF).grid(row, row)
    assert np.array_equal(diagonal.empty, ~np.eye(6, dtype=bool))
    assert np.argwhere(diagonal.wrong).tolist() == [[2, 2], [4, 4]]


@pytest.mark.parametrize("shape", [(1, 1), (3, 700), (700, 3), (256, 257)])
def test_every_wrong_element_falls_into_a_cell(shape: tuple[int, int]):
    want = np.zeros(shape, np.uint16)
    row, column = np.indices(shape)
    cells = Wrong.of(want + np.uint16(1), want, HALF).grid(row, column)
    assert cells.wrong.all()
    assert not cells.empty.any()


# --- slots ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "fault", "order"),
    [
        ("gptq:K=256,N=32,zeros=v2", None, range(8)),
        ("gptq:K=256,N=32,zeros=v2", "slots-reversed-codes-only", range(7, -1, -1)),
        ("awq_cols:K=64,N=64", "awq-order-linear", (0, 2, 4, 6, 1, 3, 5, 7)),
        ("nf4:shape=64x64", "nibble-swap", (1, 0, 3, 2, 5, 4, 7, 6)),
    ],
)
def test_slots_are_found_where_they_went(case: str, fault: str | None, order):
    got, want, axes, steps = outputs(case, fault)
    values = [torch.from_numpy(bits.view(np.float16)).double().numpy() for bits in (got, want)]
    matrix = found_in(*values, axes, steps)
    assert matrix is not None
    assert matrix.argmax(axis=1).tolist() == list(order)


def test_too_few_words_say_nothing():
    got, want, axes, steps = outputs("gptq:K=8,N=3,zeros=v2", None)
    assert found_in(got.astype(float), want.astype(float), axes, steps) is None
    assert found_in(got.astype(float), want.astype(float), {}, None) is None


# --- pictures ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ("gptq:K=64,N=32,zeros=v2", "zero-plus-one-extra-unmasked"),
        ("gptq:K=64,N=32,zeros=v2,act=perm(1)", "g_idx-ignored"),
        ("nf4:shape=65", "tail-block-absmax-previous"),
        ("squeezellm:K=64,N=7,sparse=few(1)", "sparse-dropped"),
        ("int8_affine:shape=5x33,zero=same", "zero-ignored"),
        ("llm_int8:shape=1x1", "no-127"),
        ("nf4:shape=5x65", None),
    ],
)
def test_a_picture_is_made(case: str, fault: str | None, tmp_path: Path):
    got, want, axes, steps = outputs(case, fault)
    png, svg = draw(got, want, HALF, axes=axes, steps=steps, title=case, folder=tmp_path / "new", stem="one")
    assert (png, svg) == (tmp_path / "new" / "one.png", tmp_path / "new" / "one.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_panels_have_titles_units_and_a_centred_colour_bar():
    got, want, axes, steps = outputs("gptq:K=64,N=32,zeros=v2", "zero-plus-one-extra-unmasked")
    drawn = figure(got, want, HALF, axes=axes, steps=steps, title="the title")
    assert "the title\nSNR" in drawn.get_suptitle()
    shown = [place for place in drawn.axes if place.get_title()]
    assert len(shown) == 6
    for place in shown:
        assert place.get_xlabel()
        assert place.get_ylabel()
    maps = [place.images[-1].norm for place in shown[:2]]
    assert all(norm.vmin == -norm.vmax for norm in maps)
    assert "got - want (weight units)" in {place.get_ylabel() for place in drawn.axes}


@pytest.mark.parametrize(
    ("case", "fault", "place"),
    [
        ("gemm_int8:M=5,N=33,K=65,aper=token", "a-scale-of-next", "lane"),
        ("gemm_epilogue:M=5,N=33,aper=token", "w-scale-of-next", "lane"),
        ("gemm_accumulate:M=5,N=33,K=65", "sum-int16-wraps", "byte"),
    ],
)
def test_a_product_has_tokens_and_channels_and_no_words(case: str, fault: str, place: str):
    got, want, axes, steps = outputs(case, fault)
    drawn = figure(got, want, HALF, axes=axes, steps=steps, title="")
    first = drawn.axes[0]
    assert (first.get_ylabel(), first.get_xlabel()) == ("token", "channel")
    shown = [place.get_title().partition("\n")[0] for place in drawn.axes if place.get_title()]
    assert len(shown) == 5
    assert shown[0] == "signed error by token and channel"
    assert f"wrong by {place}" in shown
    words = " ".join(text.get_text() for place in drawn.axes for text in place.findobj() if _is_text(text))
    assert not {"weight units", "slot", "packed", "row", "column"} & {
        word for word in ("weight units", "slot", "packed", "row", "column") if word in words
    }


def _is_text(item: object) -> bool:
    return hasattr(item, "get_text")


def test_groups_out_of_order_are_marked():
    got, want, axes, steps = outputs("gptq:K=256,N=8,zeros=v2,act=perm(1)", "g_idx-ignored")
    drawn = figure(got, want, HALF, axes=axes, steps=steps, title="")
    assert any("wrong there 0 %" in place.get_xlabel() for place in drawn.axes)
    got, want, axes, steps = outputs("gptq:K=256,N=8,zeros=v2", "zero-plus-one-extra-unmasked")
    drawn = figure(got, want, HALF, axes=axes, steps=steps, title="")
    assert not any("in order" in place.get_xlabel() for place in drawn.axes)


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    got, want, axes, steps = outputs("nf4:shape=5x65", "nibble-swap")
    with pytest.raises(UsageError, match="heatmap: expected a folder to write"):
        draw(got, want, HALF, axes=axes, steps=steps, title="", folder=tmp_path / "file")


# --- texts --------------------------------------------------------------------------------------


def test_no_text_leaves_the_picture_or_meets_the_next_panel():
    want = np.full((4096, 4096), 0x3C00, np.uint16)
    got = want.copy()
    got[::3, ::5], got[1::7] = 0x4000, 0x7E00
    row, column = np.indices(want.shape)
    axes = {"row": row, "column": column}
    title = "nf4:blocksize=32,shape=3x5500,absmax=nested,layout=strided " * 6
    drawn = figure(got, want, HALF, axes=axes, steps=None, title=title)
    drawn.draw_without_rendering()
    width, _ = drawn.canvas.get_width_height()
    heading = drawn._suptitle.get_window_extent()
    assert heading.x0 >= 0
    assert heading.x1 <= width
    titles = [place.title.get_window_extent() for place in drawn.axes if place.get_title()]
    assert len(titles) >= 4
    for extent in titles:
        assert extent.x0 >= 0
        assert extent.x1 <= width
        assert extent.y1 <= heading.y0
    for one, other in itertools.combinations(titles, 2):
        assert not one.overlaps(other)


def test_words_alone_are_broken_that_are_longer_than_a_line():
    assert panels.wrapped("a b c\nd", 3) == "a b\nc\nd"
    assert panels.wrapped("abcdef", 4) == "abcd\nef"
