"""Every format and output dtype: random packed words, and weights through upstream's packer."""

from conformance.running import drawable, run_drawn, run_each
from conformance.strategies import cases


def test_words(harness, fmt, out, request):
    """Random packed words: every bit pattern is legal, so no packer shares a misunderstanding."""
    drawn = cases(drawable(harness, fmt), out=out, route="words")
    # Few drawn cases may all be special ones, in which a wrong order of codes does not show.
    run_drawn(harness, request.node.name, drawn, harness.kernels[fmt.name].name, also=fmt.case(out=out))


def test_packed(harness, fmt, out, request):
    """Float weights through upstream's own packer, and back to within the format's half step."""
    drawn = cases(drawable(harness, fmt), out=out, route="pack")
    run_drawn(harness, request.node.name, drawn, harness.kernels[fmt.name].name)


def test_tiles(harness, fmt, out, request):
    """Tile edges: the same small shapes with a small tile, so that many programs meet. A kernel from
    outside has tiles of its own, and is called once."""
    tiles = ("small", "default") if harness.kernels[fmt.name].builtin else ("default",)
    run_each(
        harness,
        request.node.name,
        [fmt.parse(text).replace(out=out, tile=tile) for text in fmt.tile_cases for tile in tiles],
    )


def test_large(harness, fmt, out, request):
    """More rows, groups and blocks than the drawn cases have: what is right at first and not later."""
    run_each(harness, request.node.name, [fmt.parse(text).replace(out=out) for text in fmt.large])


def test_nonfinite_scales(harness, fmt, out, request):
    """inf and NaN scales decode as upstream decodes them (``validate(deep=True)`` refuses them)."""
    run_each(harness, request.node.name, [fmt.parse(text).replace(out=out) for text in fmt.nonfinite])
