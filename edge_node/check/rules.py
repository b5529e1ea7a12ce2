"""Rules for an edge's configuration beyond the types of its values: names, patterns, references."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.links import Link
from weft.config.models import EdgeConfig
from weft.config.payload_schema.checked import check_checked
from weft.config.streams import Stream
from weft.config.units import format_size, quoted
from weft.edge_node.check.derived import carried_streams, intake, streams_of
from weft.edge_node.check.functions import function_rules
from weft.edge_node.check.listeners import listeners
from weft.edge_node.check.sizes import SEGMENTS_MIN, segment_bytes, unrouted_bytes
from weft.edge_node.check.sources import sources
from weft.edge_node.streams import OWN_PREFIX, UNROUTED_STREAM
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.topics import compile_pattern

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
    return [*findings, *function_rules(config), *_schemas(config), *_same_hub(config), *_one_hub_configures(config)]


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
        message = f"links.{first} lets its hub set settings already. Only one link may: set `never` for the other"
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
