"""The conformance harness: cases, execution, comparison, diagnosis, verdicts, reports.

Flow, one way: registry -> Case -> materialize -> packed weight -> {kernel, oracles, spec}
-> compare -> judge -> Verdict -> report, bundle.
"""
