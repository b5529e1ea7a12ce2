"""Named topic levels of keys, found once per distinct key and cached for later sections."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from weft.protocols.lane import Lane
from weft.protocols.topics import InvalidTopic, TopicPattern, compile_pattern

CACHED_CHARACTERS_MAX = 8 << 10
"""Longest list of topic patterns that is kept compiled: compiled, it takes about fifty times its length."""
FOUND_BYTES_MAX = 16 << 20
"""Memory of a process for cached levels of keys; some 40,000 keys with two levels each."""
KEY_COST_BYTES = 200
"""Memory of a cached key beside its own bytes and its levels."""
LEVEL_COST_BYTES = 64
"""Memory of one level beside its text."""

Topics = Callable[[Lane], Sequence[str]]
"""A lane's topic patterns."""
Found = tuple[str | None, ...]
"""The levels of one key, in the order of the fields; None if its pattern has no such level."""


class Names(NamedTuple):
    """Names and patterns that determine the levels of a key."""

    fields: tuple[str, ...]
    """Names of the levels in lower case."""
    topics: tuple[str, ...]
    """Patterns of the lane; the first that matches names the levels."""


class FoundLevels:
    """Levels of keys by their ``Names``, up to ``bytes_max``; then the cache is emptied.

    The keys of a stream are those of its machines: each section of a chunk has nearly the same ones. Threads may share
    an instance.
    """

    def __init__(self, bytes_max: int = FOUND_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._found: dict[Names, dict[bytes, Found]] = {}
        self._lock = threading.Lock()

    def of(self, names: Names, keys: Sequence[bytes], patterns: Callable[[], Sequence[TopicPattern]]) -> list[Found]:
        """Return the levels of each key.

        Args:
            patterns: compiles the topics of ``names``; called for unknown keys.
        """
        # Another thread may remove this dict from the cache meanwhile; its contents remain valid.
        found = self._found.get(names, {})
        new = [key for key in dict.fromkeys(keys) if key not in found]
        if not new:
            return [found[key] for key in keys]
        made = _find(names.fields, new, patterns())
        self._keep(names, made)
        return [made[key] if key in made else found[key] for key in keys]

    @property
    def kept_keys(self) -> int:
        """Return the number of cached keys."""
        with self._lock:
            return sum(map(len, self._found.values()))

    def _keep(self, names: Names, made: dict[bytes, Found]) -> None:
        each = KEY_COST_BYTES + LEVEL_COST_BYTES * len(names.fields)
        # The levels of a key are parts of it.
        cost = len(made) * each + 2 * sum(map(len, made))
        with self._lock:
            if names not in self._found:
                cost += sum(map(len, names.topics)) + LEVEL_COST_BYTES * (len(names.topics) + len(names.fields))
            if self._bytes + cost > self._bytes_max:
                self._found, self._bytes = {}, 0
            if cost <= self._bytes_max:
                self._found.setdefault(names, {}).update(made)
                self._bytes += cost


_FOUND = FoundLevels()


class Levels:
    """Named topic levels of keys as columns, independent of the case of names."""

    def __init__(self, fields: Sequence[str], topics: Topics) -> None:
        self.fields = fields
        self._folded = tuple(field.casefold() for field in fields)
        self._topics = topics
        self._names: dict[Lane, Names] = {}
        self._own = FoundLevels()
        """Levels by long lists of patterns, which are not kept beyond a section."""
        self._compiled: dict[Names, list[TopicPattern]] = {}

    def of(self, lane: Lane, keys: Sequence[bytes]) -> list[Found]:
        """Return the levels of each key of a lane."""
        names = self._names.get(lane)
        if names is None:
            names = self._names[lane] = Names(self._folded, tuple(self._topics(lane)))
        found = self._own if _is_long(names.topics) else _FOUND
        return found.of(names, keys, lambda: self._patterns(names))

    def _patterns(self, names: Names) -> list[TopicPattern]:
        if names not in self._compiled:
            self._compiled[names] = compile_topics(names.topics)
        return self._compiled[names]

    def columns(self, rows: Sequence[Found]) -> dict[str, pa.Array]:
        """Return one array per field over a key table."""
        values = zip(*rows, strict=True)
        return {field: pa.array(column, pa.string()) for field, column in zip(self.fields, values, strict=True)}


def _find(fields: Sequence[str], keys: Sequence[bytes], patterns: Sequence[TopicPattern]) -> dict[bytes, Found]:
    made: dict[bytes, Found] = {}
    for key in keys:
        topic = key_text(key)
        matches = (pattern.match(topic) for pattern in patterns)
        match = next((match for match in matches if match is not None), {})
        levels = {name.casefold(): level for name, level in match.items()}
        made[key] = tuple(levels.get(name) for name in fields)
    return made


def _is_long(topics: Sequence[str]) -> bool:
    return sum(map(len, topics)) > CACHED_CHARACTERS_MAX


def compile_topics(topics: tuple[str, ...]) -> list[TopicPattern]:
    """Return the patterns that compile. A pattern that does not came from an edge of another release, and names no
    levels here."""
    # Long lists, which take much memory, are compiled for each section, at its owner's cost.
    return _compile(topics) if _is_long(topics) else _compiled(topics)


def _compile(topics: tuple[str, ...]) -> list[TopicPattern]:
    patterns = []
    for topic in topics:
        with contextlib.suppress(InvalidTopic):
            patterns.append(compile_pattern(topic))
    return patterns


_compiled = lru_cache(maxsize=128)(_compile)


def key_text(key: bytes) -> str:
    """Return a key as text. Topics are UTF-8 (MQTT 3.1.1 section 1.5.3); other bytes become U+FFFD."""
    return key.decode("utf-8", "replace")
