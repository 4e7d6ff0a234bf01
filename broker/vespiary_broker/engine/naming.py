"""Rules of the whole broker about what has a name, as the configuration wants them.

Owns the values. Must never apply them: `registry`, `address_settings` and `automatic_deletion` do.
Made by `app`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vespiary_broker.engine.wildcards import DEFAULT_SYNTAX, WildcardSyntax


@dataclass(frozen=True, slots=True, kw_only=True)
class NamingRules:
    """The rules.

    Attributes:
        syntax: What wildcards look like, in addresses and in matches.
        scan_period_s: Seconds between two looks for what is to be deleted automatically; 0 for
            none.
        clock_s: The monotonic clock by which delays are measured.
    """

    syntax: WildcardSyntax = DEFAULT_SYNTAX
    scan_period_s: float = 30.0
    clock_s: Callable[[], float] = time.monotonic


DEFAULT_RULES: Final = NamingRules()
