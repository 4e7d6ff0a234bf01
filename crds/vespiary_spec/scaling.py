"""How many brokers a Broker has, and what the brokers of one are to each other.

Owns: the topology, and the rule that several brokers need one written out.
Never: talks to an API server.
Called by: `resources`, `rules`, the operator's `scaling`, `vespiary apply`.
"""

import enum


class Topology(enum.StrEnum):
    """What the brokers of one Broker are to each other."""

    INDEPENDENT = "Independent"
    SHARDED = "Sharded"


NO_TOPOLOGY = (
    "more than one replica needs `topology: Independent` written out: each replica is a broker of "
    "its own, with its own queues, messages and Service, and a message that is sent to one of them "
    "is not seen by consumers of another"
)

NO_SHARDS = (
    "topology Sharded, one queue over several brokers, comes later; write Independent, or have one "
    "replica"
)

TOPOLOGY_RULES: tuple[tuple[str, str], ...] = (
    ("!has(self.replicas) || self.replicas <= 1 || has(self.topology)", NO_TOPOLOGY),
    ("!has(self.topology) || self.topology != 'Sharded'", NO_SHARDS),
)
"""CEL rules on the `spec` of a Broker."""


def topology_problem(replicas: int, topology: Topology | None) -> str:
    """Return why these replicas may not be; empty if they may.

    Args:
        replicas: How many brokers are asked for.
        topology: What they are to each other; None if nothing is said.
    """
    if topology is Topology.SHARDED:
        return NO_SHARDS
    if replicas > 1 and topology is None:
        return NO_TOPOLOGY
    return ""
