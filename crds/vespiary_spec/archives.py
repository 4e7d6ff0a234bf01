"""What users write in a JournalArchive: which Broker is read, by which job, when, and where to.

Owns: the fields, and the rules between them in CEL; `resources` holds the same rules for files that
no API server has seen. Never: says where anything lies in a pod (that is the operator's).
Called by: `resources`, `gen`.
"""

import enum
from typing import Annotated

from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Unit, setting
from vespiary_spec.rules import NAME_CHARACTERS_MAX, NAME_PATTERN
from vespiary_spec.scheduling import Part

ARCHIVE_NAME_CHARACTERS_MAX = 40
"""A CronJob's name has at most 52 characters, and is the archive's with an ending."""

SCHEDULE_PATTERN = r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\S+( +\S+){4})$"
PATH_PATTERN = r"^[A-Za-z0-9_][-A-Za-z0-9_.=]*(/[A-Za-z0-9_][-A-Za-z0-9_.=]*)*$"
CLAIM_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
SNAPSHOT_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9_.]*$"

OWN_SPARK_SETTINGS = ("spark.master", "spark.driver.host", "spark.local.dir")
OWN_SPARK_PREFIX = "spark.kubernetes."
"""Settings of Spark that follow from how the job is run."""


class ArchiveJob(enum.StrEnum):
    """What a run does."""

    EXPORT = "export"
    VERIFY = "verify"


class ArchiveSourceKind(enum.StrEnum):
    """Which files of a broker are read."""

    RETENTION = "retention"
    SNAPSHOT = "snapshot"


