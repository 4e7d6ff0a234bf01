"""How changes reach the pods of a Broker: `spec.upgrade` and `spec.maintenanceWindows`.

Owns: these fields. Never: decides when a pod is restarted (that is the operator's).
Called by: `resources`.
"""

import enum
from typing import Annotated

from vespiary_spec.model import Unit, setting
from vespiary_spec.scheduling import Part


class UpgradeStrategy(enum.StrEnum):
    """How a new version reaches the pods."""

    CANARY = "Canary"
    ROLLING_UPDATE = "RollingUpdate"
    SUPERVISED = "Supervised"
    PAUSED = "Paused"


class AdoptOperatorTemplate(enum.StrEnum):
    """When pods get what a newer operator would write into their template."""

    ON_CHANGE = "OnChange"
    ALWAYS = "Always"


class Weekday(enum.StrEnum):
    """Days of the week."""

    MONDAY = "Monday"
    TUESDAY = "Tuesday"
    WEDNESDAY = "Wednesday"
    THURSDAY = "Thursday"
    FRIDAY = "Friday"
    SATURDAY = "Saturday"
    SUNDAY = "Sunday"


class Upgrade(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How new versions and settings reach the pods."""

    strategy: Annotated[
        UpgradeStrategy,
        setting(
            "Canary gives a new version to the broker with the highest number, watches it for "
            "`soakTime`, then goes on with one broker after the other. RollingUpdate does not wait "
            "between. Supervised waits for the annotation `vespiary.dev/approve` after the canary. "
            "Paused restarts no broker. New settings alone go to one broker after the other."
        ),
    ] = UpgradeStrategy.CANARY
    soak_time: Annotated[
        int,
        setting(
            "How long the first broker with a new version has to be healthy before the next one.",
            unit=Unit.SECONDS,
            minimum=0,
            maximum=604800,
        ),
    ] = 60
    deadline: Annotated[
        int,
        setting(
            "How long a broker with a new version may be unhealthy before the version is taken "
            "back.",
            unit=Unit.SECONDS,
            minimum=10,
            maximum=86400,
        ),
    ] = 600
    allow_format_change: Annotated[
        bool,
        setting(
            "Take a version that writes files which the version before cannot read. Each broker's "
            "journals are copied before it begins, and there is no automatic way back."
        ),
    ] = False
    adopt_operator_template: Annotated[
        AdoptOperatorTemplate,
        setting(
            "When brokers are restarted for what a newer operator would write into the template "
            "of their pods: OnChange with the next change of this Broker, Always at once."
        ),
    ] = AdoptOperatorTemplate.ON_CHANGE


class MaintenanceWindow(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A time in which the operator may restart brokers."""

    days: Annotated[
        tuple[Weekday, ...],
        setting("Days on which it begins.", max_length=7, default_text="every day"),
    ] = ()
    start: Annotated[
        str,
        setting("When it begins.", pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", max_length=5),
    ]
    duration: Annotated[
        int,
        setting("How long it is open.", unit=Unit.SECONDS, minimum=300, maximum=604800),
    ]
    time_zone: Annotated[
        str,
        setting(
            "Time zone of `start`, such as `Europe/Berlin`.",
            pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$",
            max_length=64,
        ),
    ] = "UTC"
