"""Rights: what the bearer of a token may do, and with which streams or edges. Scopes and roles name several."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from weft.protocols.lane import NAME_CHARACTERS_MAX, NAME_RULE, matches, valid_name

GRANTS_MAX = 64
GRANT_CHARACTERS_MAX = NAME_CHARACTERS_MAX + 16
ANY = "*"


class Right(StrEnum):
    """One thing that a token may open. The names are persisted."""

    WRITE = "write"
    """Replicate streams, as the edge that the token names."""
    READ = "read"
    """Read streams: records, rows, lanes and completeness."""
    SHARE = "share"
    """Read the tables of streams by Delta Sharing, as READ does, and nothing else. No scope has it."""
    EDGES = "edges"
    """See the tenant's edges, and what holds them back."""
    PUBLISH = "publish"
    """Publish messages to edges, and see what became of them."""
    PULL = "pull"
    """Request records of streams from edges; see and cancel such requests."""
    STATUS = "status"
    """Read the status of the hub's processes, which names streams and edges of all tenants."""
    METRICS = "metrics"
    """Read the metrics of the hub's processes, which name streams of all tenants."""
    ACTS = "acts"
    """Read the record of administrative acts, which names tokens and streams of all tenants."""
    RELAY = "relay"
    """Relay streams as another region: lanes of any edge of the tenant, under their own names."""
    REPORT = "report"
    """Report the state of pipelines of Spark, and forget them. No scope has it."""
    DECLARE = "declare"
    """Declare and withdraw what makes the columns of streams' tables: schemas. No scope has it."""
    TENANTS = "tenants"
    """See, declare and withdraw all tenants, and set their quotas. No scope has it: it is granted by its name."""
    NODES = "nodes"
    """Drain processes of the hub, split its shards, and pause its links to regions. No scope has it."""
    TOKENS = "tokens"
    """Make, rotate and withdraw tokens of all tenants and rights, so that it is as good as all. No scope has it."""


CONCERNS: Mapping[Right, str] = {
    Right.WRITE: "stream",
    Right.READ: "stream",
    Right.SHARE: "stream",
    Right.PUBLISH: "edge",
    Right.PULL: "stream",
    Right.RELAY: "stream",
    Right.REPORT: "pipeline",
    Right.DECLARE: "stream",
}
"""Right -> the kind of name that its pattern is of. The others have no pattern."""
_OF_SCOPES: Mapping[str, tuple[str, ...]] = {
    "edge": ("write",),
    "reader": ("read", "edges"),
    "publish": ("publish",),
    "pull": ("pull",),
    "region": ("relay",),
    "admin": ("read", "edges", "publish", "pull", "status", "metrics", "acts"),
}
"""Word of a scope -> its rights."""
_OF_VIEWERS = ("read", "edges")
_OF_OPERATORS = (*_OF_VIEWERS, "publish", "pull", "status", "metrics", "acts", "report")
ROLES: Mapping[str, tuple[str, ...]] = {
    "viewer": _OF_VIEWERS,
    "operator": _OF_OPERATORS,
    "administrator": (*_OF_OPERATORS, "declare", "tenants", "nodes", "tokens"),
}
"""Name of a role -> its grants, for people who make tokens: a token has the grants themselves, of its tenant."""


def scope_grants(scope: str) -> tuple[str, ...]:
    """Return the grants of a scope's word; none if it is no such word."""
    return _OF_SCOPES.get(scope, ())


def role_grants(texts: Iterable[str]) -> tuple[str, ...]:
    """Return grants, with those of a role in the place of its name, each once."""
    return tuple(dict.fromkeys(grant for text in texts for grant in ROLES.get(text, (text,))))


class InvalidGrant(ValueError):
    """A text that is no grant. The message says what was expected."""


class Grant(NamedTuple):
    """A right, and the names that it is for."""

    right: Right
    pattern: str

    @property
    def text(self) -> str:
        """Return the text that ``parse_grant`` reads."""
        return f"{self.right}:{self.pattern}" if self.right in CONCERNS else str(self.right)


def parse_grant(text: str) -> Grant:
    """Return the grant of ``read:press-*``, ``read`` (all names) or ``status``.

    Raises:
        InvalidGrant: it is none.
    """
    word, colon, pattern = text.partition(":")
    try:
        right = Right(word)
    except ValueError:
        expected = ", ".join(f"{each}[:{CONCERNS[each].upper()}]" if each in CONCERNS else each for each in Right)
        raise InvalidGrant(f"expected one of {expected}, got {text[:GRANT_CHARACTERS_MAX]!r}") from None
    if not colon:
        return Grant(right, ANY)
    if right not in CONCERNS:
        raise InvalidGrant(f"{word} is for no stream or edge: leave out {text[len(word) : GRANT_CHARACTERS_MAX]!r}")
    if not valid_name(pattern.replace(ANY, "x")):
        what = f"a name of a {CONCERNS[right]}, with `*` for any characters ({NAME_RULE})"
        raise InvalidGrant(f"{word}: expected {what}, got {pattern[:GRANT_CHARACTERS_MAX]!r}")
    return Grant(right, pattern)


class Rights:
    """The rights of a token.

    Raises:
        InvalidGrant: a text is no grant, or there are too many.
    """

    def __init__(self, grants: Iterable[str]) -> None:
        given = tuple(grants)
        if len(given) > GRANTS_MAX:
            raise InvalidGrant(f"{len(given)} grants are more than {GRANTS_MAX}: use patterns with `*`")
        self._patterns: dict[Right, list[str]] = {}
        for grant in map(parse_grant, given):
            self._patterns.setdefault(grant.right, []).append(grant.pattern)

    def __contains__(self, right: Right) -> bool:
        return right in self._patterns

    def allow(self, right: Right, name: str) -> bool:
        """Return whether they open a right for a stream or an edge."""
        return any(pattern == ANY or matches(pattern, name) for pattern in self._patterns.get(right, ()))

    @property
    def texts(self) -> list[str]:
        """Return the grants, for people."""
        return [Grant(right, each).text for right, patterns in self._patterns.items() for each in patterns]


def grants_of(right: str) -> tuple[str, ...]:
    """Return the grants of a scope of tokens or a role, or the one grant that the text is."""
    return scope_grants(right) or role_grants((right,))


def check_right(right: str) -> None:
    """Check a right that a configuration gives to a role.

    Raises:
        InvalidGrant: it is neither a grant, a scope nor a role.
    """
    for grant in grants_of(right):
        parse_grant(grant)


@functools.lru_cache(maxsize=4096)
def rights_of(scope: str, grants: tuple[str, ...]) -> Rights:
    """Return the rights of a scope, or of grants where there are some.

    Raises:
        InvalidGrant: a text is no grant, or there are too many.
    """
    return Rights(grants or scope_grants(scope))


TOKEN_NAME_CHARACTERS_MAX = 128


class Scope(StrEnum):
    """The access that a token grants. The names are persisted."""

    EDGE = "edge"
    """Link as one edge of one tenant."""
    READER = "reader"
    """Read one tenant's streams."""
    PUBLISH = "publish"
    """Publish messages to one tenant's edges, and read what became of them."""
    PULL = "pull"
    """Request records from one tenant's edges, and see the outcome."""
    REGION = "region"
    """Relay streams of one tenant, or of all, as another region. Releases before regions do not know it, and refuse
    it."""
    ADMIN = "admin"
    """Read every tenant's streams, and the node's status and metrics."""
    GRANTED = "granted"
    """Rights that the token's grants name, and no other. Releases before grants do not know it, and refuse it."""
