"""The error tree of Vespiary and the one table of its stable codes.

Owns: every exception class that crosses a package border, and the text of
`docs/reference/errors.md`, which is generated from `CATALOGUE`.
Never: imports anything but the standard library (it runs under `python -S`
on Spark executors), or puts a message's payload into an error.
Called by: every package.

A message says what happened, where, what was measured against what is
allowed, and what to do next; `str()` puts the parts together.
"""

# Names as fixed by the design: a torn tail is a state, not an "Error".
# ruff: noqa: N818

from __future__ import annotations

import os
from typing import Any, ClassVar, NamedTuple


class VespiaryError(Exception):
    """Base of all errors that Vespiary raises on purpose.

    Attributes:
        code: Stable code of the class, such as `VSP-J104`; never re-used.
        what: What happened, one clause without a final full stop.
        where: Place: `file:offset`, a path to a field, a resource name; empty if none.
        measured: The value found; None if there is none to show.
        allowed: The values that would have been accepted; empty if it does not apply.
        cure: What the reader should do next; empty if the rest says it.
    """

    code: ClassVar[str] = "VSP-V100"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        measured: object = None,
        allowed: str = "",
        cure: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.measured = measured
        self.allowed = allowed
        self.cure = cure

    def __str__(self) -> str:
        """Put place, event, measurement, bounds, cure and code into one line."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        facts = []
        if self.measured is not None:
            facts.append(f"got {_shown(self.measured)}")
        if self.allowed:
            facts.append(f"allowed: {self.allowed}")
        if facts:
            text += f" ({', '.join(facts)})"
        if self.cure:
            text += f". {self.cure[0].upper()}{self.cure[1:]}"
        end = "" if text.endswith("?") else "."
        return f"{text.rstrip('.')}{end} [{self.code}]"

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON-ready data, for `--json` and the HTTP API."""
        return {
            "code": self.code,
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "measured": None if self.measured is None else _shown(self.measured),
            "allowed": self.allowed,
            "cure": self.cure,
            "message": str(self),
        }


def _shown(value: object) -> str:
    """Return a value for people, cut so that no message grows with its input."""
    text = value if isinstance(value, str) else repr(value)
    text = repr(text) if isinstance(value, str) and (not text or text != text.strip()) else text
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text)} characters)"


# --- configuration ------------------------------------------------------------------------------


class ConfigError(VespiaryError):
    """A configuration or resource is wrong; `path` leads to the field."""

    code = "VSP-C101"

    def __init__(
        self,
        what: str,
        *,
        path: str = "",
        value: object = None,
        allowed: str = "",
        cure: str = "",
    ) -> None:
        super().__init__(what, where=path, measured=value, allowed=allowed, cure=cure)

    @property
    def path(self) -> str:
        """Path to the field in the spelling of the file, such as `acceptors[0].port`."""
        return self.where

    @property
    def value(self) -> object:
        """The value that was refused, or None."""
        return self.measured


class UnknownSetting(ConfigError):
    """No version of Vespiary, nor the reference system, knows this name."""

    code = "VSP-C102"


class UnsupportedSetting(ConfigError):
    """The name or value is known, but what it asks for does not work in this version."""

    code = "VSP-C103"


class UnreadableConfig(ConfigError):
    """The file is missing, cannot be read, or is not the YAML or JSON that it should be."""

    code = "VSP-C104"


class QuantityError(VespiaryError, ValueError):
    """A size or a duration cannot be understood."""

    code = "VSP-C105"


class GeneratedDrift(VespiaryError):
    """A generated file is not what the model says."""

    code = "VSP-C106"


# --- protocols and logins -----------------------------------------------------------------------


class ProtocolError(VespiaryError):
    """Two sides of a connection disagree about the protocol."""

    code = "VSP-P100"


