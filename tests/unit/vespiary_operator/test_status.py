"""Conditions: what they say in each state, and when their time of transition moves."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.actions import Block
from vespiary_operator.conditions import merged
from vespiary_operator.metrics import Metrics
from vespiary_operator.observation import BrokerAnswer, Observed
from vespiary_operator.options import Options
from vespiary_operator.plan import Plan, plan
from vespiary_operator.rollout import Rollout
from vespiary_operator.status import compute
from vespiary_operator.storage_checks import Declared
from vespiary_spec.filesystems import Verdict
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.status import Condition, ConditionStatus, ConditionType, VerdictLevel
from vespiary_spec.verification import AioResult, VolumeResult, encode, summarise

NOW = "2026-01-02T00:00:00Z"
DONE = Rollout(1, True, "All brokers run with the current settings.")


def broker(**spec: Any) -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns", "generation": 4},
            "spec": spec,
        }
    )


def pod(answer: Any = None, *, is_ready: bool = True) -> dict[str, Any]:
    message = encode(answer).decode() if answer is not None else ""
    state = {"terminated": {"exitCode": 0, "message": message}}
    return {
        "metadata": {"name": "orders-0"},
        "status": {
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "initContainerStatuses": [{"name": "verify", "state": state}],
        },
    }


def volumes(**journal: Any) -> tuple[VolumeResult, ...]:
    return (
        VolumeResult(name="bindings", filesystem="ext4"),
        VolumeResult(name="journal", **journal),
    )


def said(answer: Any, *, is_ready: bool = True, **spec: Any) -> dict[str, Condition]:
    observed = Observed(broker=broker(**spec), pods=(pod(answer, is_ready=is_ready),))
    planned = Plan(actions=(), reason="", image="b:1", rollout=DONE)
    found = compute(observed, planned, now=NOW)
    assert len(found.conditions) == len(ConditionType)
    return {c.type: c for c in found.conditions}


def test_a_warning_is_verified_with_words() -> None:
    answer = summarise(
        volumes(filesystem="btrfs", verdict=VerdictLevel.WARN, reason="Copy-on-write."),
        AioResult(max_nr=65536, nr=0, demand=500),
        engine="ASYNCIO",
    )
    found = said(answer)["StorageVerified"]
    assert (found.status, found.reason) == (ConditionStatus.TRUE, "VerifiedWithWarnings")
    assert found.message == "Copy-on-write."


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_certificate_that_is_missing_is_named_before_what_its_pods_say(is_ready: bool) -> None:
    tls = {"secretName": "cert"}
    asked = broker(acceptors=[{"name": "secure", "port": 61617, "tls": tls}])
    stuck = pod(is_ready=is_ready)
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    stuck["status"]["containerStatuses"] = [{"name": "broker", "state": {"waiting": waiting}}]
    found = compute(
        Observed(broker=asked, pods=(stuck,), tls_secrets={"cert": None}),
        Plan(actions=(), reason="", image="b:1", rollout=DONE),
        now=NOW,
    )
    conditions = {c.type: c for c in found.conditions}
    assert conditions["Degraded"].status is ConditionStatus.TRUE
    for kind in ("Degraded", "CertificateValid") if is_ready else ("Ready", "Degraded"):
        assert conditions[kind].reason == "SecretUnusable"
        assert "Acceptor secure: The Secret cert does not exist" in conditions[kind].message
    assert (conditions["Ready"].status is ConditionStatus.TRUE) is is_ready, "it serves as before"


def test_every_volume_that_is_refused_is_named() -> None:
    denied = [
        VolumeResult(name=name, verdict=VerdictLevel.DENY, reason=f"Volume {name} is another's.")
        for name in ("bindings", "paging")
    ]
    allowed = VolumeResult(name="journal", filesystem="ext4", reason="It is fine.")
    answer = summarise((denied[0], allowed, denied[1]), AioResult(), engine="ASYNCIO")
    found = said(answer, is_ready=False)["StorageVerified"]
    assert found.message == "orders-0: Volume bindings is another's. Volume paging is another's."


def test_a_refusal_names_the_volume_in_every_place() -> None:
    reason = "The volume journal is on nfs4, which is refused."
    answer = summarise(
        volumes(filesystem="nfs4", verdict=VerdictLevel.DENY, reason=reason),
        AioResult(),
        engine="",
    )
    found = said(answer, is_ready=False)
    for kind in ("StorageVerified", "Ready", "Degraded", "Available"):
        assert reason in found[kind].message, kind
    assert found["Ready"].reason == "VolumeRefused"
    assert found["Progressing"].status is ConditionStatus.FALSE


def test_a_shortage_of_aio_has_the_numbers() -> None:
    answer = summarise(
        volumes(filesystem="ext4"),
        AioResult(max_nr=65536, nr=65500, demand=500),
        engine="NIO",
        engine_reason="NIO is used instead of ASYNCIO: 36 are free.",
    )
    found = said(answer)
    assert found["NodeTuned"].reason == "AioShortage"
    for number in ("500", "36", "fs.aio-max-nr=65536", "fs.aio-nr=65500"):
        assert number in found["NodeTuned"].message
    assert found["JournalEngine"].reason == "Fallback"
    assert "36 are free" in found["JournalEngine"].message
    assert found["Ready"].status is ConditionStatus.TRUE


@pytest.mark.parametrize(
    ("config", "engine", "tuned"),
    [
        ({"journalType": "NIO"}, "AsAsked", "NotNeeded"),
        ({"persistenceEnabled": False}, "InMemory", "NotNeeded"),
    ],
)
def test_other_engines_need_no_tuning(config: dict[str, Any], engine: str, tuned: str) -> None:
    answer = summarise((), AioResult(), engine="NIO")
    found = said(answer, config=config)
    assert found["JournalEngine"].reason == engine
    assert found["NodeTuned"].reason == tuned


def test_before_there_are_pods_nothing_is_claimed() -> None:
    observed = Observed(broker=broker(), classes={}, volumes=())
    found = compute(observed, plan(observed, Options()), now=NOW)
    kinds = {c.type: c.status.value for c in found.conditions}
    assert kinds == {
        "Ready": "False",
        "Available": "False",
        "Progressing": "True",
        "Degraded": "False",
        "StorageVerified": "Unknown",
        "VolumesSized": "Unknown",
        "JournalEngine": "Unknown",
        "NodeTuned": "Unknown",
        "ConfigApplied": "Unknown",
        "CertificateValid": "True",
        "UpToDate": "Unknown",
        "Paused": "False",
        "Draining": "False",
        "Integrated": "True",
    }
    assert (found.summary, found.replicas, found.observed_generation) == ("0/1", 0, 4)


def test_no_brokers_asked_for_is_said() -> None:
    observed = Observed(broker=broker(replicas=0))
    planned = Plan(actions=(), reason="", image="b:1", rollout=DONE)
    ready = compute(observed, planned, now=NOW).conditions[0]
    assert (ready.status, ready.reason) == (ConditionStatus.FALSE, "ScaledToZero")


def test_a_block_and_a_failure_are_degraded() -> None:
    observed = Observed(broker=broker())
    block = Block(reason="NameTaken", sentence="The Service orders belongs to somebody else.")
    found = compute(observed, Plan(actions=(), reason="", image="", block=block), now=NOW)
    by_type = {c.type: c for c in found.conditions}
    assert by_type["Degraded"].reason == by_type["Ready"].reason == "NameTaken"
    found = compute(observed, Plan(actions=(), reason="", image=""), now=NOW, failure="refused")
    by_type = {c.type: c for c in found.conditions}
    assert (by_type["Degraded"].reason, by_type["Degraded"].message) == ("ApplyFailed", "refused")


def test_the_time_moves_only_with_the_status() -> None:
    old = Condition(
        type="Ready",
        status=ConditionStatus.TRUE,
        reason="Serving",
        last_transition_time="2026-01-01T00:00:00Z",
    )
    for status, expected in (
        (ConditionStatus.TRUE, "2026-01-01T00:00:00Z"),
        (ConditionStatus.FALSE, NOW),
    ):
        (found,) = merged(
            (old,), {ConditionType.READY: (status, "Other", "")}, generation=5, now=NOW
        )
        assert found.last_transition_time == expected
        assert found.observed_generation == 5


def test_tls_is_told_with_the_endpoints() -> None:
    observed = Observed(broker=broker(tls={"secretName": "cert"}))
    found = compute(observed, Plan(actions=(), reason="", image=""), now=NOW)
    assert {e.name: e.tls for e in found.endpoints} == {
        "all": True, "amqp": True, "mqtt": True, "stomp": True, "http": False,
    }  # fmt: skip


def test_an_override_is_told_for_ever_in_reason_and_metric() -> None:
    sentence = "The volume journal is on nfs4, which is refused by default."
    answer = summarise(
        volumes(filesystem="nfs4", verdict=VerdictLevel.WARN, reason=sentence),
        AioResult(max_nr=65536, nr=0, demand=500),
        engine="ASYNCIO",
    )
    policy = {"filesystemPolicy": {"allow": ["ext4", "nfs4"]}}
    found = said(answer, storage=policy)["StorageVerified"]
    assert (found.status, found.reason) == (ConditionStatus.TRUE, "FilesystemOverridden")
    assert found.message == sentence

    asked = broker(storage=policy)
    planned = Plan(actions=(), reason="", image="b:1", rollout=DONE)
    observed = Observed(broker=asked, pods=(pod(answer),))
    metrics = Metrics()
    metrics.broker(asked, compute(observed, planned, now=NOW))
    line = (
        'vespiary_operator_broker_filesystem_overridden{broker="orders",filesystem="nfs4",'
        'namespace="ns",pod="orders-0",volume="journal"} 1.0'
    )
    assert line in metrics.text().decode()
    metrics.broker(broker(), compute(observed, planned, now=NOW))
    assert line not in metrics.text().decode()
    metrics.broker(asked, compute(observed, planned, now=NOW))
    metrics.forget("ns", "orders")
    assert line not in metrics.text().decode()


def test_warnings_are_told_before_any_pod_has_looked() -> None:
    warning = Declared("journal", None, Verdict(VerdictLevel.WARN, "They bind at once."))
    planned = Plan(actions=(), reason="", image="b:1", declared=(warning,))
    found = compute(Observed(broker=broker()), planned, now=NOW)
    verified = next(c for c in found.conditions if c.type == "StorageVerified")
    assert verified.status is ConditionStatus.UNKNOWN
    assert verified.message.endswith("They bind at once.")


def test_a_broker_that_waits_for_its_node_says_so_and_is_not_stuck() -> None:
    sentence = "The broker waits for AIO requests: 500 are needed."
    answer = summarise(
        volumes(filesystem="ext4"),
        AioResult(max_nr=65536, nr=65400, demand=500),
        engine="ASYNCIO",
        waits=sentence,
    )
    found = said(answer, is_ready=False)
    assert (found["NodeTuned"].status, found["NodeTuned"].reason) == (
        ConditionStatus.FALSE,
        "AioShortage",
    )
    assert sentence in found["NodeTuned"].message
    assert found["Ready"].reason == "WaitingForNode"
    assert sentence in found["Ready"].message
    assert found["Degraded"].status is ConditionStatus.FALSE
    assert found["StorageVerified"].status is ConditionStatus.TRUE
    served = said(answer)
    assert served["NodeTuned"].status is ConditionStatus.TRUE, "it got what it waited for"
    assert served["Ready"].status is ConditionStatus.TRUE


def test_a_full_disk_is_degraded_and_not_unready() -> None:
    reason = "no journal file can be made (allowed: at most 90 %)"
    ready = pod(summarise(volumes(filesystem="ext4"), AioResult(), engine="ASYNCIO"))
    observed = Observed(
        broker=broker(),
        pods=(ready,),
        answers={"orders-0": BrokerAnswer(journal_blocked_reason=reason)},
    )
    planned = Plan(actions=(), reason="", image="b:1", rollout=DONE)
    found = {c.type: c for c in compute(observed, planned, now=NOW).conditions}
    assert (found["Degraded"].status, found["Degraded"].reason) == (
        ConditionStatus.TRUE,
        "ProducersWait",
    )
    assert reason in found["Degraded"].message
    assert "orders-0" in found["Degraded"].message
    assert found["Ready"].status is ConditionStatus.TRUE

    observed = Observed(broker=broker(), pods=(ready,), answers={"orders-0": BrokerAnswer()})
    found = {c.type: c for c in compute(observed, planned, now=NOW).conditions}
    assert found["Degraded"].status is ConditionStatus.FALSE
