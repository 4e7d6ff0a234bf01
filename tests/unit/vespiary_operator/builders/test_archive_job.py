"""The pod of a run: it may read the broker's volumes, write its target, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator import names
from vespiary_operator.builders import archive_job
from vespiary_spec.resources import API_VERSION, Broker, JournalArchive

RETENTION = {"storage": {"volumes": {"retention": {"size": "1Gi"}}}}
SNAPSHOT = {"source": {"kind": "snapshot", "name": "before"}}


def broker(**spec: Any) -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "b"},
            "spec": RETENTION | spec,
        }
    )


def archive(**spec: Any) -> JournalArchive:
    return JournalArchive.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "JournalArchive",
            "metadata": {"name": "history", "namespace": "ns", "uid": "u", "generation": 3},
            "spec": {"brokerRef": {"name": "orders"}, "target": {"claimName": "exports"}, **spec},
        }
    )


def pod(resource: JournalArchive | None = None, of: Broker | None = None) -> dict[str, Any]:
    return archive_job.pod_spec(
        resource or archive(), of or broker(), image="i:1", pull_policy="IfNotPresent"
    )


def claims(spec: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return claim and whether it is read-only, of each volume that has one."""
    return {
        volume["name"]: (
            volume["persistentVolumeClaim"]["claimName"],
            volume["persistentVolumeClaim"].get("readOnly", False),
        )
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }


@pytest.mark.parametrize(
    ("source", "roles"),
    [
        ({}, {"retention", "bindings", "large-messages"}),
        (SNAPSHOT, {"journal", "bindings", "paging", "large-messages"}),
    ],
)
def test_what_is_read_is_read_only_twice_over(source: dict[str, Any], roles: set[str]) -> None:
    spec = pod(archive(**source))
    assert claims(spec) == {
        "target": ("exports", False),
        **{role: (f"{role}-orders-0", True) for role in roles},
    }
    (container,) = spec["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert {name for name, mount in mounts.items() if mount.get("readOnly")} == roles
    assert {mounts[role]["mountPath"] for role in roles} == {
        f"/var/lib/vespiary/{role}" for role in roles
    }
    assert mounts.keys() - roles == {"target", "scratch", "tmp"}


def verification(**spec: Any) -> JournalArchive:
    return archive(job="verify", target=None, **spec)


@pytest.mark.parametrize(
    ("source", "roles"),
    [
        ({}, {"retention", "large-messages"}),
        (SNAPSHOT, {"journal", "bindings", "paging", "large-messages", "jms"}),
    ],
)
def test_a_verification_writes_nothing_but_its_scratch_folders(
    source: dict[str, Any], roles: set[str]
) -> None:
    volumes = {"retention": {"size": "1Gi"}, "jms": {"size": "1Gi"}}
    spec = pod(verification(**source), broker(storage={"volumes": volumes}))
    assert claims(spec) == {role: (f"{role}-orders-0", True) for role in roles}
    (container,) = spec["containers"]
    writable = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["scratch", "tmp"]
    scratch = {volume["name"]: volume for volume in spec["volumes"] if volume["name"] in writable}
    assert all("emptyDir" in volume for volume in scratch.values())
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is False


def test_a_verification_is_told_what_it_looks_at() -> None:
    assert archive_job.command(verification(sparkConf={"spark.a": "1"})) == [
        *("python3", "-m", "vespiary_pipeline.archive_run", "verify"),
        *("--data", "/var/lib/vespiary", "--retention", "/var/lib/vespiary/retention"),
        *("--result-file", "/dev/termination-log", "--conf", "spark.a=1"),
    ]
    found = archive_job.command(verification(**SNAPSHOT))
    assert found[found.index("--snapshot") + 1] == "before"
    assert "--to" not in found


def test_a_claim_that_several_share_is_mounted_folder_by_folder() -> None:
    volumes = {"retention": {}, "journal": {}, "bindings": {"shareWith": "journal"}}
    shared = broker(storage={"volumes": volumes})
    spec = pod(of=shared)
    assert claims(spec)["journal"] == ("journal-orders-0", True)
    assert "bindings" not in claims(spec)
    (container,) = spec["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    bindings = mounts["/var/lib/vespiary/bindings"]
    assert (bindings["name"], bindings["subPath"], bindings["readOnly"]) == (
        "journal",
        "bindings",
        True,
    )
    assert "/var/lib/vespiary/journal" not in mounts, "what is not read is not mounted"


def test_it_keeps_to_the_restricted_profile_as_the_brokers_user() -> None:
    own = {"podTemplate": {"securityContext": {"runAsUser": 20000, "fsGroup": 20001}}}
    spec = pod(of=broker(**own))
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsUser"] == 20000
    assert spec["securityContext"]["fsGroup"] == 20001
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"] == "3Gi"


def test_it_goes_to_the_node_of_its_broker_while_that_is_to_run() -> None:
    (term,) = pod(archive(brokerRef={"name": "orders", "ordinal": 1}), broker(replicas=2))[
        "affinity"
    ]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"][names.LABEL_POD_NAME] == "orders-1"
    assert "affinity" not in pod(of=broker(hibernate=True)), "there is no pod to go to"
    scheduling = {
        "nodeSelector": {"pool": "b"},
        "tolerations": [{"key": "b", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    assert scheduling.items() <= pod(of=broker(**scheduling)).items()


def test_the_command_says_what_is_read_and_where_it_goes() -> None:
    conf = {"spark.b": "2", "spark.a": "x=1"}
    assert archive_job.command(archive(sparkConf=conf)) == [
        *("python3", "-m", "vespiary_pipeline.archive_run", "export"),
        *("--data", "/var/lib/vespiary", "--retention", "/var/lib/vespiary/retention"),
        *("--to", "/archive/history", "--result-file", "/dev/termination-log"),
        *("--conf", "spark.a=x=1", "--conf", "spark.b=2"),
    ]
    target = {"claimName": "exports", "path": "a/b"}
    found = archive_job.command(archive(**SNAPSHOT, target=target))
    assert found[found.index("--snapshot") + 1] == "before"
    assert found[found.index("--to") + 1] == "/archive/a/b"
    assert "--retention" not in found


def test_what_a_run_says_is_final_and_an_eviction_is_not() -> None:
    made = archive_job.job(archive(activeDeadlineSeconds=60), pod())
    assert made["metadata"]["name"] == "history-archive-3"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("JournalArchive", True)
    spec = made["spec"]
    assert spec["activeDeadlineSeconds"] == 60
    final, again = spec["podFailurePolicy"]["rules"]
    assert (final["action"], final["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert again["action"] == "Ignore"
    assert spec["backoffLimit"] > 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_two_runs_never_write_at_a_time() -> None:
    found = archive_job.cron_job(archive(schedule="@daily", failedJobsHistoryLimit=0), pod())
    spec = found["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert (spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (3, 0)
    assert spec["jobTemplate"]["metadata"]["labels"] == names.archive_labels(archive())
    assert "timeZone" not in spec
