"""What an edge's configuration must keep to beyond the shape of its values: names, patterns, what refers to what."""

from __future__ import annotations

from collections.abc import Iterator

from config.errors import Finding, KeyPath
from config.models import Anonymous, EdgeConfig, Link, Stream
from config.units import format_size, parse_bind, quoted
from protocols.lane import NAME_RULE, valid_name
from protocols.topics import compile_pattern

SEGMENTS_MIN = 4
"""Least number of segments in the disk budget: space is freed a whole segment at a time."""


def check(config: EdgeConfig) -> list[Finding]:
    """Everything that is wrong with ``config``, without touching disk or network."""
    findings = [*_names(config), *_listeners(config)]
    if config.disk.segment_bytes * SEGMENTS_MIN > config.disk.budget_bytes:
        findings.append(Finding(("disk", "segment"), "expected at most a quarter of disk.budget"))
    for name, stream in config.streams.items():
        findings += _stream(name, stream)
    for name, link in config.links.items():
        findings += _link(name, link, config)
    return findings


def notes(config: EdgeConfig) -> list[str]:
    """What is allowed and perhaps not meant, a sentence each."""
    carried = {name for link in config.links.values() for name in carried_streams(link, config)}
    stay = [name for name in config.streams if name not in carried]
    if not stay:
        return []
    return [
        f"no link carries {', '.join(stay)}: its records are never deleted, and once they fill disk.budget "
        f"({format_size(config.disk.budget_bytes)}) devices get no acknowledgements any more, for no stream"
    ]


def carried_streams(link: Link, config: EdgeConfig) -> tuple[str, ...]:
    """The streams that go over a link."""
    return tuple(config.streams) if link.streams is None else link.streams


def _names(config: EdgeConfig) -> Iterator[Finding]:
    named: list[tuple[KeyPath, str]] = [(("node",), config.node), (("tenant",), config.tenant)]
    named += [(("streams", name), name) for name in config.streams]
    named += [(("links", name), name) for name in config.links]
    for path, name in named:
        if not valid_name(name):
            yield Finding(path, f"expected a name ({NAME_RULE}), got {quoted(name)}")


def _listeners(config: EdgeConfig) -> Iterator[Finding]:
    mqtt, http = config.listeners.mqtt, config.http
    if mqtt is not None:
        yield from open_beyond_loopback(("listeners", "mqtt"), "bind", mqtt.bind, mqtt.anonymous)
    if http is not None:
        yield from open_beyond_loopback(("http",), "bind", http.bind, http.anonymous)


def open_beyond_loopback(section: KeyPath, key: str, bind: str, anonymous: Anonymous) -> Iterator[Finding]:
    """Refuse a listener that strangers can reach unless the configuration says in words that they may."""
    if anonymous == "loopback" and not parse_bind(bind).is_loopback:
        yield Finding(
            (*section, key),
            f"{bind} can be reached from other machines, and nobody is asked who they are. "
            "Bind to 127.0.0.1, or say `anonymous: allowed_beyond_loopback`",
        )


def _stream(name: str, stream: Stream) -> Iterator[Finding]:
    for position, pattern in enumerate(stream.from_):
        path = ("streams", name, "from", position) if len(stream.from_) > 1 else ("streams", name, "from")
        try:
            compile_pattern(pattern)
        except ValueError as error:
            yield Finding(path, str(error))


def _link(name: str, link: Link, config: EdgeConfig) -> Iterator[Finding]:
    path = ("links", name)
    for stream in link.streams or ():
        if stream not in config.streams:
            known = ", ".join(config.streams) or "there are none"
            yield Finding((*path, "streams"), f"{quoted(stream)} is not a stream of this node; streams: {known}")
    if link.retry_min_s > link.retry_max_s:
        yield Finding((*path, "retry_min"), "expected at most retry_max")
