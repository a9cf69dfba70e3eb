"""Judge a kernel on weights without elements."""

from __future__ import annotations

import dataclasses

from conformance.bits import DTYPES
from conformance.case import Case
from conformance.execute import execute
from conformance.harness import Checked, Failure, Harness
from conformance.judge import Judge
from conformance.materialize import materialize
from conformance.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class Empty:
    """A run's harness for cases without elements: result, fences and inputs, but no values."""

    harness: Harness

    def judge(self, case: Case) -> Checked:
        """Judge one case. EXACT says that nothing was wrong, not that anything was compared."""
        run = self.harness
        fmt, kernel, dtype = run.formats[case.format], run.kernels[case.format], DTYPES[case["out"]]
        weight, _ = materialize(fmt, case)
        launch = run.launch(fmt, kernel, case["tile"])
        run.note("kernel", case, kernel)
        execution = execute(kernel, weight, dtype, run.runtime.device, launch=launch)
        run.note("judged")
        verdict = Judge(fmt, kernel.name, str(run.runtime.device), run.gate)(
            case, weight, dtype, execution, ()
        )
        if verdict.kind == "VACUOUS":
            verdict = dataclasses.replace(verdict, kind="EXACT", summary="an empty tensor, as it should be")
        return Checked(verdict, weight, execution)

    def check(self, case: Case, **extra: object) -> Verdict:
        """Judge and record one case; raises :class:`Failure` on a failing verdict."""
        checked = self.judge(case)
        if self.harness.writer is not None:
            self.harness.writer.write({**checked.verdict.to_json(), "seconds": 0.0, **extra})
        if checked.verdict.failed:
            self.harness.last_failure = checked
            raise Failure(checked)
        return checked.verdict
