"""Replay a bundle: the stored tensors and the stored answers, on any machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from conformance import bundle
from conformance.bits import DTYPES, to_bits
from conformance.case import parse_fields
from conformance.errors import UsageError
from conformance.execute import execute
from conformance.judge import Answer, Judge
from conformance.loading import user_kernel
from conformance.materialize import materialize
from conformance.registry import builtin_kernel, find_format, launch_arguments
from conformance.report import report
from conformance.runtime import choose


def replay(path: Path, device: str = "auto", kernel: str | None = None) -> int:
    """As :func:`_replay`; a bundle that is no bundle of ours in some other way is one sentence too."""
    try:
        return _replay(path, device, kernel)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(
            f"bundle: expected one that this version wrote, found {type(error).__name__}: {error} in {path}"
        ) from error


def _replay(path: Path, device: str = "auto", kernel: str | None = None) -> int:
    """Judge a bundle's case again and print the report; needs neither Hypothesis nor an oracle.

    Returns:
        0 when the kernel passes now, 1 when it fails.

    Raises:
        UsageError: a bundle, device or kernel that cannot be used.
    """
    runtime = choose(device)
    # Its kernels are set up for the device at import, so not before it is chosen.
    from conformance import interpreter
    from conformance.harness import Checked
    from conformance.investigate import look_into

    stored = bundle.read(path)
    probe = interpreter.probe() if runtime.interpreter else None
    info = stored.info
    record = info["case"]
    fmt = find_format(record["format"])
    case = parse_fields(fmt.name, fmt.all_dims, record["fields"])
    weight = bundle.rebuild(fmt.weight_type, stored)
    # Accepted in the form of pytest's option too: FORMAT=MODULE:FUNCTION.
    name = (kernel or info["kernel"]).removeprefix(f"{fmt.name}=")
    under_test = builtin_kernel(fmt) if name == builtin_kernel(fmt).name else user_kernel(fmt, name)
    fmt = under_test.viewed(fmt)
    print(f"bundle     {stored.path}: {info['verdict']['verdict']} on {info['environment']['device']}")
    if case["route"] == "words":
        again, _ = materialize(fmt, case)
        same = bundle.weight_digest(again) == info["digest"]
        # ``python -m conformance reduce`` changes tensors below what a case can say.
        reduced = not same and info.get("reduced") is True
        if reduced:
            print(f"tensors    reduced from those of {info.get('original')}: not what the case builds")
        else:
            print(f"tensors    {'identical to' if same else 'NOT those of'} the case as built here (sha256)")
        if not same and not reduced:
            raise UsageError(
                f"bundle: expected the tensors of {case.id}, found others; was the format's code changed?"
            )
    reason = probe.reason(case["out"]) if probe else None
    if reason is not None:
        raise UsageError(f"bundle: expected a judge for {case['out']}, found none here: {reason}")
    dtype = DTYPES[case["out"]]
    launch = launch_arguments(fmt, under_test, case["tile"], runtime.interpreter)
    execution = execute(
        under_test, weight, dtype, runtime.device, layout=case["layout"], dest=case["dest"], launch=launch
    )
    excused = info.get("excused", {})
    for name, tensor in stored.tensors.items():
        if name.startswith("want/") and (tensor.dtype != dtype or tuple(tensor.shape) != weight.output_shape):
            raise UsageError(f"bundle: expected {name} as {dtype} {list(weight.output_shape)}, found another")
    answers = [
        Answer(
            name.removeprefix("want/"), to_bits(tensor), excused=excused.get(name.removeprefix("want/"), "")
        )
        for name, tensor in stored.tensors.items()
        if name.startswith("want/") and name != "want/spec"
    ]
    verdict = Judge(fmt, under_test.name, str(runtime.device), info["gate"])(
        case, weight, dtype, execution, answers
    )
    verdict = look_into(fmt, Checked(verdict, weight, execution)).verdict
    # Which of several causes holds was found out on further inputs, when the bundle was written.
    known = [cause["name"] for cause in info["verdict"].get("causes", ())]
    kept = tuple(cause for cause in verdict.causes if cause.name in known)
    print(report(dataclasses.replace(verdict, causes=kept or verdict.causes)))
    return 1 if verdict.failed else 0
