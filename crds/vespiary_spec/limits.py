"""Numbers that are part of a format or a protocol, and so are no settings.

Owns: constants that several packages must agree on.
Never: anything a user may change (that is `settings`); imports nothing.
Called by: every package; runs under `python -S`.
"""

from __future__ import annotations

BLOCK_BYTES = 4096
"""Alignment of every journal and page write; a block is never shared by two writes."""

RECORD_HEADROOM_BYTES = 1024
"""Room kept in a journal buffer for the headers around the largest message body."""

JOURNAL_FILE_BYTES_MIN = 64 * 1024
JOURNAL_FILE_BYTES_MAX = 4 * 1024 * 1024 * 1024
JOURNAL_FILES_MIN = 2
JOURNAL_WRITE_BYTES_MAX = 1024 * 1024
"""One write of the journal; at its completion everything sealed goes out as the next."""

BINDINGS_FILE_BYTES = 1024 * 1024
JMS_FILE_BYTES = 1024 * 1024

AIO_DEPTH_MAX = 65536
"""Largest `journal-max-io`; io_setup() of more than this finds no use in one journal."""

DUPLICATE_IDS_MAX = 1_000_000
"""Duplicate ids that an address can be told to remember."""

WHOLE_NUMBER_MAX = 2**63 - 1
"""Largest whole number that any setting takes: what a resource and the core can hold."""

CONSUMERS_MAX = 2**31 - 1
"""Largest `max-consumers` of a queue that is made through the API."""

ADDRESS_NAME_CHARACTERS_MAX = 1024
"""Longest name of an address or a queue, in UTF-8 bytes."""

SELECTOR_CHARACTERS_MAX = 64 * 1024
"""Longest selector; as long as the longest header."""
SELECTOR_WORDS_MAX = 1024
"""Most names, values, operators and brackets of a selector: more take too long to parse. A long
value counts once more for each 64 characters."""
SELECTOR_COST_MS_MAX = 10
"""Most milliseconds that a selector may take for one message with 64 KiB of headers."""

CONSUMERS_BEFORE_DISPATCH_MAX = 10_000
DELAY_BEFORE_DISPATCH_MS_MAX = 24 * 60 * 60 * 1000
"""Bounds on what a queue waits for before it begins to hand out."""

DIVERTS_MAX = 1000
"""Diverts that a broker can have."""

RETROACTIVE_MESSAGES_MAX = 100_000
"""Most messages that an address can be told to keep for queues to come: each begins with them."""

RING_SIZE_MAX = 1_000_000_000
"""Most messages that a ring queue can be told to keep."""

GROUP_BUCKETS_MAX = 65_536
"""Most fates that the message groups of a queue can share."""

TERMINATION_MESSAGE_BYTES = 4096
"""What the kubelet keeps of one container's termination message."""

PORT_ALL_PROTOCOLS = 61616
PORT_STOMP = 61613
PORT_MQTT = 1883
PORT_AMQP = 5672
PORT_HTTP = 8161

API_GROUP = "vespiary.dev"
API_VERSION = "v1beta1"
"""Group and version of every resource."""

AUTHORITIES_CHARACTERS_MAX = 48 * 1024
"""Most characters of the certificates that a broker which is drained is to trust."""
