"""Rules for an edge's configuration beyond the shape of its values: names, patterns, references."""

from __future__ import annotations

from collections.abc import Iterator

from weft.config.errors import Finding, KeyPath
from weft.config.listeners import MqttListener
from weft.config.models import EdgeConfig
from weft.config.streams import Link, Retain, Stream
from weft.config.units import UnixSocket, format_size, parse_bind, parse_listen, quoted
from weft.config.values import Anonymous
from weft.edge_node.streams import OWN_PREFIX, UNROUTED_STREAM
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.topics import compile_pattern

TOPICS_LOG_SHARE = 4
"""Divisor of the disk budget: the share by which the log may grow before messages kept for absent sessions are
deleted."""
TOPICS_LOG_BYTES = 1 << 30
SEGMENT_BYTES = 64 << 20
SEGMENT_SHARE = 8
"""Divisor of the disk budget: the share of a segment, where 64 MiB would be more."""
UNROUTED_BYTES = 64 << 20
UNROUTED_SHARE = 16
"""Divisor of the disk budget: the share of the stream `unrouted`, where 64 MiB would be more."""
SEGMENTS_MIN = 4
"""Least number of segments in the disk budget: space is freed a whole segment at a time."""


def check(config: EdgeConfig) -> list[Finding]:
    """Return the errors in ``config``, without touching disk or network."""
    findings = [*_names(config), *_listeners(config)]
    if segment_bytes(config) * SEGMENTS_MIN > config.disk.budget_bytes:
        most = format_size(config.disk.budget_bytes // SEGMENTS_MIN)
        message = f"expected at most a quarter of disk.budget ({most}), got {format_size(segment_bytes(config))}"
        findings.append(Finding(("disk", "segment"), message))
    if config.state.save_bytes > config.state.journal_bytes:
        findings.append(Finding(("state", "save_size"), "expected at most state.journal"))
    if config.state.backlog_page_bytes > config.state.backlog_buffer_bytes:
        findings.append(Finding(("state", "backlog_page"), "expected at most state.backlog_buffer"))
    if unrouted_bytes(config) > config.disk.budget_bytes:
        findings.append(Finding(("unrouted", "size"), "expected at most disk.budget"))
    for name, stream in config.streams.items():
        findings += _stream(name, stream, config)
    for name, link in config.links.items():
        findings += _link(name, link, config)
    return [*findings, *_same_hub(config)]


def notes(config: EdgeConfig) -> list[str]:
    """Return warnings about settings that are allowed and perhaps not meant, a sentence each."""
    return [
        *_notes_on_links(config), *_notes_on_listeners(config), *_notes_on_state(config), *_notes_on_unrouted(config),
    ]  # fmt: skip


def segment_bytes(config: EdgeConfig) -> int:
    """Return ``disk.segment``, or its default for the budget."""
    return config.disk.segment_bytes or min(SEGMENT_BYTES, config.disk.budget_bytes // SEGMENT_SHARE)


def unrouted_bytes(config: EdgeConfig) -> int:
    """Return ``unrouted.size``, or its default for the budget."""
    return config.unrouted.size_bytes or min(UNROUTED_BYTES, config.disk.budget_bytes // UNROUTED_SHARE)


def topics_log_bytes(config: EdgeConfig) -> int:
    """Return ``state.topics_log``, at most a quarter of the disk budget: with more, an absent session would keep the
    log full before its messages may be deleted."""
    return min(config.state.topics_log_bytes or TOPICS_LOG_BYTES, config.disk.budget_bytes // TOPICS_LOG_SHARE)


def _notes_on_links(config: EdgeConfig) -> Iterator[str]:
    carried = {name for link in config.links.values() for name in carried_streams(link, config)}
    stay = [
        name
        for name, stream in config.streams.items()
        if name not in carried and stream.retain == Retain() and stream.when_full == "refuse"
    ]
    if stay:
        yield (
            f"no link carries {', '.join(stay)}: its records are never deleted. Once they fill disk.budget "
            f"({format_size(config.disk.budget_bytes)}), devices get no acknowledgements, whatever the stream. Give it "
            "a link, `retain` or `when_full: drop_oldest`"
        )


def _notes_on_listeners(config: EdgeConfig) -> Iterator[str]:
    for name, listener in config.listeners.items():
        if listener is None or listener.tls is not None or parse_listen(listener.bind).is_loopback:
            continue
        if config.auth.users_file is not None:
            yield f"listeners.{name} has no TLS: passwords cross the network in clear text. Add `tls`"
    yield from _notes_on_strangers(config)


def _notes_on_strangers(config: EdgeConfig) -> Iterator[str]:
    """Yield what programs of other machines may do without a login; `anonymous` allows it, and is easily forgotten."""
    for name, listener in config.listeners.items():
        if listener is None or listener.anonymous != "allowed_beyond_loopback":
            continue
        if not parse_listen(listener.bind).is_loopback:
            may = "publish and read every topic" if config.auth.acl_file is None else "connect without a user name"
            yield (
                f"listeners.{name}: every program that reaches {listener.bind} may {may}. Set auth.users_file with "
                "`anonymous: never`, unless you trust that network"
            )
    if config.http is not None and not parse_bind(config.http.bind).is_loopback:
        yield (
            f"http: every program that reaches {config.http.bind} may read the status page, which names streams, hubs "
            "and topics. Bind to 127.0.0.1, unless you trust that network"
        )


def _notes_on_state(config: EdgeConfig) -> Iterator[str]:
    asked, used = config.state.topics_log_bytes, topics_log_bytes(config)
    if asked is not None and used < asked:
        yield (
            f"state.topics_log ({format_size(asked)}) is more than a quarter of disk.budget "
            f"({format_size(config.disk.budget_bytes)}): {format_size(used)} is used, so that absent sessions do not "
            "fill the disk. Set it to that, or raise disk.budget"
        )


def _notes_on_unrouted(config: EdgeConfig) -> Iterator[str]:
    if config.unrouted.policy == "refuse" and config.auth.refused_publish == "acknowledge":
        yield (
            "`unrouted: refuse` with `auth.refused_publish: acknowledge`: clients of MQTT 3.1.1 get an acknowledgement "
            "for messages that no stream matches, although these are not kept"
        )


def carried_streams(link: Link, config: EdgeConfig) -> tuple[str, ...]:
    """Return the streams that go over a link."""
    if link.streams is not None:
        return link.streams
    return tuple(name for name, stream in config.streams.items() if stream.replicate)


def _names(config: EdgeConfig) -> Iterator[Finding]:
    named: list[tuple[KeyPath, str]] = [(("node",), config.node), (("tenant",), config.tenant)]
    named += [(("streams", name), name) for name in config.streams]
    named += [(("links", name), name) for name in config.links]
    for name in config.streams:
        if name.startswith(OWN_PREFIX):
            yield Finding(
                ("streams", name),
                f"names that begin with {OWN_PREFIX} are for streams of the node itself. Choose another name",
            )
        if name == UNROUTED_STREAM:
            yield Finding(
                ("streams", name),
                "is the name of the stream for messages that no stream matches. Set its size and time under "
                "`unrouted`, or choose another name for a stream with topics",
            )
    named += [(("listeners", name), name) for name in config.listeners]
    for path, name in named:
        if not valid_name(name):
            yield Finding(path, f"expected a name ({NAME_RULE}), got {quoted(name)}")


def _listeners(config: EdgeConfig) -> Iterator[Finding]:
    http, binds = config.http, dict[str, str]()
    for name, listener in config.listeners.items():
        if listener is None:
            continue
        path = ("listeners", name)
        if listener.bind in binds and not listener.bind.endswith(":0"):
            yield Finding(
                (*path, "bind"),
                f"{listener.bind} is the address of listeners.{binds[listener.bind]} already. Choose another",
            )
        binds[listener.bind] = name
        yield from _listener(name, listener, has_users=config.auth.users_file is not None)
    if http is not None:
        yield from open_beyond_loopback(("http",), "bind", http.bind, http.anonymous)


def _listener(name: str, listener: MqttListener, *, has_users: bool) -> Iterator[Finding]:
    path, bind, anonymous = ("listeners", name), parse_listen(listener.bind), listener.anonymous
    if name in ("mqtts", "wss") and listener.tls is None:
        yield Finding((*path, "tls"), f"is missing: a listener named {name} needs TLS. Set certificate and key")
    if listener.websocket is not None and not listener.websocket.path.startswith("/"):
        yield Finding(
            (*path, "websocket", "path"), f"expected a path such as /mqtt, got {quoted(listener.websocket.path)}"
        )
    if isinstance(bind, UnixSocket) and listener.proxy_protocol is None and listener.tls is not None:
        yield Finding((*path, "tls"), "a unix socket needs no TLS: it does not leave the machine. Delete it")
    if listener.tls is not None and listener.tls.crl_file is not None and listener.tls.client_ca is None:
        yield Finding((*path, "tls", "crl_file"), "needs `client_ca`: without it, no client shows a certificate")
    knows_names = has_users or (listener.tls is not None and listener.tls.client_ca is not None)
    if (
        anonymous != "allowed_beyond_loopback"
        and not knows_names
        and not (bind.is_loopback and anonymous == "loopback")
    ):
        yield Finding(
            (*path, "bind"),
            f"{bind} can be reached from other machines without authentication. Set auth.users_file or "
            "tls.client_ca, bind to 127.0.0.1, or set `anonymous: allowed_beyond_loopback`"
            if anonymous == "loopback"
            else "`anonymous: never` refuses every client without auth.users_file or tls.client_ca. Name one of them",
        )


def open_beyond_loopback(section: KeyPath, key: str, bind: str, anonymous: Anonymous) -> Iterator[Finding]:
    """Refuse a listener that strangers can reach, unless the configuration allows that explicitly."""
    if anonymous == "loopback" and not parse_bind(bind).is_loopback:
        yield Finding(
            (*section, key),
            f"{bind} can be reached from other machines without authentication. Bind to 127.0.0.1, or set "
            "`anonymous: allowed_beyond_loopback`",
        )


def _stream(name: str, stream: Stream, config: EdgeConfig) -> Iterator[Finding]:
    if stream.retain.size_bytes is not None and stream.retain.size_bytes > config.disk.budget_bytes:
        yield Finding(("streams", name, "retain", "size"), "expected at most disk.budget")
    for position, pattern in enumerate(stream.from_):
        path = ("streams", name, "from", position) if len(stream.from_) > 1 else ("streams", name, "from")
        try:
            compile_pattern(pattern)
        except ValueError as error:
            yield Finding(path, str(error))


def _link(name: str, link: Link, config: EdgeConfig) -> Iterator[Finding]:
    path = ("links", name)
    for stream in link.streams or ():
        if stream == UNROUTED_STREAM:
            yield Finding(
                (*path, "streams"),
                "`unrouted` stays on the node: no link may carry it. Define a stream for topics that a hub should get",
            )
        elif stream not in config.streams:
            known = ", ".join(config.streams) or "there are none"
            yield Finding((*path, "streams"), f"{quoted(stream)} is not a stream of this node; streams: {known}")
        elif not config.streams[stream].replicate:
            yield Finding((*path, "streams"), f"{quoted(stream)} has `replicate: false`; no link may carry it")
    if link.retry_min_s > link.retry_max_s:
        yield Finding((*path, "retry_min"), "expected at most retry_max")


def _same_hub(config: EdgeConfig) -> Iterator[Finding]:
    """Find links that would take each other's lanes. Two addresses of one hub show only when both have connected."""
    links = list(config.links.items())
    for at, (name, link) in enumerate(links):
        for other, before in links[:at]:
            urls = {url.rstrip("/") for url in link.to} & {url.rstrip("/") for url in before.to}
            if urls and set(carried_streams(link, config)) & set(carried_streams(before, config)):
                message = f"{min(urls)} is in links.{other}.to, and both bring it the same streams. Remove one of them"
                yield Finding(("links", name, "to"), message)
