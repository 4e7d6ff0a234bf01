"""What the verification found: the short answer that the operator reads, and all the rest.

Owns the records only. `Report.answer` is `vespiary_spec.verification.Verification`, which fits
into a termination message; the other fields are for people and for `vespiary check --json`.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from vespiary_broker.store.volumes.block_device import UNKNOWN, BlockDevice
from vespiary_broker.store.volumes.engine_choice import EngineChoice
from vespiary_spec.errors import EngineUnavailable, ForeignVolume, StorageRefused
from vespiary_spec.model import camel
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import ExitCode, Verification, VolumeResult

_ORDER = (VerdictLevel.ALLOW, VerdictLevel.WARN, VerdictLevel.DENY)


class Stage(enum.StrEnum):
    """Where a refusal was found."""

    FILESYSTEM = "filesystem"
    TRIAL = "trial"
    ENGINE = "engine"
    IDENTITY = "identity"


class Finding(msgspec.Struct, frozen=True):
    """One thing that speaks for or against a volume.

    Attributes:
        level: How bad it is.
        sentence: Which volume, what, and what to do.
    """

    level: VerdictLevel
    sentence: str


def worst(findings: tuple[Finding, ...]) -> VerdictLevel:
    """Return the worst level; ALLOW when there is none."""
    return max((found.level for found in findings), key=_ORDER.index, default=VerdictLevel.ALLOW)


class VolumeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of one volume.

    Attributes:
        result: The part that goes into the termination message.
        findings: Why the verdict is what it is, in the order found.
        device: The block device under it.
        shares_with: Names of the broker's other volumes on the same filesystem.
        inodes: Inodes of the filesystem; 0 where it has no fixed number, None if not asked.
        free_inodes: Inodes left.
        owner_uid: Owner of the folder.
        owner_gid: Group of the folder.
        mode: Permission bits of the folder, as in `0o770`.
        direct_reason: Why O_DIRECT does not work; empty when it does.
        aio_reason: Why AIO does not work; empty when it does.
        flush_method: How the timed writes were flushed; empty when none were timed.
        flush_count: Number of timed writes.
    """

    result: VolumeResult
    findings: tuple[Finding, ...] = ()
    device: BlockDevice = UNKNOWN
    shares_with: tuple[str, ...] = ()
    inodes: int | None = None
    free_inodes: int | None = None
    owner_uid: int | None = None
    owner_gid: int | None = None
    mode: str = ""
    direct_reason: str = ""
    aio_reason: str = ""
    flush_method: str = ""
    flush_count: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything under readable names, JSON-ready."""
        device = {
            name: getattr(self.device, name)
            for name in self.device.__struct_fields__
            if name != "name"
        }
        own = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name not in ("result", "device")
        }
        # Not through the encoder, which would give the short names of the termination message.
        found = {name: getattr(self.result, name) for name in self.result.__struct_fields__}
        together = found | {"device_name": self.device.name} | device | own
        return {camel(name): msgspec.to_builtins(value) for name, value in together.items()}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole outcome.

    Attributes:
        answer: The short answer; `vespiary_spec.verification.encode` writes it.
        volumes: The volumes in the order of the request.
        engine: The choice of the journal engine; None when it was not reached, because a volume was
            refused before, or because nothing is written to disk.
        refused_at: Where it was refused; None when it was not.
    """

    answer: Verification
    volumes: tuple[VolumeReport, ...]
    engine: EngineChoice | None = None
    refused_at: Stage | None = None

    def raise_if_refused(self) -> None:
        """Do nothing when the broker may start.

        Raises:
            StorageRefused: A volume's filesystem is refused, or the volume does not work.
            EngineUnavailable: The engine asked for can't work, and no other one may be taken.
            ForeignVolume: A volume is not this broker's.
        """
        if self.refused_at is None:
            return
        kinds = {Stage.ENGINE: EngineUnavailable, Stage.IDENTITY: ForeignVolume}
        raise kinds.get(self.refused_at, StorageRefused)(self.answer.refusal)

    @property
    def exit_code(self) -> ExitCode:
        """How the program ends."""
        return self.answer.exit_code

    def to_dict(self) -> dict[str, Any]:
        """Return everything under readable names, JSON-ready, for `vespiary check --json`."""
        aio = self.answer.aio
        return {
            "verdict": str(self.answer.verdict),
            "refusal": self.answer.refusal,
            "engine": self.answer.engine,
            "engineReason": "" if self.engine is None else self.engine.reason,
            "aio": {"maxNr": aio.max_nr, "nr": aio.nr, "demand": aio.demand},
            "volumes": [volume.to_dict() for volume in self.volumes],
        }

    def takes_direct_io(self, volume: str) -> bool:
        """Return whether nothing speaks against direct I/O on a volume."""
        return all(
            found.result.direct_io is not False
            for found in self.volumes
            if found.result.name == volume
        )

    def is_in_memory(self, volume: str) -> bool:
        """Return whether a volume is memory."""
        return any(
            found.result.filesystem in ("tmpfs", "ramfs")
            for found in self.volumes
            if found.result.name == volume
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """Everything worth telling, refusals first, each once."""
        found = [finding for volume in self.volumes for finding in volume.findings]
        found.sort(key=lambda finding: -_ORDER.index(finding.level))
        told = [finding.sentence for finding in found]
        if self.answer.refusal and self.answer.refusal not in told:
            told.insert(0, self.answer.refusal)
        if self.engine is not None and (self.engine.waits or not self.engine.is_as_asked):
            told.append(self.engine.reason)
        return tuple(dict.fromkeys(told))
