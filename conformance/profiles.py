"""How many cases a test runs. Hypothesis does the generating, shrinking and remembering."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

PROFILES = {"smoke": 10, "default": 60, "nightly": 2000}
# The smoke profile takes one real layer in so many; the others take all.
REAL_EVERY = {"smoke": 9}


def load_profile(name: str, max_examples: int | None, *, use_database: bool) -> None:
    """Load the Hypothesis settings of a profile, with another number of examples if given.

    No deadline: an interpreted launch costs milliseconds to seconds. One failure a test,
    since each is reported as a located, shrunk case.
    """
    options = {} if use_database else {"database": None}
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
        **options,  # type: ignore[arg-type]
    )
    settings.load_profile("conformance")