class LocalProtocolError(ProtocolError):
    """Our side asked a codec for something that the protocol does not allow now."""

    code = "VSP-P101"


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; `reply` holds the bytes to send before closing.

    Attributes:
        reply: Encoded answer for the peer, empty if the protocol has none.
    """

    code = "VSP-P102"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        measured: object = None,
        allowed: str = "",
        cure: str = "",
        reply: bytes = b"",
    ) -> None:
        super().__init__(what, where=where, measured=measured, allowed=allowed, cure=cure)
        self.reply = reply


class LimitExceeded(RemoteProtocolError):
    """The peer exceeded a limit of the acceptor: headers, frame, rate or connections."""

    code = "VSP-P103"


class LoginRefused(RemoteProtocolError):
    """User name or password are wrong, or the action needs a login."""

    code = "VSP-P104"


class XaError(RemoteProtocolError):
    """A call on a branch of a distributed transaction cannot be done.

    Attributes:
        xa_code: The code of the XA standard, such as XAER_NOTA; empty if it has none.
    """

    code = "VSP-P105"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        measured: object = None,
        allowed: str = "",
        cure: str = "",
        reply: bytes = b"",
        xa_code: str = "",
    ) -> None:
        super().__init__(
            what, where=where, measured=measured, allowed=allowed, cure=cure, reply=reply
        )
        self.xa_code = xa_code


# --- journal ------------------------------------------------------------------------------------


class JournalError(VespiaryError):
    """Something about a journal; `where` is `file:offset` when a place is known."""

    code = "VSP-J100"


class JournalFull(JournalError):
    """No free file is left and none may be reclaimed; nothing was written."""

    code = "VSP-J101"


class WriterFailed(JournalError):
    """An earlier write or flush failed; final for this process, no confirm follows."""

    code = "VSP-J102"


class TornTail(JournalError):
    """The journal ends in a write that a crash cut off; unconfirmed work only."""

    code = "VSP-J103"


class CorruptRecord(JournalError):
    """Confirmed data does not match its checksum; the broker stops and cuts nothing off."""

    code = "VSP-J104"


class JournalLocked(JournalError):
    """Another running broker owns the folder."""

    code = "VSP-J105"


class RecordTooLarge(JournalError):
    """One record exceeds `journal-buffer-size`."""

    code = "VSP-J106"


class ForeignJournal(JournalError):
    """A file in the folder was not written by Vespiary, or by a newer format of it."""

    code = "VSP-J107"


class BadExport(JournalError):
    """The text of an exported journal is damaged, cut off, or of another version."""

    code = "VSP-J120"


class JournalFileOverdue(JournalError):
    """The next journal file is not ready within `journal-file-open-timeout`; producers wait."""

    code = "VSP-J117"


# --- machine and storage ------------------------------------------------------------------------


class NativeError(VespiaryError, OSError):
    """A system call below the Python layer failed; also an OSError with its errno.

    Args:
        what: What was attempted.
        errno_value: Positive errno of the call.
        where: File or path of the attempt.
        cure: What to do next.
    """

    code = "VSP-N101"

    def __init__(self, what: str, errno_value: int = 0, *, where: str = "", cure: str = "") -> None:
        reason = os.strerror(errno_value) if errno_value else ""
        super().__init__(f"{what}: {reason}" if reason else what, where=where, cure=cure)
        self.args = (what, errno_value)
        self.errno = errno_value or None
        self.strerror = reason or what


class EngineUnavailable(NativeError):
    """The journal engine asked for cannot work here, and falling back was not allowed."""

    code = "VSP-N102"


class StorageError(VespiaryError):
    """Something about a volume or the disk below it."""

    code = "VSP-S100"


class StorageRefused(StorageError):
    """A volume's filesystem is not allowed; nothing was touched."""

    code = "VSP-S101"


class DiskFull(StorageError):
    """The disk is fuller than `max-disk-usage` or `min-disk-free` allow; producers wait."""

    code = "VSP-S102"


class ForeignVolume(StorageError):
    """The volumes do not belong together: a blank or strange one lies beside populated ones."""

    code = "VSP-S103"


class LargeMessageDamaged(StorageError):
    """The file of a large message is missing, or not what was written."""

    code = "VSP-S110"


class PageDamaged(StorageError):
    """A page file that the journal names is missing, or not what was written."""

    code = "VSP-S111"


