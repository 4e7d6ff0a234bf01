"""The identity stamp of a volume: whose it is, which broker of the set, and what for.

Owns the file `.vespiary-volume.json` at the top of each volume. It catches what no look at a
filesystem
can: two claims swapped, the disk of another broker, a blank disk in the place of one that held
    messages.
Never changes or removes any other file. Called by `verification`, last, when every volume has been
found good; a refusal leaves all stamps as they were.

A stamp is written to a temporary name, flushed, renamed, and its folder flushed: it is whole or
absent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Container, Mapping
from enum import Enum

import msgspec

STAMP_NAME = ".vespiary-volume.json"
FORMAT = 1
READABLE_FORMATS = (1,)

_STAMP_BYTES_MAX = 16 * 1024
# mkfs makes it; everything of ours that is not the store itself begins with the prefix.
_NO_CONTENT = frozenset({"lost+found"})
_OWN_PREFIX = ".vespiary-"


class DamagedStamp(ValueError):  # noqa: N818  (a finding, reported as such)
    """A stamp is there and can't be understood."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that asks for the volumes.

    Attributes:
        name: Name of the broker, with its namespace where there is one (`shop/orders`).
        uid: Unique id of the resource; empty outside Kubernetes.
        ordinal: Which broker of the set, 0 or more.
    """

    name: str
    uid: str = ""
    ordinal: int = 0

    def describe(self) -> str:
        """Name the broker for a sentence."""
        uid = f", uid {self.uid}" if self.uid else ""
        return f"broker {self.name} ordinal {self.ordinal}{uid}"


class Stamp(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Content of the stamp file.

    Attributes:
        format: Version of this layout.
        broker_name: Name of the broker, with its namespace.
        broker_uid: Unique id of the resource when the stamp was written; may be empty.
        ordinal: Which broker of the set.
        role: What the volume is for (`journal`, `paging`, …).
        volumes: Roles of all volumes that were ever used together with this one, sorted.
        created: When the volume was first used, RFC 3339, UTC.
    """

    format: int
    broker_name: str
    broker_uid: str
    ordinal: int
    role: str
    volumes: tuple[str, ...]
    created: str

    def describe(self) -> str:
        """Name what the volume says it is."""
        uid = f", uid {self.broker_uid}" if self.broker_uid else ""
        return f"{self.role} of broker {self.broker_name} ordinal {self.ordinal}{uid}"


class Action(Enum):
    """What to do with a volume's stamp."""

    KEEP = "keep"
    WRITE = "write"
    REFUSE = "refuse"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome for one volume.

    Attributes:
        action: What to do.
        stamp: What the file holds afterwards; None after a refusal.
        sentence: The reason of a refusal, or of a warning; empty when there is nothing to say.
        is_adopted: Whether it is taken only because a person said so.
        may_adopt: Whether a person could have it taken all the same.
    """

    action: Action
    stamp: Stamp | None = None
    sentence: str = ""
    is_adopted: bool = False
    may_adopt: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found at the top of one volume.

    Attributes:
        path: The volume's folder.
        stamp: Its stamp; None when there is none.
        has_content: Whether anything but a stamp and `lost+found` is there.
        damage: Why the stamp can't be understood; empty when it can or there is none.
    """

    path: str
    stamp: Stamp | None
    has_content: bool
    damage: str = ""


def has_content(directory: str) -> bool:
    """Tell whether anything but a stamp and `lost+found` is at the top of a volume.

    Args:
        directory: The volume's folder.

    Raises:
        OSError: The folder can't be read.
    """
    with os.scandir(directory) as entries:
        return any(
            entry.name not in _NO_CONTENT and not entry.name.startswith(_OWN_PREFIX)
            for entry in entries
        )


def look(directory: str) -> Finding:
    """Look at the top of a volume; changes nothing.

    Args:
        directory: The volume's folder.

    Raises:
        OSError: The folder or the stamp can't be read.
    """
    is_used = has_content(directory)
    try:
        stamp = _read(directory)
    except DamagedStamp as error:
        return Finding(path=directory, stamp=None, has_content=is_used, damage=str(error))
    return Finding(path=directory, stamp=stamp, has_content=is_used)


def _read(directory: str) -> Stamp | None:
    path = os.path.join(directory, STAMP_NAME)  # noqa: PTH118
    # Neither a link to elsewhere nor a pipe that never answers is a stamp.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise DamagedStamp(f"{path} is a symbolic link") from error
    with open(descriptor, "rb") as file:
        data = file.read(_STAMP_BYTES_MAX + 1) or b""
    if len(data) > _STAMP_BYTES_MAX:
        raise DamagedStamp(f"{path} is longer than the {_STAMP_BYTES_MAX} bytes of a stamp")
    try:
        stamp = msgspec.json.decode(data, type=Stamp)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedStamp(f"{path} is no volume stamp: {error}") from error
    if stamp.format not in READABLE_FORMATS:
        raise DamagedStamp(
            f"{path} has format {stamp.format}, this version of Vespiary reads "
            f"{', '.join(map(str, READABLE_FORMATS))}"
        )
    return stamp


