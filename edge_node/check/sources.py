"""Rules for sources: their brokers, credentials and topics, values that messages write, loops of a node."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import pairwise
from math import isfinite
from urllib.parse import urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.listeners import bind_of, protocol_of
from weft.config.models import EdgeConfig
from weft.config.sources import (
    ADDRESS_MAX,
    WRITTEN_REGISTERS_MAX,
    AmqpSource,
    BrokerSettings,
    ModbusDevice,
    ModbusSource,
    ModbusWrite,
    MqttSource,
    OpcuaSource,
    OpcuaWrite,
    Register,
    SerialLine,
    Source,
    SourceSettings,
    TopicSettings,
    Write,
)
from weft.config.units import Address, UnixSocket, parse_listen, quoted
from weft.edge_node.streams import GAP_LEVEL, WRITE_LEVEL, WRITTEN_LEVEL
from weft.protocols.topics import SHARE_PREFIX, check_filter, compile_pattern, compile_rule, matches, valid_topic

PORTS = {"mqtt": 1883, "mqtts": 8883, "amqp": 5672, "amqps": 5671, "opc.tcp": 4840}
"""Scheme -> port of a URL without one."""


def sources(config: EdgeConfig) -> Iterator[Finding]:
    """Yield the problems of the sources."""
    for name, source in config.sources.items():
        kind, settings = source.chosen
        path: KeyPath = ("sources", name, kind)
        yield from _topics(path, settings)
        if source.server is not None:
            yield from _server(path, kind, source.server)
        if source.mqtt is not None:
            yield from _mqtt(path, source.mqtt)
        if source.amqp is not None:
            yield from _amqp(path, source.amqp)
        if source.modbus is not None:
            yield from _modbus(path, source.modbus)
        if source.opcua is not None:
            yield from _opcua(path, source.opcua)
        for at, address in own_listeners(config, source):
            yield Finding((*path, "url"), loop_message(at, address))
    yield from _same_session(config)
    yield from _writes(config)


def _writes(config: EdgeConfig) -> Iterator[Finding]:
    """Yield the problems of the values that messages may write."""
    seen: dict[str, str] = {}
    read = {topic: source for source, each in config.sources.items() for topic in _own_topics(source, each)}
    for source, each in config.sources.items():
        settings = each.modbus or each.opcua
        for name, write in settings.writes.items() if settings is not None else ():
            path: KeyPath = ("sources", source, "opcua" if each.opcua is not None else "modbus", "writes", name)
            topic = write.topic or f"{source}/{WRITE_LEVEL}/{name}"
            if not _LEVEL.fullmatch(name):
                yield Finding(path, f"{_LEVEL_RULE}, got {quoted(name)}")
            if not valid_topic(topic) or topic.startswith("$"):
                yield Finding((*path, "topic"), f"expected a topic such as down/press/speed, got {quoted(topic)}")
            if (other := seen.setdefault(topic, f"{source}.{name}")) != f"{source}.{name}":
                yield Finding((*path, "topic"), f"{quoted(topic)} is that of the write {other}, too. Choose another")
            if topic in read:
                message = f"{quoted(topic)} is a topic of what the source {read[topic]} stores. Choose another"
                yield Finding((*path, "topic"), message)
            kind: str | None = write.type if isinstance(write, OpcuaWrite) else None
            if isinstance(write, OpcuaWrite) and not _FIXED_NODE_ID.fullmatch(write.node):
                # A server may have another variable at the same index after a restart.
                expected = "a node id with the URI of its namespace, such as nsu=urn:example:press;s=Speed"
                yield Finding((*path, "node"), f"expected {expected}, got {quoted(write.node)}")
            if isinstance(write, ModbusWrite) and each.modbus is not None:
                device = each.modbus.devices.get(write.device)
                register = device.registers.get(write.register) if device is not None else None
                if register is None:
                    where = f"{write.device}/{write.register}"
                    yield Finding((*path, "register"), f"`devices` has no {where}. Name a device and its register")
                    continue
                if register.kind not in ("holding", "coil") or register.bit is not None:
                    yield Finding((*path, "register"), "expected a whole holding register, or a coil: others are read")
                if register.width > WRITTEN_REGISTERS_MAX:
                    message = f"has {register.width} registers; a request writes {WRITTEN_REGISTERS_MAX} at most"
                    yield Finding((*path, "register"), message)
                if not each.modbus.devices[write.device].unit_id:
                    message = "has unit_id 0, with which all devices of a line write. Give the device's own number"
                    yield Finding((*path, "device"), message)
                kind = register.type or ("bool" if register.is_bit else "u16")
            yield from _range(path, write, is_number=kind not in ("Boolean", "String", "bool", "text"))


def _own_topics(name: str, source: Source) -> Iterator[str]:
    """Yield the topics of what a source stores, as far as the settings say."""
    settings = source.modbus or source.opcua
    if settings is None:
        return
    topics = [f"{name}/{GAP_LEVEL}", f"{name}/{WRITTEN_LEVEL}"]
    if source.modbus is not None:
        devices = source.modbus.devices.items()
        topics += [f"{name}/{each}" for each, _ in devices]
        topics += [f"{name}/{each}/{register}" for each, device in devices for register in device.registers]
    elif source.opcua is not None:
        topics += [each.topic for each in source.opcua.nodes if each.topic is not None and each.browse is None]
    yield from (_stored_topic(settings, topic) for topic in topics)


def _stored_topic(settings: TopicSettings, topic: str) -> str:
    """Return the topic of a record after `rewrite` and `prefix`."""
    for each in settings.rewrite:
        with contextlib.suppress(ValueError):  # which has a finding of its own
            if (new := compile_rule(each.from_, each.to).apply(topic)) is not None:
                return settings.prefix + new
    return settings.prefix + topic


def _range(path: KeyPath, write: Write, *, is_number: bool) -> Iterator[Finding]:
    for key, bound in (("min", write.min), ("max", write.max)):
        if is_number and (bound is None or not isfinite(bound)):
            yield Finding((*path, key), "is missing: name the least and the greatest number that may be written")
        elif not is_number and bound is not None:
            yield Finding((*path, key), "is for numbers. Delete it")
    if write.min is not None and write.max is not None and write.min > write.max:
        yield Finding((*path, "min"), "expected at most max")


def brokers(settings: SourceSettings) -> Iterator[tuple[str, Address]]:
    """Yield scheme and address of each URL of a source."""
    for url in settings.url:
        parts = urlsplit(url)
        yield parts.scheme, Address(parts.hostname or "", parts.port or PORTS[parts.scheme])


def own_listeners(config: EdgeConfig, source: Source) -> Iterator[tuple[str, Address]]:
    """Yield (listener, address) for each URL of a source that leads to a listener of the node, as far as the addresses
    show it: ``preflight`` resolves names."""
    for _, broker in brokers(source.server) if source.server is not None else ():
        for name, bind in listeners_on(config, broker.port):
            if bind.host == broker.host or (broker.is_loopback and (bind.is_loopback or bind.from_here.is_loopback)):
                yield name, broker


def listeners_on(config: EdgeConfig, port: int) -> Iterator[tuple[str, Address]]:
    """Yield the node's listeners for messages on a port, with their addresses."""
    for name, listener in config.listeners.items():
        if listener is None or protocol_of(name, listener) not in ("mqtt", "amqp"):
            continue
        bind = parse_listen(bind_of(name, listener))
        if not isinstance(bind, UnixSocket) and bind.port == port:
            yield name, bind


