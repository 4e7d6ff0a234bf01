"""Volumes that a person has adopted: named exactly, once, and told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vespiary_operator import adoption, kinds
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import AioResult, Verification, VolumeResult, encode, summarise
from vespiary_testkit.broker_resources import GOOD_ANSWER
from vespiary_testkit.resize_world import ResizeWorld

LIVE = "orders-live-config"
SENTENCE = "Volume journal at /v holds files but no stamp; adopt these files on purpose."


def answer(verdict: VerdictLevel = VerdictLevel.ALLOW, **journal: Any) -> str:
    found: Verification = summarise(
        (
            VolumeResult(
                name="journal", filesystem="ext4", verdict=verdict, reason=SENTENCE, **journal
            ),
        ),
        AioResult(),
        engine="ASYNCIO",
    )
    return encode(found).decode()


REFUSED = answer(VerdictLevel.DENY, may_adopt=True)


class World(ResizeWorld):
    """A Broker whose verification refuses its journal for whose it is."""

    def annotate(self, value: str | None) -> None:
        annotations = self.cluster.one(kinds.BROKER, "orders")["metadata"]
        annotations["annotations"] = {} if value is None else {adoption.ANNOTATION: value}

    def verified(self, message: str) -> None:
        """Let the verification of the pod that there is have said something."""
        state = {"terminated": {"exitCode": 0, "message": message}}
        self.pod()["status"]["initContainerStatuses"] = [{"name": "verify", "state": state}]

    def bound(self) -> str:
        return str(self.journal()["spec"]["volumeName"])

    def asked(self) -> str:
        """Return the file that the verification reads; empty if there is none."""
        return str(self.cluster.one(kinds.CONFIG_MAP, LIVE)["data"].get("adopt-0.yaml", ""))

    def events(self) -> list[str]:
        return [
            e["message"] for e in self.cluster.of(kinds.EVENT) if e["reason"] == "VolumeAdopted"
        ]


def in_world(test: Any) -> None:
    async def run() -> None:
        world = World()
        world.ask(size="1Gi")
        online = world.cluster.one(kinds.STORAGE_CLASS, "online", "")
        online["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
        await world.until_quiet()
        world.journal()["spec"]["volumeName"] = "pv-7"
        await test(world)

    asyncio.run(run())


def test_a_volume_is_adopted_once_and_that_is_told() -> None:
    async def test(world: World) -> None:
        world.pod()["status"]["conditions"] = []
        world.verified(REFUSED)
        await world.look()
        said = world.condition("StorageVerified")[2]
        command = "kubectl -n ns annotate broker orders --overwrite vespiary.dev/adopt-volume="
        assert said.endswith(f"{command}journal-orders-0=pv-7")
        world.annotate("journal-orders-0=pv-7")
        await world.look()
        assert world.asked() == "journal: journal-orders-0\n"
        assert "adoptions" not in world.status(), "not before the verification has done it"
        world.verified(answer(VerdictLevel.WARN, adopted=True))
        await world.look()
        (record,) = world.status()["adoptions"]
        assert (record["claim"], record["persistentVolume"]) == ("journal-orders-0", "pv-7")
        assert "adopted the volume of journal-orders-0 on pv-7 as its journal" in record["message"]
        assert world.events() == [record["message"]]
        # The volume is blank one day: what was said once is not said for ever.
        assert adoption.pending(await _observed(world)) == {}
        world.verified(REFUSED)
        await world.look()
        assert adoption.pending(await _observed(world)) == {}
        world.annotate(None)
        await world.look()
        assert "adoptions" not in world.status()
        assert len(world.events()) == 1

    in_world(test)


async def _observed(world: World) -> Any:
    from vespiary_spec.resources import Broker

    broker = Broker.from_dict(dict(world.cluster.one(kinds.BROKER, "orders")))
    return await world.reconciler._observer.observe(broker, now=world.cluster.now)


def test_a_volume_that_is_the_brokers_already_is_not_adopted_later() -> None:
    async def test(world: World) -> None:
        world.verified(GOOD_ANSWER)
        world.annotate("journal-orders-0=pv-7")
        await world.look()
        (record,) = world.status()["adoptions"]
        assert "there was nothing to adopt" in record["message"]

    in_world(test)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("journal-orders-0=pv-8", "that claim is bound to pv-7; nothing is adopted"),
        ("journal-orders-0", "has 'journal-orders-0', which is no claim of this Broker with its"),
        ("journal-other-0=pv-7", "has 'journal-other-0=pv-7', which is no claim"),
        ("orders-0=pv-7", "which is no claim"),
        ("journal-orders-x=pv-7", "which is no claim"),
    ],
)
def test_what_does_not_name_a_volume_exactly_adopts_nothing(value: str, said: str) -> None:
    async def test(world: World) -> None:
        world.verified(REFUSED)
        world.annotate(value)
        await world.look()
        assert world.asked() == ""
        assert world.condition("Degraded")[1] == "NotAsAsked"
        assert said in world.condition("Degraded")[2]
        assert "adoptions" not in world.status()

    in_world(test)


def test_several_volumes_and_those_that_share_one() -> None:
    async def test(world: World) -> None:
        world.annotate("journal-orders-0=pv-7, paging-orders-0=pv-8")
        volumes = world.cluster.one(kinds.BROKER, "orders")["spec"]["storage"]["volumes"]
        volumes["largeMessages"] = {"shareWith": "journal"}
        world.cluster.one(kinds.CLAIM, "paging-orders-0")["spec"]["volumeName"] = "pv-8"
        assert adoption.pending(await _observed(world)) == {
            0: {
                "journal": "journal-orders-0",
                "large-messages": "journal-orders-0",
                "paging": "paging-orders-0",
            }
        }

    in_world(test)


def test_the_command_keeps_what_is_still_to_be_adopted_and_drops_what_was() -> None:
    async def test(world: World) -> None:
        for volume, bound in (("paging", "pv-8"), ("bindings", "pv-9")):
            world.cluster.one(kinds.CLAIM, f"{volume}-orders-0")["spec"]["volumeName"] = bound
        world.pod()["status"]["conditions"] = []
        # One was adopted; the next is asked for, and a third one is refused beside it.
        world.annotate("bindings-orders-0=pv-9")
        world.cluster.one(kinds.BROKER, "orders")["status"]["adoptions"] = [
            {
                "claim": "bindings-orders-0",
                "persistentVolume": "pv-9",
                "at": world.cluster.now,
                "message": "done",
            }
        ]
        world.annotate("bindings-orders-0=pv-9,paging-orders-0=pv-8")
        world.verified(REFUSED)
        await world.look()
        said = world.condition("StorageVerified")[2]
        assert said.endswith(
            "--overwrite vespiary.dev/adopt-volume=journal-orders-0=pv-7,paging-orders-0=pv-8"
        )

    in_world(test)
