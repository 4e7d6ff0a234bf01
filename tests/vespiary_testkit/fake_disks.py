"""Claims and their disks for `fake_kubernetes`: made with a pod, grown as a class of driver does.

The class `online` grows in use, `offline` when no pod uses the disk, `stuck` never, and with words;
`fixed` allows no growth. Called by `fake_kubernetes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vespiary_operator import kinds
from vespiary_operator.drift import quantity

if TYPE_CHECKING:
    from vespiary_testkit.fake_kubernetes import FakeKubernetes


class FakeDisks:
    """The provisioner of every class."""

    def __init__(self, cluster: FakeKubernetes) -> None:
        for name in ("online", "offline", "stuck", "fixed"):
            cluster.put(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "metadata": {"name": name},
                    "provisioner": "ebs.csi.aws.com",
                    "allowVolumeExpansion": name != "fixed",
                }
            )

    def claim(self, cluster: FakeKubernetes, stateful_set: dict[str, Any], ordinal: int) -> None:
        """Make the claims of a pod that is about to be made, and grow those that rest."""
        metadata = stateful_set["metadata"]
        for template in stateful_set["spec"].get("volumeClaimTemplates") or ():
            name = f"{template['metadata']['name']}-{metadata['name']}-{ordinal}"
            key = ("PersistentVolumeClaim", metadata["namespace"], name)
            found = cluster.objects.get(key)
            if found is not None:
                if found["spec"]["storageClassName"] == "offline":
                    self._grow(cluster, found)
                continue
            size = template["spec"]["resources"]["requests"]["storage"]
            cluster.put(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                        "name": name,
                        "namespace": metadata["namespace"],
                        "labels": template["metadata"]["labels"],
                    },
                    "spec": {"storageClassName": "online", **template["spec"]},
                    "status": {"phase": "Bound", "capacity": {"storage": size}},
                }
            )

    def work(self, cluster: FakeKubernetes) -> None:
        """Do what each driver does about claims that ask for more."""
        for found in cluster.of(kinds.CLAIM):
            wanted = quantity(found["spec"]["resources"]["requests"]["storage"])
            has = quantity(found["status"]["capacity"]["storage"])
            assert wanted is not None
            assert has is not None
            if wanted < has:
                raise AssertionError(f"{found['metadata']['name']} was made smaller")
            if wanted == has:
                continue
            match found["spec"]["storageClassName"]:
                case "online":
                    self._grow(cluster, found)
                case "offline":
                    self._tell(cluster, found, "FileSystemResizePending", "start the pod again")
                case "stuck":
                    self._tell(cluster, found, "ControllerResizeError", "no more room in the pool")

    @staticmethod
    def _grow(cluster: FakeKubernetes, found: dict[str, Any]) -> None:
        size = found["spec"]["resources"]["requests"]["storage"]
        found["status"] = {"phase": "Bound", "capacity": {"storage": size}}
        cluster.put(found)

    @staticmethod
    def _tell(cluster: FakeKubernetes, found: dict[str, Any], kind: str, message: str) -> None:
        found["status"]["conditions"] = [{"type": kind, "status": "True", "message": message}]
        cluster.put(found)