def loop_message(listener: str, address: Address) -> str:
    """Return the reason why a source cannot read from its own node."""
    return (
        f"{address} is listeners.{listener} of this node: each message would arrive again without end. Name the "
        "other broker, or listen at another port"
    )


def _server(path: KeyPath, kind: str, settings: SourceSettings) -> Iterator[Finding]:
    schemes = ("opc.tcp",) if kind == "opcua" else (kind, f"{kind}s")
    for url in settings.url:
        parts = urlsplit(url)
        if parts.scheme not in schemes:
            expected = " or ".join(f"{scheme}://HOST" for scheme in schemes)
            yield Finding((*path, "url"), f"expected {expected}, got {quoted(url)}")
        elif kind == "mqtt" and parts.path.strip("/"):
            yield Finding((*path, "url"), f"MQTT has no paths in URLs: {quoted(url)}. Delete {parts.path}")
    if settings.password_file is not None and settings.password_env is not None:
        yield Finding((*path, "password_env"), "password_file is set, too. Delete one of them")
    has_password = settings.password_file is not None or settings.password_env is not None
    if has_password and settings.username is None:
        yield Finding((*path, "username"), "is missing: the password needs a user name")
    tls = settings.tls if isinstance(settings, BrokerSettings) else None
    if tls is not None and not any(urlsplit(url).scheme.endswith("s") for url in settings.url):
        yield Finding((*path, "tls"), f"needs a URL with TLS: {kind}s://HOST")
    if tls is not None and tls.key is not None and tls.certificate is None:
        yield Finding((*path, "tls", "certificate"), "is missing: a key needs its certificate")


