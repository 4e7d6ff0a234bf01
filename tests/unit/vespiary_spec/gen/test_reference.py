"""The reference pages hold what they should, and their tables are whole."""

from __future__ import annotations

import pytest

from vespiary_spec.error_catalogue import CATALOGUE
from vespiary_spec.gen import reference

PAGES = {
    "configuration": reference.configuration(),
    "broker-resource": reference.broker_resource(),
    "errors": reference.errors(),
    "chart-values": reference.chart_values(),
}


@pytest.mark.parametrize("page", PAGES)
def test_tables_have_equal_rows(page: str) -> None:
    columns = 0
    for line in PAGES[page].splitlines():
        if not line.startswith("|"):
            columns = 0
            continue
        found = line.replace("\\|", "").count("|")
        assert columns in (0, found), line
        columns = found


def test_every_error_has_its_line() -> None:
    for entry in CATALOGUE:
        assert f"| `{entry.error.code}` | {entry.error.__name__} |" in PAGES["errors"]


def test_the_configuration_page_has_both_spellings_and_the_refused_names() -> None:
    text = PAGES["configuration"]
    assert (
        "| `journal-max-io` | `journalMaxIo` | 500 with ASYNCIO and IO_URING, 1 with NIO |" in text
    )
    assert "| `journal-directory` | – |" in text
    assert "`critical-analyzer`" in text.partition("## Known, but not supported yet")[2]
    assert "`max-body-size`" in text


def test_the_resource_page_goes_to_the_leaves() -> None:
    text = PAGES["broker-resource"]
    for field in (
        "`spec.storage.volumes.largeMessages.storageClassName`",
        "`spec.acceptors[].tls.secretName`",
        "`status.brokers[].volumes[].flushUsP99`",
        "`status.conditions[].observedGeneration`",
    ):
        assert field in text
    assert "`StorageVerified`" in text
