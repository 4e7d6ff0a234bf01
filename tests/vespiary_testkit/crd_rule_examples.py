"""What every CEL rule of the CRDs refuses and takes; bounds are read from the model.

Owns: the examples of rules that are no bounds, by the rule's message.
Called by: tests/e2e/test_crd_rules.py, tests/unit/vespiary_spec/test_crd_rule_examples.py.

A rule without examples fails both: nothing says here which rules there are.
"""

from __future__ import annotations

import functools
from typing import Any

from vespiary_spec.gen.crds import definitions
from vespiary_spec.resources import (
    ADMIN_CLIENT_CERTIFICATE_TEXT,
    DEFAULT_VOLUME_BYTES,
    BrokerNodeTuningSpec,
    BrokerSpec,
)
from vespiary_spec.scaling import TOPOLOGY_RULES
from vespiary_testkit.crd_rules import (
    Case,
    Examples,
    Rule,
    bounded_fields,
    bounds_examples,
    cases_of,
    rules_of,
)

VOLUMES = ("bindings", "journal", "paging", "largeMessages", "jms", "retention")
KEPT = "cannot change once the Broker exists"


def volume(name: str, **fields: Any) -> dict[str, Any]:
    return {"storage": {"volumes": {name: fields}}}


def security(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"securityContext": fields}}


def mount(name: str) -> dict[str, Any]:
    return {"name": name, "mountPath": f"/mnt/{name}"}


FOLDER = {"name": "a", "emptyDir": {}}
SECRET = {"name": "s", "key": "k"}
VARIABLES_OF_THE_IMAGE = (
    "PATH, HOME, LOGNAME and names that begin with VESPIARY_, PYTHON or LD_ are set by the image "
    "and the operator"
)
ARCHIVED = {"brokerRef": {"name": "orders"}, "target": {"claimName": "exports"}}
VERIFIED = {"brokerRef": {"name": "orders"}, "job": "verify"}
SNAPSHOT = {"kind": "snapshot", "name": "before"}
OUTSIDE = ({"type": "NodePort"}, {"type": "LoadBalancer"})

RESOURCES: dict[str, Examples] = {
    "spec.floor is above spec.max": Examples(
        refused=({"floor": 201, "max": 200}, {"floor": 4194305}, {"max": 65535}),
        taken=({"floor": 200, "max": 200}, {"floor": 4194304}, {"max": 65536}, {}),
    ),
    "the name has to be at most 48 characters: small letters, digits and -, a letter first": (
        Examples(names=(("1orders", "a.b", "a" * 49), ("a", "a-1", "a" * 48)))
    ),
    "the name has to be at most 40 characters: small letters, digits and -, a letter first": (
        Examples(names=(("1orders", "a.b", "a" * 41), ("a", "a-1", "a" * 40)), spec=ARCHIVED)
    ),
    "spec.target is missing: an export needs a claim, in spec.target.claimName": Examples(
        refused=({"brokerRef": {"name": "orders"}}, {"brokerRef": {"name": "a"}, "job": "export"}),
        taken=(ARCHIVED, ARCHIVED | {"job": "export"}),
    ),
    "spec.target is not for job: verify, which writes nothing: take it out": Examples(
        refused=(ARCHIVED | {"job": "verify"},),
        taken=(VERIFIED, VERIFIED | {"source": SNAPSHOT}, ARCHIVED),
    ),
    "spec.source.name is needed with source.kind: snapshot, and with nothing else": Examples(
        refused=(
            ARCHIVED | {"source": {"kind": "snapshot"}},
            ARCHIVED | {"source": {"name": "before"}},
            ARCHIVED | {"source": SNAPSHOT | {"kind": "retention"}},
        ),
        taken=(
            ARCHIVED | {"source": SNAPSHOT},
            ARCHIVED | {"source": {"kind": "retention"}},
            ARCHIVED | {"source": {}},
        ),
    ),
    "spec.timeZone needs spec.schedule": Examples(
        refused=(ARCHIVED | {"timeZone": "Europe/Berlin"},),
        taken=(ARCHIVED | {"timeZone": "Europe/Berlin", "schedule": "0 3 * * *"},),
    ),
    "spec.storage.ephemeral cannot change once the Broker exists": Examples(
        before={"storage": {"ephemeral": True}},
        refused=({}, {"storage": {"ephemeral": False}}),
        taken=({"storage": {"ephemeral": True}},),
    ),
    **{
        f"spec.podTemplate.securityContext.{name} {KEPT}: the files on its volumes belong to it": (
            Examples(
                before=security(**{name: 12345}),
                refused=({}, security(**{name: 12346})),
                taken=(security(**{name: 12345}),),
            )
        )
        for name in ("runAsUser", "runAsGroup", "fsGroup")
    },
    **{
        f"spec.storage.volumes.{name} can neither be given nor taken out once the Broker exists": (
            Examples(before=volume(name), refused=({},), taken=(volume(name),))
        )
        for name in ("jms", "retention")
    },
    **{
        "storageClassName, accessMode, selector and shareWith of the volume "
        f"{name} cannot change once the Broker exists, and the volume cannot be taken out": (
            Examples(
                before=volume(name, storageClassName="a", accessMode="ReadWriteOnce"),
                refused=({}, volume(name), volume(name, storageClassName="a")),
                taken=(volume(name, storageClassName="a", accessMode="ReadWriteOnce"),),
            )
        )
        for name in VOLUMES
    },
    **{
        f"volumeAttributesClassName of the volume {name} may change, but not be taken out": (
            Examples(
                before=volume(name, volumeAttributesClassName="a"),
                refused=({}, volume(name)),
                taken=(
                    volume(name, volumeAttributesClassName="a"),
                    volume(name, volumeAttributesClassName="b"),
                ),
            )
        )
        for name in VOLUMES
    },
    **{
        f"spec.storage.volumes.{name}.size cannot become smaller than the claims are: see "
        "status.volumes; a volume only grows": Examples(
            before=volume(name, size="20Gi"),
            refused=(volume(name, size="19Gi"), volume(name, size=20 * 2**30 - 1), volume(name)),
            taken=(volume(name, size=20 * 2**30), volume(name, size="21Gi")),
        )
        for name in VOLUMES
    },
}
"""Examples of rules on whole resources: values of `spec`."""

