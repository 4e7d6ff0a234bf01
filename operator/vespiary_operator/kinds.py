"""The kinds of objects that the operator reads or writes.

Owns: group, version and names of each. Never: talks to the API server.
Called by: every module that names a kind; `rbac` makes the rules from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vespiary_spec import limits


class Kind(NamedTuple):
    """One kind of object.

    Attributes:
        name: Such as `StatefulSet`.
        plural: As in paths and rules.
        group: API group; empty for the core one.
        version: API version.
        is_namespaced: Whether its objects live in namespaces.
    """

    name: str
    plural: str
    group: str = ""
    version: str = "v1"
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Group and version as manifests have them."""
        return f"{self.group}/{self.version}" if self.group else self.version


BROKER = Kind("Broker", "brokers", limits.API_GROUP, limits.API_VERSION)
NODE_TUNING = Kind(
    "BrokerNodeTuning", "brokernodetunings", limits.API_GROUP, limits.API_VERSION, False
)
JOURNAL_ARCHIVE = Kind("JournalArchive", "journalarchives", limits.API_GROUP, limits.API_VERSION)
STATEFUL_SET = Kind("StatefulSet", "statefulsets", "apps")
CONTROLLER_REVISION = Kind("ControllerRevision", "controllerrevisions", "apps")
DAEMON_SET = Kind("DaemonSet", "daemonsets", "apps")
CRON_JOB = Kind("CronJob", "cronjobs", "batch")
JOB = Kind("Job", "jobs", "batch")
SERVICE = Kind("Service", "services")
CONFIG_MAP = Kind("ConfigMap", "configmaps")
SECRET = Kind("Secret", "secrets")
SERVICE_ACCOUNT = Kind("ServiceAccount", "serviceaccounts")
ROLE_BINDING = Kind("RoleBinding", "rolebindings", "rbac.authorization.k8s.io")
POD_DISRUPTION_BUDGET = Kind("PodDisruptionBudget", "poddisruptionbudgets", "policy")
NETWORK_POLICY = Kind("NetworkPolicy", "networkpolicies", "networking.k8s.io")
POD_MONITOR = Kind("PodMonitor", "podmonitors", "monitoring.coreos.com")
TLS_ROUTE = Kind("TLSRoute", "tlsroutes", "gateway.networking.k8s.io")
TLS_ROUTE_VERSIONS = (
    TLS_ROUTE,
    TLS_ROUTE._replace(version="v1alpha3"),
    TLS_ROUTE._replace(version="v1alpha2"),
)
"""TLSRoute in every version that a cluster may have, the newest first."""
POD = Kind("Pod", "pods")
CLAIM = Kind("PersistentVolumeClaim", "persistentvolumeclaims")
PERSISTENT_VOLUME = Kind("PersistentVolume", "persistentvolumes", is_namespaced=False)
STORAGE_CLASS = Kind("StorageClass", "storageclasses", "storage.k8s.io", is_namespaced=False)
ATTRIBUTES_CLASS = Kind(
    "VolumeAttributesClass", "volumeattributesclasses", "storage.k8s.io", is_namespaced=False
)
CSI_NODE = Kind("CSINode", "csinodes", "storage.k8s.io", is_namespaced=False)
NODE = Kind("Node", "nodes", is_namespaced=False)
TUNED = Kind("Tuned", "tuneds", "tuned.openshift.io")
EVENT = Kind("Event", "events")
LEASE = Kind("Lease", "leases", "coordination.k8s.io")

ALL = (
    BROKER,
    NODE_TUNING,
    JOURNAL_ARCHIVE,
    STATEFUL_SET,
    CONTROLLER_REVISION,
    DAEMON_SET,
    CRON_JOB,
    JOB,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    SERVICE_ACCOUNT,
    ROLE_BINDING,
    POD_DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD_MONITOR,
    TLS_ROUTE,
    POD,
    CLAIM,
    PERSISTENT_VOLUME,
    STORAGE_CLASS,
    ATTRIBUTES_CLASS,
    CSI_NODE,
    NODE,
    TUNED,
    EVENT,
    LEASE,
)

BY_NAME = {kind.name: kind for kind in ALL}
"""Kind by the `kind` of its manifests."""


def of(manifest: Mapping[str, Any]) -> Kind:
    """Return the kind of a manifest, in the version that the manifest has."""
    kind = BY_NAME[manifest["kind"]]
    return kind._replace(version=str(manifest["apiVersion"]).rpartition("/")[2])


WATCHED_CHILDREN = (
    STATEFUL_SET,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    SERVICE_ACCOUNT,
    POD_DISRUPTION_BUDGET,
    NETWORK_POLICY,
    CRON_JOB,
    JOB,
    POD,
    CLAIM,
)
"""Kinds whose labelled objects wake up the reconcile of their owner."""
