"""Streams of a configuration: the derived ones, their inputs, and the implied streams."""

from __future__ import annotations

from typing import NamedTuple

from weft.config.links import Link
from weft.config.models import EdgeConfig
from weft.config.streams import Retain, Stream
from weft.edge_node.check.sizes import errors_bytes
from weft.edge_node.streams import DOWN_STREAM, errors_stream, raw_stream

ERRORS_RETAIN_S = 7 * 86_400.0
"""Retention of a stream ``NAME-errors`` that is not configured: a week, so that errors of a weekend are still
present."""


class Writer(NamedTuple):
    """A function that writes rows to another stream (``route``)."""

    stream: str
    """Stream of the function."""
    at: int
    """Position in the stream's list of functions."""


def streams_of(config: EdgeConfig) -> dict[str, Stream]:
    """Return the streams of a node: the configured ones, and ``NAME-errors`` for those that have one."""
    streams = dict(config.streams)
    for errors, name in errors_streams(config).items():
        retain = Retain(time_s=ERRORS_RETAIN_S, size_bytes=errors_bytes(config))
        implied = Stream(when_full="drop_oldest", retain=retain, replicate=config.streams[name].replicate)
        streams.setdefault(errors, implied)
    return streams


def errors_streams(config: EdgeConfig) -> dict[str, str]:
    """Return ``NAME-errors`` -> NAME of the streams that keep what they reject there."""
    return {
        errors_stream(name): name
        for name, stream in config.streams.items()
        if is_derived(stream) or (stream.schema is not None and stream.on_misfit != "accept")
    }


def configuring_link(config: EdgeConfig) -> str | None:
    """Return the link whose hub may set something on the node; None if none may."""
    return next((name for name, link in config.links.items() if link.config_from_hub != "never"), None)


def is_derived(stream: Stream) -> bool:
    """Return whether functions write the stream's records."""
    return bool(stream.from_stream or stream.functions)


def inputs(name: str, stream: Stream) -> tuple[str, ...]:
    """Return the streams of the log that a stream's functions read; none for a stream without functions."""
    if stream.from_stream:
        return stream.from_stream
    return (raw_stream(name),) if stream.functions else ()


def intake(name: str, stream: Stream) -> str:
    """Return the stream of the log for devices' messages that match ``from``."""
    return raw_stream(name) if stream.from_ and stream.functions else name


def intake_patterns(config: EdgeConfig) -> dict[str, tuple[str, ...]]:
    """Return stream of the log -> filters of the messages that devices publish to it: none for the stream of messages
    from hubs, which clients only read."""
    found = {intake(name, stream): stream.from_ for name, stream in config.streams.items() if stream.from_}
    return {**found, DOWN_STREAM: ()} if takes_messages(config) else found


def takes_messages(config: EdgeConfig) -> bool:
    """Return whether a hub may publish to the node's clients."""
    return any(link.down is not None for link in config.links.values())


def carried_streams(link: Link, config: EdgeConfig) -> tuple[str, ...]:
    """Return the streams that a link carries. Streams of errors that are not configured follow their stream."""
    streams = streams_of(config)
    if link.streams is None:
        return tuple(name for name, stream in streams.items() if stream.replicate)
    implied = streams.keys() - config.streams.keys()
    errors = (errors_stream(name) for name in link.streams)
    return tuple(dict.fromkeys([*link.streams, *(name for name in errors if name in implied)]))


def writers(config: EdgeConfig) -> dict[str, list[Writer]]:
    """Return stream -> the functions of other streams that write to it."""
    found: dict[str, list[Writer]] = {}
    for name, stream in config.streams.items():
        for at, step in enumerate(stream.functions):
            for target in step.facts.targets:
                found.setdefault(target, []).append(Writer(name, at))
    return found
