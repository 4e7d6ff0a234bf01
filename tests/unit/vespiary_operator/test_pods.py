"""What is read from a pod's status."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator import pods
from vespiary_spec.verification import AioResult, encode, summarise

ANSWER = encode(
    summarise((), AioResult(), engine="", refusal="The volume journal is on nfs4.")
).decode()


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "orders-0"}, "status": status}


def container(name: str = "verify", **state: Any) -> dict[str, Any]:
    return {"name": name, **state}


@pytest.mark.parametrize("place", ["state", "lastState"])
def test_the_answer_is_found_in_the_state_and_in_the_last_one(place: str) -> None:
    terminated = {"terminated": {"exitCode": 1, "message": ANSWER}}
    found = pod(initContainerStatuses=[container(**{place: terminated})])
    answer = pods.verified(found)
    assert answer is not None
    assert answer.refusal == "The volume journal is on nfs4."
    assert pods.is_stuck(found)
    assert pods.waits_for(found) == "The volume journal is on nfs4."


@pytest.mark.parametrize("message", ["", "killed", "{}", '{"vespiary": 99}'])
def test_what_is_no_answer_counts_as_none(message: str) -> None:
    terminated = {"terminated": {"exitCode": 137, "message": message}}
    found = pod(initContainerStatuses=[container(state=terminated)])
    assert pods.verified(found) is None


def test_a_waiting_container_says_its_reason_and_last_words() -> None:
    found = pod(
        containerStatuses=[
            container(
                "broker",
                state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                lastState={"terminated": {"exitCode": 1, "message": "first\n[VSP-J104] bad block"}},
            )
        ]
    )
    assert pods.is_stuck(found)
    assert pods.waits_for(found) == (
        "Its container broker has CrashLoopBackOff: [VSP-J104] bad block"
    )


def test_a_pod_that_cannot_be_scheduled_says_why() -> None:
    found = pod(
        conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes fit"}]
    )
    assert pods.waits_for(found) == "It cannot be scheduled: 0/1 nodes fit"
    assert not pods.is_stuck(found)


def test_ready_terminating_and_starting_pods() -> None:
    ready = pod(conditions=[{"type": "Ready", "status": "True"}], podIP="10.0.0.1")
    assert pods.is_ready(ready)
    assert pods.waits_for(ready) == ""
    assert pods.ip(ready) == "10.0.0.1"
    ready["metadata"]["deletionTimestamp"] = "now"
    assert not pods.is_ready(ready)
    assert pods.waits_for(ready) == "It is being stopped."
    creating = pod(
        containerStatuses=[container("broker", state={"waiting": {"reason": "PodInitializing"}})]
    )
    assert pods.waits_for(creating) == "It is starting."


def test_restarts_and_ordinals() -> None:
    assert pods.restarts(pod(containerStatuses=[container("broker", restartCount=3)])) == 3
    assert pods.restarts(pod()) == 0
    assert pods.ordinal({"metadata": {"name": "orders-12"}}) == 12
    assert pods.ordinal({"metadata": {"name": "orders"}}) == -1