def _topics(path: KeyPath, settings: TopicSettings) -> Iterator[Finding]:
    if settings.retry_min_s > settings.retry_max_s:
        yield Finding((*path, "retry_min"), "expected at most retry_max")
    for position, rule in enumerate(settings.rewrite):
        try:
            compile_rule(rule.from_, rule.to)
        except ValueError as error:
            yield Finding((*path, "rewrite", position), str(error))
    if "+" in settings.prefix or "#" in settings.prefix or "\0" in settings.prefix:
        yield Finding((*path, "prefix"), f"expected the beginning of a topic, got {quoted(settings.prefix)}")


def _mqtt(path: KeyPath, settings: MqttSource) -> Iterator[Finding]:
    for position, topic in enumerate(settings.topics):
        at = (*path, "topics", position) if len(settings.topics) > 1 else (*path, "topics")
        if topic.startswith(SHARE_PREFIX):
            yield Finding(at, f"expected a filter without {SHARE_PREFIX}: set `share` to the name of the share")
            continue
        try:
            check_filter(topic)
        except ValueError as error:
            yield Finding(at, str(error))
        if "{" in topic:
            yield Finding(at, f"levels have no names in a subscription. Write + in {quoted(topic)}")
    if settings.version == "v3.1.1" and settings.share is not None:
        yield Finding((*path, "share"), "is for `version: v5`: MQTT 3.1.1 has no shared subscriptions")


def _amqp(path: KeyPath, settings: AmqpSource) -> Iterator[Finding]:
    if settings.declare == "passive" and not settings.queue:
        yield Finding((*path, "queue"), "is missing: name the queue to consume from")
    if settings.declare == "quorum" and settings.queue.startswith("amq."):
        yield Finding((*path, "queue"), "names that begin with amq. are the broker's own. Choose another name")


def _modbus(path: KeyPath, settings: ModbusSource) -> Iterator[Finding]:
    if settings.serial != SerialLine() and not settings.url.startswith("serial:"):
        yield Finding((*path, "serial"), "is for `url: serial:///dev/...`. Delete it, or name a serial port")
    for name, device in settings.devices.items():
        at = (*path, "devices", name)
        if not _LEVEL.fullmatch(name):
            yield Finding(at, f"{_LEVEL_RULE}, got {quoted(name)}")
        for register_name, register in device.registers.items():
            found = (*at, "registers", register_name)
            if not _LEVEL.fullmatch(register_name):
                yield Finding(found, f"{_LEVEL_RULE}, got {quoted(register_name)}")
            yield from _register(found, register)
            if register.width > device.registers_in_request:
                message = f"has {register.width} registers, and a request {device.registers_in_request} at most"
                yield Finding((*found, "type"), f"{message}. Raise registers_in_request")
        yield from _overlaps(at, device)


_LEVEL = re.compile(r"[\w.-]{1,64}")
"""Name of a device or register: a level of topics."""
_LEVEL_RULE = "expected a name of at most 64 letters, digits, `_`, `-` and `.`"


def _register(path: KeyPath, register: Register) -> Iterator[Finding]:
    kind = register.type or ("bool" if register.is_bit else "u16")
    if register.is_bit and kind != "bool":
        yield Finding((*path, "type"), f"a {register.kind} is a bit: expected bool, got {kind}")
    if register.address + register.width > ADDRESS_MAX + 1:
        message = f"{kind} at {register.address} goes beyond the last register, {ADDRESS_MAX}"
        yield Finding((*path, "address"), message)
    if (register.length is None) == (kind == "text"):
        word = "is missing: give the number of registers" if kind == "text" else "is for `type: text`"
        yield Finding((*path, "length"), f"{word}")
    if register.bit is not None and (kind != "bool" or register.is_bit):
        yield Finding((*path, "bit"), "is for `type: bool` in a holding or input register")
    if kind in ("bool", "text") and (register.scale != 1 or register.offset != 0):
        yield Finding((*path, "scale"), f"is for numbers, and the type is {kind}. Delete scale and offset")
    if register.order != "ABCD" and register.is_bit:
        yield Finding((*path, "order"), f"a {register.kind} is a bit, and has no order of bytes")
    if kind == "text" and register.order not in ("ABCD", "BADC"):
        yield Finding((*path, "order"), f"expected ABCD or BADC for text, got {register.order}")