# --- operator -----------------------------------------------------------------------------------


class ReconcileError(VespiaryError):
    """A reconcile pass of the operator did not reach its end."""

    code = "VSP-R100"


class TemporaryReconcileError(ReconcileError):
    """The pass is repeated after `delay_s` seconds.

    Attributes:
        delay_s: Seconds until the next try, greater than 0.
    """

    code = "VSP-R101"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        measured: object = None,
        allowed: str = "",
        cure: str = "",
        delay_s: float = 10.0,
    ) -> None:
        super().__init__(what, where=where, measured=measured, allowed=allowed, cure=cure)
        self.delay_s = delay_s


class PermanentReconcileError(ReconcileError):
    """The pass is not repeated until the resource changes."""

    code = "VSP-R102"


class CatalogueEntry(NamedTuple):
    """One line of the errors reference."""

    error: type[VespiaryError]
    meaning: str
    cure: str


CATALOGUE: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        VespiaryError, "Base of all others; never raised itself.", "Report it if you see it."
    ),
    CatalogueEntry(
        ConfigError,
        "A value of the configuration or of a resource is refused; the message leads with the "
        "path to the field, then the value and what is allowed.",
        "Correct the field. Nothing was changed or started.",
    ),
    CatalogueEntry(
        UnknownSetting,
        "Nobody knows a setting of this name; it is never ignored.",
        "Use the name that the message suggests, or look it up in the configuration reference.",
    ),
    CatalogueEntry(
        UnsupportedSetting,
        "The reference system knows this name or value, but this version of Vespiary cannot do "
        "what it asks for yet, so it is refused rather than ignored.",
        "Take the line out, or wait for the version that supports it.",
    ),
    CatalogueEntry(
        UnreadableConfig,
        "The configuration file cannot be read or parsed.",
        "Correct the file at the line and column that the message names.",
    ),
    CatalogueEntry(
        QuantityError,
        "A size such as `10MiB` or a duration such as `500ms` cannot be understood.",
        "Write a whole number with one of the suffixes that the message lists.",
    ),
    CatalogueEntry(
        GeneratedDrift,
        "A generated file differs from the model that it comes from.",
        "Run `make gen` and commit the result.",
    ),
    CatalogueEntry(ProtocolError, "Base of the protocol errors.", "See the specific code."),
    CatalogueEntry(
        LocalProtocolError,
        "The broker itself asked for something that the protocol does not allow: a defect.",
        "Report it with the message.",
    ),
    CatalogueEntry(
        RemoteProtocolError,
        "The client sent something that the protocol does not allow. It got an answer with the "
        "reason and was disconnected; other clients are not affected.",
        "Correct the client.",
    ),
    CatalogueEntry(
        LimitExceeded,
        "The client exceeded a limit of its acceptor (headers, frame, read rate, connections).",
        "Send less, or raise the acceptor's limit that the message names.",
    ),
    CatalogueEntry(
        LoginRefused,
        "User name or password are wrong, or a login is required.",
        "Log in with a user of the users file (`vespiary user add`).",
    ),
    CatalogueEntry(
        XaError,
        "A call on a branch of a distributed transaction is not possible; the sentence begins with "
        "the code of the XA standard: XAER_NOTA (no such branch), XAER_DUPID (it exists already), "
        "XAER_PROTO (not in this state), XA_RBROLLBACK and XA_RBTIMEOUT (it was rolled back), "
        "XA_HEURCOM, XA_HEURRB and XA_HEURMIX (an administrator decided), XAER_RMERR (in "
        "quarantine).",
        "`vespiary transaction list` shows the branches and their states.",
    ),
    CatalogueEntry(JournalError, "Base of the journal errors.", "See the specific code."),
    CatalogueEntry(
        JournalFull,
        "No journal file is free and none may be reclaimed. Nothing was written, nothing was "
        "confirmed.",
        "Consume messages, or give the journal volume more space.",
    ),
    CatalogueEntry(
        WriterFailed,
        "A write or a flush failed. The journal takes no more writes in this process and "
        "confirms nothing; what was confirmed before is safe.",
        "Look at the disk and the kernel log, then restart the broker.",
    ),
    CatalogueEntry(
        TornTail,
        "The end of the journal was cut off by a crash, above the last confirmed position. "
        "Expected after a crash; only unconfirmed work is affected.",
        "Nothing to do.",
    ),
    CatalogueEntry(
        CorruptRecord,
        "A block at or below the confirmed position does not match its checksum. The broker "
        "stops, names file and offset, and cuts nothing off.",
        "Keep a copy of the folder, run `vespiary journal verify`, then restore the volume.",
    ),
    CatalogueEntry(
        JournalLocked,
        "Another running broker owns the journal folder.",
        "Stop the other broker, or give this one its own folder.",
    ),
    CatalogueEntry(
        RecordTooLarge,
        "One message does not fit into `journal-buffer-size`.",
        "Send smaller messages, or raise `journal-buffer-size`.",
    ),
    CatalogueEntry(
        ForeignJournal,
        "A file in the folder has another format: the reference system's, a newer Vespiary's, "
        "or none.",
        "Give the broker its own folder, or the version that wrote the files.",
    ),
    CatalogueEntry(
        BadExport,
        "The text that `vespiary export-journal` wrote is damaged, cut off or of another version; "
        "the message names the line. Nothing was made that a broker would take for a journal.",
        "Copy or export the text again, then import it with `--resume`.",
    ),
    CatalogueEntry(
        JournalFileOverdue,
        "The journal has had no file to write to for longer than `journal-file-open-timeout`. "
        "Producers wait; the broker goes on by itself when the file comes.",
        "Look at the disk and the kernel log: making or opening a file hangs.",
    ),
    CatalogueEntry(
        NativeError,
        "A system call failed; the errno is kept and named.",
        "Act on the system's reason in the message.",
    ),
    CatalogueEntry(
        EngineUnavailable,
        "The journal engine asked for cannot work on this machine and `journal-type-strict` "
        "forbids another.",
        "Raise `fs.aio-max-nr` or lower `journal-max-io`; or allow the fallback.",
    ),
    CatalogueEntry(StorageError, "Base of the storage errors.", "See the specific code."),
    CatalogueEntry(
        StorageRefused,
        "A volume lies on a filesystem that the policy does not allow, NFS first. The broker "
        "did not start and the store was not touched.",
        "Give the volume that the message names an ext4 or xfs disk.",
    ),
    CatalogueEntry(
        DiskFull,
        "The disk is fuller than `max-disk-usage` or `min-disk-free` allow. Producers wait; "
        "consumers go on.",
        "Consume messages or enlarge the volume.",
    ),
    CatalogueEntry(
        ForeignVolume,
        "The volumes of this broker do not belong together: one was replaced by a blank or a "
        "strange one. The broker did not start.",
        "Attach the right volume, or restore all of them from one point in time.",
    ),
    CatalogueEntry(
        LargeMessageDamaged,
        "The file with the body of a large message is missing, or of another size or checksum. The "
        "message is kept in its queue and not delivered; all others are.",
        "Put the file back from a backup and restart the broker; or purge the queue.",
    ),
    CatalogueEntry(
        PageDamaged,
        "A file with messages of an address that pages is missing, cut off, or fails its checksum. "
        "At the start the broker refuses to go on; while it runs, the queue waits there and all "
        "others go on.",
        "Keep a copy of the paging folder and the journal, then restore the file from a backup of "
        "the same moment.",
    ),
    CatalogueEntry(ReconcileError, "Base of the operator's errors.", "See the specific code."),
    CatalogueEntry(
        TemporaryReconcileError,
        "A reconcile pass was cut short by something that may pass, and is repeated.",
        "Usually nothing; the condition's message says what it waits for.",
    ),
    CatalogueEntry(
        PermanentReconcileError,
        "The resource asks for something that cannot be done; the operator waits for a change.",
        "Change the resource as the condition's message says.",
    ),
)
"""Every error class once, in the order of the reference page."""
