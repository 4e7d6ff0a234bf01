"""The answer of the verification that runs before a broker: written there, read by the operator.

Owns: the JSON of the init container's termination message and its exit codes.
Never: measures anything.
Called by: the verification in `vespiary_broker.store`, the operator, `vespiary apply`.

The kubelet keeps 4096 bytes of a container's message, so keys are short, numbers
are whole, and `encode` leaves out details, the least needed first, until it fits. The
verdict, each volume's name, type and verdict, and the refusing sentence stay.
"""

from __future__ import annotations

import enum

import msgspec

from vespiary_spec import limits
from vespiary_spec.errors import ConfigError
from vespiary_spec.status import VerdictLevel

SCHEMA = 1
"""Version of the message. A reader takes its own and older ones."""


class ExitCode(enum.IntEnum):
    """How the verification ends."""

    GOOD = 0
    FOUND_BAD = 1
    USAGE = 2


class VolumeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found about one volume.

    Attributes:
        name: `bindings`, `journal`, `paging`, `large-messages` or `jms`.
        filesystem: Type as in mountinfo, empty if the path could not be looked at.
        verdict: What the policy says.
        reason: Why, as one sentence; empty for an allowed one.
        path: Where it is mounted.
        source: What is mounted.
        options: Mount options.
        device: Block device as `major:minor`.
        dedicated: Whether no other volume of the broker is on the same filesystem.
        direct_io: Whether a real O_DIRECT write worked; None if it was not tried.
        aio: Whether a real asynchronous write worked; None if it was not tried.
        flush_us_p50: Median of flushed 4 KiB writes, in µs.
        flush_us_p99: 99th percentile of the same.
        write_cache: `write back`, `write through`, or empty if not known.
        free_bytes: Free space for the broker's user.
        size_bytes: Size of the filesystem.
        inodes: Inodes of the filesystem; 0 where it has no fixed number.
        free_inodes: Inodes left.
        adopted: Whether it was taken as this broker's although it was not known to be, as asked.
        may_adopt: Whether it was refused for whose it is, and a person may have it taken.
    """

    name: str = msgspec.field(name="n")
    filesystem: str = msgspec.field(name="f", default="")
    verdict: VerdictLevel = msgspec.field(name="v", default=VerdictLevel.ALLOW)
    reason: str = msgspec.field(name="r", default="")
    path: str = msgspec.field(name="p", default="")
    source: str = msgspec.field(name="s", default="")
    options: str = msgspec.field(name="o", default="")
    device: str = msgspec.field(name="d", default="")
    dedicated: bool | None = msgspec.field(name="de", default=None)
    direct_io: bool | None = msgspec.field(name="di", default=None)
    aio: bool | None = msgspec.field(name="a", default=None)
    flush_us_p50: int | None = msgspec.field(name="m", default=None)
    flush_us_p99: int | None = msgspec.field(name="q", default=None)
    write_cache: str = msgspec.field(name="w", default="")
    free_bytes: int | None = msgspec.field(name="fb", default=None)
    size_bytes: int | None = msgspec.field(name="sb", default=None)
    inodes: int | None = msgspec.field(name="i", default=None)
    free_inodes: int | None = msgspec.field(name="fi", default=None)
    adopted: bool = msgspec.field(name="ad", default=False)
    may_adopt: bool = msgspec.field(name="ma", default=False)


class AioResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found about asynchronous I/O on the machine.

    Attributes:
        max_nr: `fs.aio-max-nr`; None if it could not be read.
        nr: `fs.aio-nr`, in use by everyone.
        demand: Requests that this broker asks for.
    """

    max_nr: int | None = msgspec.field(name="x", default=None)
    nr: int | None = msgspec.field(name="n", default=None)
    demand: int = msgspec.field(name="d", default=0)

    @property
    def is_enough(self) -> bool:
        """Whether the demand can be met; True where the numbers are not known."""
        if self.max_nr is None or self.nr is None:
            return True
        return self.max_nr - self.nr >= self.demand


