"""What a live object still has because this operator once asked for it, and does no longer.

The API server notes which fields each writer owns. A field that the operator owns and that its
manifest lacks was taken out of the Broker; applying the manifest again removes it.

Never: talks to the API server; says so of a field whose place cannot be told.
Called by: `drift`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_SELF = "."
_FIELD = "f:"
_KEY = "k:"


def forgotten(wanted: Mapping[str, Any], found: Mapping[str, Any], manager: str) -> str:
    """Return a field that the operator owns and no longer wants; empty if there is none.

    Args:
        wanted: The whole manifest.
        found: The live object.
        manager: Name of the field manager.

    Returns:
        The path to the first one, such as `metadata.annotations.team`.
    """
    for entry in found["metadata"].get("managedFields") or ():
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and not entry.get("subresource")
        ):
            return next(_missing(wanted, entry.get("fieldsV1") or {}, ""), "")
    return ""


def _missing(wanted: Any, owned: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of owned fields that are not in this part of the manifest."""
    for name, inside in owned.items():
        if name == _SELF:
            continue
        if name.startswith(_FIELD) and isinstance(wanted, Mapping):
            field = name.removeprefix(_FIELD)
            here = f"{path}.{field}" if path else field
            if field not in wanted:
                yield here
            else:
                yield from _missing(wanted[field], inside, here)
        elif name.startswith(_KEY) and isinstance(wanted, list):
            keys = json.loads(name.removeprefix(_KEY))
            here = f"{path}[{','.join(str(value) for value in keys.values())}]"
            item = next((item for item in wanted if _has(item, keys)), None)
            if item is None:
                yield here
            else:
                yield from _missing(item, inside, here)


def _has(item: Any, keys: Mapping[str, Any]) -> bool:
    """Return whether an entry is the one with these keys; a key that it leaves out may be any."""
    return isinstance(item, Mapping) and all(
        item.get(name, value) == value for name, value in keys.items()
    )
