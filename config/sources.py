"""Sources of an edge node: brokers that people already run, from which it takes messages."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from weft.config.units import BrokerUrls, Count, Duration, Filters, MiB, OneOf, Path, Section, Size

SOURCES_MAX = 64
_RECORD_BYTES_MAX = 16 * MiB
"""Longest record of the log: a longer message could never be stored."""


class SourceTls(Section, frozen=True, kw_only=True):
    """TLS of a source, with `mqtts` and `amqps`. The files are read again at each connection."""

    ca_file: Annotated[
        Path | None,
        Meta(description="PEM file with the authorities that sign the broker's certificate. Unset: the system's."),
    ] = None
    certificate: Annotated[
        Path | None, Meta(description="PEM file with the node's own certificate for the broker, followed by its chain.")
    ] = None
    key: Annotated[
        Path | None,
        Meta(
            description="PEM file with the key of `certificate`, not encrypted. Only the node's user may be able to "
            "read it."
        ),
    ] = None
    server_name: Annotated[
        str | None, Meta(description="Name in the broker's certificate. Unset: the host of the URL.")
    ] = None


class Rewrite(Section, frozen=True, kw_only=True):
    """A rule for topics: messages whose topic matches are stored under another one."""

    from_: Annotated[
        str,
        Meta(
            examples=["factory/{line}/#"],
            description='Filter of the topics that the rule is for. Levels may have names: `"factory/{line}/#"`.',
        ),
    ] = field(name="from")
    to: Annotated[
        str,
        Meta(
            examples=["plant/{line}/#"],
            description='Topic to use instead, with the named levels: `"plant/{line}/#"`. A `#` at the end stands for '
            "the levels that the `#` of `from` matched.",
        ),
    ]


class SourceSettings(Section, frozen=True, kw_only=True):
    """Settings that sources of all kinds have in common."""

    url: Annotated[
        BrokerUrls,
        Meta(
            description="URL, or list of URLs, of the broker's nodes, tried in turn: `mqtts://broker.example.com`, "
            "`amqps://rabbit.example.com/vhost`. Without a port, the protocol's own."
        ),
    ]
    username: Annotated[str | None, Meta(description="User name at the broker.")] = None
    password_file: Annotated[
        Path | None,
        Meta(description="File with the password on one line. Only the node's user may be able to read it."),
    ] = None
    password_env: Annotated[
        Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", examples=["PLANT_PASSWORD"])] | None,
        Meta(description="Name of an environment variable of the node with the password, in place of a file."),
    ] = None
    tls: Annotated[
        SourceTls | None, Meta(description="TLS with `mqtts` and `amqps`; unset: the system's authorities.")
    ] = None
    rewrite: Annotated[
        tuple[Rewrite, ...],
        Meta(max_length=256, description="Rules for topics. The first one that matches counts; others stay."),
    ] = ()
    prefix: Annotated[
        str, Meta(description="Text before every topic, after `rewrite`. A slash at its end is not added by itself.")
    ] = ""
    keep_alive_s: Annotated[
        Duration,
        Meta(
            ge=1,
            le=3600,
            description="Silence of the broker after which the node pings it. After twice that time the node "
            "reconnects.",
        ),
    ] = field(default=30.0, name="keep_alive")
    retry_min_s: Annotated[
        Duration, Meta(ge=0.01, description="Shortest wait before the node reconnects. Waits double, with jitter.")
    ] = field(default=0.5, name="retry_min")
    retry_max_s: Annotated[Duration, Meta(ge=0.01, description="Longest wait before the node reconnects.")] = field(
        default=30.0, name="retry_max"
    )


class MqttSource(SourceSettings, frozen=True, kw_only=True):
    """An external MQTT broker that the node subscribes to. The node acknowledges a message once it is on disk."""

    topics: Annotated[
        Filters,
        Meta(description="MQTT filter, or list of filters, to subscribe to. Levels have no names here: `plant/+/#`."),
    ]
    qos: Annotated[
        int,
        Meta(
            ge=0,
            le=2,
            description="Highest QoS at which the broker sends. With 0, messages are lost while the node is away.",
        ),
    ] = 1
    version: Annotated[
        Literal["v5", "v3.1.1"],
        Meta(description="Version of MQTT. With `v3.1.1` the broker alone decides how many messages may be in flight."),
    ] = "v5"
    client_id: Annotated[
        str | None,
        Meta(
            description="Client identifier, which names the session at the broker. Unset: "
            "`weft-TENANT-NODE-SOURCE`. No other client may use it."
        ),
    ] = None
    share: Annotated[
        Annotated[str, Meta(pattern="^[^/+#]+$", examples=["gateways"])] | None,
        Meta(
            description="Name of a shared subscription (`$share/NAME/...`), so that several nodes get each message "
            "once among them. Unset: this node gets every message."
        ),
    ] = None
    session_expiry_s: Annotated[
        Duration,
        Meta(
            ge=0,
            description="Time that the broker keeps the session, and messages for it, while the node is away (MQTT 5).",
        ),
    ] = field(default=7 * 86_400.0, name="session_expiry")
    receive_maximum: Annotated[
        Count,
        Meta(le=65_535, description="Messages at QoS 1 and 2 that may be waiting for the disk at a time (MQTT 5)."),
    ] = 1000
    packet_bytes_max: Annotated[
        Size,
        Meta(
            ge=1024,
            le=_RECORD_BYTES_MAX,
            description="Longest packet that the node accepts. With `v5` the broker knows it. With `v3.1.1` a longer "
            "one ends the connection, each time that it is sent.",
        ),
    ] = field(default=4 * MiB, name="packet")


class AmqpSource(SourceSettings, frozen=True, kw_only=True):
    """A queue of an external AMQP 0-9-1 broker, such as RabbitMQ. Messages are acknowledged once they are on disk."""

    queue: Annotated[str, Meta(max_length=255, description="Name of the queue that the node consumes from.")]
    declare: Annotated[
        Literal["passive", "durable", "quorum"],
        Meta(
            description="`passive`: the queue must exist. `durable` and `quorum` have the broker create it, as a "
            "durable classic or a quorum queue, where it does not."
        ),
    ] = "passive"
    bind: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            max_length=64,
            description="Bindings that the node makes for the queue: exchange -> routing keys. The exchanges must "
            "exist. Existing bindings stay.",
        ),
    ] = field(default_factory=dict)
    prefetch: Annotated[Count, Meta(le=65_535, description="Messages that may be waiting for the disk at a time.")] = (
        500
    )
    message_bytes_max: Annotated[
        Size,
        Meta(
            ge=1024,
            le=_RECORD_BYTES_MAX,
            description="Longest message that the node accepts. A longer one is rejected: it goes to the queue's "
            "dead-letter exchange.",
        ),
    ] = field(default=4 * MiB, name="message")


class Source(OneOf, frozen=True, kw_only=True):
    """A broker that people already run, from which the node takes messages: `mqtt` or `amqp`."""

    noun: ClassVar[str] = "kind of broker"

    mqtt: Annotated[MqttSource | None, Meta(description="A subscription to an MQTT broker.")] = None
    amqp: Annotated[AmqpSource | None, Meta(description="A queue of an AMQP 0-9-1 broker, such as RabbitMQ.")] = None

    @property
    def settings(self) -> MqttSource | AmqpSource:
        """Return the settings of the kind that is given."""
        found = self.mqtt or self.amqp
        assert found is not None
        return found


# Traces of messages for OpenTelemetry: where spans go, and which messages get some.


class Collector(Section, frozen=True, kw_only=True):
    """Collector of traces, which takes OTLP over HTTP. Needs the extra `otel`."""

    endpoint: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^/@\s?#]+(/[^\s?#]*)?$",
            max_length=2048,
            examples=["http://collector.example.com:4318"],
            description="URL of the collector. Without a path, spans go to `/v1/traces` there.",
        ),
    ]
    headers_file: Annotated[
        Path | None,
        Meta(
            description="File with headers of each request, such as `Authorization: Bearer ...`, one on each line. "
            "Only the node's user may be able to read it. Unset: those of the environment's "
            "`OTEL_EXPORTER_OTLP_HEADERS`, if it is set."
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that sign the collector's certificate. Unset: the usual public "
            "ones."
        ),
    ] = None
    queue: Annotated[
        Count,
        Meta(
            le=65_536,
            description="Maximum number of spans that wait for the collector, about 1 KiB each. Further ones are "
            "dropped, and counted.",
        ),
    ] = 4096


class Tracing(Collector, frozen=True, kw_only=True):
    """Traces of messages. A message with a sampled `traceparent` is traced, and one with an unsampled one is not."""

    sample_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Part of the messages without `traceparent` that are traced: `0.001` traces one in a thousand. "
            "`0` traces none of them.",
        ),
    ] = 0.0
    messages_per_second: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Messages that are traced a second at most; a quarter of them for one client. Messages above "
            "it are stored like all others, and counted.",
        ),
    ] = 100
