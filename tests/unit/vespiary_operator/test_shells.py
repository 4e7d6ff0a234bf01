"""The thin parts around the passes: options, kopf's settings, HTTP, Events, metrics."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web

from vespiary_operator import announcements, handlers, http_endpoint, kinds, names, remote
from vespiary_operator.__main__ import main
from vespiary_operator.actions import Apply
from vespiary_operator.admin_ports import AdminPort
from vespiary_operator.apply import Outcome
from vespiary_operator.cache import Cache
from vespiary_operator.metrics import Metrics
from vespiary_operator.observation import BrokerAnswer
from vespiary_operator.options import Options, from_environment
from vespiary_operator.remote import Remote, broker_answer_of
from vespiary_operator.work import Backlog, Key
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.status import BrokerStatus, Condition, ConditionStatus


def test_options_come_from_the_environment() -> None:
    found = from_environment(
        {
            "VESPIARY_NAMESPACES": "b, a,",
            "VESPIARY_HTTP_PORT": "9000",
            "VESPIARY_METRICS": "false",
            "VESPIARY_LOG_LEVEL": "DEBUG",
            "VESPIARY_BROKER_IMAGE": "",
        }
    )
    assert found.namespaces == ("a", "b")
    assert not found.is_cluster_wide
    assert (found.http_port, found.serves_metrics, found.log_level) == (9000, False, "debug")
    assert found.broker_image == Options().broker_image
    assert from_environment({}).is_cluster_wide


@pytest.mark.parametrize(
    ("name", "value"), [("HTTP_PORT", "x"), ("LIVENESS_PORT", "70000"), ("LOG_LEVEL", "loud")]
)
def test_bad_options_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        from_environment({f"VESPIARY_{name}": value})


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.count(".") == 2


def test_kopf_leaves_objects_alone_and_watches_only_ours() -> None:
    settings = handlers.settings()
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    assert settings.networking.request_timeout == 60
    for kind in kinds.WATCHED_CHILDREN:
        wanted = names.CLAIM_SELECTOR if kind is kinds.CLAIM else names.MANAGED_SELECTOR
        assert settings.watching.label_selectors[kind.plural] == wanted
    registry = handlers.registry(
        lambda key, after_s=0.0: None, Cache(), lambda: True, is_cluster_wide=True
    )
    assert not list(registry._changing.get_all_handlers()), "these would write annotations"
    assert not list(registry._spawning.get_all_handlers()), "these would add finalizers"
    watched = [handler.selector for handler in registry._watching.get_all_handlers()]
    assert len(watched) == 4 + len(kinds.WATCHED_CHILDREN)
    assert all(isinstance(selector, kopf.EVERYTHING.__class__) is False for selector in watched)


@pytest.mark.parametrize(
    ("labels", "key"),
    [
        ({names.LABEL_INSTANCE: "orders", names.LABEL_COMPONENT: "broker"}, True),
        ({names.LABEL_INSTANCE: "orders", names.LABEL_COMPONENT: "node-tuning"}, False),
        ({names.LABEL_COMPONENT: "broker"}, False),
        ({}, False),
    ],
)
def test_a_child_leads_to_its_broker(labels: dict[str, str], key: bool) -> None:
    found = handlers.owner_key(labels, "ns")
    assert found == (Key("Broker", "ns", "orders") if key else None)
    assert handlers.owner_key(labels, None) is None


def test_readiness_and_metrics_are_served() -> None:
    async def test() -> None:
        metrics = Metrics()
        metrics.freshness.watch_queue(lambda: Backlog(3, 7.5))
        metrics.freshness.watch_freshness(
            lambda: 11.0, lambda kind: 13.0 if kind is kinds.POD else 0.0
        )
        metrics.passed("Broker", "done", 0.1)
        is_ready = False
        async with (
            http_endpoint.serving(0, metrics, lambda: is_ready, "127.0.0.1") as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        ):
            async with session.get("/readyz") as response:
                assert response.status == 503
            is_ready = True
            async with session.get("/readyz") as response:
                assert response.status == 200
            async with session.get("/metrics") as response:
                text = await response.text()
        assert 'vespiary_operator_reconciles_total{kind="Broker",result="done"} 1.0' in text
        assert "vespiary_operator_queue_waiting 3.0" in text
        assert "vespiary_operator_queue_oldest_seconds 7.5" in text
        assert "vespiary_operator_resync_age_seconds 11.0" in text
        assert 'vespiary_operator_watch_age_seconds{kind="Pod"} 13.0' in text
        async with (
            http_endpoint.serving(0, None, lambda: True, "127.0.0.1") as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
            session.get("/metrics") as response,
        ):
            assert response.status == 404

    asyncio.run(test())


def test_conditions_are_shown_until_the_broker_is_gone() -> None:
    metrics = Metrics()
    ready = Condition(type="Ready", status=ConditionStatus.FALSE, reason="x")
    metrics.broker(broker(), BrokerStatus(conditions=(ready,)))
    assert b'broker="orders",condition="Ready",namespace="ns"} 0.0' in metrics.text()
    metrics.forget("ns", "orders")
    assert b'broker="orders"' not in metrics.text()


def broker() -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "u"},
        }
    )


# --- what pods say --------------------------------------------------------------------------------


class Site:
    """An HTTP server that answers one path as it is told."""

    def __init__(self, path: str, answer: Any, status: int = 200) -> None:
        self.authorization = ""
        self._answer, self._status = answer, status
        self.application = web.Application()
        self.application.router.add_get(path, self._get)

    async def _get(self, request: web.Request) -> web.Response:
        self.authorization = request.headers.get("Authorization", "")
        if isinstance(self._answer, str):
            return web.Response(text=self._answer, status=self._status)
        return web.json_response(self._answer, status=self._status)


async def asked(site: Site, password: str = "pw") -> BrokerAnswer | None:
    runner = web.AppRunner(site.application)
    await runner.setup()
    try:
        tcp = web.TCPSite(runner, "127.0.0.1", 0)
        await tcp.start()
        async with aiohttp.ClientSession() as session:
            pod = {"status": {"podIP": "127.0.0.1"}}
            return await Remote(session).answer(
                pod, AdminPort(number=runner.addresses[0][1]), password
            )
    finally:
        await runner.cleanup()


ANSWER = {
    "items": [
        {
            "engine": "ASYNCIO",
            "durability": "D2",
            "version": "0.1.0",
            "journalBlockedReason": "The disk is full.",
        }
    ]
}


def test_a_broker_is_asked_as_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT_S", 60.0)  # also on a busy machine
    site = Site("/api/v1/brokers", ANSWER)
    found = asyncio.run(asked(site))
    assert found == BrokerAnswer(
        engine="ASYNCIO",
        durability="D2",
        version="0.1.0",
        journal_blocked_reason="The disk is full.",
    )
    assert site.authorization.startswith("Basic ")


@pytest.mark.parametrize(
    ("answer", "status"), [(ANSWER, 401), ("no json", 200), ({"items": []}, 200), ([], 200)]
)
def test_a_broker_that_does_not_answer_well_is_not_known(answer: Any, status: int) -> None:
    assert asyncio.run(asked(Site("/api/v1/brokers", answer, status))) is None
    assert asyncio.run(asked(Site("/elsewhere", ANSWER))) is None


def test_without_a_password_nothing_is_asked() -> None:
    site = Site("/api/v1/brokers", ANSWER)
    assert asyncio.run(asked(site, password="")) is None
    assert site.authorization == ""


def test_a_pod_that_cannot_be_reached_is_not_known() -> None:
    async def test() -> BrokerAnswer | None:
        async with aiohttp.ClientSession() as session:
            pod = {"status": {"podIP": "127.0.0.1"}}
            return await Remote(session).answer(pod, AdminPort(number=1), "pw")

    assert asyncio.run(test()) is None
    assert broker_answer_of({"items": ["x"]}) is None


# --- Events ---------------------------------------------------------------------------------------


def condition(kind: str, status: str, reason: str) -> Condition:
    return Condition(
        type=kind, status=ConditionStatus(status), reason=reason, message=f"{kind} {reason}"
    )


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([], [condition("Ready", "False", "Starting")], []),
        ([], [condition("StorageVerified", "True", "Verified")], []),
        ([], [condition("StorageVerified", "False", "VolumeRefused")], ["Warning VolumeRefused"]),
        (
            [condition("StorageVerified", "False", "VolumeRefused")],
            [condition("StorageVerified", "True", "Verified")],
            ["Normal Verified"],
        ),
        (
            [condition("Ready", "True", "Serving")],
            [condition("Ready", "True", "Serving")],
            [],
        ),
        ([condition("Ready", "False", "x")], [condition("Ready", "True", "y")], ["Normal y"]),
        ([condition("Ready", "True", "y")], [condition("Ready", "False", "x")], ["Warning x"]),
        (
            [condition("Paused", "False", "No")],
            [condition("Paused", "True", "Yes")],
            ["Normal Yes"],
        ),
        ([], [condition("Paused", "False", "No")], []),
        ([], [condition("JournalEngine", "Unknown", "x")], []),
        ([], [condition("Progressing", "True", "x")], []),
        ([], [condition("Degraded", "True", "NotAsAsked")], []),
        ([], [condition("Degraded", "True", "ProducersWait")], ["Warning ProducersWait"]),
    ],
)
def test_turns_of_conditions_are_told_once(
    before: list[Condition], after: list[Condition], told: list[str]
) -> None:
    found = announcements.of_conditions(before, after)
    assert [f"{'Warning' if a.is_warning else 'Normal'} {a.reason}" for a in found] == told


def test_only_changes_are_told() -> None:
    action = Apply(manifest={}, reason="Restored", sentence="It is put right.")
    gate = Apply(manifest={}, reason="Gate", sentence="x")
    outcomes = [Outcome(action, True), Outcome(action, False), Outcome(gate, True)]
    (said,) = announcements.of_outcomes(outcomes)
    assert said.message == "It is put right."


def test_an_event_names_its_object_and_keeps_its_length() -> None:
    said = announcements.Announcement("R", "x" * 2000, True)
    found = announcements.event(broker(), said, datetime(2026, 1, 1, tzinfo=UTC))
    assert found["involvedObject"]["uid"] == "u"
    assert found["type"] == "Warning"
    assert len(found["message"]) == 1024
    assert found["firstTimestamp"] == "2026-01-01T00:00:00Z"


def test_a_standby_answers_what_kopf_answers_later() -> None:
    async def test() -> None:
        metrics = Metrics()
        metrics.watch_leader(lambda: False)
        assert b"vespiary_operator_leader 0.0" in metrics.text()
        async with (
            http_endpoint.standing_by(0, "127.0.0.1") as port,
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/healthz") as answer,
        ):
            assert answer.status == 200
            assert await answer.text() == "stands by\n"
        async with http_endpoint.standing_by(port, "127.0.0.1") as again:
            assert again == port, "the port is free for the next who takes it"

    asyncio.run(test())


def test_a_standby_is_told_by_its_environment() -> None:
    found = from_environment({"VESPIARY_LEASE": "vespiary", "VESPIARY_IDENTITY": "vespiary-1"})
    assert (found.lease, found.identity) == ("vespiary", "vespiary-1")
    assert from_environment({}).lease == "", "one operator needs no Lease"
