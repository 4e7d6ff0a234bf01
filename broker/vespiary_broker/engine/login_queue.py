"""The order in which passwords are checked: by rank, and fair between networks.

Owns the waiting jobs and their bound. Must never run one. A network that has many logins waiting
delays its own, not those of others: networks of a rank take turns.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from typing import Generic, TypeVar

J = TypeVar("J")


class Rank(enum.IntEnum):
    """Which logins are checked first; a rank waits while a lower number has jobs."""

    FRIEND = 0  # has logged in as this user from this network before
    STRANGER = 1
    SUSPECT = 2  # its network has failed lately
    IDLE = 3  # nobody waits for it


class LoginQueue(Generic[J]):
    """Jobs that wait for a thread.

    Args:
        limit: Most jobs that wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ranks: dict[Rank, OrderedDict[str, deque[J]]] = {rank: OrderedDict() for rank in Rank}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, job: J, rank: Rank, network: str) -> J | None:
        """Add a job behind those of its network.

        Args:
            job: The job.
            rank: Its rank.
            network: Where it comes from.

        Returns:
            The job that has no place, which may be this one: the newest of the network with the
            most jobs in the last rank. None: there was room.
        """
        self._ranks[rank].setdefault(network, deque()).append(job)
        self._count += 1
        if self._count <= self._limit:
            return None
        last = max(rank for rank, networks in self._ranks.items() if networks)
        networks = self._ranks[last]
        longest = max(networks, key=lambda each: len(networks[each]))
        dropped = networks[longest].pop()
        self._leave(networks, longest)
        return dropped

    def take(self) -> J | None:
        """Remove and return the job whose turn it is; None if there is none."""
        for networks in self._ranks.values():
            if networks:
                network = next(iter(networks))
                job = networks[network].popleft()
                networks.move_to_end(network)
                self._leave(networks, network)
                return job
        return None

    def _leave(self, networks: OrderedDict[str, deque[J]], network: str) -> None:
        self._count -= 1
        if not networks[network]:
            del networks[network]
