"""JournalArchive: what is read, what is refused and how, and what a run leaves as its answer."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_spec import archive_status
from vespiary_spec.archive_status import RunResult
from vespiary_spec.archives import ARCHIVE_RULES, ArchiveJob, ArchiveSourceKind
from vespiary_spec.errors import ConfigError
from vespiary_spec.limits import TERMINATION_MESSAGE_BYTES
from vespiary_spec.resources import API_VERSION, JournalArchive

SPEC: dict[str, Any] = {"brokerRef": {"name": "orders"}, "target": {"claimName": "exports"}}


def document(name: str = "history", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "JournalArchive",
        "metadata": {"name": name},
        "spec": SPEC | spec,
    }


def test_what_is_left_out_has_a_default() -> None:
    found = JournalArchive.from_dict(document()).spec
    assert found.job is ArchiveJob.EXPORT
    assert found.source.kind is ArchiveSourceKind.RETENTION
    assert (found.broker_ref.ordinal, found.schedule, found.suspend) == (0, "", False)
    assert (found.successful_jobs_history_limit, found.failed_jobs_history_limit) == (3, 1)


def test_a_verification_has_no_target() -> None:
    given = document(job="verify")
    del given["spec"]["target"]
    found = JournalArchive.from_dict(given)
    assert found.spec.job is ArchiveJob.VERIFY
    assert found.to_dict()["spec"] == given["spec"]


def test_it_is_written_as_it_was_read() -> None:
    given = document(
        source={"kind": "snapshot", "name": "before-0.2"},
        schedule="15 3 * * *",
        timeZone="Europe/Berlin",
        resources={"limits": {"memory": "8Gi"}},
        sparkConf={"spark.driver.memory": "4g"},
    )
    made = JournalArchive.from_dict(given)
    assert made.to_dict()["spec"] == given["spec"]
    assert JournalArchive.from_dict(made.to_dict()) == made


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"target": None}, "spec.target"),
        ({"job": "verify"}, "spec.target"),
        ({"source": {"kind": "snapshot"}}, "spec.source.name"),
        ({"source": {"name": "a"}}, "spec.source.name"),
        ({"timeZone": "Europe/Berlin"}, "spec.timeZone"),
        ({"sparkConf": {"spark.master": "local"}}, "spec.sparkConf.spark.master"),
        ({"sparkConf": {"driver.memory": "1g"}}, "spec.sparkConf.driver.memory"),
        ({"target": {"claimName": "a", "path": "../b"}}, "spec.target.path"),
        ({"target": {"claimName": "a", "path": "/b"}}, "spec.target.path"),
        ({"schedule": "daily"}, "spec.schedule"),
        ({"schedule": "CRON_TZ=UTC 0 3 * * * *"}, "spec.schedule"),
        ({"brokerRef": {}}, "spec.brokerRef"),
        ({"brokerRef": {"name": "a", "ordinal": -1}}, "spec.brokerRef.ordinal"),
        ({"job": "import"}, "spec.job"),
    ],
)
def test_what_no_api_server_looked_at_is_refused_with_its_place(
    spec: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        JournalArchive.from_dict(document(**spec))
    assert caught.value.path == path


@pytest.mark.parametrize("schedule", ["@daily", "*/5 * * * *", "0 3 1-7 JAN,JUL MON"])
def test_schedules_are_those_of_cron(schedule: str) -> None:
    assert JournalArchive.from_dict(document(schedule=schedule)).spec.schedule == schedule


@pytest.mark.parametrize("name", ["a" * 41, "a.b", "1a", "A"])
def test_a_name_that_leaves_no_room_for_endings_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JournalArchive.from_dict(document(name))
    assert ARCHIVE_RULES[0][1] in str(caught.value)


def test_a_status_of_another_version_counts_as_none() -> None:
    given = document() | {"status": {"lastRun": {"outcome": "Exploded", "name": "a"}}}
    assert JournalArchive.from_dict(given).status.last_run is None


# --- the answer of a run --------------------------------------------------------------------------


def test_an_answer_is_read_as_it_was_written() -> None:
    given = RunResult(is_good=True, message="12 messages were written.", rows=12, size_bytes=99)
    assert archive_status.decode(archive_status.encode(given)) == given
    looked = RunResult(is_good=True, message="All is whole.", rows=9, files=2, damages=0)
    assert archive_status.decode(archive_status.encode(looked)).damages == 0


def test_an_answer_with_more_in_it_is_read_as_far_as_it_is_known() -> None:
    found = archive_status.decode('{"is_good": true, "message": "a", "colour": "blue"}')
    assert found.damages is None


@pytest.mark.parametrize("character", ["x", "€", "𝄞", '"', "\x01"])
def test_an_answer_fits_into_a_termination_message(character: str) -> None:
    counts = {"rows": 2**62, "size_bytes": 2**62, "files": 2**62, "damages": 2**62}
    given = RunResult(is_good=False, message=character * 10_000, **counts)
    encoded = archive_status.encode(given)
    assert len(encoded) <= TERMINATION_MESSAGE_BYTES
    assert archive_status.decode(encoded).message.endswith("…")


@pytest.mark.parametrize("text", ["", "Traceback", "{}", '{"schema": 2, "is_good": true}'])
def test_other_words_are_no_answer(text: str) -> None:
    with pytest.raises(ConfigError):
        archive_status.decode(text)


def test_a_newer_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="newer version"):
        archive_status.decode('{"schema": 2, "is_good": true, "message": "a"}')
