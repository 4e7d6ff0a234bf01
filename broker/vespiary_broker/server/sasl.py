"""One step of a client's login, with the hashing away from the event loop.

Owns nothing; the rules are `engine.mechanisms`'. Called by the protocols' sessions that speak SASL
or something like it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vespiary_broker.engine.logins import Check
from vespiary_broker.engine.mechanisms import Challenge, Exchange, Welcome

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle


async def respond(
    cycle: Cycle, exchange: Exchange, data: bytes | None, is_wanted: Callable[[], bool]
) -> Challenge | Welcome:
    """Take what a client sent.

    Args:
        cycle: What all connections share.
        exchange: The client's login.
        data: Its message; None if it sent none, with the choice of the mechanism.
        is_wanted: Whether the client is still there.

    Returns:
        What the client is to be sent, or that it is in.

    Raises:
        LoginRefused: No entry, and why.
    """
    if exchange.guess is not None:
        await cycle.passwords.pause(*exchange.guess, is_wanted)
    outcome = exchange.respond(data, cycle.loop.time())
    if not isinstance(outcome, Check):
        return outcome
    is_good = await cycle.passwords.is_good(outcome, is_wanted)
    return exchange.checked(outcome, is_good=is_good, now_s=cycle.loop.time())
