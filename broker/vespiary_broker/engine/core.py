"""The names of the core's contract that the broker's upper layers use.

Owns nothing: only store and engine may import `vespiary_native`, and the server gets these names
from here. Must never wrap or change them.
"""

from vespiary_native.abc import (
    AckMode,
    Core,
    DeliverStatus,
    LargeBody,
    LargeDelivery,
    NoRoom,
    NoSequenceLeft,
    QueueStatistics,
    ScanStatus,
)
from vespiary_native.abc_accounts import AccountLimits, AccountStatistics
from vespiary_native.abc_amqp import (
    ENCODED_ID,
    LESSON_BYTES_MAX,
    TIME_BYTES,
    AmqpLesson,
    AmqpLimits,
    AmqpRange,
    AmqpTaken,
)
from vespiary_native.abc_amqp_sending import AmqpEncoding
from vespiary_native.abc_mqtt import (
    ADDRESS_LINE_BYTES_MAX,
    ANSWER_BYTES,
    PACKET_ID_FIRST,
    MqttEncoding,
    MqttLimits,
)
from vespiary_native.abc_ranges import RUNS_MAX, RangeCopy
from vespiary_native.values_inspection import Look, MessageView
from vespiary_native.values_pages import ExtentFacts

__all__ = [
    "ADDRESS_LINE_BYTES_MAX",
    "ANSWER_BYTES",
    "ENCODED_ID",
    "LESSON_BYTES_MAX",
    "PACKET_ID_FIRST",
    "RUNS_MAX",
    "TIME_BYTES",
    "AccountLimits",
    "AccountStatistics",
    "AckMode",
    "AmqpEncoding",
    "AmqpLesson",
    "AmqpLimits",
    "AmqpRange",
    "AmqpTaken",
    "Core",
    "DeliverStatus",
    "ExtentFacts",
    "LargeBody",
    "LargeDelivery",
    "Look",
    "MessageView",
    "MqttEncoding",
    "MqttLimits",
    "NoRoom",
    "NoSequenceLeft",
    "QueueStatistics",
    "RangeCopy",
    "ScanStatus",
]
