"""Streams as a configuration describes them: the derived ones, sizes and retention, and the flow of records between
them."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from weft.config.functions.settings import Payload
from weft.config.functions.step import FunctionStep
from weft.config.limits import EdgeLimits
from weft.config.links import Link
from weft.config.models import EdgeConfig
from weft.config.streams import Retain, Stream
from weft.edge_node.streams import DOWN_STREAM, errors_stream, raw_stream
from weft.protocols.topics import PATTERN_LEVELS_MAX, InvalidTopic, check_pattern, named_levels
from weft.storage.segment_log import LogSettings, SegmentLog, StreamPolicy

# Sizes that follow from the disk budget where a configuration omits them.

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
"""Minimum number of segments in the disk budget: space is freed a whole segment at a time."""
COPIES_MAX = 3
"""Maximum number of copies of peers' logs: the present one, and earlier ones whose records hubs still lack."""
COPY_SHARE = 4
"""Divisor of the disk budget: the share of a copy."""
COPY_BYTES_MIN = 8 << 20


def copy_budget(config: EdgeConfig) -> int:
    """Return the most bytes of a copy of a peer's log; 0 for a node without a peer."""
    if config.pair is None:
        return 0
    return config.pair.budget_bytes or max(COPY_BYTES_MIN, config.disk.budget_bytes // COPY_SHARE)


def segment_bytes(config: EdgeConfig) -> int:
    """Return ``disk.segment``, or its default for the budget."""
    return config.disk.segment_bytes or min(SEGMENT_BYTES, config.disk.budget_bytes // SEGMENT_SHARE)


def unrouted_bytes(config: EdgeConfig) -> int:
    """Return ``unrouted.size``, or its default for the budget."""
    return config.unrouted.size_bytes or errors_bytes(config)


def topics_log_bytes(config: EdgeConfig) -> int:
    """Return the setting `state.topics_log`, at most a quarter of the disk budget: with more, an absent session would
    keep the log full before its messages may be deleted."""
    return min(config.state.topics_log_bytes or TOPICS_LOG_BYTES, config.disk.budget_bytes // TOPICS_LOG_SHARE)


def errors_bytes(config: EdgeConfig) -> int:
    """Return the disk space of a stream of errors that is not configured: the default of `unrouted`."""
    return min(UNROUTED_BYTES, config.disk.budget_bytes // UNROUTED_SHARE)


# Streams of a configuration: the derived ones, their inputs, and the implied streams.

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


# Detection of functions that reject every payload of bytes, as they need fields of another format.
#
# A stream whose first functions need fields, and that has no ``payload``, is read as JSON. As bytes all its rows
# would go to the errors, so no configuration with results changes its meaning.

VALUE = "value"
"""Field that a payload of bytes has."""
_OTHER_NAMES = frozenset({"key", "time"})
"""Names in expressions that are not fields."""
_PASSING = frozenset({"where", "sample", "dedupe", "changes"})
"""Functions that only drop rows: behind them a row is unchanged, and has no other destination."""


def needs_fields(steps: Sequence[FunctionStep], levels_at: Callable[[int], Collection[str]]) -> bool:
    """Return whether some functions, in sequence, certainly reject every payload of bytes.

    Args:
        levels_at: position of a function -> named levels of the topics that reach it.
    """
    for at, step in enumerate(steps):
        levels = levels_at(at)
        if not step.takes_nulls and any(_reads(text, levels) for text in _expressions(step)):
            return True
        if any(name.partition(".")[0] != VALUE for name in _names(step, levels)):
            return True
        if isinstance(step.select, tuple) and VALUE not in (name.partition(".")[0] for name in step.select):
            return True
        if step.chosen[0] not in _PASSING:
            return False
    return False


def _expressions(step: FunctionStep) -> Iterator[str]:
    """Yield expressions that a function computes for every row."""
    if step.where is not None:
        yield step.where
    if step.set_ is not None:
        yield from step.set_.values()
    if isinstance(step.select, dict):
        yield from step.select.values()
    if step.alert is not None:
        yield step.alert.when
    if step.route is not None and step.route.rules[0].where is not None:
        yield step.route.rules[0].where
    if step.window is not None:
        yield from step.window.emit.values()


def _names(step: FunctionStep, levels: Collection[str]) -> Iterator[str]:
    """Yield fields that windows require in every row."""
    windows = step.window or step.sql
    if windows is not None:
        yield from (name for name in windows.by if name not in levels and name not in ("key", "none"))
        if windows.time is not None:
            yield windows.time


def _reads(text: str, levels: Collection[str]) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # the check of functions reports the problem
    return any(name != VALUE and name not in levels and name not in _OTHER_NAMES for name in _surely_read(tree))


def _surely_read(tree: ast.expr) -> Iterator[str]:
    """Yield the names that an expression reads unconditionally."""
    match tree:
        case ast.Name(id=name):
            yield name
        case ast.Subscript(value=value) | ast.UnaryOp(operand=value) | ast.IfExp(test=value):
            yield from _surely_read(value)
        case ast.BoolOp(values=[first, *_]):
            yield from _surely_read(first)
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right, *_]):
            yield from _surely_read(left)
            yield from _surely_read(right)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from _surely_read(part)
        case ast.Call(func=ast.Name(id=function), args=parts) if function not in {"exists", "default", "field"}:
            for part in parts:
                yield from _surely_read(part)


# Flow of records between streams, as a configuration describes it: cycles, and properties that streams inherit.
#
# Patterns and payload formats of a derived stream follow from those of its inputs, so streams are processed in order,
# each after its inputs. A walk along the inputs instead would visit shared inputs repeatedly.

Patterns = tuple[str, ...]


class Flow:
    """Flow of records in a configuration that may still be invalid.

    Streams in a cycle, and behind one, have the patterns and formats of the inputs processed before them.
    """

    def __init__(self, config: EdgeConfig) -> None:
        self._streams = streams_of(config)
        self._writers = writers(config)
        self._errors_of = errors_streams(config)
        self._sources = self._edges()
        self._along: dict[str, list[Patterns]] = {}
        self._patterns: dict[str, Patterns] = {}
        self._payloads: dict[str, Payload] = {}
        self._unset: set[str] = set()
        """Streams without a setting for the format."""
        self._taken: set[str] = set()
        """Streams whose functions read their input as JSON, because they name fields and no setting has the format."""
        for name in self._sorted()[0]:
            self._work_through(name)
        # Topics of messages may contain the key, so streams that feed others through them are known only now.
        self._add_published()
        self.cycles = self._sorted()[1]
        """Streams that feed each other, a list for each cycle; the first name is repeated at the end."""

    def patterns(self, name: str) -> Patterns:
        """Return the patterns of a stream's keys: their named levels are the columns of its table.

        A function that keeps keys keeps the patterns. The grouping of a window becomes the levels of its keys.
        """
        return self._patterns.get(name, ())

    def patterns_before(self, name: str, at: int) -> Patterns:
        """Return the patterns of the keys that reach a stream's function at a position."""
        return self._along[name][at]

    def payload(self, name: str) -> Payload:
        """Return the payload format of a stream: its own, or that of its inputs."""
        return self._payloads.get(name) or Payload()

    def input_payload(self, name: str) -> Payload:
        """Return the payload format of the records that a stream's functions read."""
        return Payload(format="json") if name in self._taken else self._given(name)

    def is_taken_for_json(self, name: str) -> bool:
        """Return whether the functions of a stream read JSON because they name fields, and no setting has the
        format."""
        return name in self._taken

    def _given(self, name: str) -> Payload:
        """Return the configured format that a stream's functions read."""
        stream = self._streams[name]
        read = read_by_first(stream)
        if read is not None:
            return Payload(format=read)
        return self.payload(stream.from_stream[0] if stream.from_stream else name)

    def _edges(self) -> dict[str, list[str]]:
        """Return stream -> the streams that feed it, each once."""
        sources: dict[str, list[str]] = {}
        for name, stream in self._streams.items():
            found = [*stream.from_stream, *(writer.stream for writer in self._writers.get(name, ()))]
            if name in self._errors_of:
                found.append(self._errors_of[name])
            sources[name] = [source for source in dict.fromkeys(found) if source in self._streams]
        return sources

    def _add_published(self) -> None:
        """Add the streams whose functions publish (``alert``) to the sources of the streams with their topics."""
        for source, stream in self._streams.items():
            topics = [
                topic
                for at, step in enumerate(stream.functions)
                for template in step.facts.topics
                for topic in published(template, self.patterns_before(source, at))
            ]
            for name, fed in self._streams.items() if topics else ():
                if source not in self._sources[name] and any_overlap(topics, fed.from_):
                    self._sources[name].append(source)

    def _sorted(self) -> tuple[list[str], list[list[str]]]:
        """Return all streams, each behind its sources, and the cycles. Streams of cycles come last."""
        waiting = {name: len(sources) for name, sources in self._sources.items()}
        feeds: dict[str, list[str]] = {name: [] for name in self._sources}
        for name, sources in self._sources.items():
            for source in sources:
                feeds[source].append(name)
        order: list[str] = []
        cycles: list[list[str]] = []
        ready = deque(name for name, count in waiting.items() if not count)
        while waiting:
            while ready:
                name = ready.popleft()
                del waiting[name]
                order.append(name)
                for fed in feeds[name]:
                    if fed in waiting:
                        waiting[fed] -= 1
                        if not waiting[fed]:
                            ready.append(fed)
            if waiting:
                cycle = self._cycle(waiting)
                cycles.append(cycle)
                # Continue as if the first stream of the cycle had all its sources, to find the other cycles.
                waiting[cycle[0]] = 0
                ready.append(cycle[0])
        return order, cycles

    def _cycle(self, waiting: dict[str, int]) -> list[str]:
        """Return a cycle among streams that wait for each other."""
        name = next(iter(waiting))
        way: dict[str, None] = {name: None}
        while True:
            name = next(source for source in self._sources[name] if source in waiting)
            if name in way:
                names = list(way)
                cycle = names[names.index(name) :][::-1]
                # It begins with the stream that comes first in the file.
                at = cycle.index(next(each for each in self._sources if each in cycle))
                return [*cycle[at:], *cycle[: at + 1]]
            way[name] = None

    def _work_through(self, name: str) -> None:
        stream = self._streams[name]
        own = [stream.from_, *(self.patterns(source) for source in stream.from_stream)]
        along = self._along[name] = [joined(own)]
        for step in stream.functions:
            key = step.facts.new_key
            patterns = step.facts.new_patterns
            if patterns is None:
                patterns = along[-1] if key is None else (key_pattern(key),)
            along.append(patterns)
        routed = [
            self._along[each.stream][each.at] for each in self._writers.get(name, ()) if each.stream in self._along
        ]
        failed = self._errors_of.get(name)
        # Rejected rows keep the key that they had at the rejecting function.
        rejected = self._along.get(failed, []) if failed is not None else []
        self._patterns[name] = joined([along[-1], *routed, *rejected])
        source = next((source for source in self._sources[name] if source in self._payloads), None)
        if stream.payload is not None:
            self._payloads[name] = stream.payload
        elif failed is not None and failed in self._payloads:
            self._payloads[name] = self._rejected(failed)  # rejected rows keep their payload
        elif read_by_first(stream) is not None:
            self._payloads[name] = Payload(format="json")  # the only format with fields in tables
        elif source is not None and not stream.from_:
            self._payloads[name] = self._payloads[source]
            if source in self._unset:
                self._unset.add(name)
        else:
            self._payloads[name] = Payload()
            self._unset.add(name)
        if self._takes_json(name, stream):
            self._taken.add(name)
            if name in self._unset:
                self._unset.discard(name)
                self._payloads[name] = Payload(format="json")

    def _takes_json(self, name: str, stream: Stream) -> bool:
        inputs = stream.from_stream or (name,)
        if not stream.functions or not all(each in self._unset for each in inputs) or read_by_first(stream) is not None:
            return False
        along = self._along[name]
        return needs_fields(stream.functions, lambda at: level_names(along[at]))

    def _rejected(self, name: str) -> Payload:
        """Return the format of the rows that a stream's functions reject: they may not be JSON where that is
        assumed."""
        return Payload() if name in self._taken else self.input_payload(name)


def read_by_first(stream: Stream) -> Literal["sparkplug"] | None:
    """Return the payload format that a stream's first function parses itself; None for all other streams."""
    return stream.functions[0].facts.reads if stream.functions else None


def key_pattern(names: tuple[str, ...]) -> str:
    """Return the pattern of keys that consist of the values of some names, joined by ``/``."""
    levels = [f"{{{name}}}" if names.count(name) == 1 and _may_name(name) else "+" for name in names]
    return "/".join(levels) if 0 < len(levels) <= PATTERN_LEVELS_MAX else "#"


def _may_name(name: str) -> bool:
    """Return whether a level of a pattern may have this name."""
    try:
        check_pattern(f"{{{name}}}")
    except InvalidTopic:
        return False
    return True


def level_names(patterns: Patterns) -> tuple[str, ...]:
    """Return the names of all levels of some patterns."""
    return tuple(named_levels(patterns))


def as_filter(pattern: str) -> str:
    """Return the filter of a pattern. A level with a name in braces matches any level."""
    return "/".join("+" if "{" in level else level for level in pattern.split("/"))


def published(template: str, patterns: Patterns) -> list[str]:
    """Return filters of the topics of a template: values of fields stay within a level, the key is a topic."""
    before, found, after = template.partition("{key}")
    if not found:
        return [as_filter(template)]
    if (before and not before.endswith("/")) or (after and not after.startswith("/")):
        return [f"{as_filter(before.rpartition('/')[0])}/#" if "/" in before else "#"]
    filters = [as_filter(f"{before}{pattern}{after}") for pattern in patterns or ("#",)]
    return [each if each.endswith("#") or "#" not in each else each[: each.index("#") + 1] for each in filters]


def any_overlap(topics: Iterable[str], patterns: Patterns) -> bool:
    """Return whether a topic may match some filter and some pattern at once."""
    filters = [as_filter(pattern) for pattern in patterns]
    return any(overlap(topic, other) for topic in topics for other in filters)


def overlap(one: str, other: str) -> bool:
    """Return whether a topic may match both filters."""
    left, right = one.split("/"), other.split("/")
    for a, b in zip(left, right, strict=False):
        if "#" in (a, b):
            return True
        if a != b and "+" not in (a, b):
            return False
    longer = left[len(right) :] or right[len(left) :]
    return not longer or longer == ["#"]


def joined(groups: Iterable[Patterns]) -> Patterns:
    """Return the patterns of all groups, each once."""
    return tuple(dict.fromkeys(pattern for group in groups for pattern in group))


# Settings of a node's log and retention of its streams, from its configuration.

READ_BYTES_MAX = 1 << 20
"""Upper bound on a read of a socket by asyncio and uvloop (256 KiB), and on its records in the log."""
PENDING_READS_MIN = 3
"""Minimum number of longest reads that may wait for the disk, for any ``limits.pending``."""
KEY_RECORD_BYTES = 256
"""Approximate bytes of a remembered idempotency key in the log."""
DOWN_RETAIN_S = 7 * 86_400.0
"""Time that messages from hubs stay in the log: as long as the hub's longest expiry."""
DOWN_SHARE = 16
"""Divisor of the log's budget: the maximum share for them."""
KEYS_SHARE = 16
"""Divisor of the log's budget: the maximum share for such keys."""


def log_settings(config: EdgeConfig) -> LogSettings:
    """Return the log's settings from the node's configuration."""
    return LogSettings(
        segment_bytes=segment_bytes(config),
        budget_bytes=config.disk.budget_bytes,
        tail_bytes=config.limits.tail_bytes,
        # The log takes up to twice this, and a read of a persistent session requires room for the longest one. A bound
        # without that room would refuse each such session whenever data waits for the disk.
        pending_bytes_max=max(config.limits.pending_bytes, PENDING_READS_MIN * read_reserve_bytes(config.limits)),
        commit_interval_s=config.commit_interval_s,
        compression_level=config.disk.compression_level if config.disk.compression == "zstd" else None,
    )


def read_reserve_bytes(limits: EdgeLimits) -> int:
    """Return the room that is reserved before a read of a persistent session is stored."""
    return READ_BYTES_MAX + limits.message_bytes


def stream_policies(config: EdgeConfig) -> dict[str, StreamPolicy]:
    """Return the retention of each stream, from the node's configuration.

    Messages that only functions read are released by those functions, as others are by hubs.
    """
    carried = {name for link in config.links.values() for name in carried_streams(link, config)}
    policies = {
        name: StreamPolicy(stream.when_full, stream.retain.time_s, stream.retain.size_bytes, replicated=name in carried)
        for name, stream in streams_of(config).items()
    }
    for name, stream in config.streams.items():
        if stream.from_ and stream.functions:
            retain = stream.raw if isinstance(stream.raw, Retain) else Retain()
            policies[raw_stream(name)] = StreamPolicy(stream.when_full, retain.time_s, retain.size_bytes)
    return policies


def down_policy(config: EdgeConfig) -> StreamPolicy:
    """Return the retention of messages from hubs. Sessions of clients that were away for longer miss them."""
    return StreamPolicy("drop_oldest", DOWN_RETAIN_S, config.disk.budget_bytes // DOWN_SHARE, replicated=False)


def suppressed_streams(config: EdgeConfig, log: SegmentLog) -> frozenset[int]:
    """Return the numbers of the streams in which messages that devices send again are not stored again."""
    return frozenset(
        log.stream(intake(name, stream)) for name, stream in config.streams.items() if stream.resent == "suppress"
    )


def unrouted_policy(config: EdgeConfig) -> StreamPolicy:
    """Return the retention of the stream `unrouted`, from the node's configuration."""
    return StreamPolicy("drop_oldest", config.unrouted.time_s, unrouted_bytes(config), replicated=False)


def keys_policy(config: EdgeConfig) -> StreamPolicy:
    """Return the retention of the idempotency keys of requests, from the node's configuration."""
    size = min(config.state.idempotency_keys * KEY_RECORD_BYTES, config.disk.budget_bytes // KEYS_SHARE)
    return StreamPolicy("drop_oldest", config.state.idempotency_window_s, size, replicated=False)
