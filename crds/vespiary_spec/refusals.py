"""Names and values that are known but do not work in this version.

Owns: the list of what the reference system, or Vespiary's own plan, knows and
this version refuses by name. A name here wins over a field of the same name in
the model: it is refused by `conversion` and left out of CRDs, schemas and
reference tables. Supporting a setting means deleting its line here (and having
its field in `settings`); withdrawing one means adding a line.
Never: holds anything that works.
Called by: `conversion`, `gen`.
"""

from __future__ import annotations

BROKER = "BrokerSettings"
ADDRESS_SETTINGS = "AddressSettings"
ACCEPTOR = "AcceptorBase"

NOT_YET: dict[str, dict[str, str]] = {
    BROKER: {
        # journals and storage
        "node-manager-lock-directory": "shared-store high availability",
        "critical-analyzer": "the critical analyzer",
        "critical-analyzer-timeout": "the critical analyzer",
        "critical-analyzer-check-period": "the critical analyzer",
        "critical-analyzer-policy": "the critical analyzer",
        "jdbc-store": "a store in a database",
        # other parts of the reference's configuration file
        "connectors": "clustering",
        "cluster-connections": "clustering",
        "broadcast-groups": "clustering",
        "discovery-groups": "clustering",
        "bridges": "bridges",
        "ha-policy": "high availability",
        "grouping-handler": "message groups over a cluster",
        "broker-connections": "broker connections",
        "connection-routers": "connection routers",
    },
    ADDRESS_SETTINGS: {
        "redistribution-delay": "clustering",
    },
    "SecuritySettings": {
        "view": "permissions for single operations of the management (`manage` works)",
        "edit": "permissions for single operations of the management (`manage` works)",
    },
    ACCEPTOR: {
        "amqp-min-large-message-size": "AMQP and large messages",
        "mqtt-min-large-message-size": "MQTT and large messages",
        "stomp-min-large-message-size": "a limit by acceptor (`min-large-message-size` works)",
        "connection-ttl": "another time to live than the heart-beats'",
    },
    "BrokerSpec": {
        "backup": "backups",
        "restore": "restoring from backups",
        "ingress": "ingress",
    },
    "PerBroker": {
        name: f"{what} by broker: all pods of a StatefulSet have one template"
        for name, what in (
            ("resources", "resources"),
            ("node-selector", "node selectors"),
            ("affinity", "affinity"),
            ("tolerations", "tolerations"),
            ("topology-spread-constraints", "spreading"),
            ("storage", "volumes"),
            ("image", "images"),
            ("version", "versions"),
            ("env", "variables"),
            ("acceptors", "acceptors"),
        )
    }
    | {
        "address-settings": "settings of addresses by broker",
        "addresses": "addresses by broker; make them through the API of the one broker",
    },
    "BrokerOverrides": {
        "persistence-enabled": "persistence by broker: all pods have the same volumes",
        "journal-type": "journal engines by broker: all pods ask the same of their node",
        "journal-type-strict": "journal engines by broker: all pods ask the same of their node",
        "journal-max-io": "AIO requests by broker: all pods ask the same of their node",
        "wildcard-addresses": "wildcards by broker: clients may reach any of them",
        "resource-limit-settings": "limits of users by broker: all have the same users",
        "diverts": "diverts by broker; make them through the API of the one broker",
    },
    "Upgrade": {
        "max-unavailable": "more than one restart at a time",
        "partition": "partitions set by hand",
    },
}
"""For each Struct of the model (and those made from it): name in kebab-case → the feature."""

NOT_YET_VALUES: dict[tuple[str, str], dict[str, str]] = {
    (BROKER, "journal-type"): {
        "MAPPED": "the memory-mapped engine",
    },
    (ACCEPTOR, "protocols"): {
        "CORE": "the reference system's own protocol",
        "OPENWIRE": "OpenWire",
        "HORNETQ": "the old protocol of the reference system",
    },
    ("Upgrade", "strategy"): {
        "OnDelete": "upgrades by deletion",
    },
    ("BrokerNodeTuningSpec", "mode"): {"Tuned": "profiles of the Node Tuning Operator"},
    ("VolumeSpec", "access-mode"): {"ReadWriteMany": "volumes that several nodes share"},
}
"""For each field: value → the feature."""


POINTLESS: dict[str, dict[str, str]] = {
    BROKER: {
        "page-sync-timeout": "pages are written behind the confirm, each flushed once, so there is "
        "no period in which they are",
        "read-whole-page": "the messages of a page are read as they are delivered; upstream it has "
        "no effect any more either",
    },
    ADDRESS_SETTINGS: {
        "initial-queue-buffer-size": "the memory of a queue grows with what is in it",
    },
}
"""For each Struct: names of the reference that have nothing to set here, and never will."""


RENAMED: dict[str, dict[str, str]] = {
    ADDRESS_SETTINGS: {
        "auto-create-jms-queues": "auto-create-queues",
        "auto-create-jms-topics": "auto-create-addresses",
        "auto-delete-jms-queues": "auto-delete-queues",
        "auto-delete-jms-topics": "auto-delete-addresses",
        "last-value-queue": "default-last-value-queue",
    },
    "SecuritySettings": {
        "create-temp-queue": "create-non-durable-queue",
        "delete-temp-queue": "delete-non-durable-queue",
    },
}
"""For each Struct: deprecated names of the reference → the name that took their place there."""


_MADE_FROM = {"BrokerOverrides": BROKER}
"""Structs that are made of another one's fields, and know what that one knows."""


def _families(struct: type) -> list[str]:
    own = [base.__name__ for base in struct.__mro__]
    return [_MADE_FROM[name] for name in own if name in _MADE_FROM] + own


def refused_names(struct: type) -> dict[str, str]:
    """Return the names refused in a Struct of the model, in kebab-case, and why."""
    found: dict[str, str] = {}
    for family in _families(struct):
        found |= NOT_YET.get(family, {})
    return found


def pointless_names(struct: type) -> dict[str, str]:
    """Return the names in a Struct that have nothing to set, in kebab-case, and why."""
    found: dict[str, str] = {}
    for family in _families(struct):
        found |= POINTLESS.get(family, {})
    return found


def renamed_names(struct: type) -> dict[str, str]:
    """Return the deprecated names in a Struct, in kebab-case, and those to say instead."""
    found: dict[str, str] = {}
    for family in _families(struct):
        found |= RENAMED.get(family, {})
    return found


def refused_values(struct: type, name: str) -> dict[str, str]:
    """Return the values refused for a field, and why.

    Args:
        struct: Struct of the model.
        name: Field in kebab-case.
    """
    found: dict[str, str] = {}
    for family in _families(struct):
        found |= NOT_YET_VALUES.get((family, name), {})
    return found
