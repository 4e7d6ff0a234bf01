"""The core's only open transaction is given up if its staging fails.

Owns that rule. Must never begin or commit one: who stages does. Used by everything in the engine
that begins a transaction; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vespiary_broker.engine.core import Core


@contextmanager
def aborted_on_failure(core: Core, number: int) -> Iterator[None]:
    """Abort a transaction that was begun if the `with` block fails, and let the error pass.

    Without it the core would refuse every later transaction until the next start.

    Args:
        core: The core.
        number: Id of the transaction; the block ends with its commit, or with its PREPARE.

    Durability: nothing of an aborted transaction counts after any crash.
    """
    try:
        yield
    except BaseException:
        # A commit that finds no memory behind its record has ended it: then there is none to abort.
        with suppress(ValueError):
            core.abort(number)
        raise