def decide(
    findings: Mapping[str, Finding],
    owner: Owner,
    *,
    created: str,
    adopt: bool = False,
    adopted: Container[str] = (),
) -> dict[str, Decision]:
    """Decide for all volumes of a broker at once; pure.

    | found                                           | decision                       |
    |-------------------------------------------------|--------------------------------|
    | stamp of this broker, ordinal and role          | keep                           |
    | the same, but of an earlier resource (uid)      | take over, with a warning      |
    | stamp of another broker or ordinal, same role   | refuse, or write if `adopted`  |
    | stamp of another role                           | refuse                         |
    | stamp that can't be read                        | refuse                         |
    | no stamp, nothing else                          | write                          |
    | no stamp, nothing else, a full sibling lists it | refuse, or write when told to  |
    | no stamp, but content                           | refuse, or write when told to  |

    A resource that is deleted and made anew under its name finds its claims again, and with them
    its messages; that is what StatefulSets are for, so another uid alone is no refusal.

    Args:
        findings: What `look` found, by role; for all volumes of the broker.
        owner: The broker that asks.
        created: Time for new stamps, RFC 3339.
        adopt: Take volumes that have content but no stamp, and blank ones beside full ones.
        adopted: Roles of volumes that a person named one by one: these, and one that says it is
            another broker's.

    Returns:
        The decision of each role.
    """
    roles = tuple(findings)
    return {
        role: _decide_one(
            role,
            finding,
            owner,
            roles,
            findings,
            created,
            adopt or role in adopted,
            role in adopted,
        )
        for role, finding in findings.items()
    }


def _decide_one(
    role: str,
    finding: Finding,
    owner: Owner,
    roles: tuple[str, ...],
    findings: Mapping[str, Finding],
    created: str,
    adopt: bool,
    is_named: bool,
) -> Decision:
    where = f"Volume {role} at {finding.path}"
    if finding.damage:
        return _refuse(
            f"{where} can't be identified: {finding.damage}; restore that file from a backup, or "
            "attach a blank volume."
        )
    fresh = Stamp(
        format=FORMAT,
        broker_name=owner.name,
        broker_uid=owner.uid,
        ordinal=owner.ordinal,
        role=role,
        volumes=tuple(sorted(roles)),
        created=created,
    )
    stamp = finding.stamp
    if stamp is not None:
        if is_named and stamp.role == role and not _is_same_place(stamp, owner):
            sentence = (
                f"{where} said that it is {stamp.describe()}, and was adopted by "
                f"{owner.describe()}, as asked."
            )
            return Decision(action=Action.WRITE, stamp=fresh, sentence=sentence, is_adopted=True)
        return _decide_stamped(where, stamp, fresh, owner)
    if finding.has_content and not adopt:
        return _refuse(
            f"{where} holds files but no {STAMP_NAME}, so it is not known to belong to "
            f"{owner.describe()}; give it a blank volume, or adopt these files on purpose.",
            may_adopt=True,
        )
    full = [
        other
        for other, beside in findings.items()
        if beside.has_content
        and beside.stamp is not None
        and role in beside.stamp.volumes
        and _is_same_place(beside.stamp, owner)
    ]
    if full and not finding.has_content and not adopt:
        return _refuse(
            f"{where} is blank, but volume {full[0]} of {owner.describe()} was used together with "
            f"another volume {role}; attach that one, restore all volumes from one point in time, "
            "or adopt the blank one on purpose and lose what the other held.",
            may_adopt=True,
        )
    if finding.has_content or full:
        what = "held files without a stamp" if finding.has_content else "is blank beside full ones"
        sentence = f"{where} {what}, and was adopted by {owner.describe()}, as asked."
        return Decision(action=Action.WRITE, stamp=fresh, sentence=sentence, is_adopted=True)
    return Decision(action=Action.WRITE, stamp=fresh)


def _decide_stamped(where: str, stamp: Stamp, fresh: Stamp, owner: Owner) -> Decision:
    if not _is_same_place(stamp, owner) or stamp.role != fresh.role:
        return _refuse(
            f"{where} belongs to another: its stamp says {stamp.describe()}, wanted is "
            f"{fresh.describe()}; attach the right volume, or a blank one.",
            may_adopt=stamp.role == fresh.role,
        )
    # Never fewer than before: a check of one volume alone must not forget the others.
    together = tuple(sorted({*stamp.volumes, *fresh.volumes}))
    kept = msgspec.structs.replace(fresh, created=stamp.created, volumes=together)
    if not owner.uid:
        # A run outside Kubernetes doesn't know the uid; it must not wipe out the one that is noted.
        kept = msgspec.structs.replace(kept, broker_uid=stamp.broker_uid)
    if kept == stamp:
        return Decision(action=Action.KEEP, stamp=stamp)
    sentence = ""
    if stamp.broker_uid and stamp.broker_uid != kept.broker_uid:
        sentence = (
            f"{where} was made for {stamp.describe()} and is taken over by {owner.describe()}: "
            "the resource was made anew under the same name; its messages are kept."
        )
    return Decision(action=Action.WRITE, stamp=kept, sentence=sentence)


def _is_same_place(stamp: Stamp, owner: Owner) -> bool:
    return stamp.broker_name == owner.name and stamp.ordinal == owner.ordinal


def _refuse(sentence: str, *, may_adopt: bool = False) -> Decision:
    return Decision(action=Action.REFUSE, sentence=sentence, may_adopt=may_adopt)


def write(directory: str, stamp: Stamp) -> None:
    """Write or replace a volume's stamp.

    Args:
        directory: The volume's folder.
        stamp: Its content.

    Raises:
        OSError: The volume can't be written; the old stamp, if any, is as it was.

    Durability: on return the stamp survives a power loss; on any failure the old state does.
    """
    name = f"{STAMP_NAME}.{secrets.token_hex(8)}"
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(name, flags, 0o644, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(stamp), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.rename(name, STAMP_NAME, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)
