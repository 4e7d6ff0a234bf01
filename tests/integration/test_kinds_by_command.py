"""Kinds of queues made and changed by the command, with stock clients, and again after kill -9."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S, wait_for


class Scene:
    """A broker, its clients, and the command."""

    def __init__(self, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker = broker
        self._capsys = capsys
        self._clients: list[Client] = []

    def command(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        url = f"http://127.0.0.1:{self.broker.port('http')}"
        assert run_program([*words, "--api", url]) == code, self._capsys.readouterr()
        said = self._capsys.readouterr()
        return said.out + said.err

    def shown(self) -> Any:
        return json.loads(self.command("queue", "show", "q", "--json"))

    def client(self, ack: str = "", **headers: str) -> Client:
        client = Client(self.broker.port(), "1.2")
        self._clients.append(client)
        client.connect()
        if ack:
            client.subscribe("/queue/q", ack=ack, **headers)
        return client

    def send(self, *bodies: str, **headers: str) -> None:
        client = self.client()
        for body in bodies:
            client.send("/queue/q", body, **headers)
        client.disconnect()

    def kill(self) -> None:
        self.broker.kill()
        self._clients.clear()
        self.broker.start()

    def stop(self) -> None:
        assert self.broker.stop() == 0
        self._clients.clear()
        self.broker.start()

    def leave(self) -> None:
        """Have all consumers go."""
        for client in self._clients:
            if client.connection.is_connected():
                client.disconnect()
        self._clients.clear()
        wait_for(lambda: self.shown()["consumers"] == 0)

    def twice(self) -> Iterator[None]:
        """Do something, and again after a kill."""
        yield
        self.leave()
        self.kill()
        yield
        self.leave()


@pytest.fixture
def scene(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    with BrokerProcess(tmp_path / "data") as broker:
        made = Scene(broker, capsys)
        yield made
        for client in made._clients:
            if client.connection.is_connected():
                client.disconnect()


def bodies(client: Client, count: int) -> list[str]:
    return [frame.body for frame in client.recorder.take(count)]


@pytest.mark.ci
def test_rings(scene: Scene) -> None:
    scene.command("queue", "create", "q", "--ring-size", "3")
    for _ in scene.twice():
        scene.send(*"12345")
        wait_for(lambda: scene.shown()["ready"] == 3)
        assert bodies(scene.client("auto"), 3) == ["3", "4", "5"]
    scene.send(*"12345")
    scene.command("queue", "update", "q", "--ring-size", "1", "--yes")
    wait_for(lambda: scene.shown()["ready"] == 1)
    scene.kill()
    assert (scene.shown()["ringSize"], bodies(scene.client("auto"), 1)) == (1, ["5"])


@pytest.mark.ci
def test_last_values_that_nobody_takes(scene: Scene) -> None:
    kind = ("--last-value", "--last-value-key", "share", "--non-destructive")
    scene.command("queue", "create", "q", *kind)
    assert "last-value, non-destructive" in scene.command("queue", "list")
    for body, share in (("1", "A"), ("2", "B"), ("3", "A")):
        scene.send(body, share=share)
    for _ in scene.twice():
        wait_for(lambda: scene.shown()["ready"] == 2)
        assert bodies(scene.client("auto"), 2) == ["2", "3"]
    watcher = scene.client("auto")
    assert bodies(watcher, 2) == ["2", "3"]
    said = scene.command("queue", "update", "q", "--destructive", code=1)
    assert "has consumers, under whom nonDestructive cannot change" in said
    scene.leave()
    scene.command("queue", "update", "q", "--destructive", "--no-last-value")
    scene.kill()
    assert bodies(scene.client("auto"), 2) == ["2", "3"]
    wait_for(lambda: scene.shown()["messages"] == 0)


@pytest.mark.ci
def test_one_consumer_alone(scene: Scene) -> None:
    scene.command("queue", "create", "q", "--exclusive")
    for _ in scene.twice():
        first, second = scene.client("auto"), scene.client("auto")
        scene.send(*"1234")
        assert bodies(first, 4) == ["1", "2", "3", "4"]
        assert second.is_quiet()
    first, second = scene.client("auto"), scene.client("auto")
    scene.command("queue", "update", "q", "--no-exclusive")
    scene.command("queue", "pause", "q")
    scene.send(*"1234")
    scene.command("queue", "resume", "q")
    # Both have some of them; how many is the dispatcher's choice.
    counts = [client.recorder.messages.qsize for client in (first, second)]
    wait_for(lambda: sum(count() for count in counts) == 4, lambda: [count() for count in counts])
    got = [bodies(client, count()) for client, count in zip((first, second), counts, strict=True)]
    assert all(got)
    assert sorted(got[0] + got[1]) == ["1", "2", "3", "4"]


@pytest.mark.ci
def test_consumers_that_are_waited_for(scene: Scene) -> None:
    scene.command("queue", "create", "q", "--consumers-before-dispatch", "2")
    for _ in scene.twice():
        scene.send(*"12")
        first = scene.client("auto")
        assert first.is_quiet()
        second = scene.client("auto")
        assert bodies(first, 1) + bodies(second, 1)
    scene.send("3")
    waiting = scene.client("auto")
    assert waiting.is_quiet()
    scene.command("queue", "update", "q", "--delay-before-dispatch", "1")
    assert bodies(waiting, 1) == ["3"]


@pytest.mark.ci
def test_groups(scene: Scene) -> None:
    scene.command("queue", "create", "q", "--group-first-key", "is-first", "--group-buckets", "1")
    for _ in scene.twice():
        clients = [scene.client("auto"), scene.client("auto")]
        for group in "abcd":
            scene.send("1", "2", JMSXGroupID=group)
        wait_for(lambda: sum(one.recorder.messages.qsize() for one in clients) == 8)  # noqa: B023
        frames = [client.recorder.messages.qsize() for client in clients]
        assert sorted(frames) == [0, 8]  # one bucket, one consumer
        (owner,) = [client for client in clients if client.recorder.messages.qsize()]
        heads = [frame.headers.get("is-first") for frame in owner.recorder.take(8)]
        assert heads == ["true", *[None] * 7]


@pytest.mark.ci
def test_groups_find_consumers_anew(scene: Scene) -> None:
    scene.command("queue", "create", "q", "--group-rebalance")
    for _ in scene.twice():
        first = scene.client("auto")
        for group in "abcdefgh":
            scene.send("1", JMSXGroupID=group)
        assert len(bodies(first, 8)) == 8
        second = scene.client("auto")
        for group in "abcdefgh":
            scene.send("2", JMSXGroupID=group)
        assert bodies(second, 1) == ["2"]


@pytest.mark.ci
def test_bounds_and_purging(scene: Scene) -> None:
    scene.command("queue", "create", "q", "--max-consumers", "1", "--purge-on-no-consumers")
    for _ in scene.twice():
        first, second = scene.client("client-individual"), scene.client()
        second.connection.subscribe("/queue/q", id="1")
        error = second.recorder.errors.get(timeout=WAIT_S)
        assert "allowed: at most 1 (max-consumers)" in error.headers["message"]
        assert second.recorder.ended.wait(WAIT_S)
        scene.send("1")
        assert bodies(first, 1) == ["1"]
        scene.leave()
        wait_for(lambda: scene.shown()["messages"] == 0)
        scene.send("nobody is there")
        assert scene.shown()["messages"] == 0


@pytest.mark.ci
def test_filters(scene: Scene) -> None:
    scene.command("queue", "create", "q", "--filter", "n = 1")
    sender = scene.client()
    for _ in range(2):
        sender.send("/queue/q", "out", n="2")
        sender.send("/queue/q", "in", n="1")
        taker = scene.client("auto")
        assert bodies(taker, 1) == ["in"]
        assert taker.is_quiet()
        scene.leave()
        scene.kill()
        sender = scene.client()
    sender.send("/queue/q", "before", n="2")
    scene.command("queue", "update", "q", "--filter", "n = 2")
    sender.send("/queue/q", "after", n="2")  # over the same connection
    sender.send("/queue/q", "out", n="1")
    taker = scene.client("auto")
    assert bodies(taker, 1) == ["after"]
    assert taker.is_quiet()


@pytest.mark.ci
def test_queues_that_go_by_themselves(scene: Scene) -> None:
    def names() -> set[str]:
        return {item["name"] for item in json.loads(scene.command("queue", "list", "--json"))}

    scene.command("queue", "create", "q", "--auto-delete")
    scene.command("queue", "create", "stays")
    scene.send("1")
    scene.kill()
    assert names() == {"q", "stays"}
    last = scene.client("auto")
    assert bodies(last, 1) == ["1"]
    last.disconnect()
    wait_for(lambda: names() == {"stays"})
    scene.stop()  # nobody was told that it is gone for good, so a kill may bring it back
    assert names() == {"stays"}
    scene.send("1")  # made by use, and told to stay
    scene.command("queue", "update", "q", "--no-auto-delete")
    for _ in scene.twice():
        assert scene.shown()["autoDelete"] is False
        scene.send("2")
        assert bodies(scene.client("auto"), 1)
    assert names() == {"q", "stays"}


def test_what_contradicts_itself_or_what_is_there(scene: Scene) -> None:
    said = scene.command(
        "queue", "create", "q", "--group-buckets", "0", "--group-rebalance", code=1
    )
    assert "queues[q].groupRebalance: there are no groups: queues[q].groupBuckets = 0" in said
    assert "no queue" in scene.command("queue", "show", "q", code=1)
    scene.command("queue", "create", "q", "--ring-size", "3")
    scene.command("queue", "create", "q", "--ring-size", "3")
    said = scene.command("queue", "create", "q", "--ring-size", "4", code=1)
    assert "The queue q exists, but with ringSize: 3." in said


def test_groups_and_consumers_are_shown_and_groups_released(scene: Scene) -> None:
    scene.command("queue", "create", "q")
    first = scene.client("client-individual", **{"consumer-priority": "2", "prefetch-count": "1"})
    scene.send("1", "2", JMSXGroupID="orders:7")
    assert first.recorder.take(1)[0].body == "1"
    second = scene.client("client-individual", selector="JMSPriority < 5")

    def groups() -> Any:
        return json.loads(scene.command("queue", "groups", "q", "--json"))

    def consumers() -> dict[int, Any]:
        found = json.loads(scene.command("consumer", "list", "--queue", "q", "--json"))
        return {each["priority"]: each for each in found}

    (owner,) = groups()
    assert (owner["group"], owner["bucket"]) == ("orders:7", None)
    held = consumers()[2]
    assert (held["connection"], held["delivering"]) == (owner["connection"], 1)
    assert consumers()[0]["selector"] == "JMSPriority < 5"
    assert "orders:7" in scene.command("queue", "groups", "q")
    assert "1-1  delivering" in scene.command("browse", "q", "--delivering")
    assert "released" in scene.command("queue", "groups", "q", "--release", "--yes")
    assert second.recorder.take(1)[0].body == "2"
    wait_for(lambda: groups()[0]["connection"] == consumers()[0]["connection"])
    assert "There is no queue 'x'" in scene.command("queue", "groups", "x", code=1)
