"""What the operator reports of a JournalArchive, and what a run of it leaves behind for that.

Owns: the shape of the status, and the termination message of a run's container.
Never: decides anything. Called by: `resources`, the operator, `vespiary_pipeline.archive_run`.
"""

import enum
from typing import Annotated

import msgspec

from vespiary_spec import limits
from vespiary_spec.errors import ConfigError
from vespiary_spec.model import setting
from vespiary_spec.scheduling import Part
from vespiary_spec.status import Condition

RESULT_SCHEMA = 1
"""Version of the termination message. A reader takes its own and older ones."""

_MESSAGE_CHARACTERS = 600
"""Longest sentence; with four bytes a character, it fits into what the kubelet keeps."""


class ArchiveConditionType(enum.StrEnum):
    """Conditions of a JournalArchive. All healthy is True, but for Stalled."""

    READY = "Ready"
    SOURCE_READY = "SourceReady"
    STALLED = "Stalled"


class RunOutcome(enum.StrEnum):
    """What became of a run."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ArchiveRun(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One run."""

    name: Annotated[str, setting("Name of the Job.", max_length=253)]
    outcome: Annotated[RunOutcome, setting("What became of it.")]
    start_time: Annotated[str, setting("When it began, RFC 3339.")] = ""
    completion_time: Annotated[str, setting("When it ended, RFC 3339.")] = ""
    rows: Annotated[
        int | None,
        setting("Messages that it wrote; of a verification, records that it looked at."),
    ] = None
    bytes: Annotated[
        int | None,
        setting("Size of what it wrote; of a verification, of the blocks that it looked at."),
    ] = None
    files: Annotated[
        int | None, setting("Files that it wrote; of a verification, that it looked at.")
    ] = None
    damages: Annotated[
        int | None,
        setting(
            "Damages that a verification found. Missing if it could not look at everything, and "
            "of an export."
        ),
    ] = None
    message: Annotated[str, setting("What it did, or why it failed, as one sentence.")] = ""


class JournalArchiveStatus(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Status of a JournalArchive."""

    observed_generation: Annotated[
        int | None, setting("Generation that this status is about.", minimum=0)
    ] = None
    conditions: Annotated[
        tuple[Condition, ...], setting("Conditions.", key="type", max_length=32)
    ] = ()
    last_run: Annotated[ArchiveRun | None, setting("The run that began last.")] = None
    last_success_time: Annotated[
        str,
        setting(
            "When the last run began that succeeded, RFC 3339; of verifications, that looked at "
            "everything, whatever it found."
        ),
    ] = ""
    lag_seconds: Annotated[
        int | None,
        setting(
            "Seconds since the run of `lastSuccessTime` began: what came later is not archived, or "
            "not verified, yet. Whole minutes in the first hour, tens of minutes in the first day, "
            "then hours."
        ),
    ] = None


class RunResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run says of itself.

    Attributes:
        schema: Version of this message.
        is_good: Whether it did all that it was asked for.
        message: One sentence for people.
        rows: Messages that it wrote, or records that it looked at; None if it does not count any.
        size_bytes: Size of what it wrote or looked at.
        files: Files that it wrote or looked at.
        damages: What a verification found; None if it could not look at everything, and of others.
    """

    schema: int = RESULT_SCHEMA
    is_good: bool
    message: str
    rows: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    damages: int | None = None


def encode(result: RunResult) -> bytes:
    """Return the termination message; a sentence that is too long is cut."""
    message = result.message
    if len(message) > _MESSAGE_CHARACTERS:
        message = message[: _MESSAGE_CHARACTERS - 1] + "…"
    found = msgspec.json.encode(msgspec.structs.replace(result, message=message))
    assert len(found) <= limits.TERMINATION_MESSAGE_BYTES
    return found


def decode(message: str | bytes) -> RunResult:
    """Read a termination message.

    Raises:
        ConfigError: It is none, or one of a newer version.
    """
    try:
        found = msgspec.json.decode(message, type=RunResult)
    except msgspec.DecodeError as error:
        raise ConfigError("this is no answer of a run", path=".", cure=str(error)) from error
    if found.schema > RESULT_SCHEMA:
        raise ConfigError(
            "the answer is of a newer version",
            path="schema",
            value=found.schema,
            allowed=f"up to {RESULT_SCHEMA}",
        )
    return found
