"""Rules for an edge's configuration beyond the types of its values: names, patterns, references."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.models import EdgeConfig
from weft.config.streams import Link, Stream
from weft.config.units import format_size, quoted
from weft.edge_node.check.derived import carried_streams, streams_of
from weft.edge_node.check.functions import function_rules
from weft.edge_node.check.listeners import listeners
from weft.edge_node.check.sizes import SEGMENTS_MIN, segment_bytes, unrouted_bytes
from weft.edge_node.check.sources import sources
from weft.edge_node.streams import OWN_PREFIX, UNROUTED_STREAM
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.topics import compile_pattern


def check(config: EdgeConfig) -> list[Finding]:
    """Return the errors in ``config``, without touching disk or network."""
    findings = [*_names(config), *listeners(config), *sources(config)]
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
    return [*findings, *function_rules(config), *_same_hub(config)]


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
    if (link.certificate is None) != (link.key is None):
        missing = "key" if link.key is None else "certificate"
        yield Finding((*path, missing), "is missing: a certificate and its key belong together. Name both files")
    if all(urlsplit(url).scheme == "http" for url in link.to):
        for given in ("ca_file", "certificate"):
            if getattr(link, given) is not None:
                yield Finding((*path, given), "is for TLS, and no URL of `to` begins with https://. Write https://")
    if link.retry_min_s > link.retry_max_s:
        yield Finding((*path, "retry_min"), "expected at most retry_max")


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
