"""Change classes: every setting has one, and two configurations are told apart by it."""

from __future__ import annotations

import msgspec
import pytest

from vespiary_spec import changes, configuration
from vespiary_spec.changes import Difference
from vespiary_spec.model import Change, Spelling, fields_of
from vespiary_spec.settings import (
    Acceptor,
    Address,
    AddressSettings,
    Admin,
    Configuration,
    Queue,
)

NAMES = [field.name for field in fields_of(Configuration)]


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_one_change_class(name: str) -> None:
    field = next(f for f in fields_of(Configuration) if f.name == name)
    assert changes.class_of(field) in Change


def test_every_setting_below_has_a_class_of_its_own() -> None:
    def check(struct: type[msgspec.Struct], path: str) -> None:
        for field in fields_of(struct):
            below = changes._struct_of(field)
            if below is not None:
                check(below, f"{path}.{field.name}")
            else:
                assert field.facts.change is not None, f"{path}.{field.name}"

    check(Configuration, "")


def test_what_a_running_broker_can_take() -> None:
    reloadable = {f.name for f in fields_of(Configuration) if changes.class_of(f) is Change.RELOAD}
    assert {"address_settings", "addresses", "diverts", "log_level"} <= reloadable
    assert not {"acceptors", "admin", "journal_type", "security"} & reloadable
    immutable = {
        f.name for f in fields_of(Configuration) if changes.class_of(f) is Change.IMMUTABLE
    }
    assert immutable == {
        "data_directory",
        "bindings_directory",
        "jms_directory",
        "journal_directory",
        "paging_directory",
        "large_messages_directory",
    }


def some() -> Configuration:
    return Configuration(
        journal_min_files=3,
        log_level="debug",  # type: ignore[arg-type]
        addresses=(Address(name="a", queues=(Queue(name="q"),)),),
        address_settings={"#": AddressSettings(max_delivery_attempts=3)},
    )


def test_the_two_parts_are_the_whole() -> None:
    fixed, reloadable = changes.parts(some())
    assert fixed == Configuration(journal_min_files=3)
    assert reloadable.journal_min_files == 2
    assert reloadable.address_settings == some().address_settings
    text = configuration.dump(reloadable)
    assert "journal-min-files" not in text
    assert changes.merged(fixed, configuration.from_plain(configuration.parse_yaml(text))) == some()


def test_differences_are_named_by_path_and_class() -> None:
    old = some()
    new = msgspec.structs.replace(
        old,
        journal_min_files=4,
        journal_directory="elsewhere",
        admin=Admin(port=1),
        acceptors=(Acceptor(name="all", port=61616, connections_allowed=5), *old.acceptors[1:]),
        addresses=(Address(name="a", queues=(Queue(name="q", max_consumers=1), Queue(name="r"))),),
        address_settings={"#": AddressSettings(max_delivery_attempts=4), "b": AddressSettings()},
    )
    assert changes.differences(old, new) == (
        Difference("journal-directory", Change.IMMUTABLE),
        Difference("journal-min-files", Change.RESTART),
        Difference("acceptors.all.connections-allowed", Change.RESTART),
        Difference("admin.port", Change.RESTART),
        Difference("addresses.a.queues.q.max-consumers", Change.RELOAD),
        Difference("addresses.a.queues.r", Change.RELOAD),
        Difference("address-settings.#.max-delivery-attempts", Change.RELOAD),
        Difference("address-settings.b", Change.RELOAD),
    )
    camel = changes.differences(old, new, Spelling.CAMEL)
    assert camel[1].path == "journalMinFiles"
    assert changes.differences(old, old) == ()
    assert changes.merged(old, new).journal_min_files == 3
    assert changes.merged(old, new).address_settings == new.address_settings
