from pathlib import Path

from vespiary_broker.store.volumes import request
from vespiary_broker.store.volumes.identity import Owner
from vespiary_spec.settings import BrokerSettings, JournalType


def test_the_request_follows_from_the_settings() -> None:
    settings = BrokerSettings(
        journal_file_size=1 << 20,
        journal_min_files=3,
        journal_max_io=77,
        journal_type_strict=True,
        create_journal_dir=False,
        journal_directory="/fast/journal",
    )
    owner = Owner(name="orders", ordinal=2)
    asked = request.of_settings(settings, base=Path("/data"), owner=owner)
    volumes = {volume.name: volume for volume in asked.volumes}
    assert list(volumes) == ["bindings", "journal", "paging", "large-messages"]
    assert volumes["bindings"].path == "/data/bindings"
    assert volumes["journal"].path == "/fast/journal"
    assert volumes["journal"].file_bytes == 1 << 20
    assert volumes["journal"].first_bytes == 3 << 20
    assert volumes["journal"].is_created is False
    assert volumes["paging"].is_created is True
    assert asked.aio_demand == 77
    assert asked.is_strict is True
    assert asked.owner == owner


def test_nio_demands_no_aio() -> None:
    asked = request.of_settings(BrokerSettings(journal_type=JournalType.NIO))
    assert asked.aio_demand == 0
    assert asked.journal_type is JournalType.NIO


def test_without_persistence_there_is_nothing_to_verify() -> None:
    asked = request.of_settings(BrokerSettings(persistence_enabled=False))
    assert asked.volumes == ()
    assert asked.aio_demand == 0
