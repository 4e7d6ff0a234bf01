"""The error tree of Vespiary and its stable codes.

Owns: every exception class that crosses a package border. What each means to a reader stands in
`error_catalogue`, from which `docs/reference/errors.md` is generated.
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
import re
from typing import Any, ClassVar

_INNER_CODE = re.compile(r" \[VSP-[A-Z]\d+\]")


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
    exit_code: ClassVar[int] = 1
    """What a program that ends because of it ends with."""

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
        # The text of another error may be part of this one, which has a code of its own.
        self.what = _INNER_CODE.sub("", what)
        self.where = where
        self.measured = measured
        self.allowed = allowed
        self.cure = _INNER_CODE.sub("", cure)

    @property
    def details(self) -> str:
        """Lines that an answer with room for them shows below the sentence; empty for none."""
        return ""

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


class AddressFull(RemoteProtocolError):
    """A message was refused because its address, or all of them, hold too much."""

    code = "VSP-P107"


class LoginRefused(RemoteProtocolError):
    """User name or password are wrong, or the action needs a login.

    Attributes:
        user: The user name that was given, for the log; not part of the text.
    """

    code = "VSP-P104"
    user = ""


class LoginBusy(LoginRefused):
    """A password was not checked: too many others wait for that, or the client has left."""

    code = "VSP-P112"

    def __init__(self, what: str) -> None:
        super().__init__(what, cure="try again")


class UserRemoved(LoginRefused):
    """The user of a connection was removed, or clients without a login do not come in any more.

    Args:
        user: Name of the user, or `anonymous`.
        is_anonymous: Whether the client had come in without a login.
    """

    code = "VSP-P111"

    def __init__(self, user: str, *, is_anonymous: bool = False) -> None:
        if is_anonymous:
            super().__init__("clients have to log in now", cure="log in as a user of this broker")
        else:
            super().__init__(f"the user {user} was removed", cure="log in as another user")


class NotPermitted(RemoteProtocolError):
    """A user lacks a permission at an address.

    Attributes:
        user: Name of the user; empty for a client that is not logged in.
        permission: The permission, as `security-settings` spells it.
        address: The address.
        match: The match of `security-settings` that decided; empty: none covers the address; None:
            it is a wildcard, and no match permits any address that it covers.
    """

    code = "VSP-P110"
    _SHOWN_MAX: ClassVar[int] = 200

    def __init__(self, user: str, permission: str, address: str, match: str | None) -> None:
        who = f"the user {user}" if user else "a client without a login"
        shown = address[: self._SHOWN_MAX]
        if match is None:
            where = f"any address that {shown} covers"
        elif match:
            where = f"the address {shown}: the match {match[: self._SHOWN_MAX]} decides"
        else:
            where = f"the address {shown}: no match covers it"
        super().__init__(
            f"{who} has no permission {permission} at {where}",
            cure="ask for a role that security-settings name there",
        )
        self.user = user
        self.permission = permission
        self.address = address
        self.match = match


class NotOwner(NotPermitted):
    """A queue belongs to another user.

    Attributes:
        user: As of `NotPermitted`.
        queue: The queue.
    """

    code = "VSP-P113"

    def __init__(self, user: str, queue: str) -> None:
        RemoteProtocolError.__init__(
            self,
            f"the queue {queue[: self._SHOWN_MAX]} belongs to another user",
            cure="log in as that user or as an administrator, or take another client id",
        )
        self.user = user
        self.queue = queue


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


class StreamHeld(RemoteProtocolError):
    """A stream, or the queue that one reads, is somebody else's now."""

    code = "VSP-P108"


class StreamFenced(RemoteProtocolError):
    """A call on a stream comes from a run that another claim has ended."""

    code = "VSP-P109"


class InvalidSelector(RemoteProtocolError):
    """A selector or a filter is no condition.

    Attributes:
        selector: The text; empty if it was not even looked at.
        position: Index of the character where the mistake shows, 0 to the length of the text.
    """

    code = "VSP-P106"
    _SHOWN_BEFORE: ClassVar[int] = 50
    _SHOWN_AFTER: ClassVar[int] = 30

    def __init__(
        self,
        what: str,
        *,
        selector: str = "",
        position: int = 0,
        measured: object = None,
        allowed: str = "",
        cure: str = "",
    ) -> None:
        where = f"selector, character {position + 1}" if selector else "selector"
        super().__init__(what, where=where, measured=measured, allowed=allowed, cure=cure)
        self.selector = selector
        self.position = position

    @property
    def details(self) -> str:
        """The part of the text around the mistake, and a line with a caret below it."""
        if not self.selector:
            return ""
        start = max(0, self.position - self._SHOWN_BEFORE)
        end = self.position + self._SHOWN_AFTER
        before = "…" if start else ""
        shown = self.selector[start:end]
        line = "".join(c if c.isprintable() else " " for c in shown)
        after = "…" if end < len(self.selector) else ""
        caret = " " * (len(before) + self.position - start) + "^"
        return f"{before}{line}{after}\n{caret}\n"


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


class OwnershipLost(WriterFailed):
    """Another broker took the journal over; final for this process, no confirm follows."""

    code = "VSP-J108"
    exit_code = 3


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


# --- pipeline -----------------------------------------------------------------------------------


class PipelineError(VespiaryError):
    """A job of the pipeline could not do what it was asked for."""

    code = "VSP-D100"


class SparkUnusable(PipelineError):
    """There is no Spark or Java that the pipeline can use."""

    code = "VSP-D101"


class ExportRefused(PipelineError):
    """The folder that an export should go to cannot be used for it; nothing was changed."""

    code = "VSP-D102"


class JobFailed(PipelineError):
    """Spark ended a job for a reason that is not one of Vespiary's."""

    code = "VSP-D103"


class SourceChanged(PipelineError):
    """A file that is read became another one meanwhile."""

    code = "VSP-D104"


class MessagesLost(PipelineError):
    """A stream cannot give messages that its query has not read."""

    code = "VSP-D105"


class BrokerRefused(PipelineError):
    """The broker refused a call of the pipeline, or a message of it.

    Attributes:
        status: HTTP status of the answer.
    """

    code = "VSP-D106"
    status: int = 0


class ImportRefused(PipelineError):
    """An import cannot make the folder, or a row cannot be a message; nothing is to be seen of it.

    What other imports staged for the same folder may be gone.
    """

    code = "VSP-D107"


class RegistrationRefused(PipelineError):
    """A table of a lake cannot take the exports of a folder; those that it has are in it whole."""

    code = "VSP-D108"
