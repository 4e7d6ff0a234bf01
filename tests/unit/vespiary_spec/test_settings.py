"""The settings: the defaults that users of the reference system expect."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from vespiary_spec.model import fields_of
from vespiary_spec.paging import OPEN_DEFAULTS
from vespiary_spec.settings import (
    ADDRESS_DEFAULTS,
    AddressSettings,
    Configuration,
    JournalType,
    PreallocationScope,
    PreallocationStrategy,
)


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("persistence_enabled", True),
        ("journal_type", JournalType.ASYNCIO),
        ("journal_sync_transactional", True),
        ("journal_sync_non_transactional", True),
        ("journal_datasync", True),
        ("journal_file_size", 10485760),
        ("journal_min_files", 2),
        ("journal_pool_files", -1),
        ("journal_buffer_size", 501760),
        ("journal_max_attic_files", 10),
        ("journal_device_block_size", None),
        ("journal_file_open_timeout", 5),
        ("journal_lock_acquisition_timeout", 0),
        ("log_journal_write_rate", False),
        ("journal_preallocation_strategy", PreallocationStrategy.ZEROS),
        ("journal_preallocation_scope", PreallocationScope.ENTIRE_JOURNAL_ASYNC),
        ("max_disk_usage", 90),
        ("min_disk_free", -1),
        ("disk_scan_period", 5000),
    ],
)
def test_defaults_of_the_reference_system(name: str, default: object) -> None:
    assert getattr(Configuration(), name) == default


def test_depth_of_the_engine() -> None:
    assert Configuration().effective_journal_max_io(JournalType.ASYNCIO) == 500
    assert Configuration().effective_journal_max_io(JournalType.NIO) == 1
    assert Configuration(journal_max_io=7).effective_journal_max_io(JournalType.NIO) == 7


def test_directories_lie_below_the_data_directory(tmp_path: Path) -> None:
    places = Configuration().directories(tmp_path)
    assert places == tuple(
        tmp_path / name for name in ("bindings", "journal", "paging", "large-messages", "bindings")
    )
    own = Configuration(
        journal_directory="/fast/journal", paging_directory="p", jms_directory="jms"
    )
    assert own.directories(tmp_path).jms == tmp_path / "jms"
    assert own.directories(tmp_path).bindings == tmp_path / "bindings"
    assert own.directories(tmp_path).journal == Path("/fast/journal")
    assert own.directories(tmp_path).paging == tmp_path / "p"
    assert Configuration().directories().journal == Path.cwd() / "data" / "journal"


def test_the_reference_says_where_relative_folders_are_and_what_is_in_them() -> None:
    text = {field.name: field.description for field in fields_of(Configuration)}
    folders = [name for name in text if name.endswith("_directory")]
    assert len(folders) == 7
    for name in folders:
        is_base = name == "data_directory"
        base = "the folder of the configuration file" if is_base else "`data-directory`"
        assert f"A relative path starts at {base}" in text[name]
    assert not [name for name, said in text.items() if "this version does not" in said]


def test_the_defaults_of_addresses_leave_nothing_open() -> None:
    for field in fields_of(AddressSettings):
        is_open = getattr(ADDRESS_DEFAULTS, field.name) is None
        assert is_open is (field.name in OPEN_DEFAULTS), field.name
        assert field.is_nullable, f"{field.name} has to be open to a wider match"


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Configuration().journal_min_files = 3  # type: ignore[misc]
    assert msgspec.structs.replace(Configuration(), journal_min_files=3).journal_min_files == 3