PARTS: dict[str, Examples] = {
    "an acceptor has the port of the HTTP listener (admin.port, 8161 unless given)": Examples(
        refused=(
            {"acceptors": [{"name": "a", "port": 8161}]},
            {"acceptors": [{"name": "a", "port": 9000}], "admin": {"port": 9000}},
        ),
        taken=({"acceptors": [{"name": "a", "port": 8161}], "admin": {"port": 9000}},),
    ),
    ADMIN_CLIENT_CERTIFICATE_TEXT: Examples(
        refused=({"secretName": "s", "requireClientCertificate": True},),
        taken=({"secretName": "s", "requestClientCertificate": True}, {"secretName": "s"}),
    ),
    TOPOLOGY_RULES[0][1]: Examples(
        refused=({"replicas": 2},),
        taken=({"replicas": 1}, {"replicas": 2, "topology": "Independent"}),
    ),
    TOPOLOGY_RULES[1][1]: Examples(
        refused=({"topology": "Sharded"},), taken=({"topology": "Independent"},)
    ),
    "a mount in extraVolumeMounts names a volume that extraVolumes does not have": Examples(
        refused=(
            {"extraVolumeMounts": [mount("a")]},
            {"extraVolumes": [FOLDER], "extraVolumeMounts": [mount("a"), mount("b")]},
        ),
        taken=({"extraVolumes": [FOLDER], "extraVolumeMounts": [mount("a")]},),
    ),
    "a volume in extraVolumes is mounted nowhere; give it an entry in extraVolumeMounts": Examples(
        refused=({"extraVolumes": [FOLDER]},),
        taken=({"extraVolumes": [FOLDER], "extraVolumeMounts": [mount("a")]},),
    ),
    "a port of the Service has a name that no acceptor has": Examples(
        refused=(
            {"service": {"ports": [{"name": "amqps"}]}},
            {
                "service": {"ports": [{"name": "all"}]},
                "acceptors": [{"name": "mine", "port": 7000}],
            },
        ),
        taken=(
            {"service": {"ports": [{"name": "stomp"}, {"name": "http"}]}},
            {
                "service": {"ports": [{"name": "mine"}]},
                "acceptors": [{"name": "mine", "port": 7000}],
            },
        ),
    ),
    "tlsRoute.acceptor names no acceptor": Examples(
        refused=(
            {
                "tlsRoute": {
                    "parentRefs": [{"name": "a"}],
                    "hostnames": ["a.b"],
                    "acceptor": "amqps",
                }
            },
        ),
        taken=(
            {
                "tlsRoute": {
                    "parentRefs": [{"name": "a"}],
                    "hostnames": ["a.b"],
                    "acceptor": "all",
                }
            },
        ),
    ),
    **{
        f"a volume shares the claim of {name}, which has none of its own": Examples(
            refused=(
                {name: {"shareWith": name}},
                {name: {"shareWith": other}, "jms": {"shareWith": name}},
            ),
            taken=({name: {"shareWith": other}, "jms": {"shareWith": other}},),
        )
        for name, other in zip(VOLUMES[:4], (*VOLUMES[1:4], VOLUMES[0]), strict=True)
    },
    **{
        f"autoGrow.maxSize is below the size of the volume {name}": Examples(
            refused=(
                {name: {"size": "2Gi", "autoGrow": {"maxSize": "2047Mi"}}},
                {name: {"size": 2**31, "autoGrow": {"maxSize": 2**31 - 1}}},
                {name: {"autoGrow": {"maxSize": DEFAULT_VOLUME_BYTES[attribute] - 1}}},
            ),
            taken=(
                {name: {"size": "2Gi", "autoGrow": {"maxSize": "2048Mi"}}},
                {name: {"size": "64Mi", "autoGrow": {"maxSize": "65Mi"}}},
                {name: {"autoGrow": {"maxSize": DEFAULT_VOLUME_BYTES[attribute]}}},
            ),
        )
        for name, attribute in zip(VOLUMES, DEFAULT_VOLUME_BYTES, strict=True)
    },
    "two acceptors have the same port": Examples(
        refused=([{"name": "a", "port": 7000}, {"name": "b", "port": 7000}],),
        taken=([{"name": "a", "port": 7000}, {"name": "b", "port": 7001}],),
    ),
    "journalBufferSize is larger than journalFileSize; one record has to fit into one file": (
        Examples(
            refused=({"journalBufferSize": "1Mi", "journalFileSize": 2**20 - 4096},),
            taken=({"journalBufferSize": "1Mi", "journalFileSize": 2**20},),
        )
    ),
    "externalTrafficPolicy is for the types NodePort and LoadBalancer": Examples(
        refused=(
            {"externalTrafficPolicy": "Local"},
            {"externalTrafficPolicy": "Local", "type": "ClusterIP"},
        ),
        taken=tuple({"externalTrafficPolicy": "Local"} | kind for kind in OUTSIDE),
    ),
    "loadBalancerSourceRanges and loadBalancerClass are for the type LoadBalancer": Examples(
        refused=(
            {"loadBalancerClass": "a.b/c", "type": "NodePort"},
            {"loadBalancerSourceRanges": ["10.0.0.0/8"]},
        ),
        taken=(
            {
                "type": "LoadBalancer",
                "loadBalancerClass": "a.b/c",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
            },
        ),
    ),
    "a nodePort is for the types NodePort and LoadBalancer": Examples(
        refused=({"ports": [{"name": "all", "nodePort": 30001}]},),
        taken=tuple({"ports": [{"name": "all", "nodePort": 30001}]} | kind for kind in OUTSIDE),
    ),
    "annotations of this domain are the operator's or Kubernetes' own": Examples(
        refused=({"vespiary.dev/x": "y"}, {"a": "b", "pv.kubernetes.io/x": "y"}),
        taken=({"example.com/x": "y"}, {}),
    ),
    "labels by which pods are selected are the operator's": Examples(
        refused=({"app.kubernetes.io/name": "y"}, {"a": "b", "vespiary.dev/x": "y"}),
        taken=({"example.com/x": "y", "app.kubernetes.io/part-of": "y"}, {}),
    ),
    "annotations are for the account that is made; one that is named keeps its own": Examples(
        refused=({"name": "a", "annotations": {"b": "c"}},),
        taken=({"name": "a"}, {"annotations": {"b": "c"}}),
    ),
    "localhostProfile belongs to the type Localhost, and to it alone": Examples(
        refused=({"type": "Localhost"}, {"type": "RuntimeDefault", "localhostProfile": "x.json"}),
        taken=({"type": "RuntimeDefault"}, {"type": "Localhost", "localhostProfile": "x.json"}),
    ),
    "a variable has one of value and valueFrom": Examples(
        refused=({"name": "A", "value": "x", "valueFrom": {"secretKeyRef": SECRET}},),
        taken=({"name": "A", "value": "x"}, {"name": "A", "valueFrom": {"secretKeyRef": SECRET}}),
    ),
    "valueFrom has one of configMapKeyRef, secretKeyRef and fieldRef": Examples(
        refused=(
            {"name": "A", "valueFrom": {}},
            {"name": "A", "valueFrom": {"secretKeyRef": SECRET, "configMapKeyRef": SECRET}},
        ),
        taken=(
            {"name": "A", "valueFrom": {"configMapKeyRef": SECRET}},
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ),
    ),
    "variables come from one of configMapRef and secretRef": Examples(
        refused=(
            {"prefix": "A_"},
            {"prefix": "A_", "secretRef": {"name": "s"}, "configMapRef": {"name": "s"}},
        ),
        taken=(
            {"prefix": "A_", "secretRef": {"name": "s"}},
            {"prefix": "A_", "configMapRef": {"name": "s"}},
        ),
    ),
    "a volume has one of configMap, secret, projected, emptyDir, persistentVolumeClaim": Examples(
        refused=({"name": "a"}, FOLDER | {"secret": {"secretName": "s"}}),
        taken=(FOLDER, {"name": "a", "secret": {"secretName": "s"}}),
    ),
    "each source is one of configMap and secret": Examples(
        refused=([{}], [{"secret": {"name": "s"}, "configMap": {"name": "s"}}]),
        taken=([{"secret": {"name": "s"}}, {"configMap": {"name": "s"}}],),
    ),
    "this is the name of a claim that holds a broker's data, which only its own broker may mount": (
        Examples(refused=("journal-bills-0", "large-messages-a-12"), taken=("shelf", "journal-a"))
    ),
    "this path is the image's or the operator's; take one such as /mnt/NAME or /etc/NAME": Examples(
        refused=("/var/lib/vespiary/journal", "/etc", "/tmp/x", "/opt/vespiary"),
        taken=("/etc/ssl", "/opt/d", "/mnt/a", "/var/lib/mine"),
    ),
}
"""Examples of rules on parts of `spec`: values of the part."""

