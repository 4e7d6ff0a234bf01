"""Brokers that slept and are to wake: not before they can wake with the version that is asked for.

While no broker runs, another version reaches all of them without a restart, and nothing has opened
the files. So a version that is asked for together with the waking, or shortly before, is looked at
first, and stands in the StatefulSet before there are pods again. One that is refused leaves them
asleep: those that they have were not asked for, and would write files of their own format.

Owns: whether brokers sleep on, and what is said of it. Pure; nothing is remembered but what the
StatefulSet says. Never: decides which version it is. Called by: `plan`, `workload`, `status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vespiary_operator import rollout, scaling, templates, upgrade
from vespiary_operator.observation import Observed
from vespiary_spec.upgrade_status import UpgradeStage as Stage
from vespiary_spec.upgrade_status import UpgradeStatus

KEPT_ASLEEP = "KeptAsleep"


def sleep_on(observed: Observed, live: Mapping[str, Any] | None, image: str) -> bool:
    """Return whether brokers that are asked for have no pods yet, because of their version.

    Args:
        observed: What was found.
        live: The StatefulSet; None if it is not there.
        image: The image that the Broker asks for.
    """
    broker = observed.broker
    if live is None or scaling.is_asleep(broker) or observed.pods:
        return False
    if (live.get("spec") or {}).get("replicas") != 0:
        return False
    kept = templates.kept(live)
    if kept is None:
        is_another = image != templates.image_of(templates.live(live))
    else:
        is_another = upgrade.is_another(broker, kept, image)
    status = live.get("status") or {}
    # The pods of a StatefulSet that has yet to take its newest template get the one before.
    has_newest = status.get("currentRevision") == status.get("updateRevision")
    return is_another or not has_newest or not rollout.is_settled(live)


def sentence(status: UpgradeStatus | None) -> str:
    """Return why brokers sleep on.

    Args:
        status: Where an upgrade stands; None where there is none.
    """
    if status is not None and status.stage is Stage.REFUSED:
        return (
            "The brokers sleep on: the version that is asked for was refused, and none runs with "
            f"another one. {status.message}"
        )
    if status is not None and status.stage is Stage.CHECKING:
        return f"The brokers sleep until the version is checked. {status.message}"
    return "The brokers wake as soon as the StatefulSet has the template that is asked for."
