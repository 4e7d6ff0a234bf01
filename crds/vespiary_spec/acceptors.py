"""Listening sockets: what an acceptor may be told, and the HTTP listener.

Owns: protocols, the limits that protect the broker from its clients, TLS by file.
Never: opens a socket.
Called by: `settings`, which users import from, and `resources`.
"""

import enum
from typing import Annotated

import msgspec

from vespiary_spec import limits
from vespiary_spec.acceptor_tls import AcceptorTls
from vespiary_spec.model import Change, Unit, setting
from vespiary_spec.websocket_limits import WebSocketLimits

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$"
"""Names of acceptors: what Kubernetes takes for the name of a port."""

_KIB = 1024

_MIB = 1024 * 1024


class Protocol(enum.StrEnum):
    """Protocols that an acceptor speaks."""

    STOMP = "STOMP"
    MQTT = "MQTT"
    AMQP = "AMQP"


class SaslMechanism(enum.StrEnum):
    """Ways to log in that a client of AMQP, or of MQTT 5, may choose from."""

    EXTERNAL = "EXTERNAL"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    PLAIN = "PLAIN"
    ANONYMOUS = "ANONYMOUS"


class StompLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a STOMP client may send, and how it is watched."""

    max_headers: Annotated[
        int,
        setting(
            "Headers of one frame.",
            unit=Unit.HEADERS,
            change=Change.RESTART,
            minimum=10,
            maximum=10000,
        ),
    ] = 100
    max_header_line_size: Annotated[
        int,
        setting(
            "One line of a frame's head: command, or name and value of a header, as sent.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=256,
            maximum=_MIB,
        ),
    ] = 8 * _KIB
    max_header_size: Annotated[
        int,
        setting(
            "The whole head of a frame.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=1024,
            maximum=4 * _MIB,
        ),
    ] = 64 * _KIB
    max_body_size: Annotated[
        int,
        setting(
            "The body of a frame that is not a large message (`min-large-message-size`).",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=1024,
            maximum=limits.JOURNAL_WRITE_BYTES_MAX,
        ),
    ] = 480 * _KIB
    heart_beat_min: Annotated[
        int,
        setting(
            "Shortest heart-beat interval that the broker agrees to, either way; shorter wishes "
            "are lengthened.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=10,
            maximum=600_000,
        ),
    ] = 500
    heart_beat_max: Annotated[
        int,
        setting(
            "Longest interval that the broker offers for its own heart-beats.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=10,
            maximum=3_600_000,
        ),
    ] = 60_000
    heart_beat_to_connection_ttl_modifier: Annotated[
        float,
        setting(
            "A client is dropped after this many of its heart-beat intervals without a byte.",
            change=Change.RESTART,
            minimum=1.0,
            maximum=100.0,
        ),
    ] = 2.0
    min_read_rate: Annotated[
        int,
        setting(
            "A client that has begun a frame has to send at least this much on average until it "
            "ends, or it is dropped. 0 waits for ever.",
            unit=Unit.BYTES_PER_SECOND,
            change=Change.RESTART,
            minimum=0,
            maximum=_MIB,
        ),
    ] = 64
    prefetch: Annotated[
        int | None,
        setting(
            "Messages sent to one subscription before it acknowledges any, unless it asks for "
            "another number.",
            unit=Unit.MESSAGES,
            change=Change.RESTART,
            minimum=1,
            maximum=1_000_000,
            default_text="`queue-prefetch` of its address",
        ),
    ] = None


class AmqpLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What an AMQP 1.0 client may send, and how it is watched."""

    max_frame_size: Annotated[
        int,
        setting(
            "Largest frame that clients may send, as it is announced to them. Those sent to a "
            "client are at most as large as that, and as the client allows.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=512,
            maximum=16 * _MIB,
        ),
    ] = 128 * _KIB
    max_message_size: Annotated[
        int,
        setting(
            "Largest message that is taken. One that has to be put together in memory, since its "
            "body is no single data section, is bounded by 1 MiB as well.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=1024,
            maximum=1024 * 1024 * _MIB,
        ),
    ] = 1024 * _MIB
    amqp_idle_timeout: Annotated[
        int,
        setting(
            "A client that sends nothing for this long is dropped; half of it is announced as the "
            "idle time-out. 0 waits for ever. What a client announces of its own is kept by "
            "sending empty frames.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=0,
            maximum=3_600_000,
        ),
    ] = 60_000
    amqp_credits: Annotated[
        int,
        setting(
            "Messages that a sender may send ahead on one link.",
            unit=Unit.MESSAGES,
            change=Change.RESTART,
            minimum=1,
            maximum=1_000_000,
        ),
    ] = 1000
    amqp_low_credits: Annotated[
        int,
        setting(
            "A sender's credit is filled up to `amqp-credits` when it is down to this.",
            unit=Unit.MESSAGES,
            change=Change.RESTART,
            minimum=0,
            maximum=1_000_000,
        ),
    ] = 300
    channel_max: Annotated[
        int,
        setting(
            "Highest number of a channel: one more than the sessions that a connection may have.",
            change=Change.RESTART,
            minimum=0,
            maximum=65_535,
        ),
    ] = 1023
    handle_max: Annotated[
        int,
        setting(
            "Highest number of a handle: one more than the links that a session may have.",
            change=Change.RESTART,
            minimum=0,
            maximum=65_535,
        ),
    ] = 1023
    max_unsettled: Annotated[
        int,
        setting(
            "Messages that one link may hold unsettled, whatever its credit.",
            unit=Unit.MESSAGES,
            change=Change.RESTART,
            minimum=1,
            maximum=1_000_000,
        ),
    ] = 20_000
    max_durable_links: Annotated[
        int,
        setting(
            "Sending links of one user whose unsettled deliveries are remembered (durability "
            "`unsettled-state`). For one more, the one that was left longest ago is forgotten; if "
            "all are attached, it is refused.",
            change=Change.RESTART,
            minimum=1,
            maximum=1_000_000,
        ),
    ] = 1000
    max_nesting: Annotated[
        int,
        setting(
            "Lists, maps, arrays and described values within one another.",
            change=Change.RESTART,
            minimum=4,
            maximum=64,
        ),
    ] = 16
    max_items: Annotated[
        int,
        setting(
            "Items of all lists, maps and arrays of one frame or one section of a message.",
            change=Change.RESTART,
            minimum=16,
            maximum=1_000_000,
        ),
    ] = 8192
    min_read_rate: Annotated[
        int,
        setting(
            "A client that has begun a frame has to send at least this much on average until it "
            "ends, or it is dropped. 0 waits for ever.",
            unit=Unit.BYTES_PER_SECOND,
            change=Change.RESTART,
            minimum=0,
            maximum=_MIB,
        ),
    ] = 64


class MqttLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What an MQTT client may send, and how it is watched."""

    maximum_packet_size: Annotated[
        int,
        setting(
            "A packet of a client, all of it; told to clients of MQTT 5. The default is the "
            "protocol's own limit: a large payload goes to a file as it arrives. What is told is "
            "less where payloads are (`max-large-message-size`), or cannot go to files.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=1024,
            maximum=268_435_460,
        ),
    ] = 268_435_460
    receive_maximum: Annotated[
        int,
        setting(
            "Messages of QoS 1 and 2 that a client may have sent and not had answered; told to "
            "clients of MQTT 5, which are disconnected beyond it.",
            unit=Unit.MESSAGES,
            change=Change.RESTART,
            minimum=1,
            maximum=65_535,
        ),
    ] = 4096
    maximum_in_flight: Annotated[
        int,
        setting(
            "Messages of QoS 1 and 2 that a client is sent before it acknowledges any; a client of "
            "MQTT 5 may ask for fewer (Receive Maximum).",
            unit=Unit.MESSAGES,
            change=Change.RESTART,
            minimum=1,
            maximum=65_535,
        ),
    ] = 1000
    topic_alias_maximum: Annotated[
        int,
        setting(
            "Topic aliases that a client may use, and at most as many are used towards it.",
            change=Change.RESTART,
            minimum=0,
            maximum=65_535,
        ),
    ] = 32
    server_keep_alive: Annotated[
        int,
        setting(
            "Longest keep alive that a client may choose, 0 included; longer ones are shortened "
            "to it, which clients of MQTT 5 are told. 0 leaves it to the clients.",
            unit=Unit.SECONDS,
            change=Change.RESTART,
            minimum=0,
            maximum=65_535,
        ),
    ] = 0
    session_expiry_interval: Annotated[
        int,
        setting(
            "Longest time that a session outlives its connection; clients of MQTT 5 are told if "
            "they get less than they asked for. -1 sets no bound.",
            unit=Unit.SECONDS,
            change=Change.RESTART,
            special=-1,
            minimum=0,
            maximum=2**32 - 2,
        ),
    ] = -1
    max_topic_size: Annotated[
        int,
        setting(
            "A topic name or filter.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=16,
            maximum=4096,
        ),
    ] = 1024
    max_topic_levels: Annotated[
        int,
        setting(
            "Levels of a topic name or filter.", change=Change.RESTART, minimum=1, maximum=1024
        ),
    ] = 32
    max_user_properties: Annotated[
        int,
        setting("User properties of one packet.", change=Change.RESTART, minimum=0, maximum=10_000),
    ] = 100
    max_subscriptions: Annotated[
        int,
        setting(
            "Subscriptions of one client.", change=Change.RESTART, minimum=1, maximum=1_000_000
        ),
    ] = 1000
    max_sessions: Annotated[
        int,
        setting(
            "Sessions that outlive their connection, of the whole broker: a client that comes "
            "through this acceptor and has none is refused one where there are as many. -1 is any "
            "number.",
            change=Change.RESTART,
            special=-1,
            minimum=0,
            maximum=100_000_000,
        ),
    ] = 100_000
    min_read_rate: Annotated[
        int,
        setting(
            "A client that has begun a packet has to send at least this much on average until it "
            "ends, or it is dropped. 0 waits for ever.",
            unit=Unit.BYTES_PER_SECOND,
            change=Change.RESTART,
            minimum=0,
            maximum=_MIB,
        ),
    ] = 64


class AcceptorBase(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What an acceptor of a file and one of a resource have in common."""

    name: Annotated[
        str,
        setting(
            "Name of the acceptor, unique; also the name of its port in Kubernetes.",
            change=Change.RESTART,
            pattern=NAME_PATTERN,
            max_length=15,
        ),
    ]
    port: Annotated[
        int,
        setting("TCP port. 0 takes a free one.", change=Change.RESTART, minimum=0, maximum=65535),
    ]
    protocols: Annotated[
        tuple[Protocol, ...],
        setting(
            "Protocols that the acceptor speaks; it detects which one a client uses.",
            change=Change.RESTART,
            min_items=1,
            max_length=8,
        ),
    ] = (Protocol.AMQP, Protocol.MQTT, Protocol.STOMP)
    handshake_timeout: Annotated[
        int,
        setting(
            "Time that a new connection has for its TLS handshake and CONNECT. 0 waits for ever.",
            unit=Unit.SECONDS,
            change=Change.RESTART,
            minimum=0,
            maximum=3600,
        ),
    ] = 10
    connections_allowed: Annotated[
        int,
        setting(
            "Connections at one time; more are refused with a reason.",
            unit=Unit.CONNECTIONS,
            change=Change.RESTART,
            minimum=1,
            maximum=1_000_000,
        ),
    ] = 10_000
    connections_per_address_allowed: Annotated[
        int,
        setting(
            "Connections of one network address at one time, those in their TLS handshake among "
            "them; more are refused with a reason, or closed before their handshake. An IPv6 "
            "address counts as its /64. Behind a balancer (`proxy-protocol`) it is the client's "
            "address that counts. 0 is any number.",
            unit=Unit.CONNECTIONS,
            change=Change.RESTART,
            minimum=0,
            maximum=1_000_000,
        ),
    ] = 0
    handshakes_allowed: Annotated[
        int,
        setting(
            "TLS handshakes at one time, some 60 KiB each. Further clients wait until one is done, "
            "or has lasted for two seconds: then the one that has lasted longest is cut off. The "
            "newest of those that wait is next.",
            change=Change.RESTART,
            minimum=1,
            maximum=1_000_000,
        ),
    ] = 500
    dead_peer_timeout: Annotated[
        int,
        setting(
            "A client whose host does not answer for this long is disconnected, and what it held "
            "goes to others. TCP asks it (keepalive), so a client that is only silent, or that "
            "reads slowly or not at all, stays. 0 leaves it to the system, which takes 15 minutes "
            "for data that is not acknowledged and waits for ever for idle clients.",
            unit=Unit.SECONDS,
            change=Change.RESTART,
            special=0,
            minimum=5,
            maximum=3600,
        ),
    ] = 60
    proxy_protocol: Annotated[
        bool,
        setting(
            "Clients come through a load balancer that says by the PROXY protocol, version 2, whom "
            "it forwards, in front of all else, TLS included. A connection without it is refused.",
            change=Change.RESTART,
        ),
    ] = False
    sasl_mechanisms: Annotated[
        tuple[SaslMechanism, ...],
        setting(
            "Ways to log in that clients are offered by SASL, and by MQTT 5's enhanced "
            "authentication, the best first. EXTERNAL is offered to those with a client "
            "certificate, ANONYMOUS while nobody has to log in, the others where there are users. "
            "User name and password in STOMP's CONNECT and MQTT's are no SASL.",
            change=Change.RESTART,
            min_items=1,
            max_length=8,
        ),
    ] = tuple(SaslMechanism)
    anycast_prefix: Annotated[
        str,
        setting(
            "A destination that begins with this is a queue; the rest is its name.",
            change=Change.RESTART,
            max_length=64,
        ),
    ] = "/queue/"
    multicast_prefix: Annotated[
        str,
        setting(
            "A destination that begins with this is a topic; the rest is its name.",
            change=Change.RESTART,
            max_length=64,
        ),
    ] = "/topic/"
    stomp: Annotated[StompLimits, setting("Limits for STOMP clients.")] = StompLimits()
    web_socket: Annotated[
        WebSocketLimits, setting("Limits for clients that come through a WebSocket, at `/ws`.")
    ] = WebSocketLimits()
    mqtt: Annotated[MqttLimits, setting("Limits for MQTT clients.")] = MqttLimits()
    amqp: Annotated[AmqpLimits, setting("Limits for AMQP 1.0 clients.")] = AmqpLimits()


