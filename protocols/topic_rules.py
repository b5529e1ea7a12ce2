"""Rules that put a message under another topic: named levels and the rest of one pattern, in the place of a topic."""

from __future__ import annotations

import re
from typing import NamedTuple

from weft.protocols.topics import InvalidTopic, TopicPattern, compile_pattern

_NAME = re.compile(r"\{([A-Za-z][A-Za-z0-9_]*)\}")


class Rule(NamedTuple):
    """A compiled rule."""

    pattern: TopicPattern
    levels: int
    """Levels of the pattern before its ``#``, if it has one."""
    to: tuple[str, ...]
    """Levels of the topic in its place, without the ``#`` at the end."""
    with_rest: bool
    """True if what ``#`` matched follows."""

    def apply(self, topic: str) -> str | None:
        """Return the topic in the place of one; None if the rule is not for it."""
        found = self.pattern.match(topic)
        if found is None:
            return None
        levels = [_NAME.sub(lambda name: found[name[1]], level) for level in self.to]
        return "/".join([*levels, *topic.split("/")[self.levels :]] if self.with_rest else levels)


def compile_rule(from_: str, to: str) -> Rule:
    """Compile a rule.

    Raises:
        InvalidTopic: ``from_`` is no pattern, or ``to`` no topic of the levels that it names.
    """
    pattern = compile_pattern(from_)
    levels = to.split("/")
    with_rest = levels[-1] == "#"
    if with_rest:
        if not from_.endswith("#"):
            raise InvalidTopic(f"{to!r} ends in `#`, and {from_!r} does not: there is no rest to put there")
        levels.pop()
    for level in levels:
        for name in _NAME.findall(level):
            if name not in pattern.fields:
                raise InvalidTopic(f"{to!r} uses {{{name}}}, which {from_!r} does not name")
        if any(character in _NAME.sub("", level) for character in "+#{}"):
            raise InvalidTopic(f"{to!r}: a topic has no wildcards; names of levels stand in braces, as {{line}}")
    if to == "":
        raise InvalidTopic("a topic has at least one character")
    return Rule(pattern, len(from_.split("/")) - from_.endswith("#"), tuple(levels), with_rest)
