"""What is reported about an upgrade and about restarts: `status.upgrade`, `status.restarts`.

Owns: the stages of an upgrade and these shapes. Which stage follows which is the operator's table
(`vespiary_operator.upgrade_stages`).
Never: decides anything. Called by: `status`, the operator.
"""

import enum
from typing import Annotated

from vespiary_spec.model import setting
from vespiary_spec.scheduling import Part

RESTARTS_MAX = 20


class UpgradeStage(enum.StrEnum):
    """Where an upgrade stands."""

    CHECKING = "Checking"
    REFUSED = "Refused"
    CANARY = "Canary"
    SOAKING = "Soaking"
    AWAITING_APPROVAL = "AwaitingApproval"
    ROLLING = "Rolling"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"
    HALTED = "Halted"
    COMPLETE = "Complete"


class UpgradeBaseline(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Counters of the first broker with the new version, when it was found healthy."""

    messages_in: Annotated[int, setting("Messages that had come in.", minimum=0)] = 0
    messages_out: Annotated[int, setting("Messages that consumers had got.", minimum=0)] = 0
    messages_acknowledged: Annotated[int, setting("Messages acknowledged.", minimum=0)] = 0
    errors: Annotated[int, setting("Errors that clients had caused.", minimum=0)] = 0


class UpgradeRates(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the first broker did in a minute with the version before, over all of its life."""

    acknowledged: Annotated[int, setting("Messages acknowledged in a minute.", minimum=0)] = 0
    errors: Annotated[int, setting("Errors that clients caused in a minute.", minimum=0)] = 0


class UpgradeStatus(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An upgrade: the one that is under way, or the last one."""

    stage: Annotated[UpgradeStage, setting("Where it stands.")]
    revision: Annotated[
        str, setting("What was asked for, in short; the value of `vespiary.dev/approve`.")
    ]
    from_image: Annotated[str, setting("Image before.")] = ""
    to_image: Annotated[str, setting("Image that is wanted.")] = ""
    from_version: Annotated[str, setting("Version before, as its image says.")] = ""
    to_version: Annotated[str, setting("Version that is wanted, as its image says.")] = ""
    format_change: Annotated[
        bool, setting("Whether files get a format that the version before does not read.")
    ] = False
    journal_opened: Annotated[
        bool, setting("Whether a broker with the new version has begun to run.")
    ] = False
    began_at: Annotated[str, setting("When it was asked for, RFC 3339.")] = ""
    stage_since: Annotated[str, setting("Since when it stands there, RFC 3339.")] = ""
    unhealthy_since: Annotated[
        str, setting("Since when a broker with the new version is unhealthy, RFC 3339.")
    ] = ""
    baseline: Annotated[UpgradeBaseline | None, setting("Counters when the soak time began.")] = (
        None
    )
    rates_before: Annotated[
        UpgradeRates | None, setting("What the first broker did with the version before.")
    ] = None
    next_check_at: Annotated[
        str, setting("From when on a version that was refused is looked at again, RFC 3339.")
    ] = ""
    checked_for: Annotated[
        str,
        setting(
            "Values of the annotations `vespiary.dev/retry-upgrade` and "
            "`vespiary.dev/restored-snapshot` when it was refused."
        ),
    ] = ""
    reason: Annotated[str, setting("Why it stands there, as one word.", max_length=64)] = ""
    message: Annotated[str, setting("Where it stands and why, as one sentence.")] = ""


class RestartRecord(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One restart of a broker."""

    broker: Annotated[str, setting("Name of the pod.")]
    at: Annotated[str, setting("When it was noticed, RFC 3339.")]
    reason: Annotated[
        str,
        setting(
            "Upgrade, Rollback, SettingsChanged, Restarted, Replaced, or how the container ended."
        ),
    ]
    actor: Annotated[
        str, setting("`vespiary-operator`, `kubelet`, or `unknown` for a pod that others deleted.")
    ]
    from_revision: Annotated[str, setting("Revision of the template before.")] = ""
    to_revision: Annotated[str, setting("Revision of the template after.")] = ""
    message: Annotated[str, setting("Why, as one sentence.", max_length=512)] = ""


class KnownPod(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a pod was at the last look, to notice its restarts."""

    name: Annotated[str, setting("Name of the pod.")]
    uid: Annotated[str, setting("Its UID.")]
    revision: Annotated[str, setting("Revision of its template.")] = ""
    image: Annotated[str, setting("Image of its broker.")] = ""
    container_restarts: Annotated[
        int, setting("How often its broker was started again.", minimum=0)
    ] = 0
    leaves_for: Annotated[
        str,
        setting("Why the operator deleted it, to be made again as it was.", max_length=512),
    ] = ""
