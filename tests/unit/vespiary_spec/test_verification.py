"""The termination message: round trip, shrinking into 4096 bytes, refusals."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_spec.errors import ConfigError
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import (
    AioResult,
    ExitCode,
    Verification,
    VolumeResult,
    decode,
    encode,
    summarise,
)

NAMES = ("bindings", "journal", "paging", "large-messages")


def volume(name: str, **changes: object) -> VolumeResult:
    result = VolumeResult(
        name=name,
        filesystem="ext4",
        path=f"/var/lib/vespiary/{name}",
        source="/dev/loop3",
        options="rw,relatime",
        device="7:3",
        dedicated=True,
        direct_io=True,
        aio=True,
        flush_us_p50=95,
        flush_us_p99=310,
        write_cache="write back",
        free_bytes=10_000_000_000,
        size_bytes=10_737_418_240,
    )
    return msgspec.structs.replace(result, **changes)


AIO = AioResult(max_nr=65536, nr=1024, demand=500)


def test_a_usual_answer_is_whole_and_short() -> None:
    result = summarise(tuple(volume(name) for name in NAMES), AIO, engine="ASYNCIO")
    data = encode(result)
    assert decode(data) == result
    assert not decode(data).is_shortened
    assert len(data) < 1500
    assert result.exit_code is ExitCode.GOOD
    assert result.verdict is VerdictLevel.ALLOW


def test_one_refused_volume_refuses_the_start() -> None:
    volumes = (
        volume("bindings"),
        volume("journal", filesystem="nfs4", verdict=VerdictLevel.DENY, reason="It is on nfs4."),
        volume("paging", filesystem="tmpfs", verdict=VerdictLevel.DENY, reason="It is memory."),
    )
    result = summarise(volumes, AIO, engine="ASYNCIO")
    assert result.refusal == "It is on nfs4."
    assert result.verdict is VerdictLevel.DENY
    assert result.engine == ""
    assert result.exit_code is ExitCode.FOUND_BAD == 1


def test_a_warning_does_not_refuse() -> None:
    volumes = (volume("journal", verdict=VerdictLevel.WARN, reason="Copy-on-write."),)
    result = summarise(volumes, AIO, engine="NIO", engine_reason="AIO is used up.")
    assert result.verdict is VerdictLevel.WARN
    assert result.exit_code is ExitCode.GOOD
    assert (result.engine, result.engine_reason) == ("NIO", "AIO is used up.")


def test_another_refusal_than_a_volumes() -> None:
    result = summarise((volume("journal"),), AIO, engine="ASYNCIO", refusal="AIO is used up.")
    assert result.verdict is VerdictLevel.DENY
    assert result.exit_code is ExitCode.FOUND_BAD


TEXT = st.text(max_size=5000)
VOLUMES = st.lists(
    st.builds(
        VolumeResult,
        name=st.sampled_from(NAMES),
        filesystem=st.sampled_from(["ext4", "nfs4", "fuse.juicefs"]),
        verdict=st.sampled_from(VerdictLevel),
        reason=TEXT,
        path=TEXT,
        source=TEXT,
        options=TEXT,
        free_bytes=st.integers(0, 2**63 - 1),
    ),
    max_size=5,
)


@settings(deadline=None)  # the machine may be busy
@given(VOLUMES, TEXT, TEXT)
def test_it_always_fits_and_keeps_the_verdict(
    volumes: list[VolumeResult], refusal: str, engine_reason: str
) -> None:
    result = summarise(
        tuple(volumes), AIO, engine="ASYNCIO", engine_reason=engine_reason, refusal=refusal
    )
    data = encode(result)
    assert len(data) <= 4096
    found = decode(data)
    assert (found.verdict, found.exit_code) == (result.verdict, result.exit_code)
    assert [(v.name, v.filesystem, v.verdict) for v in found.volumes] == [
        (v.name, v.filesystem, v.verdict) for v in result.volumes
    ]
    assert bool(found.refusal) is bool(result.refusal)


def test_details_go_first_and_the_sentence_last() -> None:
    sentence = "The volume journal is on nfs4, which is refused. Give it ext4."
    volumes = tuple(
        volume(name, options="o" * 900, verdict=VerdictLevel.DENY, reason=sentence)
        for name in NAMES
    )
    found = decode(encode(summarise(volumes, AIO, engine="ASYNCIO")))
    assert found.is_shortened
    assert found.refusal == sentence
    assert all(v.options == "" and v.source == "/dev/loop3" for v in found.volumes)


@pytest.mark.parametrize("data", [b"", b"panic: out of memory", b"[]", b"{}", b'{"vespiary": 99}'])
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        decode(data)


def test_a_field_of_a_newer_minor_version_is_ignored() -> None:
    assert decode(b'{"vespiary": 1, "v": "warn", "new": 1}') == Verification(
        schema=1, verdict=VerdictLevel.WARN
    )


@pytest.mark.parametrize(
    ("max_nr", "nr", "is_enough"),
    [(65536, 0, True), (65536, 65036, True), (65536, 65037, False), (None, 5, True)],
)
def test_whether_aio_is_enough(max_nr: int | None, nr: int, is_enough: bool) -> None:
    assert AioResult(max_nr=max_nr, nr=nr, demand=500).is_enough is is_enough