class Verification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole answer.

    Attributes:
        schema: Version of this message.
        verdict: The worst of the volumes', `deny` also for any other refusal.
        engine: Journal engine that will be in effect; empty if the broker may not start.
        engine_reason: Why it is not the one asked for, as one sentence; empty if it is.
        refusal: First sentence that speaks against the start; empty if there is none.
        aio: Asynchronous I/O of the machine.
        volumes: One result for each volume.
        waits: What a broker that may start has to wait for first, as one sentence; empty if it need
            not.
        is_shortened: Whether details were left out to fit.
    """

    schema: int = msgspec.field(name="vespiary", default=0)
    verdict: VerdictLevel = msgspec.field(name="v", default=VerdictLevel.ALLOW)
    engine: str = msgspec.field(name="e", default="")
    engine_reason: str = msgspec.field(name="er", default="")
    refusal: str = msgspec.field(name="r", default="")
    aio: AioResult = msgspec.field(name="aio", default=AioResult())
    volumes: tuple[VolumeResult, ...] = msgspec.field(name="vol", default=())
    waits: str = msgspec.field(name="w", default="")
    is_shortened: bool = msgspec.field(name="cut", default=False)

    @property
    def exit_code(self) -> ExitCode:
        """How the program that found this has to end."""
        return ExitCode.FOUND_BAD if self.verdict is VerdictLevel.DENY else ExitCode.GOOD


def summarise(
    volumes: tuple[VolumeResult, ...],
    aio: AioResult,
    *,
    engine: str,
    engine_reason: str = "",
    refusal: str = "",
    waits: str = "",
) -> Verification:
    """Make the whole answer from its parts.

    Args:
        volumes: One result for each volume.
        aio: Asynchronous I/O of the machine.
        engine: Engine that will be in effect.
        engine_reason: Why it is not the one asked for.
        refusal: A refusal that no volume is to blame for, such as a strict engine.
        waits: What the broker has to wait for before it can have its engine.
    """
    denied = next((v for v in volumes if v.verdict is VerdictLevel.DENY), None)
    refusal = denied.reason if denied is not None else refusal
    if refusal:
        verdict = VerdictLevel.DENY
    elif any(v.verdict is VerdictLevel.WARN for v in volumes):
        verdict = VerdictLevel.WARN
    else:
        verdict = VerdictLevel.ALLOW
    return Verification(
        schema=SCHEMA,
        verdict=verdict,
        engine="" if refusal else engine,
        engine_reason=engine_reason,
        refusal=refusal,
        aio=aio,
        volumes=volumes,
        waits="" if refusal else waits,
    )


_SHORTENING: tuple[dict[str, object], ...] = (
    {"options": ""},
    {"inodes": None, "free_inodes": None},
    {"source": ""},
    {"path": "", "write_cache": ""},
    {"device": "", "dedicated": None, "free_bytes": None, "size_bytes": None},
    {"flush_us_p50": None, "flush_us_p99": None, "direct_io": None, "aio": None},
    {"reason": ""},
)
"""What `encode` leaves out of the volumes, step by step; the refusal keeps the sentence."""


def encode(result: Verification, limit_bytes: int = limits.TERMINATION_MESSAGE_BYTES) -> bytes:
    """Write the answer so that it fits.

    Args:
        result: The answer.
        limit_bytes: Most bytes to write; at least 1024.

    Returns:
        JSON in UTF-8 of at most `limit_bytes` bytes, which `decode` reads.
    """
    assert limit_bytes >= 1024
    data = msgspec.json.encode(result)
    for step in _SHORTENING:
        if len(data) <= limit_bytes:
            return data
        volumes = tuple(msgspec.structs.replace(volume, **step) for volume in result.volumes)
        result = msgspec.structs.replace(result, volumes=volumes, is_shortened=True)
        data = msgspec.json.encode(result)
    for bound in (400, 200, 80):
        if len(data) <= limit_bytes:
            return data
        volumes = tuple(
            msgspec.structs.replace(v, name=v.name[:20], filesystem=v.filesystem[:20])
            for v in result.volumes[:8]
        )
        result = msgspec.structs.replace(
            result,
            refusal=_cut(result.refusal, bound),
            engine_reason=_cut(result.engine_reason, bound),
            waits=_cut(result.waits, bound),
            engine=result.engine[:20],
            volumes=volumes,
        )
        data = msgspec.json.encode(result)
    assert len(data) <= limit_bytes
    return data


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def decode(data: bytes | str) -> Verification:
    """Read the answer.

    Args:
        data: A termination message.

    Raises:
        ConfigError: It is empty, no such message, or of a newer schema.
    """
    try:
        result = msgspec.json.decode(data, type=Verification)
    except msgspec.DecodeError as error:
        raise ConfigError(
            "the verification's answer cannot be read",
            path="termination message",
            value=data if isinstance(data, str) else data.decode("utf-8", "replace"),
            cure="look at the log of the container `verify`",
        ) from error
    if not 1 <= result.schema <= SCHEMA:
        raise ConfigError(
            "the verification speaks another version of the message",
            path="termination message",
            value=result.schema,
            allowed=f"1 to {SCHEMA}",
            cure="bring operator and broker image to the same version",
        )
    return result
