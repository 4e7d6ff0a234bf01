"""Plain data to the model and back: bounds, spellings, paths in messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_spec.conversion import convert, to_plain
from vespiary_spec.errors import ConfigError, UnknownSetting, UnsupportedSetting
from vespiary_spec.model import Spelling
from vespiary_spec.resources import BrokerSpec
from vespiary_spec.settings import Configuration, JournalType


def read(data: Any) -> Configuration:
    return convert(data, Configuration, spelling=Spelling.KEBAB)


def read_spec(data: Any) -> BrokerSpec:
    return convert(data, BrokerSpec, spelling=Spelling.CAMEL, path="spec")


def test_nothing_gives_the_defaults() -> None:
    assert read(None) == read({}) == Configuration()


def test_sizes_durations_and_choices() -> None:
    found = read(
        {
            "journal-file-size": "20M",
            "disk-scan-period": "2s",
            "journal-type": "NIO",
            "min-disk-free": -1,
            "global-max-size": "-1",
        }
    )
    assert found.journal_file_size == 20 * 1024 * 1024
    assert found.disk_scan_period == 2000
    assert found.journal_type is JournalType.NIO
    assert found.global_max_size == found.min_disk_free == -1


def test_m_means_a_million_in_a_resource_and_1024_squared_in_a_file() -> None:
    assert read_spec({"config": {"globalMaxSize": "100M"}}).config.global_max_size == 100_000_000
    assert read({"global-max-size": "100M"}).global_max_size == 100 * 1024 * 1024


def test_null_is_the_default() -> None:
    assert read({"journal-max-io": None, "journal-min-files": None}) == Configuration()


@pytest.mark.parametrize(
    ("data", "path", "words"),
    [
        ({"journal-min-files": 1}, "journal-min-files", "2 to 10000"),
        ({"journal-min-files": 1.5}, "journal-min-files", "whole number of files"),
        ({"journal-min-files": True}, "journal-min-files", "whole number"),
        ({"journal-min-files": "3"}, "journal-min-files", "whole number"),
        ({"journal-file-size": 65537}, "journal-file-size", "a multiple of 4Ki"),
        ({"journal-file-size": "lots"}, "journal-file-size", "this is no size"),
        ({"disk-scan-period": "1500us"}, "disk-scan-period", "whole number of ms"),
        ({"persistence-enabled": "yes"}, "persistence-enabled", "true, false"),
        ({"journal-type": "aio"}, "journal-type", "ASYNCIO, NIO"),
        ({"journal-directory": 3}, "journal-directory", "this is no text"),
        ({"acceptors": []}, "acceptors", "too short"),
        ({"acceptors": {}}, "acceptors", "a list is expected"),
        ({"acceptors": [{"name": "a"}]}, "acceptors[0]", "`port` is missing"),
        ({"acceptors": [{"name": "A_", "port": 1}]}, "acceptors[0].name", "not of the right form"),
        ({"acceptors": [{"name": "a\n", "port": 1}]}, "acceptors[0].name", "not of the right form"),
        (
            {"acceptors": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]},
            "acceptors[1].name",
            "two entries have the same name",
        ),
        (
            {"acceptors": [{"name": "a", "port": 1, "stomp": {"max-headers": 1}}]},
            "acceptors[0].stomp.max-headers",
            "10 to 10000",
        ),
        (
            {"address-settings": {"#": {"auto-delete-queues-delay": 10**400}}},
            "address-settings.#.auto-delete-queues-delay",
            "too large",
        ),
        ({"global-max-size": 2**63}, "global-max-size", "at most 9223372036854775807"),
        ({"address-settings": []}, "address-settings", "names with values"),
        ({"address-settings": {"#": 3}}, "address-settings.#", "names with values"),
        ({"address-settings": {3: {}}}, "address-settings", "has to be text"),
        ({"addresses": [{"name": "a\tb"}]}, "addresses[0].name", "not of the right form"),
        ({"addresses": [{"name": "a "}]}, "addresses[0].name", "not of the right form"),
        (
            {"address-settings": {"#": {"dead-letter-address": "DLQ "}}},
            "address-settings.#.dead-letter-address",
            "not of the right form",
        ),
        ([], ".", "names with values"),
        ({"heart-beat": 1}, "heart-beat", "no setting has this name"),
    ],
)
def test_a_bad_value_is_refused_with_its_path(data: Any, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(data)
    assert caught.value.path == path
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("journal-maxio", "journal-max-io"),
        ("journalMaxIo", "journal-max-io"),
        ("journal_max_io", "journal-max-io"),
        ("accepters", "acceptors"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name: str, suggestion: str) -> None:
    with pytest.raises(UnknownSetting) as caught:
        read({name: 1})
    assert str(caught.value).endswith(f"Did you mean `{suggestion}`? [VSP-C102]")


def test_a_name_in_the_files_spelling_is_corrected_in_a_resource() -> None:
    with pytest.raises(UnknownSetting, match="`journalMaxIo`"):
        read_spec({"config": {"journal-max-io": 1}})


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"config": {"journalDirectory": "/x"}}, "spec.config.journalDirectory"),
        ({"config": {"journalType": "MAPPED"}}, "spec.config.journalType"),
        ({"upgrade": {"strategy": "OnDelete"}}, "spec.upgrade.strategy"),
        (
            {"addressSettings": [{"match": "#", "autoCreateJmsQueues": True}]},
            "spec.addressSettings[0].autoCreateJmsQueues",
        ),
        (
            {"acceptors": [{"name": "a", "port": 1, "protocols": ["STOMP", "OPENWIRE"]}]},
            "spec.acceptors[0].protocols[1]",
        ),
    ],
)
def test_what_does_not_work_yet_is_refused_by_name(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(UnsupportedSetting) as caught:
        read_spec(spec)
    assert caught.value.path == path


CONFIGURATIONS = st.fixed_dictionaries(
    {},
    optional={
        "journal-file-size": st.integers(16, 1000).map(lambda n: n * 4096),
        "journal-max-io": st.integers(1, 65536),
        "journal-type": st.sampled_from(["ASYNCIO", "NIO"]),
        "max-disk-usage": st.integers(1, 100),
        "address-settings": st.dictionaries(
            st.sampled_from(["#", "a.#", "b.*.c", "d"]),
            st.fixed_dictionaries({}, optional={"auto-create-queues": st.booleans()}),
        ),
        "addresses": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["a", "b", "c"])},
                optional={"routing-types": st.just(["ANYCAST"])},
            ),
            unique_by=lambda entry: str(entry["name"]),
        ),
    },
)


@settings(deadline=None)  # the machine may be busy
@given(CONFIGURATIONS, st.booleans())
def test_what_is_written_reads_back(data: dict[str, Any], with_defaults: bool) -> None:
    found = read(data)
    plain = to_plain(found, spelling=Spelling.KEBAB, with_defaults=with_defaults)
    assert read(plain) == found
