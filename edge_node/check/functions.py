"""Rules for streams with functions: their inputs, their outputs, and cycles.

Settings of a single function are checked where the function is created (``edge_node.functions.check``).
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.config.errors import Finding, KeyPath
from weft.config.models import EdgeConfig
from weft.config.streams import Retain, Stream
from weft.config.units import quoted
from weft.edge_node.check.derived import errors_streams, intake, is_derived, streams_of, writers
from weft.edge_node.check.flow import Flow
from weft.edge_node.streams import errors_stream, raw_stream
from weft.protocols.lane import NAME_CHARACTERS_MAX

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
                    f"{kind} takes messages as they came, so that it is the first function of its stream. Move it up, "
                    "or derive another stream",
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
                f"is the stream of the errors of {errors_of_stream}: it may have `retain` and `replicate`, and takes "
                "no other records. Choose another name for a stream with other records",
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
            "takes no records: set `from` (MQTT filters) or `from_stream` (streams of this node), or name it in a "
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
            yield Finding(path, f"{quoted(source)} is there twice: keep one")


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
                    f"{quoted(target)} takes records of its own. Name a stream with neither `from` nor `from_stream`, "
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
    return Finding(path, f"records would go round in a cycle: {way}. Take one of these steps out")
