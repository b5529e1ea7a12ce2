"""Credentials of clients, their identity, and their permissions: access rules in the format of Mosquitto's
``acl_file``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, IntFlag, auto
from typing import NamedTuple, Protocol
from urllib.parse import quote

from weft.protocols.topics import InvalidTopic, check_filter

# Credentials of a client of any protocol, and the reasons for a refusal.


class Credentials(NamedTuple):
    """Claims of a client about itself. A certificate comes with its connection."""

    client_id: str = ""
    """Client identifier of protocols that have one: it replaces ``%c`` in access rules. With an empty one no such rule
    grants access."""
    username: str | None = None
    """None for a client without one."""
    password: bytes | None = None


class Denial(Enum):
    """Reason of a refusal. Each protocol maps it to its own code."""

    WRONG = auto()
    """User name or password is missing, or wrong."""
    NOT_ALLOWED = auto()
    """Clients of its kind are not admitted at the listener."""
    BUSY = auto()
    """Too many passwords wait to be checked: it may try again."""


class AccessDenied(Exception):
    """A refused client. The text never contains a password."""

    def __init__(self, denial: Denial, reason: str) -> None:
        super().__init__(reason)
        self.denial = denial


# Access rules for topics and queues, in the format of Mosquitto's ``acl_file``.
#
#     # for clients without a user name
#     topic read public/#
#     # for one user
#     user press-7
#     topic readwrite plant/a/press-7/#
#     topic deny plant/a/press-7/firmware
#     queue read plant.orders
#     # for every client; %u is the user name, %c the client identifier
#     pattern write devices/%u/#
#     pattern queue declare devices.%u.#
#
# A rule has ``read``, ``write``, ``readwrite`` (the default) or ``deny``, and a topic filter. Access without a
# granting line is refused, and ``deny`` overrides every grant, in any order.
#
# Rules for queues are about names of queues and exchanges of AMQP, and have ``declare`` as well. A name ``a.b`` is
# the topic ``a/b``; both forms are allowed in the pattern. Rights to a topic are some of the rights to the queue of
# its name (``AccessList.queue_rights``), so that users with topics of their own need no such rules.

LINES_MAX = 100_000
FILE_BYTES_MAX = 64 << 20
_UNSAFE = frozenset("+#/\0")
"""Characters that a name in a pattern must not have, because it would match more than its level."""
_UNSAFE_IN_QUEUES = _UNSAFE | {"."}


class AclUnusable(ValueError):
    """An invalid access list. The text has file, line and the expected form."""


class Permission(IntFlag):
    """Kinds of access in rules."""

    READ = 1
    """Receive messages of a topic; consume from a queue, and bind to an exchange whose bindings name no topic."""
    WRITE = 2
    """Publish to a topic; purge, delete and bind queues and exchanges of others."""
    DECLARE = 4
    """Declare a queue or an exchange that does not exist."""


ALL = Permission.READ | Permission.WRITE | Permission.DECLARE
_WORDS = {
    "read": Permission.READ,
    "write": Permission.WRITE,
    "readwrite": Permission.READ | Permission.WRITE,
    "deny": Permission(0),
}
_QUEUE_WORDS = {"declare": Permission.DECLARE, **_WORDS}


class AccessRule(NamedTuple):
    """One rule. ``levels`` of a pattern may hold ``%u`` and ``%c``."""

    permission: Permission
    """Granted access; empty for a deny rule."""
    levels: tuple[str, ...]
    is_pattern: bool = False
    of_queues: bool = False
    """True for a rule about names of queues and exchanges, not topics."""

    def for_client(self, username: str | None, client_id: str) -> tuple[str, ...] | None:
        """Return the levels of the rule's filter for one client; None when the rule does not apply to it.

        A name that is missing or could be more than one level grants nothing; with such a name a deny rule covers
        everything that it could match.
        """
        if not self.is_pattern:
            return self.levels
        filled: list[str] = []
        for level in self.levels:
            for variable, name in (("%u", username), ("%c", client_id)):
                if variable not in level:
                    continue
                if not name or not self._is_one_level(name):
                    return None if self.permission or not name else (*filled, "#")
                level = level.replace(variable, name.replace("%", "\0"))  # noqa: PLW2901 - a name's own % is no variable
            filled.append(level.replace("\0", "%"))
        return tuple(filled)

    def _is_one_level(self, name: str) -> bool:
        if self.of_queues:  # there dots are slashes, and `$` at the beginning is replaced
            return _UNSAFE_IN_QUEUES.isdisjoint(name) and name[0] != "$"
        return _UNSAFE.isdisjoint(name)


def covers(wider: Sequence[str], narrower: Sequence[str]) -> bool:
    """Return whether ``wider`` matches every topic that the filter ``narrower`` matches. Both are given by their
    levels.

    A topic is its own filter. Wildcards on the first level do not match ``$...`` topics [MQTT-4.7.2-1].
    """
    if wider[0] in ("+", "#") and narrower[0].startswith("$"):
        return False
    for position, level in enumerate(wider):
        if level == "#":
            return True  # also the parent: section 4.7.1.2
        if position == len(narrower) or narrower[position] == "#":
            return False
        if level not in ("+", narrower[position]):
            return False
    return len(wider) == len(narrower)


class _Rules:
    """Rules of one user, or of all users, by their subject."""

    __slots__ = ("of_queues", "of_topics")

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        self.of_topics = tuple(rule for rule in rules if not rule.of_queues)
        self.of_queues = tuple(rule for rule in rules if rule.of_queues)


_NO_RULES = _Rules(())


class AccessList:
    """The rules of one file. Immutable; a change of the file creates a new one."""

    def __init__(self, everybody: Sequence[AccessRule], by_user: dict[str | None, list[AccessRule]]) -> None:
        """Store the rules for all clients and the rules by user name; None is for clients without one."""
        self._everybody = _Rules(everybody)
        self._by_user = {name: _Rules(rules) for name, rules in by_user.items()}

    @property
    def users(self) -> frozenset[str]:
        """Return the user names that have rules of their own."""
        return frozenset(name for name in self._by_user if name is not None)

    def may_publish(self, username: str | None, client_id: str, topic: str) -> bool:
        """Return whether a client may publish to a topic."""
        return self._grants(Permission.WRITE, username, client_id, topic.split("/"))

    def may_read(self, username: str | None, client_id: str, topic: str) -> bool:
        """Return whether a client may receive messages of a topic."""
        return self._grants(Permission.READ, username, client_id, topic.split("/"))

    def may_subscribe(self, username: str | None, client_id: str, topic_filter: str) -> bool:
        """Return whether a client may subscribe: one rule grants the whole filter, and no rule denies the whole of it.

        A rule that denies a part of it does not refuse it; ``may_read`` is then False for the topics of that part.
        """
        return self._grants(Permission.READ, username, client_id, topic_filter.split("/"))

    def queue_rights(self, username: str | None, client_id: str, topic: str) -> Permission | None:
        """Return a client's rights to queues and exchanges that others have declared, or that do not exist; None where
        a rule denies all use, also of its own.

        A client that may read the topic of the name may read the queue, which gives it no further contents. A client
        with a right to the topic may declare a queue for it. Changes to others' declarations need a rule for queues.

        Args:
            topic: topic of the name.
        """
        wanted, rights = topic.split("/"), Permission(0)
        for rule in (*self._by_user.get(username, _NO_RULES).of_queues, *self._everybody.of_queues):
            levels = rule.for_client(username, client_id)
            if levels is not None and covers(levels, wanted):
                if not rule.permission:
                    return None
                rights |= rule.permission
        if self._grants(Permission.READ, username, client_id, wanted):
            rights |= Permission.READ | Permission.DECLARE
        elif self._grants(Permission.WRITE, username, client_id, wanted):
            rights |= Permission.DECLARE
        return rights

    def _grants(self, permission: Permission, username: str | None, client_id: str, wanted: Sequence[str]) -> bool:
        granted = False
        for rule in (*self._by_user.get(username, _NO_RULES).of_topics, *self._everybody.of_topics):
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
        AclUnusable, OSError: it is not valid, or cannot be read.
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
        AclUnusable: a line has none of the forms in the module's description.
    """
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise AclUnusable(f"{path}: {len(lines)} lines, at most {LINES_MAX} are read")
    everybody: list[AccessRule] = []
    by_user: dict[str | None, list[AccessRule]] = {None: []}
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
                by_user[user].append(_topic_rule(rest, is_pattern=False))
            elif word == "queue":
                by_user[user].append(_queue_rule(rest, is_pattern=False))
            elif word == "pattern" and rest.startswith("queue "):
                everybody.append(_queue_rule(rest.removeprefix("queue ").strip(), is_pattern=True))
            elif word == "pattern":
                everybody.append(_topic_rule(rest, is_pattern=True))
            else:
                raise ValueError(
                    f"expected `user NAME`, `topic ...`, `queue ...`, `pattern ...` or a comment, got {line.strip()!r}"
                )
        except ValueError as error:
            raise AclUnusable(f"{path}:{number}: {error}") from None
    return AccessList(everybody, by_user)


