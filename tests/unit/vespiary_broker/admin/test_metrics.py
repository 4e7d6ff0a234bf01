"""Metrics: what the page says, that it parses, and that the documentation lists all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vespiary_broker.admin import metrics
from vespiary_broker.admin.volumes import Volumes
from vespiary_broker.app.states import ConnectionState
from vespiary_broker.store.counters import LeaseState
from vespiary_broker.store.volumes.report import Report, VolumeReport
from vespiary_spec.verification import AioResult, VolumeResult, summarise
from vespiary_testkit.admin_rig import MemoryBroker, journal_statistics, queue_state
from vespiary_testkit.journal_workload import run

ROOT = Path(__file__).resolve().parents[4]


async def values_of(broker: MemoryBroker) -> dict[str, float]:
    """Return samples by `name{label=value,…}`."""
    text, media_type = metrics.render(await metrics.gather(broker), "")
    assert media_type.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def filled_broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.address_types["orders"] = set()
    broker.queue_states["orders"] = queue_state(
        "orders", messages=5, ready=3, delivering=2, added=9, acknowledged=4, live_bytes=500
    )
    broker.queue_states["mine"] = queue_state("mine", is_temporary=True, messages=1)
    broker.connection_states.append(
        ConnectionState(
            id=1,
            listener="all",
            peer="::1",
            user="",
            client_id="",
            protocol="",
            subscriptions=0,
            age_s=0.0,
            idle_s=0.0,
            bytes_in=0,
            unsent_bytes=0,
            is_client_closed=False,
        )
    )
    return broker


@run
async def test_figures_arrive_under_their_names():
    found = await values_of(filled_broker())
    assert found["vespiary_ready"] == 1
    assert found["vespiary_messages_in_total"] == 10
    assert found["vespiary_messages_acknowledged_total"] == 8
    assert found["vespiary_queue_messages{address=orders,queue=orders}"] == 5
    assert found["vespiary_queue_messages_in_total{address=orders,queue=orders}"] == 9
    assert found["vespiary_client_errors_total{kind=header-count}"] == 2
    assert found["vespiary_connections{listener=all,protocol=none}"] == 1
    engine = "vespiary_journal_info{asked_engine=ASYNCIO,durability=D2,engine=ASYNCIO}"
    assert found[engine] == 1
    assert found["vespiary_journal_files{state=active}"] == 1
    assert found["vespiary_journal_files{state=ahead}"] == 2
    assert found["vespiary_journal_image_slabs{state=used}"] == 1
    assert found["process_resident_memory_bytes"] > 0
    fates = {
        "dead_letters_total": 31,
        "dead_letters_dropped_total": 32,
        "messages_expired_total": 33,
        "messages_expired_dropped_total": 34,
        "delayed_messages": 35,
        "dead_letters_kept_total": 36,
        "slow_consumers_total": 3,
        "slow_consumers_killed_total": 2,
        "unreadable_parts": 37,
        "messages_unmovable_total": 38,
    }
    assert {name: found[f"vespiary_{name}"] for name in fates} == fates


@run
async def test_flush_times_are_a_histogram_in_seconds():
    found = await values_of(MemoryBroker())
    assert found["vespiary_journal_flush_seconds_bucket{le=5e-05}"] == 1
    assert found["vespiary_journal_flush_seconds_bucket{le=0.0001}"] == 3
    assert found["vespiary_journal_flush_seconds_bucket{le=+Inf}"] == 7
    assert found["vespiary_journal_flush_seconds_count"] == 7
    assert found["vespiary_journal_flush_seconds_sum"] == pytest.approx(0.0007)


@run
async def test_temporary_queues_are_counted_and_have_no_series():
    found = await values_of(filled_broker())
    assert found["vespiary_temporary_queues"] == 1
    assert not [name for name in found if "queue=mine" in name]


@run
async def test_addresses_may_have_no_series():
    broker = filled_broker()
    label = "address=orders,queue=orders"
    assert f"vespiary_queue_messages{{{label}}}" in await values_of(broker)
    assert "vespiary_address_bytes{address=orders}" in await values_of(broker)
    broker.without_metrics = {"orders"}
    values = await values_of(broker)
    assert not [name for name in values if "=orders" in name]
    assert values["vespiary_queues"] == 1


@run
async def test_only_the_fullest_queues_have_series(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "QUEUES_MAX", 3)
    broker = MemoryBroker()
    for number in range(600):
        broker.queue_states[f"q{number}"] = queue_state(f"q{number}", messages=number)
    found = await values_of(broker)
    series = [name for name in found if name.startswith("vespiary_queue_messages{")]
    assert [re.findall(r"queue=(\w+)", name)[0] for name in series] == ["q599", "q598", "q597"]


@run
async def test_the_memory_of_messages_shows():
    found = await values_of(filled_broker())
    assert found["vespiary_memory_bytes"] == 5000
    assert found["vespiary_memory_limit_bytes"] == 1_000_000
    assert found["vespiary_blocked_producers"] == 3
    assert found["vespiary_producer_waits_total"] == 4
    assert found["vespiary_address_full_refused_total"] == 5
    assert found["vespiary_address_bytes{address=orders}"] == 3000
    assert found["vespiary_address_full{address=orders}"] == 1
    assert found["vespiary_address_full_dropped_total{address=orders}"] == 6


@run
async def test_a_fallback_and_a_fence_show():
    broker = MemoryBroker()
    broker.journal = journal_statistics(
        engine="NIO",
        fallback_reason="no AIO",
        failed_reason="a write failed",
        blocked_reason="full",
        ownership=LeaseState(7, 3.0, 4.5, "confirms wait"),
    )
    broker.journal_waiters = 4
    found = await values_of(broker)
    assert "vespiary_journal_info{asked_engine=ASYNCIO,durability=D2,engine=NIO}" in found
    assert found["vespiary_journal_engine_is_fallback"] == 1
    assert found["vespiary_journal_fenced"] == 1
    assert found["vespiary_journal_blocked"] == 1
    assert found["vespiary_journal_blocked_producers"] == 4
    assert found["vespiary_journal_ownership_epoch"] == 7
    assert found["vespiary_journal_ownership_age_seconds"] == 4.5
    assert found["vespiary_journal_ownership_waiting"] == 1


@run
async def test_a_broker_that_starts_has_few_metrics_and_says_so():
    broker = MemoryBroker()
    broker.is_started, broker.not_ready_reason = False, "the broker is starting"
    found = await values_of(broker)
    assert found["vespiary_ready"] == 0
    assert not [name for name in found if name.startswith("vespiary_journal")]


@run
async def test_openmetrics_is_given_to_those_who_ask():
    scrape = await metrics.gather(filled_broker())
    text, media_type = metrics.render(scrape, "application/openmetrics-text; version=1.0.0")
    assert media_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


@run
async def test_the_documentation_lists_exactly_these_metrics(tmp_path: Path):
    broker = filled_broker()
    journal = VolumeResult(name="journal", path=str(tmp_path))
    broker.report = Report(
        answer=summarise((journal,), AioResult(), engine="NIO"),
        volumes=(VolumeReport(result=journal),),
    )
    text, _ = metrics.render(await metrics.gather(broker, Volumes(broker)), "")
    made = set()
    for family in text_string_to_metric_families(text.decode()):
        if family.name.startswith("vespiary_"):
            made.add(family.name + ("_total" if family.type == "counter" else ""))
    page = (ROOT / "docs/howto/metrics.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `(vespiary_\w+)", page, re.MULTILINE))
    assert listed == made


@run
async def test_no_metric_stands_twice():
    text, _ = metrics.render(await metrics.gather(filled_broker()), "")
    names = re.findall(r"^# TYPE (\w+)", text.decode(), re.MULTILINE)
    assert sorted(set(names)) == sorted(names)
