"""What is asked of running brokers, beside what is written to the API server.

A call that fails is made again in the next pass if it is still wanted, so none has to be made up
for. Never: decides. Called by: `draining`, `reconciler`, `remote`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vespiary_operator import pods
from vespiary_operator.admin_ports import Trust
from vespiary_operator.pods import Pod


@dataclass(frozen=True, kw_only=True, slots=True)
class StartDrain:
    """Have a broker let nobody in and move its messages; one that does so already goes on.

    Attributes:
        pod: Its pod.
        target: URL of the broker that takes them.
        trust: Which certificate that one has to show; None: it speaks in clear.
    """

    pod: Pod
    target: str
    trust: Trust | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EndDrain:
    """Have a broker let clients in again."""

    pod: Pod


BrokerCall = StartDrain | EndDrain


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainAnswer:
    """What a broker says of its drain.

    Attributes:
        phase: none, cordoned, draining, drained or failed.
        reason: What it waits for, or why it failed.
        moved: Messages moved.
        messages_left: Messages in all its queues.
        prepared: Distributed transactions that wait for their decision.
    """

    phase: str = "none"
    reason: str = ""
    moved: int = 0
    messages_left: int = 0
    prepared: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing, and lets nobody in who could change that."""
        return self.phase == "drained" and not self.messages_left and not self.prepared


def described(call: BrokerCall) -> str:
    """Return a call in short, for the log."""
    if isinstance(call, StartDrain):
        return f"drain {pods.name(call.pod)} into {call.target}"
    return f"let clients into {pods.name(call.pod)} again"