def _overlaps(path: KeyPath, device: ModbusDevice) -> Iterator[Finding]:
    """Find values that share some registers and not all: one of the addresses, or a type, is wrong."""
    placed = sorted(
        ((each.kind, each.address, each.address + each.width, name) for name, each in device.registers.items()),
        key=lambda each: each[:3],
    )
    for (kind, first, end, name), (next_kind, next_first, next_end, next_name) in pairwise(placed):
        if kind == next_kind and next_first < end and (first, end) != (next_first, next_end):
            message = (
                f"{kind} {next_first} to {next_end - 1} overlaps with {name}, {first} to {end - 1}. Check address and "
                "type of both"
            )
            yield Finding((*path, "registers", next_name, "address"), message)


def _opcua(path: KeyPath, settings: OpcuaSource) -> Iterator[Finding]:
    if settings.user is not None and settings.username is not None:
        yield Finding((*path, "user"), "username is set, too. Delete one of them")
    if settings.user is not None and settings.security is None:
        message = "is missing: without it, what the user signs does not name the server, and another one could use it"
        yield Finding((*path, "security"), f"{message}. Set it, or delete `user`")
    for position, node in enumerate(settings.nodes):
        at: KeyPath = (*path, "nodes", position)
        if node.deadband is not None and node.deadband_percent is not None:
            yield Finding((*at, "deadband_percent"), "deadband is set, too. Delete one of them")
        if node.id is not None and not _NODE_ID.fullmatch(node.id):
            expected = "a node id such as ns=2;s=Temperature or nsu=urn:example:press;i=7"
            yield Finding((*at, "id"), f"expected {expected}, got {quoted(node.id)}")
        if node.events:
            if node.browse is not None:
                yield Finding((*at, "events"), "is for one node. Name it by `id` or `path` in place of `browse`")
            for key in ("sampling_s", "deadband", "deadband_percent"):
                if getattr(node, key) is not None:
                    yield Finding((*at, key.removesuffix("_s")), "is for values. Delete it, or `events`")
        if node.topic is not None and not valid_topic(node.topic):
            yield Finding((*at, "topic"), f"expected a topic such as press/temperature, got {quoted(node.topic)}")


_NODE_ID = re.compile(r"(ns=\d{1,5};|nsu=[^;]+;)?([isgb])=.+")
_FIXED_NODE_ID = re.compile(r"(ns=0;|nsu=[^;]+;)?([isgb])=.+")
"""Node id that names the same variable for as long as the server has it."""


def _same_session(config: EdgeConfig) -> Iterator[Finding]:
    """Find sources that would take a session from each other."""
    seen: dict[tuple[str, str], str] = {}
    for name, source in config.sources.items():
        if source.mqtt is None or source.mqtt.client_id is None:
            continue
        for url in source.mqtt.url:
            other = seen.setdefault((url, source.mqtt.client_id), name)
            if other != name:
                message = f"sources.{other} has this client_id at {url}, too. Choose another: each has its session"
                yield Finding(("sources", name, "mqtt", "client_id"), message)
                break


def notes_on_sources(config: EdgeConfig) -> Iterator[str]:
    """Yield warnings about topics that no stream takes, and about messages that write nothing."""
    patterns = [compile_pattern(each) for stream in config.streams.values() for each in stream.from_]
    for name, source in config.sources.items():
        settings = source.modbus or source.opcua
        if settings is None:
            continue
        told = {GAP_LEVEL: "the notices of its gaps"}
        if settings.writes:
            told[WRITTEN_LEVEL] = "the records of what messages wrote"
        for level, what in told.items():
            topic = _stored_topic(settings, f"{name}/{level}")
            if all(pattern.match(topic) is None for pattern in patterns):
                where = "stay on the node, in `unrouted`" if config.unrouted.policy == "keep" else "are not kept"
                yield (
                    f"sources.{name}: no stream takes {quoted(topic)}, so {what} {where}. Add that topic "
                    "to `from` of the stream that has the values"
                )
        for each, write in settings.writes.items():
            topic = write.topic or f"{name}/{WRITE_LEVEL}/{each}"
            if config.unrouted.policy != "keep" and all(pattern.match(topic) is None for pattern in patterns):
                yield (
                    f"sources.{name}: no stream takes {quoted(topic)}, so messages of clients write nothing. Add that "
                    "topic to `from` of a stream"
                )
            for other, broker in config.sources.items():
                if broker.mqtt is not None and any(
                    matches(filter_, topic.removeprefix(broker.mqtt.prefix)) for filter_ in broker.mqtt.topics
                ):
                    yield (
                        f"sources.{name}: {quoted(topic)} writes for clients of the node and hubs alone: messages of "
                        f"sources.{other} are stored, and write nothing"
                    )
