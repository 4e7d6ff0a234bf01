"""Whole passes against an API server in memory: they converge, repair, and use all their rights."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_operator import kinds, rbac
from vespiary_operator.api_errors import ApiRefusedError
from vespiary_operator.cache import Cache
from vespiary_operator.metrics import Metrics
from vespiary_operator.observation import BrokerAnswer
from vespiary_operator.options import Options
from vespiary_operator.reconciler import SOON_S, Reconciler
from vespiary_operator.tuning import NodeReport
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.resources import API_VERSION
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import AioResult, VolumeResult, encode, summarise
from vespiary_testkit.broker_resources import GOOD_ANSWER
from vespiary_testkit.fake_disks import FakeDisks
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote
from vespiary_testkit.upgrade_world import says

KEY = Key("Broker", "ns", "orders")
TUNING = Key("BrokerNodeTuning", "", "default")
OPTIONS = Options(own_namespace="system", broker_image="registry:5000/vespiary/broker:1.0.0")


def broker(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "ns"},
        "spec": spec,
    }


def tuning(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "BrokerNodeTuning",
        "metadata": {"name": "default"},
        "spec": spec,
    }


class World:
    """The parts of an operator around an API server in memory."""

    def __init__(self, options: Options = OPTIONS) -> None:
        self.cluster = FakeKubernetes()
        self.cluster.verification = GOOD_ANSWER
        self.remote = FakeRemote()
        self.queue = WorkQueue()
        self.metrics = Metrics()
        self.options = options
        self.restart()

    def restart(self) -> None:
        """Put a new operator, whose cache is empty, in the place of the one that there is."""
        self.cache = Cache()
        self.reconciler = Reconciler(
            self.cluster,
            self.remote,
            self.queue,
            self.options,
            self.metrics,
            self.cache,
            now=lambda: self.cluster.now,
        )

    async def until_quiet(self, key: Key = KEY, *, passes: int = 12) -> None:
        """Make passes, and let controllers work between them, until nothing is written."""
        for _ in range(passes):
            before = copy.deepcopy(self.cluster.objects)
            await self.reconciler.reconcile(key)
            self.cluster.settle(steps=3)
            if self.cluster.objects == before:
                return
        pytest.fail("it does not come to rest")

    def conditions(self) -> dict[str, tuple[str, str]]:
        status = self.cluster.one(kinds.BROKER, "orders")["status"]
        return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}

    def events(self) -> list[tuple[str, str]]:
        return [(e["type"], e["reason"]) for e in self.cluster.of(kinds.EVENT)]


def in_world(test: Callable[[World], Awaitable[None]], options: Options = OPTIONS) -> None:
    async def run() -> None:
        await test(World(options))

    asyncio.run(run())


def test_a_broker_becomes_all_its_objects_and_then_nothing_is_written() -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker())
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("True", "Serving")
        made = {
            (k, n)
            for k, ns, n in world.cluster.objects
            if ns == "ns" and k not in ("Event", "ControllerRevision")
        }
        (config,) = (n for k, n in made if k == "ConfigMap" and n != "orders-live-config")
        assert config.startswith("orders-config-")
        assert made == {
            ("Broker", "orders"),
            ("ConfigMap", "orders-live-config"),
            ("StatefulSet", "orders"),
            ("Service", "orders"),
            ("Service", "orders-headless"),
            ("ServiceAccount", "orders-broker"),
            ("PodDisruptionBudget", "orders"),
            ("Secret", "orders-credentials"),
            ("Secret", "orders-users"),
            ("ConfigMap", config),
            ("Pod", "orders-0"),
        }
        world.cluster.writes.clear()
        assert await world.reconciler.reconcile(KEY) is None
        assert world.cluster.writes == []

    in_world(test)


def test_there_is_no_finalizer_and_no_annotation_on_the_broker() -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker())
        await world.until_quiet()
        metadata = world.cluster.one(kinds.BROKER, "orders")["metadata"]
        assert set(metadata) == {"name", "namespace", "uid", "generation", "resourceVersion"}

    in_world(test)


CHILDREN = [
    ("StatefulSet", "orders"),
    ("Service", "orders"),
    ("Service", "orders-headless"),
    ("Service", "orders-1"),
    ("ServiceAccount", "orders-broker"),
    ("PodDisruptionBudget", "orders"),
    ("Secret", "orders-users"),
    ("NetworkPolicy", "orders"),
]

EDITS: list[tuple[tuple[str, str], Callable[[dict[str, Any]], None]]] = [
    (("StatefulSet", "orders"), lambda o: o["spec"].update(replicas=7)),
    (("StatefulSet", "orders"), lambda o: o["metadata"].pop("annotations")),
    (("Service", "orders-1"), lambda o: o["spec"]["selector"].popitem()),
    (("StatefulSet", "orders"), lambda o: o["spec"]["template"]["spec"].pop("initContainers")),
    (
        ("StatefulSet", "orders"),
        lambda o: o["spec"]["template"]["spec"]["containers"][0].update(image="other"),
    ),
    (("Service", "orders"), lambda o: o["spec"].update(selector={"app": "x"})),
    (("Service", "orders"), lambda o: o["metadata"].update(labels={})),
    (("Service", "orders-headless"), lambda o: o["spec"]["ports"].pop()),
    (("PodDisruptionBudget", "orders"), lambda o: o["spec"].update(maxUnavailable=9)),
    (("NetworkPolicy", "orders"), lambda o: o["spec"].update(ingress=[])),
    (("Secret", "orders-users"), lambda o: o["data"].update(users="eA==")),
    (
        ("ServiceAccount", "orders-broker"),
        lambda o: o.update(automountServiceAccountToken=True),
    ),
]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(CHILDREN), max_size=4),
    st.lists(st.sampled_from(range(len(EDITS))), max_size=4, unique=True),
)
def test_any_edit_or_deletion_is_put_back(
    deletions: list[tuple[str, str]], edits: list[int]
) -> None:
    async def test(world: World) -> None:
        world.cluster.put(
            broker(replicas=2, topology="Independent", networkPolicy={"enabled": True})
        )
        await world.until_quiet()

        def wanted() -> dict[str, Any]:
            return {
                f"{kind}/{name}": (
                    {
                        k: copy.deepcopy(v)
                        for k, v in found.items()
                        if k not in ("metadata", "status")
                    },
                    found["metadata"]["labels"],
                )
                for (kind, _, name), found in world.cluster.objects.items()
                if (kind, name) in CHILDREN
            }

        before = wanted()
        for index in edits:
            (kind, name), edit = EDITS[index]
            found = world.cluster.objects[kind, "ns", name]
            edit(found)
            found["metadata"]["generation"] = found["metadata"].get("generation", 0) + 1
        for kind, name in deletions:
            world.cluster.objects.pop((kind, "ns", name), None)
        await world.until_quiet()
        after = wanted()
        assert after.keys() == before.keys()
        users = "Secret/orders-users"
        assert [after[k] for k in sorted(after) if k != users] == [
            before[k] for k in sorted(before) if k != users
        ]  # hashes have a fresh salt when they are made anew

    in_world(test)


@pytest.mark.ci
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 25))
def test_a_pass_that_is_cut_short_anywhere_is_made_up_for(writes: int) -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker(networkPolicy={"enabled": True}))
        world.cluster.refused_write = writes
        for _ in range(4):
            with contextlib.suppress(ApiRefusedError):
                await world.reconciler.reconcile(KEY)
            world.cluster.settle(steps=3)
        password = world.cluster.objects.get(("Secret", "ns", "orders-credentials"))
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("True", "Serving")
        if password is not None:
            assert world.cluster.one(kinds.SECRET, "orders-credentials") == password

    in_world(test)


def test_the_password_is_made_once_and_never_again() -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker())
        await world.until_quiet()
        first = json.dumps(world.cluster.one(kinds.SECRET, "orders-credentials"))
        users = json.dumps(world.cluster.one(kinds.SECRET, "orders-users"))
        again = Reconciler(
            world.cluster, world.remote, world.queue, OPTIONS, world.metrics, Cache()
        )
        await again.reconcile(KEY)
        assert json.dumps(world.cluster.one(kinds.SECRET, "orders-credentials")) == first
        assert json.dumps(world.cluster.one(kinds.SECRET, "orders-users")) == users

    in_world(test)


def test_a_name_that_belongs_to_somebody_else_is_left_alone() -> None:
    async def test(world: World) -> None:
        theirs = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "orders", "namespace": "ns"},
            "spec": {"ports": [{"port": 80}]},
        }
        world.cluster.put(theirs)
        world.cluster.put(broker())
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("False", "NameTaken")
        assert world.cluster.one(kinds.SERVICE, "orders")["spec"] == theirs["spec"]
        assert world.cluster.of(kinds.STATEFUL_SET) == []

    in_world(test)


def test_paused_changes_nothing_and_still_reports() -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker())
        await world.until_quiet()
        world.cluster.put(broker(paused=True, replicas=3, topology="Independent"))
        world.cluster.writes.clear()
        await world.until_quiet()
        assert [w for w in world.cluster.writes if "Event" not in w] == []
        assert world.conditions()["Paused"] == ("True", "Asked")
        world.cluster.put(broker(paused=True, config={"journalMinFiles": 4}))
        await world.until_quiet()
        conditions = world.cluster.one(kinds.BROKER, "orders")["status"]["conditions"]
        said = {c["type"]: c["message"] for c in conditions}
        assert said["UpToDate"].endswith("It waits while spec.paused is true.")
        assert world.conditions()["Ready"] == ("False", "Starting")
        world.cluster.put(broker(paused=False))
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("True", "Serving")

    in_world(test)


def test_contradicting_settings_are_reported_with_their_path() -> None:
    async def test(world: World) -> None:
        queue = {"name": "q", "routingType": "ANYCAST"}
        world.cluster.put(
            broker(addresses=[{"name": "a", "queues": [queue]}, {"name": "b", "queues": [queue]}])
        )
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("False", "InvalidConfiguration")
        (ready,) = (
            c
            for c in world.cluster.one(kinds.BROKER, "orders")["status"]["conditions"]
            if c["type"] == "Ready"
        )
        assert "spec.addresses[1].queues[0].name" in ready["message"]

    in_world(test)


def test_a_spec_that_cannot_be_read_is_reported() -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker(fromTheFuture=1))
        await world.reconciler.reconcile(KEY)
        assert world.conditions()["Ready"] == ("False", "InvalidSpec")

    in_world(test)


def test_a_missing_secret_is_waited_for() -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker(auth={"secretName": "people"}))
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("False", "SecretUnusable")
        world.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "people", "namespace": "ns"},
                "data": {"alice": "bG9uZ2VyLXNlY3JldA=="},
            }
        )
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("True", "Serving")
        assert ("Secret", "ns", "orders-credentials") not in world.cluster.objects

    in_world(test)


def test_a_refusal_of_the_api_server_is_in_the_status_and_tried_again() -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker())
        world.cluster.refused_write = 0
        with pytest.raises(ApiRefusedError):
            await world.reconciler.reconcile(KEY)
        assert world.conditions()["Degraded"] == ("True", "ApplyFailed")
        await world.until_quiet()
        assert world.conditions()["Degraded"] == ("False", "AsExpected")

    in_world(test)


def test_events_come_once_for_each_decision() -> None:
    async def test(world: World) -> None:
        denied = VolumeResult(
            name="journal", filesystem="nfs4", verdict=VerdictLevel.DENY, reason="It is on nfs4."
        )
        world.cluster.verification = encode(summarise((denied,), AioResult(), engine="")).decode()
        world.cluster.put(broker())
        for _ in range(5):
            await world.reconciler.reconcile(KEY)
            world.cluster.settle(steps=2, is_ready=False)
        told = world.events()
        assert told.count(("Warning", "VolumeRefused")) == 1
        assert told.count(("Normal", "CredentialsCreated")) == 1
        (said,) = (e for e in world.cluster.of(kinds.EVENT) if e["reason"] == "VolumeRefused")
        assert "It is on nfs4." in said["message"]
        assert said["involvedObject"]["uid"]

    in_world(test)


def test_brokers_are_asked_with_the_password_of_admin() -> None:
    async def test(world: World) -> None:
        world.remote.broker = BrokerAnswer(engine="NIO", durability="D2", version="9.9.9")
        world.cluster.put(broker())
        await world.until_quiet()
        assert set(world.remote.passwords) != {""}
        status = world.cluster.one(kinds.BROKER, "orders")["status"]
        assert (status["engine"], status["version"]) == ("NIO", "9.9.9")
        assert world.conditions()["JournalEngine"] == ("False", "Fallback")

    in_world(test)


def test_a_deleted_broker_is_left_to_the_garbage_collector() -> None:
    async def test(world: World) -> None:
        document = broker()
        document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.cluster.put(document)
        assert await world.reconciler.reconcile(KEY) is None
        assert await world.reconciler.reconcile(Key("Broker", "ns", "gone")) is None
        assert world.cluster.writes == []

    in_world(test)


def test_the_next_look_is_soon_while_something_moves() -> None:
    async def test(world: World) -> None:
        world.cluster.put(broker())
        assert await world.reconciler.reconcile(KEY) == SOON_S
        await world.until_quiet()
        assert await world.reconciler.reconcile(KEY) is None

    in_world(test)


# --- rights ---------------------------------------------------------------------------------------

WATCHED = (kinds.BROKER, kinds.NODE_TUNING, kinds.JOURNAL_ARCHIVE, kinds.NODE)
WATCHED = (*WATCHED, *kinds.WATCHED_CHILDREN)


def test_every_right_is_used_and_every_call_has_one() -> None:
    """The fake refuses calls that no rule has; here every rule has to be used as well."""

    async def test(world: World) -> None:
        world.cluster.put({"kind": "Node", "metadata": {"name": "node-1"}})
        world.cluster.put(
            broker(
                networkPolicy={"enabled": True},
                topology="Independent",
                storage={"volumes": {"journal": {"volumeAttributesClassName": "quick"}}},
                metrics={"podMonitor": {"credentialsSecretName": "watcher"}},
                tlsRoute={
                    "parentRefs": [{"name": "gate"}],
                    "hostnames": ["mq.example.com"],
                    "acceptor": "all",
                },
            )
        )
        await world.reconciler.enqueue_all()
        await world.until_quiet()
        await world.until_quiet(TUNING)
        assert world.cluster.of(kinds.DAEMON_SET)
        await grow_at_rest(world)
        world.cluster.put(
            broker(
                networkPolicy={"enabled": False},
                disruptionBudget={"enabled": False},
                config={"journalMinFiles": 3},
            )
        )
        for field in ("topology", "metrics", "tlsRoute"):
            world.cluster.one(kinds.BROKER, "orders")["spec"].pop(field)
        world.cluster.put(tuning_pod(world))
        await world.until_quiet(TUNING)
        world.cluster.put(tuning(mode="Tuned"))
        await world.until_quiet(TUNING)
        assert world.cluster.of(kinds.TUNED)
        world.cluster.put(tuning(mode="Off"))
        await world.until_quiet()
        await world.until_quiet(TUNING)
        assert not world.cluster.of(kinds.TUNED)
        await archive_once_and_on_a_schedule(world)
        image = OPTIONS.broker_image
        world.cluster.compatibility = {image: says("1.0.0"), "new:2": says("2.0.0")}
        world.cluster.put(broker(image="new:2"))
        await world.until_quiet()
        used = {(verb, kind.plural, sub) for verb, kind, sub in world.cluster.calls}
        used |= {(verb, kind.plural, "") for kind in WATCHED for verb in ("list", "watch")}
        granted = {
            (verb, rule.kind.plural, rule.subresource)
            for rule in rbac.RULES
            if rule.place is not rbac.Place.OWN  # the Lease is not a pass's (test_leadership)
            for verb in rule.verbs
        }
        assert granted - used == set(), "nobody needs these rights"
        assert used - granted == set()

    options = msgspec.structs.replace(OPTIONS, default_tuning='{"mode": "Raise"}')
    in_world(test, options)


async def grow_at_rest(world: World) -> None:
    """Let a volume grow that needs its pod started again, and then the StatefulSet replaced."""
    world.cluster.disks = FakeDisks(world.cluster)
    world.restart()
    for size in ("1Gi", "2Gi"):
        journal = {"size": size, "storageClassName": "offline"}
        world.cluster.put(
            broker(networkPolicy={"enabled": True}, storage={"volumes": {"journal": journal}})
        )
        for kind in (kinds.STATEFUL_SET, kinds.POD) if size == "1Gi" else ():
            for found in world.cluster.of(kind):  # made before there were claims
                del world.cluster.objects[kind.name, "ns", found["metadata"]["name"]]
        world.cluster.now = "2026-01-01T00:01:00Z"
        await world.until_quiet()
    world.cluster.now = "2026-01-01T00:03:00Z"
    await world.until_quiet()


def test_without_cluster_wide_rights_the_pods_decide_alone() -> None:
    async def test(world: World) -> None:
        world.cluster.forbidden = {"StorageClass", "PersistentVolume"}
        world.cluster.put(broker())
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("True", "Serving")

    in_world(test, Options(namespaces=("ns",), broker_image="b:1"))


ROLES = ("journal", "bindings", "paging", "large-messages")


async def archive_once_and_on_a_schedule(world: World) -> None:
    """Let a JournalArchive have a CronJob, then a Job, then another one in its place."""
    key = Key(kinds.JOURNAL_ARCHIVE.name, "ns", "history")
    document = archive("history", source={"kind": "snapshot", "name": "a"}, executors=1)
    for name in ("exports", *(f"{role}-orders-0" for role in ROLES)):
        world.cluster.put(
            {
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": "ns"},
                "spec": {"resources": {"requests": {"storage": "1Gi"}}},
                "status": {"capacity": {"storage": "1Gi"}},
            }
        )
    document["spec"]["schedule"] = "0 3 * * *"
    world.cluster.put(document)
    await world.reconciler.reconcile(key)
    assert world.cluster.of(kinds.CRON_JOB)
    (binding,) = world.cluster.of(kinds.ROLE_BINDING)
    assert binding["roleRef"]["name"] == OPTIONS.executor_role
    del world.cluster.one(kinds.JOURNAL_ARCHIVE, "history")["spec"]["schedule"]
    for seconds in (1, 2):
        world.cluster.put(archive("history", activeDeadlineSeconds=seconds, executors=0))
        for _ in range(2):  # the Job of the spec before has to go first
            await world.reconciler.reconcile(key)
    assert not world.cluster.of(kinds.CRON_JOB)
    assert not world.cluster.of(kinds.ROLE_BINDING)
    (job,) = world.cluster.of(kinds.JOB)
    assert job["spec"]["activeDeadlineSeconds"] == 2


def archive(name: str, **spec: Any) -> dict[str, Any]:
    wanted = {"brokerRef": {"name": "orders"}, "target": {"claimName": "exports"}, **spec}
    return {
        "apiVersion": API_VERSION,
        "kind": "JournalArchive",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": wanted,
    }


def tuning_pod(world: World) -> dict[str, Any]:
    daemon_set = world.cluster.one(kinds.DAEMON_SET, "vespiary-node-tuning-default", "system")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "tuner-x",
            "namespace": "system",
            "labels": daemon_set["spec"]["template"]["metadata"]["labels"],
        },
        "spec": {"nodeName": "node-1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_node_tuning_reports_what_the_pods_answer() -> None:
    async def test(world: World) -> None:
        world.cluster.put({"kind": "Node", "metadata": {"name": "node-1"}})
        world.cluster.put(tuning(mode="Raise"))
        await world.until_quiet(TUNING)
        status = world.cluster.one(kinds.NODE_TUNING, "default", "")["status"]
        assert status["conditions"][0]["status"] == "Unknown"
        world.cluster.put(tuning_pod(world))
        world.remote.node = NodeReport(
            aio_max_nr=131072, aio_nr=10, raised_from=65536, message="raised", is_satisfied=True
        )
        await world.until_quiet(TUNING)
        status = world.cluster.one(kinds.NODE_TUNING, "default", "")["status"]
        assert status["summary"] == "1/1"
        assert status["nodes"][0]["raisedFrom"] == 65536

    in_world(test)
