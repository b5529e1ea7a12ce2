"""Sources of an edge node: what people already run, from which it takes messages and values."""

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


class TopicSettings(Section, frozen=True, kw_only=True):
    """Settings that sources of all kinds have in common: topics of their records, and reconnecting."""

    rewrite: Annotated[
        tuple[Rewrite, ...],
        Meta(max_length=256, description="Rules for topics. The first one that matches counts; others stay."),
    ] = ()
    prefix: Annotated[
        str, Meta(description="Text before every topic, after `rewrite`. A slash at its end is not added by itself.")
    ] = ""
    retry_min_s: Annotated[
        Duration, Meta(ge=0.01, description="Shortest wait before the node reconnects. Waits double, with jitter.")
    ] = field(default=0.5, name="retry_min")
    retry_max_s: Annotated[Duration, Meta(ge=0.01, description="Longest wait before the node reconnects.")] = field(
        default=30.0, name="retry_max"
    )


class Write(Section, frozen=True, kw_only=True):
    """A value that messages may write. A message is written at once, or refused: none waits for the source."""

    topic: Annotated[
        str | None,
        Meta(
            examples=["down/press/speed"],
            description="Topic of the messages, whose payload is the value in JSON. Neither `rewrite` nor `prefix` is "
            "for it. Unset: SOURCE/$write/NAME.",
        ),
    ] = None
    min: Annotated[float | None, Meta(description="Least number that may be written. Numbers need it.")] = None
    max: Annotated[float | None, Meta(description="Greatest number that may be written. Numbers need it.")] = None


