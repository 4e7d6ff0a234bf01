import pytest

from vespiary_broker.store.volumes import trial
from vespiary_spec.settings import JournalType
from vespiary_spec.status import VerdictLevel


@pytest.mark.parametrize(
    ("filesystem", "p50_us", "is_suspicious"),
    [
        ("ext4", 19, True),
        ("ext4", 0, True),
        ("ext4", 20, False),
        ("xfs", 300, False),
        ("tmpfs", 1, False),
        ("ramfs", 1, False),
        ("ext4", None, False),
    ],
)
def test_flushes_that_are_too_fast_for_a_disk(
    filesystem: str, p50_us: int | None, is_suspicious: bool
) -> None:
    findings = trial.flush_findings("journal", filesystem, p50_us, "write back")
    assert bool(findings) is is_suspicious
    for found in findings:
        assert found.level is VerdictLevel.WARN
        assert "suspicious volatile write cache" in found.sentence
        assert "journal" in found.sentence
        assert "write back" in found.sentence


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("rw", "relatime", "nodelalloc"), []),
        (("rw", "data=ordered"), []),
        (("rw", "data=writeback"), ["data=writeback"]),
        (("rw", "nobarrier"), ["nobarrier"]),
        (("rw", "barrier=0", "data=writeback"), ["barrier=0", "data=writeback"]),
        (("rw", "barrier=1"), []),
        (("rw", "fsync_mode=nobarrier"), ["fsync_mode=nobarrier"]),
    ],
)
def test_mount_options_that_undo_a_flush(options: tuple[str, ...], expected: list[str]) -> None:
    findings = trial.options_findings("journal", "ext4", options)
    assert len(findings) == len(expected)
    for found, option in zip(findings, expected, strict=True):
        assert found.level is VerdictLevel.WARN
        assert f"is mounted with {option}" in found.sentence
    assert trial.options_findings("journal", "tmpfs", options) == ()


def test_only_the_journal_with_aio_reserves_the_demand() -> None:
    assert trial.needs_ring(JournalType.ASYNCIO, "journal", "journal", 500) == 500
    assert trial.needs_ring(JournalType.ASYNCIO, "journal", "journal", 0) == 1
    assert trial.needs_ring(JournalType.ASYNCIO, "paging", "journal", 500) == 1
    assert (
        trial.needs_ring(JournalType.IO_URING, "journal", "journal", 500) == 500
    )  # it may fall back
    assert trial.needs_ring(JournalType.NIO, "journal", "journal", 500) == 1
