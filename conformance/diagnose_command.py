"""The subcommand ``diagnose``: for kernels that are not in Python, from files alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.destinations import folder, new_file, unwritable
from conformance.errors import UsageError

if TYPE_CHECKING:
    import torch

    from conformance.registry import Format
    from conformance.verdict import Verdict
    from kernels._packed import PackedWeight


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add it to the command line's grammar."""
    text = run.__doc__
    one = commands.add_parser("diagnose", help=text, description=text)
    one.add_argument("--format", required=True, metavar="NAME", help="format of the weight, such as gptq")
    one.add_argument(
        "--weight",
        required=True,
        type=Path,
        metavar="PATH",
        help="packed tensors: a safetensors file, a checkpoint's folder, or the folder of a bundle",
    )
    one.add_argument(
        "--got",
        type=Path,
        metavar="FILE",
        help="the kernel's output: .safetensors, .npy or .pt (default: that of the bundle)",
    )
    one.add_argument("--tensor", metavar="NAME", help="which tensor of --got")
    one.add_argument("--prefix", metavar="LAYER", help="which layer of --weight")
    one.add_argument("--dtype", choices=("fp16", "bf16", "fp32"), help="dtype that the output must have")
    one.add_argument("--transposed", action="store_true", help="--got is the transpose: turn it first")
    one.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field that the tensors do not tell, such as zeros=v1; repeatable",
    )
    one.add_argument("--config", type=Path, metavar="FILE", help="metadata file of the checkpoint")
    one.add_argument("--oracles", action="store_true", help="ask the installed upstream libraries too")
    one.add_argument("--device", default="cpu", help="where oracles run: cpu (default), auto, cuda or cuda:N")
    one.add_argument("--heatmap", type=Path, metavar="DIR", help="write a picture of the error, png and svg")
    one.add_argument("--json", metavar="FILE", help="write the verdict as JSON, to FILE or - for stdout")
    one.add_argument(
        "--force", action="store_true", help="write files of --json and --heatmap that are there"
    )
    one.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare an output from a file with what a packed weight decodes to, and say what is wrong"""
    import contextlib

    from conformance.runtime import choose

    runtime = choose(options.device)  # before anything imports a kernel
    from conformance.given_output import read_output
    from conformance.given_weight import read_weight
    from conformance.registry import find_format
    from conformance.report import report
    from conformance.standalone import diagnose

    fmt = find_format(options.format)
    _check_destinations(options, fmt.name)
    if options.got is None:
        got, source = _of_bundle(options.weight), f"the output in {options.weight}"
    else:
        got, source = read_output(options.got, options.tensor, options.dtype, field="--got"), str(options.got)
    weight = read_weight(
        fmt, options.weight, prefix=options.prefix, settings=options.set, config=options.config
    )
    if options.transposed:
        if got.dim() != 2:
            raise UsageError(f"--transposed: expected an output of 2 dimensions, found {list(got.shape)}")
        got = got.t().contiguous()
    harness = None
    if options.oracles:
        # Upstream libraries greet on standard output when they are imported.
        with contextlib.redirect_stdout(sys.stderr):
            from conformance import setup

            harness = setup.build(runtime)
    with contextlib.redirect_stdout(sys.stderr):
        verdict = diagnose(fmt.name, weight, got, source=source, where="disk", harness=harness)
    # What was found comes first: a picture or a file that fails takes no verdict with it.
    failures: list[UsageError] = []
    commands: tuple[tuple[str, str], ...] = ()
    if options.heatmap is not None:
        try:
            commands = (("picture", _picture(options.heatmap, fmt, weight, got, verdict)),)
        except UsageError as error:
            failures.append(error)
    print(_json(verdict) if options.json == "-" else report(verdict, commands))
    if options.json not in (None, "-"):
        try:
            Path(options.json).write_text(_json(verdict) + "\n", encoding="utf-8")
        except OSError as error:
            failures.append(unwritable("--json", Path(options.json), error, "a file that can be written"))
    if failures:
        sys.stdout.flush()
        raise failures[0]
    return 1 if verdict.failed else 0


def _check_destinations(options: argparse.Namespace, stem: str) -> None:
    """Before anything is read: nothing is written over that this command did not make."""
    inputs = [path for path in (options.got, options.weight, options.config) if path is not None]
    if options.json not in (None, "-"):
        new_file("--json", Path(options.json), force=options.force, inputs=inputs)
    if options.heatmap is not None:
        folder("--heatmap", options.heatmap)
        for path in (options.heatmap / f"{stem}.png", options.heatmap / f"{stem}.svg"):
            if os.path.lexists(path):
                new_file("--heatmap", path, force=options.force, inputs=inputs)


def _of_bundle(path: Path) -> torch.Tensor:
    from conformance import bundle

    if not os.path.isfile(path / "case.json") and path.name != "case.json":
        raise UsageError("--got: expected a file, or a bundle as --weight, found neither")
    tensors = bundle.read(path).tensors
    if "got" not in tensors:
        raise UsageError(f"--got: expected an output in the bundle {path}, found none: name a file")
    return tensors["got"]


def _picture(into: Path, fmt: Format, weight: PackedWeight, got: torch.Tensor, verdict: Verdict) -> str:
    """Name of the picture that was drawn, or why there is none."""
    from conformance.axes import even_steps, labels
    from conformance.bits import to_bits
    from conformance.heatmap import draw
    from oracles.spec.rounding import round_to

    if verdict.measures is None:
        turned = tuple(got.shape) != tuple(weight.output_shape)
        return "none: no element differs" + (" once it is turned (--transposed)" if turned else "")
    model = fmt.unpack(weight)
    png, _ = draw(
        to_bits(got),
        round_to(model.values(), got.dtype),
        got.dtype,
        axes=labels(fmt, weight),
        steps=even_steps(model),
        title=f"{verdict.kind}  {verdict.case.id}",
        folder=into,
        stem=fmt.name,
    )
    return str(png)


def _json(verdict: Verdict) -> str:
    return json.dumps(verdict.to_json(), indent=1)
