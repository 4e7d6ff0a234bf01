"""How soon an edit or a deletion of a child is put right, while the operator is at rest.

Called by `benchmarks.operator.__main__`.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from benchmarks.operator.api import Api, path_of
from benchmarks.operator.process import OperatorError
from vespiary_operator import kinds, names
from vespiary_operator.kinds import Kind

_LIMIT_S = 90.0
_EDITS: tuple[tuple[Kind, str, dict[str, Any]], ...] = (
    (kinds.SERVICE, "{}", {"spec": {"selector": {"edited": "by-hand"}}}),
    (kinds.SERVICE, "{}-headless", {"spec": {"publishNotReadyAddresses": False}}),
    (kinds.POD_DISRUPTION_BUDGET, "{}", {"spec": {"maxUnavailable": 7}}),
    (kinds.STATEFUL_SET, "{}", {"spec": {"template": {"spec": {"enableServiceLinks": True}}}}),
    (kinds.SERVICE_ACCOUNT, "{}-broker", {"automountServiceAccountToken": True}),
)


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        edit_s: Seconds until each edit was put right.
        delete_s: Seconds until each deleted child was there again.
    """

    edit_s: list[float]
    delete_s: list[float]


def values_at(found: Any, edit: Any) -> Any:
    """Return the part of an object that an edit is about; None where it has nothing there."""
    if isinstance(edit, dict):
        return {key: values_at((found or {}).get(key), part) for key, part in edit.items()}
    return found


def _until(what: str, look: Any) -> float:
    begun = time.monotonic()
    while not look():
        if time.monotonic() - begun > _LIMIT_S:
            raise OperatorError(f"not within {_LIMIT_S:.0f} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - begun


def measure(api: Api, namespace: str, broker: str) -> Repairs:
    """Edit and delete children of a Broker that is Ready, one at a time.

    Args:
        api: The API server.
        namespace: Its namespace.
        broker: Its name.
    """
    edits, deletions = [], []
    for kind, pattern, edit in _EDITS:
        path = path_of(kind, namespace, pattern.format(broker))
        wanted = values_at(api.find(path), edit)
        if values_at(api.merge(path, edit), edit) == wanted:
            raise OperatorError(f"{path} was not changed by the edit")

        def is_right(path: str = path, edit: dict[str, Any] = edit, wanted: Any = wanted) -> bool:
            return bool(values_at(api.find(path), edit) == wanted)

        edits.append(_until(f"{path} is put right", is_right))
    for kind, name in (
        (kinds.SERVICE, names.client_service(broker)),
        (kinds.POD_DISRUPTION_BUDGET, names.stateful_set(broker)),
        (kinds.SERVICE_ACCOUNT, names.service_account(broker)),
        (kinds.SECRET, names.users_secret(broker)),
    ):
        path = path_of(kind, namespace, name)
        before = api.find(path)["metadata"]["uid"]
        api.remove(path)

        def is_back(path: str = path, before: str = before) -> bool:
            found = api.find(path)
            return found is not None and found["metadata"]["uid"] != before

        deletions.append(_until(f"{path} is there again", is_back))
    return Repairs(edit_s=edits, delete_s=deletions)
