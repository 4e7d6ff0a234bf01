"""The partition, against a controller in memory: one broker at a time, and to an end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_operator import names, pods, rollout


class Controller:
    """A StatefulSet with pods of which some revisions never get ready."""

    def __init__(self, replicas: int, bad: frozenset[str] = frozenset()) -> None:
        self.replicas = replicas
        self.bad = bad
        self.current = self.newest = "r0"
        self.partition = replicas
        self.revisions: dict[int, str] = dict.fromkeys(range(replicas), "r0")
        self.starting: set[int] = set()
        self.is_seen = True

    def stateful_set(self) -> dict[str, Any]:
        return {
            "metadata": {"generation": 2},
            "spec": {
                "replicas": self.replicas,
                "updateStrategy": {"rollingUpdate": {"partition": self.partition}},
            },
            "status": {
                "observedGeneration": 2 if self.is_seen else 1,
                "currentRevision": self.current,
                "updateRevision": self.newest,
            },
        }

    def is_ready(self, ordinal: int) -> bool:
        return (
            ordinal in self.revisions
            and ordinal not in self.starting
            and self.revisions[ordinal] not in self.bad
        )

    def pods(self) -> list[dict[str, Any]]:
        return [self._pod(ordinal) for ordinal in sorted(self.revisions)]

    def _pod(self, ordinal: int) -> dict[str, Any]:
        revision = self.revisions[ordinal]
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}} if revision in self.bad else {}
        return {
            "metadata": {"name": f"b-{ordinal}", "labels": {names.LABEL_REVISION: revision}},
            "status": {
                "conditions": [{"type": "Ready", "status": str(self.is_ready(ordinal))}],
                "containerStatuses": [{"name": "broker", "state": waiting}],
            },
        }

    def step(self) -> None:
        """Finish a start, else make a missing pod, else replace one that may be replaced."""
        if self.starting:
            self.starting.pop()
            return
        for ordinal in range(self.replicas):
            if ordinal not in self.revisions:
                is_new = ordinal >= self.partition
                self.revisions[ordinal] = self.newest if is_new else self.current
                self.starting.add(ordinal)
                return
        for ordinal in reversed(range(self.partition, self.replicas)):
            if self.revisions[ordinal] != self.newest:
                del self.revisions[ordinal]
                return
            if not self.is_ready(ordinal):
                return
        if self.partition == 0 and all(map(self.is_ready, range(self.replicas))):
            self.current = self.newest

    def decide(self) -> rollout.Rollout:
        step = rollout.next_step(self.stateful_set(), self.pods(), replicas=self.replicas)
        self.partition = step.partition
        return step


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60),
)
def test_a_change_reaches_every_broker_one_at_a_time(
    replicas: int, schedule: list[tuple[int, bool]]
) -> None:
    """However passes and controller steps interleave, at most one ready broker is away for it."""
    world = Controller(replicas)
    world.newest, world.partition = "r1", replicas
    for steps, decides in schedule:
        for _ in range(steps):
            world.step()
        if decides:
            world.decide()
        assert sum(map(world.is_ready, range(replicas))) >= replicas - 1
    for _ in range(20 * replicas):
        world.decide()
        world.step()
    assert set(world.revisions.values()) == {"r1"}
    assert world.decide() == (replicas, True, "All brokers run with the current settings.", "")


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_bad_change_stops_at_the_first_broker_and_a_good_one_heals_it(replicas: int) -> None:
    world = Controller(replicas, frozenset({"bad"}))
    world.newest = "bad"
    for _ in range(10 * replicas):
        step = world.decide()
        world.step()
    assert list(world.revisions.values()).count("bad") == 1
    assert not step.is_complete or replicas == 1
    assert f"waits for broker {replicas - 1}" in step.reason
    assert "CrashLoopBackOff" in step.reason
    world.newest, world.partition = "good", replicas
    for _ in range(20 * replicas):
        world.decide()
        world.step()
    assert set(world.revisions.values()) == {"good"}


def test_going_back_to_the_old_template_heals_too() -> None:
    world = Controller(3, frozenset({"bad"}))
    world.newest = "bad"
    for _ in range(10):
        world.decide()
        world.step()
    world.newest, world.partition = "r0", 3
    for _ in range(30):
        world.decide()
        world.step()
    assert set(world.revisions.values()) == {"r0"}
    assert world.partition == 3


def test_nothing_is_decided_on_an_old_status() -> None:
    world = Controller(2)
    world.newest, world.is_seen = "r1", False
    assert world.decide().partition == 2


def test_a_healthy_broker_is_not_restarted_while_another_is_starting() -> None:
    world = Controller(3)
    world.newest = "r1"
    world.starting = {0}
    step = world.decide()
    assert (step.partition, step.restarts) == (3, "")
    assert "broker 0" in step.reason


def test_a_pod_that_dies_at_rest_comes_back_without_a_decision() -> None:
    world = Controller(2)
    del world.revisions[1]
    assert world.decide().is_complete
    world.step()
    assert world.revisions[1] == "r0"


def test_ordinals_and_revisions_are_read_from_pods() -> None:
    (pod,) = Controller(1).pods()
    assert (pods.ordinal(pod), pods.revision(pod)) == (0, "r0")
