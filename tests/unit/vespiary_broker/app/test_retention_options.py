"""From the settings to what is kept."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from vespiary_broker.app.retention import retention_options
from vespiary_broker.store.options import RetentionOptions
from vespiary_spec.configuration import from_plain
from vespiary_spec.errors import ConfigError


def kept(**values: object) -> RetentionOptions | None:
    settings = from_plain({name.replace("_", "-"): v for name, v in values.items()})
    return retention_options(settings, Path("/data"))


def test_nothing_is_kept_unless_asked_for():
    assert kept() is None


def test_period_and_limit_have_units():
    assert kept(
        journal_retention_directory="history",
        journal_retention_period="7d",
        journal_retention_storage_limit="20GiB",
    ) == RetentionOptions(
        directory=Path("/data/history"), period_ms=7 * 86_400_000, storage_limit_bytes=20 * 2**30
    )


def test_a_period_without_its_unit_is_not_taken_for_milliseconds():
    with pytest.raises(ConfigError):
        kept(journal_retention_directory="history", journal_retention_period=7)


def test_copies_without_a_limit_are_said(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert kept(journal_retention_directory="/srv/history") == RetentionOptions(
            directory=Path("/srv/history")
        )
    assert "for ever" in caplog.text


@pytest.mark.parametrize(
    "values",
    [
        {"journal_retention_directory": "journal"},
        {"journal_retention_directory": "/data/bindings"},
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, object]):
    with pytest.raises(ConfigError):
        kept(**values)