def _topic_rule(text: str, *, is_pattern: bool) -> AccessRule:
    permission, topic_filter = _parts(text, _WORDS, "the topic filter")
    _check(topic_filter, "topic", is_pattern=is_pattern)
    return AccessRule(permission, tuple(topic_filter.split("/")), is_pattern)


def _queue_rule(text: str, *, is_pattern: bool) -> AccessRule:
    permission, pattern = _parts(text, _QUEUE_WORDS, "the pattern of names")
    # As `queues.topics.topic_of` converts names to topics, also without `$` at the beginning.
    topic_filter = pattern.replace(".", "/")
    if topic_filter[0] == "$":
        topic_filter = "_" + topic_filter[1:]
    if "*" in topic_filter.split("/"):
        raise ValueError(f"the pattern of names {pattern!r}: write `+` for one level, `#` for all that follow")
    _check(topic_filter, "queue", is_pattern=is_pattern)
    return AccessRule(permission, tuple(topic_filter.split("/")), is_pattern, of_queues=True)


def _parts(text: str, words: Mapping[str, Permission], what: str) -> tuple[Permission, str]:
    *others, last = words
    expected = f"{', '.join(others)} or {last}"
    word, space, rest = text.partition(" ")
    if space and word not in words:
        # A filter may have spaces, but only after a word: a misspelt word must not grant access.
        raise ValueError(f"expected {expected} before {what}, got {word!r}")
    pattern = rest.strip() if word in words else text
    if not pattern:
        raise ValueError(f"expected {expected}, and {what.replace('the ', 'a ')} after it")
    return words.get(word, Permission.READ | Permission.WRITE), pattern


