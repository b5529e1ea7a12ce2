"""Rules for sources: their brokers, credentials and topics, and loops of a node with itself."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.intake.listeners import bind_of, protocol_of
from weft.config.intake.sources import AmqpSource, MqttSource, Source, SourceSettings
from weft.config.models import EdgeConfig
from weft.config.units import Address, UnixSocket, parse_listen, quoted
from weft.protocols.topics import SHARE_PREFIX, check_filter, compile_rule

PORTS = {"mqtt": 1883, "mqtts": 8883, "amqp": 5672, "amqps": 5671}
"""Scheme -> port of a URL without one."""


def sources(config: EdgeConfig) -> Iterator[Finding]:
    """Yield the problems of the sources."""
    for name, source in config.sources.items():
        kind, settings = source.chosen
        path: KeyPath = ("sources", name, kind)
        yield from _common(path, kind, settings)
        if source.mqtt is not None:
            yield from _mqtt(path, source.mqtt)
        else:
            assert source.amqp is not None
            yield from _amqp(path, source.amqp)
        for at, address in own_listeners(config, source):
            yield Finding((*path, "url"), loop_message(at, address))
    yield from _same_session(config)


def brokers(settings: SourceSettings) -> Iterator[tuple[str, Address]]:
    """Yield scheme and address of each URL of a source."""
    for url in settings.url:
        parts = urlsplit(url)
        yield parts.scheme, Address(parts.hostname or "", parts.port or PORTS[parts.scheme])


def own_listeners(config: EdgeConfig, source: Source) -> Iterator[tuple[str, Address]]:
    """Yield (listener, address) for each URL of a source that leads to a listener of the node, as far as the addresses
    show it: ``preflight`` resolves names."""
    for _, broker in brokers(source.settings):
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
        f"{address} is listeners.{listener} of this node: each message would come again without end. Name the other "
        "broker, or listen at another port"
    )


def _common(path: KeyPath, kind: str, settings: SourceSettings) -> Iterator[Finding]:
    schemes = (kind, f"{kind}s")
    for url in settings.url:
        parts = urlsplit(url)
        if parts.scheme not in schemes:
            yield Finding((*path, "url"), f"expected {kind}://HOST or {kind}s://HOST, got {quoted(url)}")
        elif kind == "mqtt" and parts.path.strip("/"):
            yield Finding((*path, "url"), f"MQTT has no paths in URLs: {quoted(url)}. Delete {parts.path}")
    if settings.password_file is not None and settings.password_env is not None:
        yield Finding((*path, "password_env"), "password_file is set, too. Delete one of them")
    has_password = settings.password_file is not None or settings.password_env is not None
    if has_password and settings.username is None:
        yield Finding((*path, "username"), "is missing: the password needs a user name")
    if settings.retry_min_s > settings.retry_max_s:
        yield Finding((*path, "retry_min"), "expected at most retry_max")
    tls = settings.tls
    if tls is not None and not any(urlsplit(url).scheme.endswith("s") for url in settings.url):
        yield Finding((*path, "tls"), f"needs a URL with TLS: {kind}s://HOST")
    if tls is not None and tls.key is not None and tls.certificate is None:
        yield Finding((*path, "tls", "certificate"), "is missing: a key needs its certificate")
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