FIELDS: dict[tuple[str, str], Examples] = {
    (
        "sparkConf",
        "settings of Spark begin with spark.; spark.master, spark.driver.host, spark.local.dir and "
        "spark.kubernetes. are the operator's",
    ): Examples(
        refused=({"driver.memory": "1g"}, {"spark.master": "local"}, {"spark.kubernetes.a": "b"}),
        taken=({"spark.driver.memory": "1g"}, {"spark.masters": "a"}, {}),
    ),
    ("name", VARIABLES_OF_THE_IMAGE): Examples(
        refused=("VESPIARY_NATIVE", "LD_PRELOAD", "PYTHONPATH", "PATH", "HOME"),
        taken=("TZ", "PATHS", "MY_PYTHON"),
    ),
    ("prefix", VARIABLES_OF_THE_IMAGE): Examples(
        refused=("VESPIARY_", "PYTHON_", "LD_"), taken=("APP_",)
    ),
    ("storageClassName", KEPT): Examples(before="a", refused=("b",), taken=("a",)),
    ("accessMode", KEPT): Examples(
        before="ReadWriteOnce", refused=("ReadWriteOncePod",), taken=("ReadWriteOnce",)
    ),
    ("selector", KEPT): Examples(
        before={"matchLabels": {"a": "b"}},
        refused=({"matchLabels": {"a": "c"}}, {}),
        taken=({"matchLabels": {"a": "b"}},),
    ),
}
"""Examples of rules whose message stands at fields of several types, by the field's name."""


