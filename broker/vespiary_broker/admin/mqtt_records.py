"""What MQTT clients have with the broker, on its way to the metrics.

Owns the record and its metrics. Must never hold state. Called by `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vespiary_broker.admin.journal_records import Record


class Mqtt(Record, frozen=True):
    """Sessions, retained messages and wills.

    Attributes:
        sessions: Sessions, those of clients that are away too.
        sessions_connected: Sessions whose client is connected.
        sessions_durable: Sessions that outlive their connection.
        sessions_expired: Sessions that ended because nobody came in time, since the start.
        retained_messages: Topics that have a retained message.
        wills_waiting: Wills that wait for their delay.
        wills_sent: Wills that were sent since the start.
    """

    sessions: int
    sessions_connected: int
    sessions_durable: int
    sessions_expired: int
    retained_messages: int
    wills_waiting: int
    wills_sent: int


def metrics_of(mqtt: Mqtt, prefix: str) -> Iterator[Metric]:
    """Yield the metrics."""
    sessions = GaugeMetricFamily(
        f"{prefix}_mqtt_sessions",
        "Sessions of MQTT clients, by whether the client is connected.",
        labels=("state",),
    )
    sessions.add_metric(("connected",), mqtt.sessions_connected)
    sessions.add_metric(("away",), mqtt.sessions - mqtt.sessions_connected)
    yield sessions
    yield GaugeMetricFamily(
        f"{prefix}_mqtt_sessions_durable",
        "Sessions of MQTT clients that outlive their connection; `max-sessions` bounds them.",
        value=mqtt.sessions_durable,
    )
    yield GaugeMetricFamily(
        f"{prefix}_mqtt_retained_messages",
        "Topics that have a retained message.",
        value=mqtt.retained_messages,
    )
    yield GaugeMetricFamily(
        f"{prefix}_mqtt_wills_waiting", "Wills that wait for their delay.", value=mqtt.wills_waiting
    )
    yield CounterMetricFamily(
        f"{prefix}_mqtt_sessions_expired",
        "Sessions that ended because their client did not come back in time.",
        value=mqtt.sessions_expired,
    )
    yield CounterMetricFamily(
        f"{prefix}_mqtt_wills_sent", "Wills that were sent.", value=mqtt.wills_sent
    )
