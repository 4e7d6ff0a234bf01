"""The init container that copies a broker's journals before another format is written.

Owns: that container. What it does is `vespiary journal snapshot`.
Never: reads the cluster. Called by: `upgrade`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from vespiary_operator import names
from vespiary_operator.builders import pod_template

CONTAINER = "journal-snapshot"


def with_snapshot(
    template: dict[str, Any], *, name: str, moves: Iterable[tuple[str, int]]
) -> dict[str, Any]:
    """Return a template whose pods copy their journals first.

    Args:
        template: The template.
        name: Name of the copy, another one for each upgrade.
        moves: Kinds of files that get another format, and the one that they have.
    """
    found = copy.deepcopy(template)
    containers = found["spec"]["initContainers"]
    like = next(c for c in containers if c["name"] == names.VERIFY_CONTAINER)
    kept = ("image", "imagePullPolicy", "securityContext", "volumeMounts", "resources")
    containers.append(
        {
            "name": CONTAINER,
            **{key: copy.deepcopy(like[key]) for key in kept if key in like},
            "command": [
                "vespiary",
                "journal",
                "snapshot",
                "--config",
                pod_template.CONFIG_PATH,
                "--name",
                name,
                *(part for kind, at in moves for part in ("--before", f"{kind}={at}")),
            ],
            "terminationMessagePath": pod_template.TERMINATION_MESSAGE,
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    )
    return found


def without_snapshot(template: dict[str, Any]) -> dict[str, Any]:
    """Return a template as it was before `with_snapshot`."""
    containers = (template.get("spec") or {}).get("initContainers") or []
    if not any(container.get("name") == CONTAINER for container in containers):
        return template
    found = copy.deepcopy(template)
    found["spec"]["initContainers"] = [c for c in containers if c.get("name") != CONTAINER]
    return found
