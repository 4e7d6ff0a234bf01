"""The tests of the core run on each of its implementations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_testkit.core_rig import IMPLEMENTATIONS, CoreRig


@pytest.fixture(params=IMPLEMENTATIONS)
def make(request: pytest.FixtureRequest) -> Callable[..., CoreRig]:
    core, verify = IMPLEMENTATIONS[request.param]
    return lambda **named: CoreRig(core, verify, **named)


@pytest.fixture
def rig(make: Callable[..., CoreRig]) -> CoreRig:
    return make().begin()
