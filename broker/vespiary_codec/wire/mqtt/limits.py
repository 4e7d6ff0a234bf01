"""How much of a peer's input the decoder accepts.

Owns the bounds and their defaults. The broker fills them from its configuration. Checked as the
bytes arrive, so that no announced size makes the decoder wait for, or allocate, what it would
refuse in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

REMAINING_LENGTH_MAX = 268_435_455
"""What four bytes of seven bits say (MQTT 5.0 §1.5.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttLimits:
    """Bounds of one packet. All are inclusive.

    Attributes:
        packet_bytes: The whole packet, its fixed header included; 16 to 268435460.
        before_login_bytes: The CONNECT packet, its will included; 16 or more.
        topic_bytes: A topic name or filter, 1 to 65535.
        topic_levels: Levels of a topic name or filter, 1 or more.
        user_properties: User properties of a packet, 0 or more.
        filters: Topic filters of a SUBSCRIBE or UNSUBSCRIBE packet, 1 or more.
        client_id_bytes: A client id, 23 (MQTT 3.1.1 §3.1.3.1) to 65535.
    """

    packet_bytes: int = 1024 * 1024
    before_login_bytes: int = 64 * 1024
    topic_bytes: int = 1024
    topic_levels: int = 32
    user_properties: int = 100
    filters: int = 1000
    client_id_bytes: int = 1024

    def __post_init__(self) -> None:
        bounds = {
            "packet_bytes": (16, REMAINING_LENGTH_MAX + 5),
            "before_login_bytes": (16, REMAINING_LENGTH_MAX + 5),
            "topic_bytes": (1, 65_535),
            "topic_levels": (1, 65_535),
            "user_properties": (0, 65_535),
            "filters": (1, 65_535),
            "client_id_bytes": (23, 65_535),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; it must be {least} to {most}")
