"""Header lines of messages that clients of MQTT get from clients of other protocols.

Owns examples, and nothing else. Used by the tests of the core.
"""

from __future__ import annotations

OTHERS_LINES = (
    b"destination:t.0\n",
    b"destination:/queue/t.0\n",
    b"destination:/topic//queue/x\n",
    b"destination:/queue/\n",
    b"destination:a\\cb\n",
    b"destination:t.\xff\n",
    b"persistent:true\n",
    b"persistent:true\n",
    b"persistent:no\n",
    b"persistent:t\\\\\n",
    b"content-type:text/plain\n",
    b"content-type:\n",
    b"correlation-id:ID\\c7\n",
    b"mqtt-payload-format:1\n",
    b"mqtt-payload-format:2\n",
    b"mqtt-qos:2\n",
    b"mqtt-retain:true\n",
    b"reply-to:t.1\n",
    b"expires:7\n",
    b"priority:4\n",
    b"_AMQ_DUPL_ID:x\n",
    b"user-property.ack:auto\n",
    b"JMSMessageID:ID\\c1\n",
    b"a\\nb:\\r\\\\\n",
    b"bad:\\t\n",
    b"bad:\\\n",
    b"not text:\xff\n",
    b"no value\n",
    b"\n",
    b":\n",
    b"name:\xc3\xa9\n",
)
"""Header lines of clients that do not speak MQTT; the first of a name counts."""
