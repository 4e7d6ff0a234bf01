"""What becomes of a message on a full disk, by the policy of its address."""

from __future__ import annotations

import logging

import pytest

from vespiary_broker.engine.address_settings import AddressSettingsTable
from vespiary_broker.engine.full_disk import FullDisk
from vespiary_spec.errors import JournalFull
from vespiary_spec.settings import AddressSettings, DiskFullPolicy

FULL = JournalFull("no journal file can be made", measured="96 %", allowed="at most 90 %")


def full_disk(**policies: DiskFullPolicy) -> FullDisk:
    matches = {name: AddressSettings(disk_full_policy=policy) for name, policy in policies.items()}
    return FullDisk(AddressSettingsTable(matches))


def test_senders_wait_where_nothing_else_is_said() -> None:
    assert not full_disk().is_dropped("orders", FULL)
    assert not full_disk(orders=DiskFullPolicy.BLOCK).is_dropped("orders", FULL)
    assert not full_disk(bills=DiskFullPolicy.DROP).is_dropped("orders", FULL)


def test_only_other_policies_than_to_wait_make_a_difference() -> None:
    assert not full_disk().has_policies
    assert not full_disk(orders=DiskFullPolicy.BLOCK).has_policies
    assert full_disk(orders=DiskFullPolicy.FAIL).has_policies
    assert full_disk(orders=DiskFullPolicy.BLOCK, bills=DiskFullPolicy.DROP).has_policies


def test_fail_refuses_with_a_sentence() -> None:
    with pytest.raises(JournalFull) as caught:
        full_disk(orders=DiskFullPolicy.FAIL).is_dropped("orders", FULL)
    text = str(caught.value)
    assert "the disk-full-policy of the address orders is FAIL" in text
    assert "96 %" in text
    assert "at most 90 %" in text
    assert "Send again when" in text


def test_drop_counts_each_and_logs_once_an_address(caplog: pytest.LogCaptureFixture) -> None:
    disk = full_disk(a=DiskFullPolicy.DROP, b=DiskFullPolicy.DROP)
    with caplog.at_level(logging.WARNING):
        for address in ("a", "a", "b", "a"):
            assert disk.is_dropped(address, FULL)
    assert disk.dropped == {"a": 3, "b": 1}
    assert disk.dropped_count == 4
    assert [record.args for record in caplog.records] == [("a", str(FULL)), ("b", str(FULL))]
    caplog.clear()
    disk.begin()  # full once more
    assert disk.is_dropped("a", FULL)
    assert len(caplog.records) == 1
    assert disk.dropped["a"] == 4


def test_many_addresses_share_one_count() -> None:
    disk = full_disk(**{"#": DiskFullPolicy.DROP})
    for number in range(1500):
        assert disk.is_dropped(f"address.{number}", FULL)
    assert len(disk.dropped) <= 1001
    assert disk.dropped_count == 1500