class Acceptor(AcceptorBase, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One listening socket."""

    host: Annotated[
        str, setting("Address to listen on.", change=Change.RESTART, max_length=253)
    ] = "127.0.0.1"
    tls: Annotated[AcceptorTls | None, setting("TLS; without it the acceptor speaks in clear.")] = (
        None
    )


DEFAULT_ACCEPTORS = (
    Acceptor(name="all", port=limits.PORT_ALL_PROTOCOLS),
    Acceptor(name="amqp", port=limits.PORT_AMQP, protocols=(Protocol.AMQP,)),
    Acceptor(name="mqtt", port=limits.PORT_MQTT, protocols=(Protocol.MQTT,)),
    Acceptor(name="stomp", port=limits.PORT_STOMP, protocols=(Protocol.STOMP,)),
)
"""Listeners of a broker whose configuration names none."""


class Admin(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The HTTP listener: API, metrics and probes."""

    host: Annotated[
        str,
        setting(
            "Address to listen on. Other than on loopback the API needs a login.",
            change=Change.RESTART,
            max_length=253,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        setting("TCP port. 0 takes a free one.", change=Change.RESTART, minimum=0, maximum=65535),
    ] = limits.PORT_HTTP
    web_socket_enabled: Annotated[
        bool | None,
        setting(
            "Let messaging clients come through a WebSocket at `/ws` of this port, by the settings "
            "of the first acceptor that speaks in clear.",
            change=Change.RESTART,
            default_text="whether an acceptor speaks in clear, or this port speaks TLS",
        ),
    ] = None
    tls: Annotated[
        AcceptorTls | None,
        setting("TLS; without it the port speaks in clear. The probe port always does."),
    ] = None
    probe_port: Annotated[
        int | None,
        setting(
            "TCP port of `host` that answers `/healthz`, `/readyz` and `/metrics` in clear and "
            "without a login, and nothing else. 0 takes a free one.",
            change=Change.RESTART,
            minimum=0,
            maximum=65535,
            default_text="no such port",
        ),
    ] = None
