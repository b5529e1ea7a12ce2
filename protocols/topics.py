"""Topic names, topic filters and patterns with named levels (MQTT 3.1.1 section 4.7).

A message is published to a *topic*, a subscriber requests a *filter* (``+`` one level, ``#`` the rest), and a *pattern*
is a filter whose wildcard levels may have names: ``plant/{line}/+/telemetry``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

TOPIC_BYTES_MAX = 65_535
"""Longest topic or filter in UTF-8: its length is two bytes on the wire [MQTT-4.7.3-3]."""

SHARE_PREFIX = "$share/"
"""Prefix of a shared subscription's filter."""

PATTERN_LEVELS_MAX = 128
"""Maximum number of levels of a pattern. Peers send patterns, and each level costs microseconds to compile."""

RESERVED_FIELDS = frozenset({"payload"})
"""Names that a level cannot have: the table has a column of that name. Its other own columns start with ``_``."""

LEVEL_NAME_MAX = 128
"""Longest name of a level. A longer one names no column."""
_NAMED = re.compile(rf"(?:^|/)\{{([A-Za-z_][A-Za-z0-9_]{{0,{LEVEL_NAME_MAX - 1}}})\}}(?=/|$)")
_NAME_IN_RULE = re.compile(r"\{([A-Za-z][A-Za-z0-9_]*)\}")
_FIELD = re.compile(r"\{([A-Za-z][A-Za-z0-9_]*)\}")
_ONE_LEVEL = r"[^/]*"


class InvalidTopic(ValueError):
    """A topic, filter or pattern that breaks a rule; the message names the rule and, if there is one, the clause."""


def _check_text(text: str, what: str) -> None:
    if not text:
        raise InvalidTopic(f"a {what} has at least one character [MQTT-4.7.3-1]")
    if "\0" in text:
        raise InvalidTopic(f"a {what} holds the null character U+0000 [MQTT-4.7.3-2]")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidTopic(f"a {what} holds a lone surrogate, which UTF-8 cannot carry [MQTT-1.5.3-1]") from None
    if length > TOPIC_BYTES_MAX:
        raise InvalidTopic(f"a {what} of {length} bytes; at most {TOPIC_BYTES_MAX} are possible [MQTT-4.7.3-3]")


def check_topic(topic: str) -> None:
    """Check a topic name, to which messages are published.

    Raises:
        InvalidTopic: empty, too long, null character, or a wildcard character [MQTT-3.3.2-2].
    """
    _check_text(topic, "topic name")
    if "+" in topic or "#" in topic:
        raise InvalidTopic(f"topic name {topic!r} holds a wildcard character [MQTT-3.3.2-2]")


def check_filter(topic_filter: str) -> None:
    """Check a topic filter.

    Raises:
        InvalidTopic: empty, too long, null character, ``#`` not alone on the last level [MQTT-4.7.1-2], or ``+``
            sharing its level with other characters [MQTT-4.7.1-3].
    """
    _check_text(topic_filter, "topic filter")
    # By counting, without a list of levels: a packet of 1 MiB may have filters with half a million of them.
    levels = f"/{topic_filter}/"
    if "#" in topic_filter and not (levels.endswith("/#/") and topic_filter.count("#") == 1):
        raise InvalidTopic(f"topic filter {topic_filter!r}: '#' must be the whole last level [MQTT-4.7.1-2]")
    if "+" in topic_filter and not levels.count("+") == levels.count("/+") == levels.count("+/"):
        raise InvalidTopic(f"topic filter {topic_filter!r}: '+' must be a whole level [MQTT-4.7.1-3]")


@dataclass(frozen=True, slots=True)
class Share:
    """A topic filter in parts: ``$share/{name}/{filter}`` (MQTT 5.0 section 4.8.2), or one without a share."""

    name: str
    """Empty when the subscription is not shared."""
    filter: str
    """Filter against which topics are matched."""


