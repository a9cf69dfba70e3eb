"""How many cases a test runs. Hypothesis does the generating, shrinking and remembering."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import ExampleDatabase

PROFILES = {"smoke": 10, "default": 60, "nightly": 2000}
# The smoke profile takes one real layer in so many; the others take all.
REAL_EVERY = {"smoke": 9}
# A case of a fused kernel is dozens of calls: in the interpreter one of so many cases is drawn.
FUSED_PART = 3
# And of the real layers, each of which takes ten seconds and more, one of so many.
FUSED_REAL = 9


def load_profile(
    name: str,
    max_examples: int | None,
    *,
    use_database: bool,
    database: ExampleDatabase | None = None,
) -> None:
    """Load the Hypothesis settings of a profile, with another number of examples if given.

    ``database`` is where failing examples are remembered; None: where Hypothesis does by default.

    No deadline: an interpreted launch costs milliseconds to seconds. One failure a test,
    since each is reported as a located, shrunk case.
    """
    options: dict[str, Any] = {} if database is None else {"database": database}
    if not use_database:
        options = {"database": None}
    settings.register_profile(
        "conformance",
        max_examples=max_examples or PROFILES[name],
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=(
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
            HealthCheck.function_scoped_fixture,
        ),
        **options,
    )
    settings.load_profile("conformance")
