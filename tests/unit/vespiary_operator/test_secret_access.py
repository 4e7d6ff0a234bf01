"""Secrets are read by the names that Brokers give, and in no other way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vespiary_operator import kinds, names
from vespiary_operator.cluster import Cluster
from vespiary_operator.metrics import Metrics
from vespiary_operator.options import Options
from vespiary_operator.reconciler import Reconciler
from vespiary_operator.secret_access import SecretAccess, named
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.errors import ReconcileError
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote


def broker(name: str = "orders", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def test_names_stand_under_fields_that_speak_of_secrets() -> None:
    spec = {
        "auth": {"secretName": "people"},
        "acceptors": [{"name": "all", "tls": {"secretName": "certificate"}}],
        "imagePullSecrets": [{"name": "pull"}],
        "addresses": [{"name": "not-a-reference"}],
        "image": "x",
        "replicas": 1,
    }
    assert set(named(spec)) == {"people", "certificate", "pull"}


def test_a_broker_opens_its_own_secrets_and_those_that_it_names() -> None:
    access = SecretAccess()
    access.learn(broker(auth={"secretName": "people"}))
    for name in ("people", "orders-users", "orders-credentials"):
        access.check_name("ns", name)
        with pytest.raises(ReconcileError, match=f"secrets elsewhere/{name}"):
            access.check_name("elsewhere", name)
    with pytest.raises(ReconcileError, match="no Broker names this Secret"):
        access.check_name("ns", "somebody-elses")


def test_what_is_no_longer_named_is_no_longer_read() -> None:
    access = SecretAccess()
    access.learn(broker(auth={"secretName": "people"}))
    access.learn(broker("other", auth={"secretName": "people"}))
    access.learn(broker())
    access.check_name("ns", "people")
    access.forget("ns", "other")
    with pytest.raises(ReconcileError):
        access.check_name("ns", "people")
    access.forget("ns", "orders")
    with pytest.raises(ReconcileError):
        access.check_name("ns", "orders-users")


@pytest.mark.parametrize("selector", ["", "a=b", f"x{names.MANAGED_SELECTOR}"])
def test_a_list_of_secrets_is_of_the_operators_own(selector: str) -> None:
    with pytest.raises(ReconcileError, match="listed by the operator's own label"):
        SecretAccess.check_selector(selector)
    SecretAccess.check_selector(names.MANAGED_SELECTOR)
    SecretAccess.check_selector(f"a=b,{names.MANAGED_SELECTOR}")


class Unreachable:
    """A client that must not be used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the API server was asked: {name}")


def test_the_client_refuses_before_anything_is_sent() -> None:
    async def test() -> None:
        cluster = Cluster(Unreachable())
        try:
            with pytest.raises(ReconcileError, match="no Broker names"):
                await cluster.get(kinds.SECRET, "people", "ns")
            with pytest.raises(ReconcileError, match="own label"):
                await cluster.items(kinds.SECRET, "ns")
        finally:
            cluster.close()

    asyncio.run(test())


def test_without_rights_for_the_cluster_nothing_cluster_wide_is_asked_for() -> None:
    async def test() -> None:
        cluster = Cluster(Unreachable(), is_cluster_wide=False)
        try:
            assert await cluster.items_if_allowed(kinds.STORAGE_CLASS) is None
            assert await cluster.items_if_allowed(kinds.PERSISTENT_VOLUME) is None
        finally:
            cluster.close()

    asyncio.run(test())


def test_the_reconciler_tells_of_the_brokers_that_it_looks_at() -> None:
    async def test() -> None:
        world, access = FakeKubernetes(), SecretAccess()
        reconciler = Reconciler(
            world, FakeRemote(), WorkQueue(), Options(), Metrics(), secrets=access
        )
        kind = {"apiVersion": kinds.BROKER.api_version, "kind": "Broker"}
        world.put({**kind, **broker(auth={"secretName": "people"})})
        await reconciler.reconcile(Key("Broker", "ns", "orders"))
        access.check_name("ns", "people")
        world.objects.clear()
        await reconciler.reconcile(Key("Broker", "ns", "orders"))
        with pytest.raises(ReconcileError):
            access.check_name("ns", "people")

    asyncio.run(test())
