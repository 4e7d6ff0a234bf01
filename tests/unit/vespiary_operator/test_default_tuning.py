"""What of the chart's values goes into the BrokerNodeTuning `default`, and what stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vespiary_operator import kinds, names
from vespiary_operator.default_tuning import FIELD_MANAGER, plan
from vespiary_operator.options import Options, from_environment
from vespiary_spec.errors import ConfigError, ReconcileError

from .test_reconciler import TUNING, World, in_world

VALUES = {"mode": "Verify", "floor": 65536}


def text(**changes: Any) -> str:
    return json.dumps({**VALUES, **changes})


def live(spec: dict[str, Any], record: str | None = None, **owners: list[str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "default"}
    if record is not None:
        metadata["annotations"] = {names.ANNOTATION_CHART_VALUES: record}
    metadata["managedFields"] = [
        {"manager": manager, "fieldsV1": {"f:spec": {".": {}, **{f"f:{f}": {} for f in fields}}}}
        for manager, fields in owners.items()
    ]
    return {"metadata": metadata, "spec": spec}


def written(values: str, found: dict[str, Any] | None) -> dict[str, Any]:
    action = plan(values, found)
    assert action is not None
    assert action.manager == FIELD_MANAGER
    assert action.manifest["metadata"]["annotations"][names.ANNOTATION_CHART_VALUES] == values
    spec: dict[str, Any] = action.manifest["spec"]
    return spec


def test_it_is_made_with_all_the_values_and_then_left_alone() -> None:
    values = text(nodeSelector={"pool": "a"}, tolerations=[{"operator": "Exists"}])
    assert written(values, None) == json.loads(values)
    edited = live({"mode": "Raise", "margin": 7}, values)
    assert plan(values, edited) is None, "the same values are not written over edits"


@pytest.mark.parametrize(
    ("changes", "spec", "wanted"),
    [
        # a value that changed is written, the edited one that did not is not
        ({"mode": "Raise"}, {"mode": "Verify", "floor": 7}, {"mode": "Raise"}),
        ({"floor": 9}, {"mode": "Off", "floor": 65536}, {"floor": 9}),
        ({"floor": 9}, {"mode": "Verify", "floor": 7}, {"mode": "Verify", "floor": 9}),
        # what nobody touched stays the chart's, and what somebody took away stays away
        ({"margin": 5}, {**VALUES}, {**VALUES, "margin": 5}),
        ({"margin": 5}, {"mode": "Verify"}, {"mode": "Verify", "margin": 5}),
    ],
)
def test_a_value_is_written_when_it_changes(
    changes: dict[str, Any], spec: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert written(text(**changes), live(spec, text())) == wanted


def test_labels_of_nodes_are_values_one_by_one() -> None:
    before = text(nodeSelector={"pool": "a", "disk": "fast"})
    spec = {**VALUES, "nodeSelector": {"pool": "a", "disk": "slow", "zone": "z"}}
    after = text(nodeSelector={"pool": "b", "disk": "fast"})
    assert written(after, live(spec, before)) == {**VALUES, "nodeSelector": {"pool": "b"}}
    # What the values no longer say is not in the manifest, so the API server takes it away.
    assert written(text(), live(spec, before)) == VALUES


def test_one_that_people_made_keeps_what_it_has() -> None:
    found = live({"mode": "Raise"}, **{"kubectl-edit": ["mode"]})
    assert written(text(), found) == {"floor": 65536}


def test_one_that_a_hook_made_follows_the_values_but_for_edits() -> None:
    assert written(text(mode="Raise"), live({"mode": "Verify"}, helm=["mode"]))["mode"] == "Raise"
    edited = live({"mode": "Raise", "floor": 7}, helm=[], **{"kubectl-edit": ["mode", "floor"]})
    assert written(text(), edited) == {}


@pytest.mark.parametrize("record", ["", "{", "[]", "7"])
def test_a_record_that_cannot_be_read_has_everything_written(record: str) -> None:
    assert written(text(), live({"mode": "Raise"}, record)) == VALUES


def test_the_operator_makes_it_and_brings_it_to_new_values() -> None:
    async def test(world: World) -> None:
        await world.reconciler.enqueue_all()
        assert TUNING in [await world.queue.take()]
        await world.until_quiet(TUNING)
        found = world.cluster.one(kinds.NODE_TUNING, "default", "")
        assert found["spec"] == VALUES
        assert found["status"]["conditions"]
        assert ("Normal", "Created") in world.events()
        uid = found["metadata"]["uid"]
        world.options = Options(default_tuning=text(mode="Off"))
        world.restart()
        await world.until_quiet(TUNING)
        found = world.cluster.one(kinds.NODE_TUNING, "default", "")
        assert (found["spec"]["mode"], found["metadata"]["uid"]) == ("Off", uid)
        world.cluster.remove(kinds.NODE_TUNING, "default", "")
        await world.until_quiet(TUNING)
        assert world.cluster.one(kinds.NODE_TUNING, "default", "")["spec"]["mode"] == "Off"

    in_world(test, Options(default_tuning=text()))


def test_without_values_nothing_is_made() -> None:
    async def test(world: World) -> None:
        await world.until_quiet(TUNING)
        assert not world.cluster.of(kinds.NODE_TUNING)

    in_world(test)


def test_values_that_are_refused_are_told_and_the_rest_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        apply = world.cluster.apply

        async def refused(manifest: dict[str, Any], manager: str = "") -> dict[str, Any]:
            if manager == FIELD_MANAGER:
                raise ReconcileError("spec.floor is above spec.max")
            return await apply(manifest, manager)

        monkeypatch.setattr(world.cluster, "apply", refused)
        with pytest.raises(ReconcileError, match="above"):
            await world.reconciler.reconcile(TUNING)
        world.cluster.put(
            {
                "apiVersion": kinds.NODE_TUNING.api_version,
                "kind": "BrokerNodeTuning",
                "metadata": {"name": "default"},
                "spec": {"mode": "Raise"},
            }
        )
        with pytest.raises(ReconcileError, match="above"):
            await world.reconciler.reconcile(TUNING)
        assert world.cluster.of(kinds.DAEMON_SET), "the tuning that there is, is looked after"
        (ready, *_) = world.cluster.one(kinds.NODE_TUNING, "default", "")["status"]["conditions"]
        assert ready["reason"] == "ApplyFailed"
        assert "spec.floor is above spec.max" in ready["message"]

    in_world(test, Options(default_tuning=text()))


@pytest.mark.parametrize("given", ["{", "[]", "7"])
def test_what_the_environment_must_not_say(given: str) -> None:
    with pytest.raises(ConfigError, match="VESPIARY_DEFAULT_TUNING"):
        from_environment({"VESPIARY_DEFAULT_TUNING": given})
    assert from_environment({"VESPIARY_DEFAULT_TUNING": text()}).default_tuning == text()