def sharing(rule: Rule) -> Examples:
    """Return examples on `shareWith`, which may not name the volume itself."""
    first, second = [name for name in VOLUMES[:4] if f".{name}" not in rule.path][:2]
    if rule.path.endswith(".shareWith"):
        return Examples(before=first, refused=(second,), taken=(first,))
    alone = {"shareWith": first}
    return Examples(
        refused=(
            alone | {"size": "1Gi"},
            alone | {"storageClassName": "a"},
            alone | {"autoGrow": {"maxSize": "20Gi"}},
        ),
        taken=(alone, {"size": "1Gi", "storageClassName": "a"}),
    )


@functools.cache
def _bounds() -> dict[tuple[str, str], Examples]:
    return {
        (f"{kind}{place}", f"allowed: {facts.allowed()}"): bounds_examples(facts)
        for kind, spec in (("Broker", BrokerSpec), ("BrokerNodeTuning", BrokerNodeTuningSpec))
        for place, facts in bounded_fields(spec)
    }


def examples_of(rule: Rule) -> Examples | None:
    """Return what there is to show a rule with; None for one that nobody gave examples."""
    if rule.path.endswith(".shareWith") or rule.message.endswith("other field than shareWith"):
        return sharing(rule)
    if not rule.path:
        return RESOURCES.get(rule.message)
    found = _bounds().get((f"{rule.kind}{rule.path}", rule.message)) or PARTS.get(rule.message)
    return found or FIELDS.get((rule.path.rpartition(".")[2], rule.message))


def all_rules() -> list[Rule]:
    """Return every rule of every definition."""
    return [rule for definition in definitions().values() for rule in rules_of(definition)]


def all_cases() -> list[Case]:
    """Return a request for each example of each rule."""
    return [
        case
        for rule in all_rules()
        for case in cases_of(
            rule, examples_of(rule) or Examples(before={} if rule.is_of_change else None)
        )
    ]
