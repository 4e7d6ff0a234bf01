"""Settings of Hypothesis for all tests: the examples are a function of the run's seed alone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from vespiary_testkit.seeds import run_seed


def configure(config: pytest.Config) -> None:
    """Load the profile of all tests, and give Hypothesis the seed of the run.

    It needs no clock, since a slow example means only that the machine is busy, and no database of
    earlier failures. Where `CI` is set, Hypothesis would start from a profile that always chooses
    the same examples.
    """
    settings.register_profile(
        "any machine",
        settings(),
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("any machine")
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(run_seed())
    # Hypothesis also draws constants that it finds in all modules loaded so far: a test would
    # choose otherwise alone than beside others, and a seed would not repeat it.
    assert callable(providers._get_local_constants)
    providers._get_local_constants = lambda: providers._local_constants