def split_share(topic_filter: str) -> Share:
    """Split a valid topic filter into share name and filter.

    Raises:
        InvalidTopic: it starts with ``$share/`` but is not a shared subscription: an empty name, a name with a wildcard
            [MQTT-4.8.2-1], or no valid filter after it [MQTT-4.8.2-2].
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return Share("", topic_filter)
    name, slash, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not name or "+" in name or "#" in name:
        raise InvalidTopic(
            f"shared subscription {topic_filter!r}: the share name has at least one character, no '+' and no '#' "
            "[MQTT-4.8.2-1]"
        )
    if not slash or not inner:
        raise InvalidTopic(f"shared subscription {topic_filter!r} has no topic filter behind its name [MQTT-4.8.2-2]")
    check_filter(inner)
    return Share(name, inner)


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a valid filter (without a share) matches a valid topic (section 4.7)."""
    if topic_filter[0] in "+#" and topic[0] == "$":
        return False  # [MQTT-4.7.2-1]
    wanted, have = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        if len(have) < len(wanted):
            return False
    elif len(have) != len(wanted):
        return False
    return all(level in ("+", other) for level, other in zip(wanted, have, strict=False))


def valid_topic(topic: str) -> bool:
    """Return whether messages can be published to ``topic``."""
    try:
        check_topic(topic)
    except InvalidTopic:
        return False
    return True


def valid_filter(topic_filter: str) -> bool:
    """Return whether ``topic_filter`` is a topic filter."""
    try:
        check_filter(topic_filter)
    except InvalidTopic:
        return False
    return True


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A compiled pattern."""

    filter: str
    """The MQTT filter that matches the same topics."""
    fields: tuple[str, ...]
    """Names of the named levels, left to right."""
    regex: re.Pattern[str]

    def match(self, topic: str) -> dict[str, str] | None:
        """Return the values of the named levels in ``topic`` (``{}`` without any), or None when it does not match.

        Wildcards on the first level do not match topics that start with ``$`` [MQTT-4.7.2-1].
        """
        found = self.regex.fullmatch(topic)
        return found.groupdict() if found else None


def compile_pattern(pattern: str) -> TopicPattern:
    """Compile a filter in which ``{name}`` may stand for ``+``; plain filters are patterns too.

    A trailing ``/#`` matches the level above it as well (section 4.7.1.2).

    Raises:
        InvalidTopic: as ``check_pattern``.
    """
    levels, names = _levels(pattern)
    parts = [
        f"(?P<{name}>{_ONE_LEVEL})" if name else _ONE_LEVEL if level == "+" else re.escape(level)
        for level, name in zip(levels, names, strict=True)
    ]
    return TopicPattern("/".join(levels), tuple(filter(None, names)), _regex(levels, parts))


def check_pattern(pattern: str) -> None:
    """Check that ``compile_pattern`` would accept a pattern, in a small part of its time.

    Raises:
        InvalidTopic: not a valid filter, a name that is not a whole level, used twice, or reserved, or more than
            ``PATTERN_LEVELS_MAX`` levels.
    """
    _levels(pattern)


def _levels(pattern: str) -> tuple[list[str], list[str]]:
    """Return the levels of the pattern's filter, and the name of each, empty for unnamed ones."""
    if pattern.count("/") >= PATTERN_LEVELS_MAX:
        raise InvalidTopic(f"a pattern of {pattern.count('/') + 1} levels; at most {PATTERN_LEVELS_MAX} are possible")
    levels: list[str] = []
    names: list[str] = []
    for level in pattern.split("/"):
        named = _FIELD.fullmatch(level)
        if not named and ("{" in level or "}" in level):
            raise InvalidTopic(f"pattern {pattern!r}: expected a whole level such as {{line}}, got {level!r}")
        levels.append("+" if named else level)
        names.append(named[1] if named else "")
    check_filter("/".join(levels))
    _check_fields(pattern, [name for name in names if name])
    return levels, names


def named_levels(patterns: Iterable[str]) -> list[str]:
    """Return the names of the levels in some patterns, in their order, each once. Invalid patterns are allowed."""
    named = (pattern for pattern in patterns if "{" in pattern)
    return list(dict.fromkeys(name for pattern in named for name in _NAMED.findall(pattern)))


def _check_fields(pattern: str, fields: list[str]) -> None:
    for name in fields:
        if fields.count(name) > 1:
            raise InvalidTopic(f"pattern {pattern!r}: level {{{name}}} is named twice")
        if len(name) > LEVEL_NAME_MAX:
            raise InvalidTopic(f"a pattern names a level with {len(name)} characters; at most {LEVEL_NAME_MAX}")
        if name in RESERVED_FIELDS:
            raise InvalidTopic(f"pattern {pattern!r}: {name!r} is a column of every table; choose another name")


