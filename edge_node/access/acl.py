"""Access rules for topics, in the format of Mosquitto's ``acl_file``.

    # for clients without a user name
    topic read public/#
    # for one user
    user press-7
    topic readwrite plant/a/press-7/#
    topic deny plant/a/press-7/firmware
    # for every client; %u is the user name, %c the client identifier
    pattern write devices/%u/#

A rule has ``read``, ``write``, ``readwrite`` (the default) or ``deny``, and a topic filter. Access that no line grants
is refused, and ``deny`` wins over every grant, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag
from typing import NamedTuple

from weft.protocols.topics import InvalidTopic, check_filter

LINES_MAX = 100_000
FILE_BYTES_MAX = 64 << 20
_UNSAFE = frozenset("+#/\0")
"""Characters that a name in a pattern must not have: it would be more than the one level it is meant for."""


class AclUnusable(ValueError):
    """An invalid access list. The sentence names file, line and what was expected."""


class Permission(IntFlag):
    """Kinds of access that a rule grants."""

    READ = 1
    WRITE = 2


_WORDS = {
    "read": Permission.READ,
    "write": Permission.WRITE,
    "readwrite": Permission.READ | Permission.WRITE,
    "deny": Permission(0),
}


class Rule(NamedTuple):
    """One rule. ``levels`` of a pattern may hold ``%u`` and ``%c``."""

    permission: Permission
    """Granted access; none for a rule that denies."""
    levels: tuple[str, ...]
    is_pattern: bool = False

    def for_client(self, username: str | None, client_id: str) -> tuple[str, ...] | None:
        """Return the levels of the rule's filter for one client; None when the rule does not apply to it.

        A name that is missing or could be more than one level grants nothing; with such a name a rule that denies holds
        for everything that it could be about.
        """
        if not self.is_pattern:
            return self.levels
        filled: list[str] = []
        for level in self.levels:
            for variable, name in (("%u", username), ("%c", client_id)):
                if variable not in level:
                    continue
                if not name or not _UNSAFE.isdisjoint(name):
                    return None if self.permission or not name else (*filled, "#")
                level = level.replace(variable, name.replace("%", "\0"))  # noqa: PLW2901 - a name's own % is no variable
            filled.append(level.replace("\0", "%"))
        return tuple(filled)


def covers(wider: Sequence[str], narrower: Sequence[str]) -> bool:
    """Return whether ``wider`` matches every topic that the filter ``narrower`` matches. Both are given by their
    levels.

    A topic is its own filter. Wildcards on the first level say nothing of ``$...`` topics [MQTT-4.7.2-1].
    """
    if wider[0] in ("+", "#") and narrower[0].startswith("$"):
        return False
    for position, level in enumerate(wider):
        if level == "#":
            return True  # also of its parent: section 4.7.1.2
        if position == len(narrower) or narrower[position] == "#":
            return False
        if level not in ("+", narrower[position]):
            return False
    return len(wider) == len(narrower)


class AccessList:
    """The rules of one file. Immutable; a change of the file makes a new one."""

    def __init__(self, everybody: Sequence[Rule], by_user: dict[str | None, list[Rule]]) -> None:
        """Keep rules for all clients and rules by user name; None stands for clients without one."""
        self._everybody = tuple(everybody)
        self._by_user = by_user

    @property
    def users(self) -> frozenset[str]:
        """Return the user names that have rules of their own."""
        return frozenset(name for name in self._by_user if name is not None)

    def may_publish(self, username: str | None, client_id: str, topic: str) -> bool:
        """Return whether a client may publish to a topic."""
        return self._grants(Permission.WRITE, username, client_id, topic.split("/"))

    def may_read(self, username: str | None, client_id: str, topic: str) -> bool:
        """Return whether a client may be sent messages of a topic."""
        return self._grants(Permission.READ, username, client_id, topic.split("/"))

    def may_subscribe(self, username: str | None, client_id: str, topic_filter: str) -> bool:
        """Return whether a client may subscribe: one rule grants the whole filter, and no rule denies the whole of it.

        A rule that denies part of it lets it pass; ``may_read`` then says no for the topics of that part.
        """
        return self._grants(Permission.READ, username, client_id, topic_filter.split("/"))

    def _grants(self, permission: Permission, username: str | None, client_id: str, wanted: Sequence[str]) -> bool:
        granted = False
        for rule in (*self._by_user.get(username, ()), *self._everybody):
            if rule.permission and (granted or not rule.permission & permission):
                continue
            levels = rule.for_client(username, client_id)
            if levels is not None and covers(levels, wanted):
                if not rule.permission:
                    return False
                granted = True
        return granted


def read(path: str) -> AccessList:
    """Read an access list from a file.

    Raises:
        AclUnusable, OSError: it cannot be used, or read.
    """
    with open(path, "rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise AclUnusable(f"{path}: longer than {FILE_BYTES_MAX} bytes")
    try:
        return parse(data.decode(), path)
    except UnicodeDecodeError:
        raise AclUnusable(f"{path}: expected UTF-8 text") from None


def parse(text: str, path: str) -> AccessList:
    """Read an access list.

    Raises:
        AclUnusable: a line is none of those that the module's description shows.
    """
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise AclUnusable(f"{path}: {len(lines)} lines, at most {LINES_MAX} are read")
    everybody: list[Rule] = []
    by_user: dict[str | None, list[Rule]] = {None: []}
    user: str | None = None
    for number, line in enumerate(lines, 1):
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        try:
            if not word or word.startswith("#"):
                continue
            if word == "user" and rest:
                user = rest
                by_user.setdefault(user, [])
            elif word == "topic":
                by_user[user].append(_rule(rest, is_pattern=False))
            elif word == "pattern":
                everybody.append(_rule(rest, is_pattern=True))
            else:
                raise ValueError(f"expected `user NAME`, `topic ...`, `pattern ...` or a comment, got {line.strip()!r}")
        except ValueError as error:
            raise AclUnusable(f"{path}:{number}: {error}") from None
    return AccessList(everybody, by_user)


def _rule(text: str, *, is_pattern: bool) -> Rule:
    word, space, rest = text.partition(" ")
    if space and word not in _WORDS:
        # A filter may hold spaces, but then a word stands before it: a misspelt word must not grant anything.
        raise ValueError(f"expected read, write, readwrite or deny before the topic filter, got {word!r}")
    topic_filter = rest.strip() if word in _WORDS else text
    if not topic_filter:
        raise ValueError("expected read, write, readwrite or deny, and a topic filter after it")
    try:
        check_filter(topic_filter)
    except InvalidTopic as error:
        raise ValueError(str(error)) from None
    if not is_pattern and ("%u" in topic_filter or "%c" in topic_filter):
        raise ValueError("%u and %c are replaced only in `pattern` lines: write `pattern` instead of `topic`")
    return Rule(_WORDS.get(word, Permission.READ | Permission.WRITE), tuple(topic_filter.split("/")), is_pattern)
