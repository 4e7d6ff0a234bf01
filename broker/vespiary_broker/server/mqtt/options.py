"""What a client wants of one subscription, and its form in the bindings.

Owns the list of these wishes. Used by `sessions` and by whoever acts on subscriptions.

Source: MQTT 5.0 §3.8.3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from vespiary_broker.engine.ports import JsonObject
from vespiary_codec.wire.mqtt.topics import split_share


@dataclass(slots=True)
class Options:
    """What a client wants of one subscription.

    Attributes:
        qos: The highest QoS, 0 to 2.
        no_local: Without what the client sends itself.
        retain_as_published: With the retain flag as it was published.
        identifier: Its subscription identifier; 0: none.
        begun_below: Once it has ended: the sequence in its queue below which messages count as on
            their way to the client, which are delivered to the end; 0: none is.
    """

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    begun_below: int = 0

    def to_json(self) -> JsonObject:
        """Return its form in the bindings."""
        value: JsonObject = {"qos": self.qos}
        if self.no_local:
            value["no-local"] = True
        if self.retain_as_published:
            value["retain-as-published"] = True
        if self.identifier:
            value["identifier"] = self.identifier
        if self.begun_below:
            value["begun-below"] = self.begun_below
        return value

    @classmethod
    def from_json(cls, value: JsonObject) -> Options:
        """Return what stands in the bindings."""
        return cls(
            int(value["qos"]),
            bool(value.get("no-local", False)),
            bool(value.get("retain-as-published", False)),
            int(value.get("identifier", 0)),
            int(value.get("begun-below", 0)),
        )


def is_alone(topic_filter: str, options: Options) -> bool:
    """Return whether a subscription gets its messages whatever the client's others get."""
    return options.no_local or bool(split_share(topic_filter).name)