class SourceSettings(TopicSettings, frozen=True, kw_only=True):
    """Settings that sources of all brokers have in common."""

    url: Annotated[
        BrokerUrls,
        Meta(
            description="URL, or list of URLs, of the broker's nodes, tried in turn: `mqtts://broker.example.com`, "
            "`amqps://rabbit.example.com/vhost`, `opc.tcp://press.example.com:4840`. Without a port, the protocol's "
            "own."
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
    keep_alive_s: Annotated[
        Duration,
        Meta(
            ge=1,
            le=3600,
            description="Silence of the broker after which the node pings it. After twice that time the node "
            "reconnects.",
        ),
    ] = field(default=30.0, name="keep_alive")


class BrokerSettings(SourceSettings, frozen=True, kw_only=True):
    """Settings that sources of brokers have in common."""

    tls: Annotated[
        SourceTls | None, Meta(description="TLS with `mqtts` and `amqps`; unset: the system's authorities.")
    ] = None


class MqttSource(BrokerSettings, frozen=True, kw_only=True):
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


class AmqpSource(BrokerSettings, frozen=True, kw_only=True):
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


# Modbus devices, whose registers the node reads on a schedule.

REGISTERS_IN_REQUEST_MAX = 125
BITS_IN_REQUEST_MAX = 2000
"""Bounds of one request by the specification (Modbus Application Protocol 1.1b3, sections 6.1 to 6.4)."""
WRITTEN_REGISTERS_MAX = 123
"""Registers that one request may write (section 6.12)."""
ADDRESS_MAX = 65_535
WORDS = {"u16": 1, "i16": 1, "u32": 2, "i32": 2, "f32": 2, "u64": 4, "i64": 4, "f64": 4, "bool": 1}
"""Type -> number of registers; `text` has its own length."""


class Register(Section, frozen=True, kw_only=True):
    """One value of a Modbus device."""

    address: Annotated[
        int,
        Meta(
            ge=0,
            le=ADDRESS_MAX,
            description="Address in the protocol, from 0. Register 40101 of a manual is `kind: holding`, address 100.",
        ),
    ]
    kind: Annotated[
        Literal["holding", "input", "coil", "discrete"],
        Meta(description="Table of the device. `coil` and `discrete` are bits."),
    ] = "holding"
    type: Annotated[
        Literal["u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "bool", "text"] | None,
        Meta(description="Type of the value. Unset: `u16`, or `bool` of `coil` and `discrete`."),
    ] = None
    order: Annotated[
        Literal["ABCD", "CDAB", "BADC", "DCBA"],
        Meta(
            description="Order of the bytes. `ABCD`: big-endian, as the specification says. `CDAB`: words swapped, "
            "`BADC`: bytes swapped in each word, `DCBA`: both."
        ),
    ] = "ABCD"
    bit: Annotated[
        Annotated[int, Meta(ge=0, le=15)] | None,
        Meta(description="Bit of the register for `type: bool`; 0 is the lowest. Unset: true if it is not 0."),
    ] = None
    length: Annotated[
        Annotated[int, Meta(ge=1, le=REGISTERS_IN_REQUEST_MAX)] | None,
        Meta(description="Number of registers of `type: text`, with two characters each."),
    ] = None
    scale: Annotated[float, Meta(description="Factor of the number as it is read.")] = 1.0
    offset: Annotated[float, Meta(description="Number that is added after `scale`.")] = 0.0
    unit: Annotated[
        Annotated[str, Meta(max_length=32, examples=["kW"])] | None,
        Meta(description="Unit of the value, for people: `weft edge test-source` shows it."),
    ] = None

    @property
    def is_bit(self) -> bool:
        """Return whether it is a bit of its own, not a register."""
        return self.kind in ("coil", "discrete")

    @property
    def width(self) -> int:
        """Return the number of registers, or bits."""
        if self.is_bit:
            return 1
        return (self.length or 1) if self.type == "text" else WORDS[self.type or "u16"]


class ModbusDevice(Section, frozen=True, kw_only=True):
    """A device of a Modbus line, which is polled at an interval. One with two intervals is two devices."""

    unit_id: Annotated[int, Meta(ge=0, le=255, description="Unit identifier, or slave address.")] = 1
    every_s: Annotated[
        Duration,
        Meta(
            ge=0.01,
            le=86_400,
            description="Interval of the polls. Their times do not drift. A poll that is late for the next one is "
            "missed, and counted.",
        ),
    ] = field(default=1.0, name="every")
    timeout_s: Annotated[Duration, Meta(ge=0.01, le=60, description="Longest wait for an answer of the device.")] = (
        field(default=1.0, name="timeout")
    )
    fill: Annotated[
        int,
        Meta(
            ge=0,
            le=REGISTERS_IN_REQUEST_MAX,
            description="Unused registers, or words of 16 bits, that are read between two used ones to save a request.",
        ),
    ] = 10
    registers_in_request: Annotated[
        int,
        Meta(
            ge=4, le=REGISTERS_IN_REQUEST_MAX, description="Registers, or words of 16 bits, that one request may read."
        ),
    ] = REGISTERS_IN_REQUEST_MAX
    registers: Annotated[
        dict[str, Register], Meta(min_length=1, max_length=2000, description="Values that are read, by name.")
    ]


class SerialLine(Section, frozen=True, kw_only=True):
    """A serial port with Modbus RTU. The defaults are those of the specification."""

    baud_rate: Annotated[int, Meta(ge=300, le=4_000_000, description="Speed of the port in bits a second.")] = 19_200
    parity: Annotated[Literal["even", "odd", "none"], Meta(description="Parity of each character.")] = "even"
    data_bits: Annotated[int, Meta(ge=7, le=8, description="Bits of each character.")] = 8
    stop_bits: Annotated[
        int, Meta(ge=1, le=2, description="Stop bits. The specification asks for 2 without parity.")
    ] = 1


class ModbusWrite(Write, frozen=True, kw_only=True):
    """A register, or coil, that messages may write."""

    device: Annotated[str, Meta(description="Name of the device in `devices`.")]
    register: Annotated[str, Meta(description="Name of its register: a `holding` register, or a `coil`.")]


class ModbusSource(TopicSettings, frozen=True, kw_only=True):
    """Modbus devices behind one connection: a device or gateway with TCP, or a serial line with RTU."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^((rtu\+)?tcp://(\[[0-9A-Fa-f:.]+\]|[^/:@\s?#\[\]]+)(:[0-9]{1,5})?|serial:///[^\s?#]+)$",
            examples=["tcp://10.0.0.5", "rtu+tcp://10.0.0.5:4001", "serial:///dev/ttyUSB0"],
            description="`tcp://HOST:PORT` for Modbus TCP (port 502 if unset), `rtu+tcp://HOST:PORT` for RTU frames "
            "over TCP, `serial:///dev/ttyUSB0` for a serial port.",
        ),
    ]
    serial: Annotated[SerialLine, Meta(description="Serial port of `serial://`.")] = SerialLine()
    records: Annotated[
        Literal["device", "register"],
        Meta(
            description='`device`: a record for each poll, a JSON object of all values with the topic "SOURCE/DEVICE". '
            '`register`: a record for each value, with the topic "SOURCE/DEVICE/REGISTER".'
        ),
    ] = "device"
    notice_after: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Missed polls in a row from which on a gap has notices, with the topic `SOURCE/$gap`. "
            "All missed polls are counted.",
        ),
    ] = 1
    devices: Annotated[dict[str, ModbusDevice], Meta(min_length=1, max_length=1000, description="Devices, by name.")]
    writes: Annotated[
        dict[str, ModbusWrite], Meta(max_length=1000, description="Registers that messages may write, by name.")
    ] = field(default_factory=dict)


class OpcuaSecurity(Section, frozen=True, kw_only=True):
    """Security of the channel to an OPC UA server. The files are read again at each new session."""

    policy: Annotated[
        Literal["Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss"],
        Meta(description="Security policy. The server must offer it."),
    ] = "Basic256Sha256"
    mode: Annotated[
        Literal["sign", "sign_and_encrypt"], Meta(description="Whether messages are signed only, or encrypted, too.")
    ] = "sign_and_encrypt"
    certificate: Annotated[
        Path,
        Meta(
            description="PEM file with the node's own certificate. `weft edge trust` makes it, with its key, where "
            "neither exists."
        ),
    ]
    key: Annotated[
        Path,
        Meta(
            description="PEM file with the key of `certificate`, not encrypted. Only the node's user may be able to "
            "read it."
        ),
    ]
    trusted: Annotated[
        Path,
        Meta(
            description="PEM file with the certificates of trusted servers, or of their authorities. `weft edge trust` "
            "writes it."
        ),
    ]


class OpcuaUser(Section, frozen=True, kw_only=True):
    """A user who shows a certificate to an OPC UA server. The files are read again at each new session."""

    certificate: Annotated[
        Path,
        Meta(description="PEM file with the user's certificate, followed by its chain. The server must know the user."),
    ]
    key: Annotated[
        Path,
        Meta(
            description="PEM file with the key of `certificate`: RSA, and not encrypted. Only the node's user may be "
            "able to read it."
        ),
    ]


_Names = Annotated[tuple[str, ...], Meta(max_length=256)]


class OpcuaBrowse(Section, frozen=True, kw_only=True):
    """Variables below a node of an OPC UA server."""

    below: Annotated[
        str, Meta(examples=["Objects/2:Press"], description="Node to begin at: a browse path, or a node id.")
    ]
    depth: Annotated[Count, Meta(le=64, description="Levels below it that are looked at.")] = 8
    types: Annotated[
        _Names,
        Meta(
            examples=[["Double", "Boolean"]], description="Data types of the variables, such as `Double`. Unset: all."
        ),
    ] = ()
    names: Annotated[
        _Names,
        Meta(
            examples=[["Temp*"]],
            description="Patterns of browse names, in which `*` stands for any characters. Unset: all.",
        ),
    ] = ()


class OpcuaNode(OneOf, frozen=True, kw_only=True):
    """Variables of an OPC UA server: one by `id` or `path`, or those that `browse` finds."""

    noun: ClassVar[str] = "name of nodes"
    beside: ClassVar[tuple[str, ...]] = ("events", "topic", "sampling", "queue", "deadband", "deadband_percent")

    id: Annotated[
        str | None,
        Meta(
            examples=["nsu=urn:example:press;s=Temperature"],
            description="Node id: `ns=2;s=Temperature`, or with the URI of its namespace, "
            "`nsu=urn:example:press;s=Temperature`, which stays right when the server changes their numbers.",
        ),
    ] = None
    path: Annotated[
        str | None,
        Meta(
            examples=["Objects/2:Press/2:Temperature"],
            description="Browse path from the root. The number before a name is the index of its namespace; without "
            "it, a name of any namespace is found.",
        ),
    ] = None
    browse: Annotated[OpcuaBrowse | None, Meta(description="Variables below a node.")] = None
    events: Annotated[
        bool,
        Meta(
            description="Take the events of a node, alarms and conditions among them, in place of a value. The node "
            "`i=2253`, the server itself, has those of all."
        ),
    ] = False
    topic: Annotated[
        str | None,
        Meta(
            description="Topic of the values, before `rewrite` and `prefix`. Unset: the source's name and the browse "
            "path. With `browse`, the path below the node comes behind it."
        ),
    ] = None
    sampling_s: Annotated[
        Annotated[Duration, Meta(ge=0)] | None,
        Meta(
            description="Interval at which the server looks at the value. `0` asks for each change. Unset: that of "
            "the source."
        ),
    ] = field(default=None, name="sampling")
    queue: Annotated[
        Annotated[Count, Meta(le=100_000)] | None,
        Meta(description="Values that the server keeps until it publishes them. Unset: that of the source."),
    ] = None
    deadband: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Least change of a number that counts. Unset: every change counts."),
    ] = None
    deadband_percent: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None,
        Meta(description="The same in percent of the variable's range (`EURange`). Unset: every change counts."),
    ] = None


class OpcuaWrite(Write, frozen=True, kw_only=True):
    """A variable that messages may write."""

    node: Annotated[
        str, Meta(examples=["nsu=urn:example:press;s=Speed"], description="Node id of the variable, as in `nodes`.")
    ]
    type: Annotated[
        Literal[
            "Boolean",
            "SByte",
            "Byte",
            "Int16",
            "UInt16",
            "Int32",
            "UInt32",
            "Int64",
            "UInt64",
            "Float",
            "Double",
            "String",
        ],
        Meta(description="Data type of the variable. `weft edge browse` shows it."),
    ]


class OpcuaSource(SourceSettings, frozen=True, kw_only=True):
    """An OPC UA server, whose variables the node subscribes to. A change is acknowledged once it is on disk."""

    nodes: Annotated[
        tuple[OpcuaNode, ...], Meta(min_length=1, max_length=10_000, description="Variables that the node reads.")
    ]
    publishing_s: Annotated[
        Duration, Meta(ge=0.01, le=3600, description="Interval at which the server sends what has changed.")
    ] = field(default=1.0, name="publishing")
    sampling_s: Annotated[
        Duration, Meta(ge=0, description="Interval at which the server looks at values. `0` asks for each change.")
    ] = field(default=0.25, name="sampling")
    queue: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Values of a variable that the server keeps until it publishes them, also while the node is "
            "away.",
        ),
    ] = 1000
    lifetime_s: Annotated[
        Duration,
        Meta(
            ge=1,
            description="Time that the server keeps the subscription, and values for it, while the node is away. "
            "Servers may shorten it. What `queue` has no room for is lost earlier, and named.",
        ),
    ] = field(default=600.0, name="lifetime")
    writes: Annotated[
        dict[str, OpcuaWrite], Meta(max_length=1000, description="Variables that messages may write, by name.")
    ] = field(default_factory=dict)
    history: Annotated[
        bool, Meta(description="Fill gaps from the server's history, where it keeps one, with flagged values.")
    ] = True
    nodes_max: Annotated[
        Count, Meta(le=1_000_000, description="Maximum number of variables. `browse` stops there, with a warning.")
    ] = 10_000
    message_bytes_max: Annotated[
        Size,
        Meta(
            ge=65_536,
            le=_RECORD_BYTES_MAX,
            description="Longest message that the node accepts. A longer one ends the connection; the values in it "
            "are named as a gap.",
        ),
    ] = field(default=4 * MiB, name="message")
    security: Annotated[
        OpcuaSecurity | None, Meta(description="Security of the channel. Unset: none, for servers on a network apart.")
    ] = None
    user: Annotated[
        OpcuaUser | None,
        Meta(description="User with a certificate, in place of `username` and a password. It needs `security`."),
    ] = None


class Source(OneOf, frozen=True, kw_only=True):
    """A broker, server or devices that people already run, from which the node takes messages or values."""

    noun: ClassVar[str] = "kind of source"

    mqtt: Annotated[MqttSource | None, Meta(description="A subscription to an MQTT broker.")] = None
    amqp: Annotated[AmqpSource | None, Meta(description="A queue of an AMQP 0-9-1 broker, such as RabbitMQ.")] = None
    modbus: Annotated[ModbusSource | None, Meta(description="Modbus devices, whose registers are polled.")] = None
    opcua: Annotated[OpcuaSource | None, Meta(description="Variables of an OPC UA server.")] = None

    @property
    def server(self) -> MqttSource | AmqpSource | OpcuaSource | None:
        """Return the settings of a source with a login; None for one of devices."""
        return self.mqtt or self.amqp or self.opcua

    @property
    def urls(self) -> list[str]:
        """Return the URLs that it may connect to."""
        return [self.modbus.url] if self.modbus is not None else list(self.chosen[1].url)


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