class ArchiveBroker(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The broker whose files are read."""

    name: Annotated[
        str,
        setting(
            "Name of the Broker, in the same namespace.",
            pattern=NAME_PATTERN,
            max_length=NAME_CHARACTERS_MAX,
        ),
    ]
    ordinal: Annotated[
        int,
        setting(
            "Which of its brokers. Each has a journal of its own, so each gets an archive.",
            minimum=0,
            maximum=99,
        ),
    ] = 0


class ArchiveSource(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What of it is read; never written, nor mounted so that it could be."""

    kind: Annotated[
        ArchiveSourceKind,
        setting(
            "retention: the copies of full journal files in the volume `retention`. snapshot: the "
            "copy `name` that `vespiary journal snapshot` or an upgrade left on the volumes."
        ),
    ] = ArchiveSourceKind.RETENTION
    name: Annotated[
        str,
        setting(
            "Name of the snapshot, as `vespiary journal snapshots` lists it.",
            pattern=SNAPSHOT_PATTERN,
            max_length=200,
        ),
    ] = ""


class ArchiveTarget(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where the Parquet files go."""

    claim_name: Annotated[
        str,
        setting(
            "PersistentVolumeClaim in the same namespace. Its volume has to be one that the "
            "broker's node can mount.",
            pattern=CLAIM_PATTERN,
            max_length=253,
        ),
    ]
    path: Annotated[
        str,
        setting(
            "Folder in it; several archives of brokers may share one.",
            pattern=PATH_PATTERN,
            max_length=200,
            default_text="the name of the JournalArchive",
        ),
    ] = ""


class ArchiveResources(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the job's container asks for, and may use at most."""

    requests: Annotated[
        dict[str, Annotated[str, setting("Quantity.", unit=Unit.QUANTITY)]] | None,
        setting("What is reserved.", max_length=16, default_text="cpu 250m, memory 1Gi"),
    ] = None
    limits: Annotated[
        dict[str, Annotated[str, setting("Quantity.", unit=Unit.QUANTITY)]] | None,
        setting(
            "What is the most. Java gets a third of `memory`, and 1 to 8 GiB; Python workers need "
            "the rest.",
            max_length=16,
            default_text="memory 3Gi",
        ),
    ] = None


class JournalArchiveSpec(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is archived, when, and where to."""

    broker_ref: Annotated[ArchiveBroker, setting("The broker whose files are read.")]
    job: Annotated[
        ArchiveJob,
        setting(
            "export: write the messages that no run has written yet as Parquet, by address and "
            "day; a run is visible whole or not at all. verify: look at every block, transaction, "
            "page and large body, and write nothing; a run that finds damage has failed, for the "
            "reason `DamageFound`."
        ),
    ] = ArchiveJob.EXPORT
    source: Annotated[ArchiveSource, setting("What of it is read.")] = ArchiveSource()
    target: Annotated[
        ArchiveTarget | None,
        setting("Where an export goes; needed for `export`, and refused for `verify`."),
    ] = None
    schedule: Annotated[
        str,
        setting(
            "When it runs, as cron has it: minute, hour, day, month, weekday. A run that is due "
            "while another one goes on is left out.",
            pattern=SCHEDULE_PATTERN,
            max_length=100,
            default_text="once for each change of the spec",
        ),
    ] = ""
    time_zone: Annotated[
        str,
        setting(
            "Time zone of the schedule, such as `Europe/Berlin`.",
            pattern=r"^[A-Za-z][-+A-Za-z0-9_/]*$",
            max_length=64,
            default_text="that of the cluster's controller, mostly UTC",
        ),
    ] = ""
    suspend: Annotated[bool, setting("Begin no run; one that goes on is not ended.")] = False
    successful_jobs_history_limit: Annotated[
        int, setting("Jobs that succeeded and are kept.", minimum=0, maximum=100)
    ] = 3
    failed_jobs_history_limit: Annotated[
        int, setting("Jobs that failed and are kept.", minimum=0, maximum=100)
    ] = 1
    active_deadline_seconds: Annotated[
        int | None,
        setting(
            "Seconds after which a run is ended and counts as failed.",
            minimum=1,
            maximum=2**31 - 1,
            default_text="none",
        ),
    ] = None
    executors: Annotated[
        int,
        setting(
            "Pods beside the run's own among which Spark shares out the work, by its own "
            "Kubernetes scheduler. 0: all is done in one pod. They go to the node of the broker as "
            "well, whose volumes they read; their memory is `spark.executor.memory` in "
            "`sparkConf`.",
            minimum=0,
            maximum=100,
        ),
    ] = 0
    image: Annotated[
        str,
        setting(
            "Image of the pipeline.",
            max_length=512,
            default_text="that of the operator's own version",
        ),
    ] = ""
    resources: Annotated[
        ArchiveResources, setting("What the job's container asks for, and may use at most.")
    ] = ArchiveResources()
    spark_conf: Annotated[
        dict[str, Annotated[str, setting("Value.", max_length=1024)]] | None,
        setting(
            "Settings of Spark, such as `spark.driver.memory`.",
            max_length=64,
            rules=(
                (
                    "self.all(key, key.startsWith('spark.') && "
                    + " && ".join(f"key != '{name}'" for name in OWN_SPARK_SETTINGS)
                    + f" && !key.startsWith('{OWN_SPARK_PREFIX}'))",
                    "settings of Spark begin with spark.; spark.master, spark.driver.host, "
                    "spark.local.dir and spark.kubernetes. are the operator's",
                ),
            ),
        ),
    ] = None


ARCHIVE_RULES: tuple[tuple[str, str], ...] = (
    (
        f"self.metadata.name.size() <= {ARCHIVE_NAME_CHARACTERS_MAX} && "
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        f"the name has to be at most {ARCHIVE_NAME_CHARACTERS_MAX} characters: small letters, "
        "digits and -, a letter first",
    ),
    (
        "self.spec.?job.orValue('export') != 'export' || has(self.spec.target)",
        "spec.target is missing: an export needs a claim, in spec.target.claimName",
    ),
    (
        "self.spec.?job.orValue('export') != 'verify' || !has(self.spec.target)",
        "spec.target is not for job: verify, which writes nothing: take it out",
    ),
    (
        "(self.spec.?source.?kind.orValue('retention') == 'snapshot') == "
        "(self.spec.?source.?name.orValue('') != '')",
        "spec.source.name is needed with source.kind: snapshot, and with nothing else",
    ),
    (
        "self.spec.?timeZone.orValue('') == '' || self.spec.?schedule.orValue('') != ''",
        "spec.timeZone needs spec.schedule",
    ),
)
"""CEL rules on a whole JournalArchive: (rule, message)."""


def check_archive(spec: JournalArchiveSpec) -> None:
    """Refuse what the rules refuse, where no API server does it.

    Args:
        spec: The spec.

    Raises:
        ConfigError: With the path to the field that is wrong.
    """
    if spec.job is ArchiveJob.EXPORT and spec.target is None:
        raise ConfigError(_message("spec.target is missing"), path="spec.target")
    if spec.job is ArchiveJob.VERIFY and spec.target is not None:
        raise ConfigError(_message("spec.target is not"), path="spec.target")
    if (spec.source.kind is ArchiveSourceKind.SNAPSHOT) != bool(spec.source.name):
        raise ConfigError(_message("spec.source.name"), path="spec.source.name")
    if spec.time_zone and not spec.schedule:
        raise ConfigError(_message("spec.timeZone"), path="spec.timeZone")
    for name in spec.spark_conf or {}:
        is_own = name in OWN_SPARK_SETTINGS or name.startswith(OWN_SPARK_PREFIX)
        if is_own or not name.startswith("spark."):
            raise ConfigError(
                "this is no setting of Spark that can be given",
                path=f"spec.sparkConf.{name}",
                allowed="names that begin with spark., without "
                f"{', '.join(OWN_SPARK_SETTINGS)} and what begins with {OWN_SPARK_PREFIX}",
            )


def _message(begin: str) -> str:
    return next(message for _, message in ARCHIVE_RULES if message.startswith(begin))
