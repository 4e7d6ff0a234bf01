"""What the API does for fences: look, decide, delete.

Owns the operations. Must never know headers or sockets. The rules are the engine's
(`engine.fences`). Called by `routes`; owner: the event loop.
"""

from __future__ import annotations

from vespiary_broker.admin import fence_records
from vespiary_broker.admin.handlers import Answer, Api, Call, cut, shown
from vespiary_broker.admin.problems import Refused


def _record(api: Api, name: str) -> fence_records.Fence:
    state = api.broker.fences.get(name)
    if state is None:
        raise Refused(404, f"There is no fence {name[:200]!r}.")
    return shown(state, fence_records.Fence)


async def list_fences(api: Api, call: Call) -> Answer:
    """List fences."""
    names, following = cut(api.broker.fences.names(), call)
    items = tuple(_record(api, name) for name in names)
    return Answer(fence_records.FencePage(items=items, next=following))


async def show_fence(api: Api, call: Call) -> Answer:
    """Show one fence."""
    return Answer(_record(api, call.name))


async def decide_batch(api: Api, call: Call) -> Answer:
    """Have a try of a batch count, unless another one does already; the fence is made by that."""
    decision: fence_records.FenceDecision = call.body
    tasks = tuple(decision.tasks.items())
    state = await api.broker.fences.decide(
        call.name, decision.batch, tasks, is_last=decision.is_last
    )
    return Answer(shown(state, fence_records.Fence))


async def delete_fence(api: Api, call: Call) -> Answer:
    """Delete a fence; what is staged and not decided is rolled back."""
    _record(api, call.name)
    await api.broker.fences.remove(call.name)
    return Answer(None, 204)
