"""Flow of records between streams, as a configuration describes it: cycles, and properties that streams inherit.

Patterns and payload formats of a derived stream follow from those of its inputs, so streams are processed in order,
each after its inputs. A walk along the inputs instead would visit shared inputs repeatedly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from weft.config.functions.payload import Payload
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.check.derived import errors_streams, streams_of, writers
from weft.edge_node.check.named_fields import needs_fields
from weft.protocols.topics import PATTERN_LEVELS_MAX, InvalidTopic, check_pattern, named_levels

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
