"""The judge of the operator's rights: what it takes as used, as refused, and as too much."""

from __future__ import annotations

from pathlib import Path

from vespiary_operator import kinds, rbac
from vespiary_operator.api_requests import ApiRequest
from vespiary_operator.metrics import Metrics
from vespiary_operator.work import Backlog
from vespiary_testkit.operator_rights import Asked, OperatorRights, of_page

ALL_SERVED = {f"{rule.kind.plural}.{rule.kind.group}" for rule in rbac.RULES}


def everything() -> set[Asked]:
    """Return each right used once, with the creations seen as patches."""
    found = set()
    for rule in rbac.RULES:
        for verb in rule.verbs:
            is_made = verb == "create" and "patch" in rule.verbs
            asked = ("patch", "201") if is_made else (verb, "200")
            found.add(Asked(asked[0], rule.kind.plural, rule.subresource, asked[1], ""))
    return found


def rights(asked: set[Asked]) -> OperatorRights:
    found = OperatorRights("1.0.0")
    found.asked = asked
    return found


def test_a_page_tells_what_was_asked() -> None:
    metrics = Metrics()
    metrics.freshness.watch_queue(lambda: Backlog(0, 0.0))
    metrics.asked(ApiRequest("list", "pods"), 200)
    metrics.asked(ApiRequest("patch", "brokers", "status"), 403, "Forbidden")
    assert of_page(metrics.text().decode()) == {
        Asked("list", "pods", "", "200", ""),
        Asked("patch", "brokers", "status", "403", "Forbidden"),
    }


def test_rights_that_are_all_used_are_none_too_many() -> None:
    assert rights(everything()).unused(ALL_SERVED) == []


def test_a_right_that_nothing_used_is_named_with_its_reason() -> None:
    asked = {a for a in everything() if (a.verb, a.resource) != ("delete", "configmaps")}
    (found,) = rights(asked).unused(ALL_SERVED)
    assert found.startswith("delete configmaps. (broker.yaml is in a ConfigMap")


def test_a_use_that_failed_is_no_use() -> None:
    asked = {
        a._replace(code="409") if (a.verb, a.resource) == ("create", "events") else a
        for a in everything()
    }
    assert len(rights(asked).unused(ALL_SERVED)) == 1


def test_what_one_session_saw_counts_in_the_next(tmp_path: Path) -> None:
    asked = sorted(everything())
    first, second = rights(set(asked[::2])), rights(set(asked[1::2]))
    first.pages, first.tests = 7, {"test_a.py::test_one"}
    record = tmp_path / "build" / "record"
    with first.recorded(record, continues=False):
        pass
    assert second.unused(ALL_SERVED)
    kept = record.read_text()
    with second.recorded(record, continues=True):
        assert second.unused(ALL_SERVED) == []
        assert (second.asked, second.pages, second.tests) == (everything(), 7, first.tests)
    assert record.read_text() == kept, "a session that is repeated finds the same"


def test_a_new_record_has_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with rights(everything()).recorded(record, continues=False):
        pass
    next_run = rights(set())
    with next_run.recorded(record, continues=False):
        assert not record.exists(), "a session that breaks off leaves no record"
        assert not next_run.asked
    last = rights(set())
    with last.recorded(record, continues=True):
        assert not last.asked


def test_without_a_record_the_second_session_sees_its_own_requests_alone(tmp_path: Path) -> None:
    record = tmp_path / "record"
    found = rights(everything())
    for path in (None, record):
        with found.recorded(path, continues=True):
            pass
    assert found.asked == everything()
    assert not record.exists()


def test_what_was_allowed_and_is_not_in_the_table_is_named() -> None:
    granted = everything() | {Asked("delete", "nodes", "", "403", "Forbidden")}
    assert rights(granted).ungranted() == set()
    too_much = {Asked("delete", "nodes", "", "200", ""), Asked("get", "pods", "log", "200", "")}
    assert rights(granted | too_much).ungranted() == too_much


def test_what_was_made_is_told_from_what_was_changed() -> None:
    found = rights(
        {
            Asked("patch", "statefulsets", "", "201", ""),
            Asked("create", "events", "", "201", ""),
            Asked("patch", "services", "", "200", ""),
            Asked("create", "secrets", "", "403", "Forbidden"),
            Asked("patch", "brokers", "status", "201", ""),
        }
    )
    assert found.made() == {"statefulsets", "events"}


def test_rights_for_what_the_cluster_lacks_are_excused() -> None:
    plural = kinds.DAEMON_SET.plural
    asked = {a for a in everything() if a.resource != plural}
    assert rights(asked).unused(ALL_SERVED)
    assert not rights(asked).unused(ALL_SERVED - {f"{plural}.{kinds.DAEMON_SET.group}"})


def test_a_refusal_counts_unless_the_namespace_was_going() -> None:
    going = Asked("patch", "services", "", "403", "NamespaceTerminating")
    missing = Asked("list", "nodes", "", "403", "Forbidden")
    assert rights({going, missing}).refused() == {missing}


def test_what_an_operator_is_refused_while_it_is_replaced_does_not_count() -> None:
    """Helm takes the rights of the former one away before the former one has ended."""
    metrics = Metrics()
    metrics.freshness.watch_queue(lambda: Backlog(0, 0.0))
    found = OperatorRights("1.0.0")
    metrics.asked(ApiRequest("list", "pods"), 200)
    found.note("former", metrics.text().decode(), is_last=True)
    metrics.asked(ApiRequest("list", "nodes"), 403, "Forbidden")
    metrics.asked(ApiRequest("delete", "pods"), 200)
    found.note("former", metrics.text().decode())
    assert not found.refused()
    assert {(asked.verb, asked.resource) for asked in found.asked} == {
        ("list", "pods"),
        ("delete", "pods"),
    }
    found.note("next", metrics.text().decode())
    assert found.refused() == {Asked("list", "nodes", "", "403", "Forbidden")}
