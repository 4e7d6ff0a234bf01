"""What the API does for distributed transactions: look at branches, decide on them, forget.

Owns the operations. Must never know headers or sockets. The rules are the engine's
(`engine.branches`). Called by `routes`; owner: the event loop.
"""

from __future__ import annotations

from vespiary_broker.admin import transaction_records
from vespiary_broker.admin.handlers import Answer, Api, Call, cut, shown
from vespiary_broker.admin.problems import Refused


def _record(api: Api, name: str) -> transaction_records.Transaction:
    state = api.broker.transactions.get(name)
    if state is None:
        raise Refused(404, f"There is no prepared or decided transaction {name[:300]!r}.")
    return shown(state, transaction_records.Transaction)


async def list_transactions(api: Api, call: Call) -> Answer:
    """List branches of distributed transactions that are in doubt or were decided."""
    names, following = cut(api.broker.transactions.names(), call)
    items = tuple(_record(api, name) for name in names)
    return Answer(transaction_records.TransactionPage(items=items, next=following))


async def show_transaction(api: Api, call: Call) -> Answer:
    """Show one branch of a distributed transaction."""
    return Answer(_record(api, call.name))


async def commit_transaction(api: Api, call: Call) -> Answer:
    """Commit a prepared branch without its coordinator."""
    return await _decide(api, call, is_commit=True)


async def rollback_transaction(api: Api, call: Call) -> Answer:
    """Roll a prepared branch back without its coordinator."""
    return await _decide(api, call, is_commit=False)


async def _decide(api: Api, call: Call, *, is_commit: bool) -> Answer:
    _record(api, call.name)
    state = await api.broker.transactions.decide(call.name, is_commit=is_commit)
    return Answer(shown(state, transaction_records.Transaction))


async def forget_transaction(api: Api, call: Call) -> Answer:
    """Forget what was decided on a branch: its coordinator knows."""
    _record(api, call.name)
    await api.broker.transactions.forget(call.name)
    return Answer(None, 204)
