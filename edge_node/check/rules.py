"""Rules for an edge's configuration beyond the types of its values: names, patterns, references."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.util import find_spec
from urllib.parse import urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.links import Link
from weft.config.listeners import TLS_NAMES, Listener, bind_of, protocol_of
from weft.config.models import EdgeConfig
from weft.config.streams import Retain, Stream, check_checked
from weft.config.units import Address, Anonymous, UnixSocket, format_size, parse_bind, parse_listen, quoted
from weft.edge_node.check.sources import notes_on_sources, sources
from weft.edge_node.check.streams import (
    SEGMENTS_MIN,
    Flow,
    carried_streams,
    configuring_link,
    errors_streams,
    inputs,
    intake,
    intake_patterns,
    is_derived,
    level_names,
    segment_bytes,
    streams_of,
    topics_log_bytes,
    unrouted_bytes,
    writers,
)
from weft.edge_node.streams import OWN_PREFIX, UNROUTED_STREAM, errors_stream, raw_stream
from weft.protocols.lane import NAME_CHARACTERS_MAX, NAME_RULE, valid_name
from weft.protocols.topics import compile_pattern, valid_topic

# Rules for listeners: their reachability and their authentication.


def listeners(config: EdgeConfig) -> Iterator[Finding]:
    """Yield the problems of the listeners and the status page."""
    http, binds = config.http, dict[str, str]()
    for name, listener in config.listeners.items():
        if listener is None:
            continue
        path = ("listeners", name)
        bind = bind_of(name, listener)
        if bind in binds and not bind.endswith(":0"):
            yield Finding((*path, "bind"), f"{bind} is the address of listeners.{binds[bind]} already. Choose another")
        binds[bind] = name
        yield from _listener(name, listener, has_users=config.auth.users_file is not None)
    if http is not None:
        if http.bind in binds and not http.bind.endswith(":0"):
            taken = f"{http.bind} is the address of listeners.{binds[http.bind]} already. Choose another"
            yield Finding(("http", "bind"), taken)
        yield from open_beyond_loopback(("http",), "bind", http.bind, http.anonymous)


def _listener(name: str, listener: Listener, *, has_users: bool) -> Iterator[Finding]:
    path, bind, anonymous = ("listeners", name), parse_listen(bind_of(name, listener)), listener.anonymous
    if name in TLS_NAMES and listener.tls is None:
        yield Finding((*path, "tls"), f"is missing: a listener named {name} needs TLS. Set certificate and key")
    if listener.websocket is not None and protocol_of(name, listener) != "mqtt":
        yield Finding((*path, "websocket"), "is for listeners of MQTT only. Delete it")
    if listener.vhosts is not None and protocol_of(name, listener) != "amqp":
        yield Finding((*path, "vhosts"), "is for listeners of AMQP only. Delete it")
    for vhost, prefix in (listener.vhosts or {}).items():
        if prefix and not valid_topic(prefix):
            yield Finding((*path, "vhosts", vhost), f"expected a topic such as plant/7, got {quoted(prefix)}")
    if listener.websocket is not None and not listener.websocket.path.startswith("/"):
        yield Finding(
            (*path, "websocket", "path"), f"expected a path such as /mqtt, got {quoted(listener.websocket.path)}"
        )
    if listener.origins and protocol_of(name, listener) != "http":
        yield Finding((*path, "origins"), "is for listeners of HTTP; MQTT has `websocket.origins`. Delete it")
    for origin in listener.origins:
        if origin != "*" and "://" not in origin:
            yield Finding(
                (*path, "origins"), f"expected an origin such as https://dash.example.com, got {quoted(origin)}"
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


# Rules for streams with functions: their inputs, their outputs, and cycles.
#
# Settings of a single function are checked where the function is created (``edge_node.derived.definitions``).

_TAKE_NULLS = ("where", "set", "select", "route", "alert", "window")
"""Functions whose expressions may treat a missing field as null."""


def function_rules(config: EdgeConfig) -> Iterator[Finding]:
    """Yield the problems of derived streams."""
    flow = Flow(config)
    errors = errors_streams(config)
    written = writers(config)
    for name, stream in config.streams.items():
        yield from _source(name, stream, is_written=name in written, errors_of_stream=errors.get(name))
        yield from _raw(name, stream, config)
        yield from _payload(name, stream, flow)
        yield from _missing(name, stream)
        for at, step in enumerate(stream.functions[1:], 1):
            if step.facts.reads is not None:
                kind = step.chosen[0]
                yield Finding(
                    ("streams", name, "functions", at, kind),
                    f"{kind} reads messages as they were received, so it must be the first function of its stream. "
                    "Move it up, or derive another stream",
                )
        if is_derived(stream):
            yield from _inputs(name, stream, config)
            yield from _targets(name, stream, config, errors, flow)
        own = [errors_stream(name)] if errors_stream(name) in errors else []
        own += [raw_stream(name)] if intake(name, stream) != name else []
        longest = max(own, key=len, default=name)
        if own and len(longest) > NAME_CHARACTERS_MAX:
            most = NAME_CHARACTERS_MAX - (len(longest) - len(name))
            yield Finding(
                ("streams", name),
                f"expected a name of at most {most} characters for this stream: the node's stream {longest} belongs "
                "to it",
            )
    for cycle in flow.cycles:
        yield _circle(cycle, config)


def _missing(name: str, stream: Stream) -> Iterator[Finding]:
    for at, step in enumerate(stream.functions):
        kind, settings = step.chosen
        if step.takes_nulls and kind not in _TAKE_NULLS:
            own = f". {kind} has a `missing` of its own, among its settings" if hasattr(settings, "missing") else ""
            yield Finding(
                ("streams", name, "functions", at, "missing"),
                f"is for functions with expressions ({', '.join(_TAKE_NULLS)}), not for {kind}{own}",
            )


def _source(name: str, stream: Stream, *, is_written: bool, errors_of_stream: str | None) -> Iterator[Finding]:
    path = ("streams", name)
    if errors_of_stream is not None:
        if stream.from_ or is_derived(stream):
            yield Finding(
                path,
                f"is the stream of the errors of {errors_of_stream}: it may have `retain` and `replicate`, and "
                "accepts no other records. Choose another name for a stream with other records",
            )
    elif stream.from_ and stream.from_stream:
        yield Finding(
            (*path, "from_stream"),
            "a stream has either `from` or `from_stream`. Remove one of them, or make two streams and a third that is "
            "derived from both",
        )
    elif stream.functions and not stream.from_ and not stream.from_stream:
        yield Finding(
            path, "its functions need records: set `from` (MQTT filters) or `from_stream` (streams of this node)"
        )
    elif not stream.from_ and not stream.from_stream and not is_written:
        yield Finding(
            path,
            "has no records: set `from` (MQTT filters) or `from_stream` (streams of this node), or name it in a "
            "`route` of another stream",
        )


def _raw(name: str, stream: Stream, config: EdgeConfig) -> Iterator[Finding]:
    path = ("streams", name, "raw")
    if stream.raw is None:
        return
    if not stream.from_ or not stream.functions:
        yield Finding(path, "is for a stream with `from` and `functions`: others have no messages beside their records")
    if stream.raw == "discard" and stream.resent == "suppress":
        yield Finding(
            ("streams", name, "resent"),
            "`suppress` finds a message that is sent again in the log, and with `raw: discard` it is not there. Remove "
            "one of them",
        )
    if isinstance(stream.raw, Retain) and (stream.raw.size_bytes or 0) > config.disk.budget_bytes:
        yield Finding((*path, "size"), "expected at most disk.budget")


def _payload(name: str, stream: Stream, flow: Flow) -> Iterator[Finding]:
    payload = stream.payload
    if payload is not None:
        path = ("streams", name, "payload")
        if payload.format == "struct" and not payload.fields:
            yield Finding((*path, "fields"), "is missing: a `struct` needs them, such as `- {name: rms, type: f32}`")
        if payload.format != "struct" and payload.fields:
            yield Finding((*path, "fields"), f"is for `format: struct`, not for {payload.format}. Remove one of them")
    formats = {source: flow.payload(source) for source in stream.from_stream}
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{source} is {payload.format}" for source, payload in formats.items())
        yield Finding(
            ("streams", name, "from_stream"),
            f"expected streams with the same payload format: {listed}. Derive a stream with the other format first",
        )


def _inputs(name: str, stream: Stream, config: EdgeConfig) -> Iterator[Finding]:
    known = streams_of(config)
    for position, source in enumerate(stream.from_stream):
        path: KeyPath = ("streams", name, "from_stream")
        path = (*path, position) if len(stream.from_stream) > 1 else path
        if source not in known:
            yield Finding(path, _unknown(source, known))
        elif stream.from_stream.index(source) != position:
            yield Finding(path, f"{quoted(source)} is listed twice: keep one")


def _targets(name: str, stream: Stream, config: EdgeConfig, errors: dict[str, str], flow: Flow) -> Iterator[Finding]:
    payload = flow.payload(name)
    for at, step in enumerate(stream.functions):
        rules = step.route.rules if step.route is not None else ()
        for target in step.facts.targets:
            path: KeyPath = ("streams", name, "functions", at, step.chosen[0])
            path += next((("rules", number, "to") for number, rule in enumerate(rules) if rule.to == target), ())
            found = config.streams.get(target)
            if found is None:
                yield Finding(path, _unknown(target, config.streams))
            elif target in errors:
                yield Finding(path, f"{quoted(target)} is the stream of the errors of {errors[target]}. Name another")
            elif found.from_ or is_derived(found):
                yield Finding(
                    path,
                    f"{quoted(target)} has records of its own. Name a stream with neither `from` nor `from_stream`, "
                    "and derive another stream from both if they belong together",
                )
            elif found.payload is not None and found.payload != payload:
                yield Finding(
                    path,
                    f"{quoted(target)} has payloads of {found.payload.format}, and the rows of {name} are "
                    f"{payload.format}. Leave its `payload` out",
                )


def _unknown(name: str, known: dict[str, Stream]) -> str:
    import difflib  # only after a mistake, not in every node

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    advice = f"Did you mean {near[0]}?" if near else f"Streams: {', '.join(known)}"
    return f"{quoted(name)} is not a stream of this node. {advice}"


def _circle(cycle: list[str], config: EdgeConfig) -> Finding:
    # The finding belongs to a stream with a setting for its inputs.
    named = next((name for name in cycle[1:] if config.streams.get(name, Stream()).from_stream), cycle[0])
    way = " -> ".join(cycle)
    path = ("streams", named, "from_stream") if config.streams.get(named, Stream()).from_stream else ("streams", named)
    return Finding(path, f"the streams form a cycle: {way}. Remove one of these steps")


_SCHEMA_FORMATS = ("json", "cbor", "msgpack")
"""Formats of payloads that schemas have, too."""


def check(config: EdgeConfig) -> list[Finding]:
    """Return the errors in ``config``, without touching disk or network."""
    findings = [*_names(config), *listeners(config), *sources(config), *_key(config)]
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
    findings += _pair(config)
    return [*findings, *function_rules(config), *_schemas(config), *_same_hub(config), *_one_hub_configures(config)]


def _pair(config: EdgeConfig) -> Iterator[Finding]:
    pair = config.pair
    if pair is None:
        return
    if not parse_bind(pair.listen).is_loopback and (pair.token_file is None or pair.tls is None):
        missing = "`token_file`" if pair.tls else "`tls`" if pair.token_file else "`token_file` and `tls`"
        message = f"{pair.listen} can be reached from other machines: set {missing}, or bind to 127.0.0.1"
        yield Finding(("pair", "listen"), message)
    for url in map(urlsplit, pair.peer):
        if url.scheme == "http" and pair.token_file is not None and not Address(url.hostname or "", 0).is_loopback:
            message = f"the token would cross the network in clear text to {url.geturl()}. Write https://"
            yield Finding(("pair", "peer"), message)
    if pair.node == config.node:
        yield Finding(("pair", "node"), f"{pair.node} is this node itself: name the peer")
    if not config.links:
        yield Finding(("pair",), "copies streams that a link carries, and there is no link. Add one")


def _names(config: EdgeConfig) -> Iterator[Finding]:
    named: list[tuple[KeyPath, str]] = [(("node",), config.node), (("tenant",), config.tenant)]
    named += [(("streams", name), name) for name in config.streams]
    named += [(("links", name), name) for name in config.links]
    named += [(("sources", name), name) for name in config.sources]
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


def _key(config: EdgeConfig) -> Iterator[Finding]:
    given = config.encryption
    if given is not None and sum(map(bool, (given.key_file, given.command, given.environment))) != 1:
        yield Finding(("encryption",), "expected exactly one of `key_file`, `command` and `environment`")


def _stream(name: str, stream: Stream, config: EdgeConfig) -> Iterator[Finding]:
    if stream.retain.size_bytes is not None and stream.retain.size_bytes > config.disk.budget_bytes:
        yield Finding(("streams", name, "retain", "size"), "expected at most disk.budget")
    for position, pattern in enumerate(stream.from_):
        path = ("streams", name, "from", position) if len(stream.from_) > 1 else ("streams", name, "from")
        try:
            compile_pattern(pattern)
        except ValueError as error:
            yield Finding(path, str(error))


def _pull(path: tuple[str, ...], link: Link, config: EdgeConfig) -> Iterator[Finding]:
    """Check that streams which a hub may ask for exist. Patterns may match none: they are for streams to come."""
    known = {*streams_of(config), *(intake(name, stream) for name, stream in config.streams.items())}
    for stream in () if link.pull is None else link.pull.streams:
        if not set("*?[") & set(stream) and stream not in known:
            names = ", ".join(sorted(known)) or "there are none"
            yield Finding(path, f"{quoted(stream)} is not a stream of this node; streams: {names}")


def _link(name: str, link: Link, config: EdgeConfig) -> Iterator[Finding]:
    path, known = ("links", name), streams_of(config)
    for stream in link.streams or ():
        if stream == UNROUTED_STREAM:
            yield Finding(
                (*path, "streams"),
                "`unrouted` stays on the node: no link may carry it. Define a stream for topics that a hub should get",
            )
        elif stream not in known:
            names = ", ".join(config.streams) or "there are none"
            yield Finding((*path, "streams"), f"{quoted(stream)} is not a stream of this node; streams: {names}")
        elif not known[stream].replicate:
            yield Finding((*path, "streams"), f"{quoted(stream)} has `replicate: false`; no link may carry it")
    yield from _pull((*path, "pull", "streams"), link, config)
    if (link.certificate is None) != (link.key is None):
        missing = "key" if link.key is None else "certificate"
        yield Finding((*path, missing), "is missing: a certificate and its key belong together. Name both files")
    if all(urlsplit(url).scheme == "http" for url in link.to):
        for given in ("ca_file", "certificate"):
            if getattr(link, given) is not None:
                yield Finding((*path, given), "is for TLS, and no URL of `to` begins with https://. Write https://")
    if link.retry_min_s > link.retry_max_s:
        yield Finding((*path, "retry_min"), "expected at most retry_max")


def _one_hub_configures(config: EdgeConfig) -> Iterator[Finding]:
    """Find links beyond the first whose hubs may set something: two hubs would overrule each other for good."""
    first, *others = [name for name, link in config.links.items() if link.config_from_hub != "never"] or [""]
    for name in others:
        message = (
            f"links.{first} allows its hub to change settings already. Only one link may: set `never` for the other"
        )
        yield Finding(("links", name, "config_from_hub"), message)


def _same_hub(config: EdgeConfig) -> Iterator[Finding]:
    """Find links that would take each other's lanes. Two addresses of one hub are detected only when both have
    connected."""
    links = list(config.links.items())
    for at, (name, link) in enumerate(links):
        for other, before in links[:at]:
            urls = {url.rstrip("/") for url in link.to} & {url.rstrip("/") for url in before.to}
            if urls and set(carried_streams(link, config)) & set(carried_streams(before, config)):
                message = f"{min(urls)} is in links.{other}.to, and both bring it the same streams. Remove one of them"
                yield Finding(("links", name, "to"), message)


def _schemas(config: EdgeConfig) -> Iterator[Finding]:
    """Yield the problems of streams with a schema, and of those that lack one."""
    for name, stream in config.streams.items():
        if stream.schema is not None:
            yield from check_checked(stream.schema, ("streams", name, "schema"))
            yield from _schema(name, stream)
        elif stream.on_misfit != "accept":
            yield Finding(
                ("streams", name, "on_misfit"), "is for a stream with a `schema`: declare one, or remove this setting"
            )


def _schema(name: str, stream: Stream) -> Iterator[Finding]:
    schema, path = stream.schema, ("streams", name, "schema")
    assert schema is not None
    if not stream.from_:
        yield Finding(path, "is for a stream with `from`: the messages that clients publish are checked. Move it there")
    elif stream.functions:
        yield Finding(
            path,
            "is for a stream without `functions`: what these make of a message is not checked. Keep the messages in a "
            "stream of their own with this schema, and derive this one from it (`from_stream`)",
        )
    given = None if stream.payload is None else stream.payload.format
    if given in _SCHEMA_FORMATS and given != schema.format:
        yield Finding(
            (*path, "format"), f"is {schema.format}, and the stream's `payload` is {given}. Set both to the same format"
        )


# Check for the engine of AMQP 1.0: it has no wheels, so a node may run without it.

MISSING = (
    "AMQP 1.0 needs python-qpid-proton, which is not installed. Install weft-fabric[amqp1]; it is built from source, "
    "with a C compiler, the headers of Python and, for TLS in its own clients, of OpenSSL"
)


def is_installed() -> bool:
    """Return whether AMQP 1.0 can be served. The engine is not loaded for that."""
    return find_spec("proton") is not None and find_spec("cproton") is not None


# Warnings about settings that are allowed and perhaps not intended.


def notes(config: EdgeConfig) -> list[str]:
    """Return warnings about settings that are allowed and perhaps not intended, a sentence each."""
    return [
        *_notes_on_links(config),
        *_notes_on_pair(config),
        *_notes_on_names(config),
        *_notes_on_listeners(config),
        *_notes_on_state(config),
        *_notes_on_unrouted(config),
        *notes_on_sources(config),
    ]


def _notes_on_links(config: EdgeConfig) -> Iterator[str]:
    carried = {name for link in config.links.values() for name in carried_streams(link, config)}
    stay = [
        name
        for name, stream in streams_of(config).items()
        if name not in carried and stream.retain == Retain() and stream.when_full == "refuse"
    ]
    if stay:
        whose = "its" if len(stay) == 1 else "their"
        yield (
            f"no link carries {', '.join(stay)}: {whose} records are never deleted. Once they fill disk.budget "
            f"({format_size(config.disk.budget_bytes)}), devices get no acknowledgements, whatever the stream. Give it "
            "a link, `retain` or `when_full: drop_oldest`"
        )


def _notes_on_pair(config: EdgeConfig) -> Iterator[str]:
    if config.pair is None or config.pair.acks != "both":
        return
    carried = {name for link in config.links.values() for name in carried_streams(link, config)}
    single = [name for name, stream in config.streams.items() if intake(name, stream) not in carried and stream.from_]
    if single:
        yield (
            f"pair.acks: messages for {', '.join(single)} are acknowledged with one disk: no link carries what devices "
            "send there, as it is"
        )


def _notes_on_names(config: EdgeConfig) -> Iterator[str]:
    for name, stream in config.streams.items():
        for pattern in stream.from_:
            if "*" in pattern:
                yield f"streams.{name}.from: `*` is not a wildcard in {quoted(pattern)}. + is one level, # the rest"
    for name, link in config.links.items():
        streams = [*streams_of(config), *carried_streams(link, config)]
        for pattern in link.priorities:
            if not any(fnmatchcase(stream, pattern) for stream in streams):
                yield f"links.{name}.priorities: {quoted(pattern)} matches no stream of this node"
        for url in link.to:
            if url.rstrip("/").endswith(("/console", "/v1")):
                yield f"links.{name}.to: {quoted(url)} is a page of a hub. Links take its address without that path"


def _notes_on_listeners(config: EdgeConfig) -> Iterator[str]:
    for name, listener in config.listeners.items():
        if listener is None or listener.tls is not None or parse_listen(bind_of(name, listener)).is_loopback:
            continue
        if config.auth.users_file is not None:
            yield f"listeners.{name} has no TLS: passwords cross the network in clear text. Add `tls`"
    yield from _notes_on_strangers(config)
    for name, listener in config.listeners.items():
        if listener is not None and protocol_of(name, listener) == "amqp" and not is_installed():
            yield f"listeners.{name}: clients of AMQP 1.0 are refused. {MISSING}"


def _notes_on_strangers(config: EdgeConfig) -> Iterator[str]:
    """Yield the rights of other machines' programs without a login; `anonymous` grants them, and is easily
    forgotten."""
    for name, listener in config.listeners.items():
        if listener is None or listener.anonymous != "allowed_beyond_loopback":
            continue
        bind = bind_of(name, listener)
        if not parse_listen(bind).is_loopback:
            may = "publish and read every topic" if config.auth.acl_file is None else "connect without a user name"
            yield (
                f"listeners.{name}: every program that reaches {bind} may {may}. Set auth.users_file with "
                "`anonymous: never`, unless you trust that network"
            )
    if config.http is not None and not parse_bind(config.http.bind).is_loopback:
        yield (
            f"http: every program that reaches {config.http.bind} may read the status page, which names streams, hubs "
            "and topics. Bind to 127.0.0.1, unless you trust that network"
        )
        if config.http.anonymous == "allowed_beyond_loopback" and config.http.hosts is None:
            yield (
                "http: a web page in a browser of that network may read the status page under a name of its own (DNS "
                "rebinding). List the names of the node in http.hosts, or none: `hosts: []`"
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


# Rules for an edge's configuration, and derived facts: sizes, derived streams, warnings.

__all__ = [
    "Flow",
    "carried_streams",
    "check",
    "configuring_link",
    "inputs",
    "intake",
    "intake_patterns",
    "is_derived",
    "level_names",
    "notes",
    "segment_bytes",
    "streams_of",
    "topics_log_bytes",
    "unrouted_bytes",
]
