"""What the API says of fences and takes for them.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `fences` and the
module of routes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from vespiary_broker.admin.records import Body, Record

BATCH_MAX: Final = 2**63 - 1

Batch = Annotated[int, msgspec.Meta(ge=0, le=BATCH_MAX)]
Branches = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Fence(Record, frozen=True):
    """Which of the staged tries of a writer's batches count.

    Attributes:
        name: Its name, unique in the broker.
        batch: The highest batch that is decided; -1 for none.
        decided_at_ms: When that was, in milliseconds since 1970; 0 for never.
        pending: Batches that are decided and not all committed yet.
        undecided: Prepared branches that nobody has decided on.
        undecided_s: Age of the oldest of them.
        accepted: The call decided on its batch; false if another one had before.
    """

    name: str
    batch: int
    decided_at_ms: int
    pending: int
    undecided: int
    undecided_s: float
    accepted: bool


class FencePage(Record, frozen=True):
    """Some fences, by name.

    Attributes:
        items: The fences.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Fence, ...]
    next: str | None


class FenceDecision(Body, frozen=True):
    """A batch to decide on.

    Attributes:
        batch: Its number; one at or below that of the fence was decided before.
        tasks: The tasks that count: how many branches each prepared, by its name, which is unique
            among all tries of all tasks.
        is_last: No other batch comes: the fence is forgotten when all is committed.
    """

    batch: Batch
    tasks: dict[str, Branches]
    is_last: bool = False
