"""The cache: late events undo nothing, lists find what events lost, and secrets stay outside."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from vespiary_operator import kinds, names, resync
from vespiary_operator.cache import Cache, requirements, version_of, watch_selector
from vespiary_operator.cached_reader import CachedReader, LiveReader, Shared, remember
from vespiary_operator.kinds import Kind
from vespiary_testkit.fake_kubernetes import FakeKubernetes

LABELS = {
    names.LABEL_NAME: "vespiary",
    names.LABEL_INSTANCE: "orders",
    names.LABEL_COMPONENT: names.COMPONENT_BROKER,
    names.LABEL_MANAGED_BY: names.MANAGER,
}


def thing(
    version: int, *, uid: str = "u1", name: str = "orders", kind: str = "Service", **more: Any
) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": dict(LABELS),
        "managedFields": [{"manager": "someone"}],
    }
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


def test_the_newest_state_is_kept_whatever_the_order() -> None:
    cache = Cache()
    assert cache.put(kinds.SERVICE, thing(5, spec={"a": 5}))
    assert not cache.put(kinds.SERVICE, thing(4, spec={"a": 4}))
    assert not cache.put(kinds.SERVICE, thing(5, spec={"a": "again"}))
    assert cache.put(kinds.SERVICE, thing(7, spec={"a": 7}))
    found = cache.get(kinds.SERVICE, "orders", "ns")
    assert found is not None
    assert found["spec"] == {"a": 7}
    assert "managedFields" not in found["metadata"]


def test_numbers_are_compared_as_numbers() -> None:
    cache = Cache()
    cache.put(kinds.SERVICE, thing(99))
    assert cache.put(kinds.SERVICE, thing(100))
    assert version_of("x") == version_of(None) == 0


def test_what_is_gone_does_not_come_back_with_a_late_event() -> None:
    cache = Cache()
    cache.put(kinds.SERVICE, thing(5))
    assert cache.delete(kinds.SERVICE, thing(6))
    assert cache.get(kinds.SERVICE, "orders", "ns") is None
    assert not cache.put(kinds.SERVICE, thing(9))
    assert cache.put(kinds.SERVICE, thing(8, uid="u2")), "another object of the same name"
    assert not cache.delete(kinds.SERVICE, thing(5)), "the deletion of the one before it"
    assert cache.get(kinds.SERVICE, "orders", "ns") is not None


def test_labels_select_and_follow_the_object() -> None:
    cache = Cache()
    cache.put(kinds.POD, thing(1, name="orders-0", kind="Pod"))
    other = thing(2, name="sales-0", uid="u2", kind="Pod")
    other["metadata"]["labels"][names.LABEL_INSTANCE] = "sales"
    cache.put(kinds.POD, other)
    selector = names.selector(LABELS)

    def found(namespace: str = "ns") -> list[str]:
        return [p["metadata"]["name"] for p in cache.items(kinds.POD, namespace, selector)]

    assert found() == found("") == ["orders-0"]
    assert found("elsewhere") == []
    moved = thing(3, name="orders-0", kind="Pod")
    moved["metadata"]["labels"][names.LABEL_INSTANCE] = "sales"
    cache.put(kinds.POD, moved)
    assert found() == []
    assert cache.count(kinds.POD) == 2


def test_no_secret_is_in_memory() -> None:
    cache = Cache()
    secret = thing(1, kind="Secret", data={"admin": "cGFzc3dvcmQ="})
    cache.put(kinds.SECRET, secret)
    cache.put_raw(kinds.SECRET, msgspec.Raw(json.dumps({**secret, **thing(2)}).encode()))
    assert "cGFz" not in repr(vars(cache))


def test_a_list_drops_what_is_gone_and_keeps_what_is_newer() -> None:
    cache = Cache()
    cache.put(kinds.SERVICE, thing(5, name="old"))
    cache.put(kinds.SERVICE, thing(12, name="new", uid="u2"))
    assert cache.keep_only(kinds.SERVICE, "", [], version=10) == 1
    assert cache.get(kinds.SERVICE, "old", "ns") is None
    assert cache.get(kinds.SERVICE, "new", "ns") is not None


def test_a_resync_brings_the_cache_to_what_is_there() -> None:
    async def test() -> None:
        cluster, cache = FakeKubernetes(), Cache()
        for number in range(5):
            metadata = {"name": f"c{number}", "namespace": "ns", "labels": LABELS}
            cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        cache.put(kinds.CONFIG_MAP, thing(1, name="lost", uid="u9", kind="ConfigMap"))
        found = await resync.list_into(cluster, cache, kinds.CONFIG_MAP, "")
        assert (len(found.names), found.renewed, found.dropped) == (5, 5, 1)
        again = await resync.list_into(cluster, cache, kinds.CONFIG_MAP, "ns")
        assert (again.renewed, again.dropped) == (0, 0)
        assert [c["metadata"]["name"] for c in cache.items(kinds.CONFIG_MAP, "ns", "")] == [
            f"c{number}" for number in range(5)
        ]

    asyncio.run(test())


@pytest.mark.parametrize("kind", [kinds.SERVICE_ACCOUNT, kinds.CONFIG_MAP, kinds.SECRET])
def test_what_people_may_have_made_is_asked_for_if_it_is_not_known(kind: Kind) -> None:
    async def test() -> None:
        cluster = FakeKubernetes()
        metadata = {"name": "theirs", "namespace": "ns"}
        cluster.put({"apiVersion": "v1", "kind": kind.name, "metadata": metadata})
        reader = CachedReader(cluster, Cache(), Shared(cluster))
        found = await reader.get(kind, "theirs", "ns")
        assert found is not None

    asyncio.run(test())


def test_only_what_is_watched_is_answered_from_the_cache() -> None:
    async def test() -> None:
        cluster, cache = FakeKubernetes(), Cache()
        reader = CachedReader(cluster, cache, Shared(cluster))
        assert await reader.get(kinds.SERVICE, "orders", "ns") is None
        assert await reader.items(kinds.POD, "ns", names.selector(LABELS)) == []
        assert cluster.calls == []
        await reader.items(kinds.POD, "ns", f"{names.LABEL_INSTANCE}=orders")
        await reader.items(kinds.SECRET, "ns", names.selector(LABELS))
        assert [(verb, kind.name) for verb, kind, _ in cluster.calls] == [
            ("list", "Pod"),
            ("list", "Secret"),
        ]

    asyncio.run(test())


def test_a_list_of_the_whole_cluster_is_shared_by_many_passes() -> None:
    async def test() -> None:
        cluster, cache = FakeKubernetes(), Cache()
        shared = Shared(cluster)
        readers = [CachedReader(cluster, cache, shared), LiveReader(cluster, cache, shared)]
        await asyncio.gather(
            *(reader.items_if_allowed(kinds.STORAGE_CLASS) for reader in readers * 5)
        )
        assert len(cluster.calls) == 1

    asyncio.run(test())


def test_answers_are_remembered_if_they_are_watched() -> None:
    cache = Cache()
    remember(cache, kinds.SERVICE, thing(3))
    assert cache.count(kinds.SERVICE) == 1
    stranger = thing(4, name="x")
    stranger["metadata"]["labels"] = {}
    remember(cache, kinds.SERVICE, stranger)
    remember(cache, kinds.NODE, thing(5, kind="Node"))
    assert cache.count(kinds.SERVICE) == 1
    assert cache.count(kinds.NODE) == 0
    assert watch_selector(kinds.NODE) is None
    claims = watch_selector(kinds.CLAIM)
    assert claims is not None
    assert names.LABEL_MANAGED_BY not in requirements(claims)