def _regex(levels: list[str], parts: list[str]) -> re.Pattern[str]:
    if levels == ["#"]:
        text = ".*"
    elif levels[-1] == "#":
        text = "/".join(parts[:-1]) + "(?:/.*)?"
    else:
        text = "/".join(parts)
    guard = r"(?!\$)" if levels[0] in ("+", "#") else ""
    return re.compile(guard + text, re.DOTALL)


class TopicRule(NamedTuple):
    """A rule that moves a message to another topic, made of the named levels and the rest of one pattern."""

    pattern: TopicPattern
    levels: int
    """Levels of the pattern before its ``#``, if it has one."""
    to: tuple[str, ...]
    """Levels of the new topic, without the ``#`` at the end."""
    with_rest: bool
    """True if the part that ``#`` matched follows."""

    def apply(self, topic: str) -> str | None:
        """Return the new topic for a topic; None if the rule does not apply to it."""
        found = self.pattern.match(topic)
        if found is None:
            return None
        levels = [_NAME_IN_RULE.sub(lambda name: found[name[1]], level) for level in self.to]
        return "/".join([*levels, *topic.split("/")[self.levels :]] if self.with_rest else levels)


def compile_rule(from_: str, to: str) -> TopicRule:
    """Compile a rule.

    Raises:
        InvalidTopic: ``from_`` is not a pattern, or ``to`` is not a topic made of its named levels.
    """
    pattern = compile_pattern(from_)
    levels = to.split("/")
    with_rest = levels[-1] == "#"
    if with_rest:
        if not from_.endswith("#"):
            raise InvalidTopic(f"{to!r} ends in `#`, and {from_!r} does not: there is no rest to put there")
        levels.pop()
    for level in levels:
        for name in _NAME_IN_RULE.findall(level):
            if name not in pattern.fields:
                raise InvalidTopic(f"{to!r} uses {{{name}}}, which {from_!r} does not name")
        if any(character in _NAME_IN_RULE.sub("", level) for character in "+#{}"):
            raise InvalidTopic(f"{to!r}: a topic has no wildcards; put names of levels in braces, as {{line}}")
    if to == "":
        raise InvalidTopic("a topic has at least one character")
    return TopicRule(pattern, len(from_.split("/")) - from_.endswith("#"), tuple(levels), with_rest)


# Subscriptions by filter: a tree of filter levels, walked once per topic (MQTT 3.1.1 and 5.0 section 4.7).

Entry = TypeVar("Entry")


class _Node(Generic[Entry]):
    __slots__ = ("children", "entries")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Entry]] = {}
        self.entries: dict[Entry, None] = {}


class FilterTree(Generic[Entry]):
    """Filters with the entries of each. Filters must be valid ones, without ``$share/{name}/``.

    An entry is any hashable object for a subscription: the caller stores the requested and granted options in it, and
    one entry may represent all members of a shared subscription.

    The cost of ``match`` depends on the topic's levels and on the filters that match its beginning, not on the number
    of filters. Depth is walked in a loop: a filter of thousands of levels cannot exhaust the stack.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[Entry] = _Node()

    def add(self, topic_filter: str, entry: Entry) -> None:
        """Add an entry at a filter; do nothing when it is there already."""
        node = self._root
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.entries[entry] = None

    def remove(self, topic_filter: str, entry: Entry) -> None:
        """Remove an entry; do nothing if it is not there. Empty branches are removed."""
        node = self._root
        path: list[tuple[_Node[Entry], str]] = []
        for level in topic_filter.split("/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return
            node = child
        node.entries.pop(entry, None)
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.entries or child.children:
                return
            del parent.children[level]

    def match(self, topic: str) -> list[Entry]:
        """Return the entries of all filters that match a topic; an entry of several filters is returned for each."""
        found: list[Entry] = []
        nodes = [self._root]
        hidden = topic.startswith("$")  # no wildcard on the first level matches these [MQTT-4.7.2-1]
        for level in topic.split("/"):
            following: list[_Node[Entry]] = []
            for node in nodes:
                children = node.children
                if level in children:
                    following.append(children[level])
                if not hidden:
                    if "+" in children:
                        following.append(children["+"])
                    if "#" in children:
                        found += children["#"].entries
            hidden = False
            nodes = following
            if not nodes:
                return found
        for node in nodes:
            found += node.entries
            if "#" in node.children:  # "sport/#" matches "sport" too (section 4.7.1.2)
                found += node.children["#"].entries
        return found

    def __bool__(self) -> bool:
        return bool(self._root.children)