def _check(topic_filter: str, word: str, *, is_pattern: bool) -> None:
    try:
        check_filter(topic_filter)
    except InvalidTopic as error:
        raise ValueError(str(error)) from None
    if not is_pattern and ("%u" in topic_filter or "%c" in topic_filter):
        instead = "pattern" if word == "topic" else f"pattern {word}"
        raise ValueError(f"%u and %c are replaced only in `pattern` lines: write `{instead}` instead of `{word}`")


# Interface of a client's identity for every protocol. ``authentication`` creates identities; tests have their own.


class Identity(Protocol):
    """Identity of an admitted client. Answers are valid until ``Accounts.watch`` calls back."""

    username: str | None
    """User name, authenticated by a certificate or a password; None for a client without either."""
    unrestricted: bool
    """True if the client may publish to and read every topic; then no ``may_...`` method is called."""

    @property
    def admitted(self) -> bool:
        """Return whether the present users file still admits the client."""
        ...

    def may_publish(self, topic: bytes) -> bool:
        """Return whether it may publish to a topic."""
        ...

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether it may subscribe to a filter, given without ``$share/{name}/``."""
        ...

    def may_read(self, topic: bytes) -> bool:
        """Return whether a message of this topic may be delivered to it."""
        ...

    def queue_rights(self, topic: str) -> Permission | None:
        """Return its rights to others' queues and exchanges with the name of a topic; None where all use is denied,
        also of its own."""
        ...


_OF_USER = "user:"


def session_name(username: str | None, client_id: str) -> str:
    """Return the name of a client's session: each user has client identifiers of its own.

    Client identifiers are not secret. If users shared them, a client with another user's identifier would get its
    messages, or destroy them. To refuse the second user would let an attacker that comes first lock a device out.
    Different pairs have different names.
    """
    if username is not None:
        # An empty user name would look like a missing one.
        return f"{_OF_USER}{quote(username, safe='') or '%'}/{client_id}"
    return f"{_OF_USER}/{client_id}" if client_id.startswith(_OF_USER) else client_id


def user_of_session(name: str) -> str:
    """Return the part of a session's name that its user's sessions share; empty for those without a user."""
    return name.partition("/")[0] if name.startswith(_OF_USER) else ""
