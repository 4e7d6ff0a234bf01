"""Disks whose I/O scheduler makes flushes slow are warned about, by name and with the cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.store.volumes import block_device, trial
from vespiary_spec.status import VerdictLevel


def sysfs_with(root: Path, scheduler: str) -> Path:
    """Lay out a logical volume (253:0) on the first partition of the disk sda."""
    numbers, names = root / "dev" / "block", root / "class" / "block"
    numbers.mkdir(parents=True)
    names.mkdir(parents=True)
    disk = root / "devices" / "sda"
    part = disk / "sda1"
    upper = root / "devices" / "dm-0"
    for node in (part, disk / "queue", upper / "queue", upper / "slaves"):
        node.mkdir(parents=True)
    (part / "partition").write_text("1\n")
    (disk / "queue" / "scheduler").write_text(scheduler + "\n")
    for number, node in (("8:0", disk), ("8:1", part), ("253:0", upper)):
        (numbers / number).symlink_to(node)
        (names / node.name).symlink_to(node)
    (upper / "slaves" / "sda1").symlink_to(part)
    return root


@pytest.mark.parametrize(
    ("scheduler", "is_slow"),
    [
        ("none mq-deadline kyber [bfq]", True),
        ("mq-deadline kyber [none] bfq", False),
        ("[mq-deadline] kyber bfq none", False),
    ],
)
@pytest.mark.parametrize("number", [(8, 0), (8, 1), (253, 0)])
def test_a_scheduler_that_makes_flushes_wait_is_warned_about(
    tmp_path: Path, scheduler: str, number: tuple[int, int], is_slow: bool
) -> None:
    device = block_device.find(*number, sysfs=sysfs_with(tmp_path, scheduler))
    found = trial.scheduler_findings("journal", device)
    assert bool(found) is is_slow
    if is_slow:
        assert found[0].level is VerdictLevel.WARN
        assert "The volume journal is on the disk sda with the I/O scheduler bfq" in (
            found[0].sentence
        )
        assert "write mq-deadline (none for NVMe) into /sys/block/sda/queue/scheduler" in (
            found[0].sentence
        )


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert trial.scheduler_findings("journal", block_device.UNKNOWN) == ()
