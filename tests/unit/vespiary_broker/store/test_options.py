"""What the options refuse and what follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.store.options import Durability, JournalOptions


def options(**changes) -> JournalOptions:
    return JournalOptions(**({"directory": Path("/j")} | changes))


@pytest.mark.parametrize(
    "changes", [{"file_size_bytes": 65537}, {"file_size_bytes": 4096}, {"min_files": 1}]
)
def test_what_the_format_can_not_hold_is_refused(changes: dict[str, int]):
    name, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f"{name} {value}"):
        options(**changes)


def test_durability():
    assert options().durability is Durability.D2
    assert options(datasync=False).durability is Durability.D1
    assert options(sync_transactional=False).durability is Durability.D2
    both = options(sync_transactional=False, sync_non_transactional=False)
    assert both.durability is Durability.D1
    assert options(is_persistent=False, datasync=False).durability is Durability.D0


def test_a_record_fits_a_file_and_a_slab():
    assert options().record_limit_bytes == 490 * 1024
    assert options(file_size_bytes=65536).record_limit_bytes == 32768
    assert options(slab_bytes=65536).record_limit_bytes == 65536 - 8192


def test_memory_makes_slabs():
    assert options(memory_bytes=64 << 20).slabs_max == 32
    assert options(memory_bytes=1).slabs_max == 8
