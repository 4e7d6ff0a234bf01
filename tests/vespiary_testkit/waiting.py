"""How long tests wait for what must happen, and the loop that does it.

A bound is no measurement: only a test that fails waits so long, and the seeded faults that such a
test has to notice are given less (`VESPIARY_WAIT_S`). Machines that run the tests may be
several times slower than the one they were written on, and busy. A test that asserts something
about a status, a counter or a file waits for that itself, not for what comes before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_S = float(os.environ.get("VESPIARY_WAIT_S", "60"))
POLL_S = 0.01


def wait_for(look: Callable[[], T], what: str | Callable[[], object] = "") -> T:
    """Look again and again until something true is seen; return it.

    Args:
        look: What is looked at.
        what: Said if it does not come within `WAIT_S`; a function is asked then.

    Raises:
        AssertionError: It did not come.
    """
    end_s = time.monotonic() + WAIT_S
    while not (seen := look()):
        if time.monotonic() > end_s:
            said = what() if callable(what) else what
            raise AssertionError(f"not within {WAIT_S:g} s: {said or 'what is waited for'}")
        time.sleep(POLL_S)
    return seen
