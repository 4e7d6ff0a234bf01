"""Seeded faults of who is let in: what one network address may have of an acceptor's connections.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_SERVER: Final = "broker/vespiary_broker/server/"
_LIMITS: Final = "tests/unit/vespiary_broker/server/test_address_limits.py::"
_GATE: Final = "tests/unit/vespiary_broker/server/test_gate.py::"

PYTHON_CONNECTIONS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a connection more than an address may have",
        "An address is refused a connection when it has one more than it may.",
        _SERVER + "address_limits.py",
        ">= self._allowed:",
        "> self._allowed:",
        _LIMITS + "test_an_address_has_as_many_places_as_allowed",
    ),
    Mutant(
        "refused connections keep others out",
        "A host takes the places of all by the connections that it may not have.",
        _SERVER + "listener.py",
        "len(self.connections) - self.addresses.refused_count",
        "len(self.connections)",
        _LIMITS + "test_those_that_are_refused_take_no_place_of_others",
    ),
    Mutant(
        "handshakes without a place",
        "Connections whose TLS handshake is not done count for no address.",
        _SERVER + "gate.py",
        "if not self._is_forwarded and not self._take_place():",
        "if False:",
        _GATE + "test_a_stop_gives_back_all_places_of_an_address[False]",
    ),
    Mutant(
        "places that are not given back",
        "An address is shut out for ever by connections that have ended.",
        _SERVER + "listener.py",
        "        self.connections.discard(connection)\n        self.addresses.leave(connection)\n",
        "        self.connections.discard(connection)\n",
        _GATE + "test_a_stop_gives_back_all_places_of_an_address[True]",
    ),
)
