"""Folders of addresses without pages go (`purge-page-folders`), and disturb nothing else."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import run, until
from vespiary_testkit.paging_rig import PagingClient, PagingRig


@run
async def test_no_page_is_begun_in_a_folder_that_goes_and_one_that_stays_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    rig = await PagingRig.open(tmp_path, disk, is_purging_folders=True)
    client = PagingClient(rig, 1)
    await client.send(60)
    await rig.page_all()
    pages = rig.pager.statistics().pages
    rig.address.is_wanted = False
    begun: list[bool] = []

    def fail(kind: str, _path: Path) -> int:
        if kind != "remove_folder":
            return 0
        rig.pager._begin(rig.address.name)
        begun.append(rig.address.name in rig.pager._moves)
        return errno.ENOTEMPTY

    disk.fail = fail
    await client.receive()
    await client.acknowledge(60)
    await until(lambda: bool(begun))
    assert not any(begun)
    await until(lambda: rig.pager.statistics().removed == pages)
    await until(lambda: "was not removed" in caplog.text)
    disk.fail = lambda *_: 0
    rig.address.is_wanted = True
    await client.send(60)
    await rig.page_all()
    assert rig.page_names(), "the address has a folder again"
    await rig.close()
