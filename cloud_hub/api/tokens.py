"""Tokens that permit an edge to link, or a client to read or administer. The cluster log has only their SHA-256; a lost
token must be replaced by a new one.

A token is 32 random bytes, so a fast hash is safe: a dictionary cannot help to guess it.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec
import yaml

from weft.config.reader import explained
from weft.protocols.lane import NAME_CHARACTERS_MAX, NAME_RULE, matches, valid_name

# Rights: what the bearer of a token may do, and with which streams or edges. Links, the API and readers ask here.

GRANTS_MAX = 64
GRANT_CHARACTERS_MAX = NAME_CHARACTERS_MAX + 16
ANY = "*"


class Right(StrEnum):
    """One thing that a token may open. The words are persisted."""

    WRITE = "write"
    """Replicate streams, as the edge that the token names."""
    READ = "read"
    """Read streams: records, rows, lanes and completeness."""
    EDGES = "edges"
    """See the tenant's edges, and what holds them back."""
    PUBLISH = "publish"
    """Publish messages to edges, and see what became of them."""
    PULL = "pull"
    """Ask edges for records of streams; see and cancel such requests."""
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
    TENANTS = "tenants"
    """See and set the quotas of all tenants. No scope has it: it is granted by its name."""
    NODES = "nodes"
    """Drain processes of the hub, split its shards, and pause its links to regions. No scope has it."""
    TOKENS = "tokens"
    """Make, rotate and withdraw tokens of all tenants and rights, so that it is as good as all. No scope has it."""


CONCERNS: Mapping[Right, str] = {
    Right.WRITE: "stream", Right.READ: "stream", Right.PUBLISH: "edge", Right.PULL: "stream", Right.RELAY: "stream",
    Right.REPORT: "pipeline",
}  # fmt: skip
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
    "viewer": _OF_VIEWERS, "operator": _OF_OPERATORS,
    "administrator": (*_OF_OPERATORS, "tenants", "nodes", "tokens"),
}  # fmt: skip
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


TOKEN_BYTES = 32
TOKEN_CHARACTERS_MAX = 256
JWT_CHARACTERS_MAX = 8000
"""Longest JSON Web Token: aiohttp takes headers of 8,190 bytes."""
TOKEN_NAME_CHARACTERS_MAX = 128
NAMES_SHOWN_MAX = 20


class Scope(StrEnum):
    """The access that a token gives. The words are persisted."""

    EDGE = "edge"
    """Link as one edge of one tenant."""
    READER = "reader"
    """Read one tenant's streams."""
    PUBLISH = "publish"
    """Publish messages to one tenant's edges, and read what became of them."""
    PULL = "pull"
    """Ask one tenant's edges for records, and see what became of that."""
    REGION = "region"
    """Relay streams of one tenant, or of all, as another region. Releases before regions do not know it, and refuse
    it."""
    ADMIN = "admin"
    """Read every tenant's streams, and the node's status and metrics."""
    GRANTED = "granted"
    """Rights that the token's grants name, and no other. Releases before grants do not know it, and refuse it."""


class TokensUnusable(ValueError):
    """A file that cannot be imported, or a token that cannot be declared. The message says where and why."""


class TokenIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A secret of a token and what it opens, as one entry of a file that is imported has it."""

    name: str
    """Name of the token in logs and refusals."""
    sha256: str
    scope: Scope
    tenant: str = "default"
    """``*`` stands for all tenants; only for the scope ``region``."""
    edge: str | None = None
    """Edge that may link with the token; only for the scope ``edge``, and for grants to write."""
    grants: tuple[str, ...] = ()
    """Rights, such as ``read:press-*``; only for the scope ``granted``."""

    @property
    def rights(self) -> Rights:
        """Return what the token opens, in its tenant."""
        return rights_of(self.scope, self.grants)

    @property
    def is_region(self) -> bool:
        """Return whether it opens links of another region, and none of an edge."""
        return Right.RELAY in self.rights and Right.WRITE not in self.rights

    def may_relay(self, tenant: str, stream: str) -> bool:
        """Return whether a link with it may relay lanes of a stream."""
        return self.tenant in (ANY, tenant) and self.rights.allow(Right.RELAY, stream)

    @property
    def shown(self) -> str:
        """Return what it is called in messages."""
        return f"the token {self.name!r}"

    @property
    def holder(self) -> object:
        """Return who has it, for bounds on what one may have open."""
        return self


_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN_LINE = re.compile(r"tokens:(?: \[\])?|[- ] [a-z0-9]+: [A-Za-z0-9_.@+/-][A-Za-z0-9_.@+/ -]*|#.*|")


_OF_NOTHING = sha256(b"").hexdigest()
"""Hash of an unset variable."""


class _TokensFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[TokenIdentity]


class ForeignTokens(Protocol):
    """Tokens that an issuer elsewhere makes: ``cloud_hub.api.jwt.Jwts``, which imports this module."""

    async def check(self, token: str) -> TokenIdentity:
        """Return the identity of a token; raise ``JwtRefused`` if it has none."""
        ...


class Tokens(Protocol):
    """The tokens of a hub: those of the cluster log, and those of an issuer."""

    @property
    def jwts(self) -> ForeignTokens | None:
        """Return the tokens of an issuer; None if none are taken."""
        ...

    @property
    def required(self) -> bool:
        """Return whether every request needs a token."""
        ...

    def identify(self, token: str | None) -> TokenIdentity | None:
        """Return the identity of a token, or None."""
        ...

    def refusal(self, token: str | None) -> TokenRefusal:
        """Return why a token has no identity."""
        ...

    def lapsed(self, identity: TokenIdentity) -> TokenRefusal | None:
        """Return why a token of the issuer that was admitted no longer counts; None while it does, and for others."""
        ...

    def until(self, identity: TokenIdentity) -> int | None:
        """Return the moment at which a token in force ends, nanoseconds since 1970; None for no end."""
        ...


class TokenRefusal(NamedTuple):
    """The reason for which a token opens nothing."""

    error: str
    advice: str


NO_TOKEN = TokenRefusal("no valid token", "send the header 'Authorization: Bearer TOKEN'")
"""Refusal of a token that is missing or unknown."""


def is_jwt(token: str) -> bool:
    """Return whether a token has the form of a JSON Web Token: a header, claims and a signature, in JSON and Base64."""
    return token.startswith("eyJ") and token.count(".") == 2


def new_token() -> str:
    """Return a new token. Only its hash may be stored."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> str:
    """Return a token's hash, which is what the cluster log has of it."""
    return sha256(token.encode()).hexdigest()


def read_tokens(data: bytes, path: str) -> list[TokenIdentity]:
    """Return the identities of a file of tokens, as ``weft hub token import`` takes it.

    Raises:
        TokensUnusable: it is not valid YAML, or an entry is not.
    """
    try:
        text = data.decode()
        identities = msgspec.convert(_load(text), _TokensFile).tokens
    except yaml.YAMLError as error:
        line, message = explained(error, text)
        raise TokensUnusable(f"{path}:{line}: {message}") from error
    except (UnicodeDecodeError, msgspec.ValidationError, RecursionError) as error:
        why = str(error).replace("`", "").replace(" - at $.", " at ")
        raise TokensUnusable(
            f"{path} is not a file of tokens ({why}). Expected `tokens:` and a list with name, sha256 and scope of each"
        ) from error
    for identity in identities:
        check_identity(identity, path)
    return identities


def _load(text: str) -> Any:
    """Return the value of the YAML. A fleet has a token for each edge, which the loader in C reads in a tenth of the
    time.

    Deep nesting makes that loader crash, so it gets only texts of the plainest form: a name and a value a line.
    """
    plain = all(map(_PLAIN_LINE.fullmatch, text.splitlines()))
    return yaml.load(text, _FAST_LOADER if plain else yaml.SafeLoader)  # noqa: S506  (both are safe)


def check_identity(identity: TokenIdentity, path: str) -> None:
    """Check the names, the access and the hash of a token.

    Args:
        path: the file, or another place, for the error.

    Raises:
        TokensUnusable: one is not valid.
    """
    where = f"{path}: token {identity.name!r}"
    if not 0 < len(identity.name) <= TOKEN_NAME_CHARACTERS_MAX or not identity.name.isprintable():
        raise TokensUnusable(f"{where}: a name needs 1 to {TOKEN_NAME_CHARACTERS_MAX} printable characters")
    of_all = identity.tenant == ANY and identity.scope is Scope.REGION
    if not (of_all or valid_name(identity.tenant)) or (identity.edge is not None and not valid_name(identity.edge)):
        raise TokensUnusable(f"{where}: tenant and edge need {NAME_RULE}")
    if (identity.scope is Scope.GRANTED) != bool(identity.grants):
        raise TokensUnusable(f"{where}: scope 'granted' needs grants, the other scopes must not have some")
    try:
        writes = Right.WRITE in identity.rights
    except InvalidGrant as error:
        raise TokensUnusable(f"{where}: grants: {error}") from None
    if writes != (identity.edge is not None):
        raise TokensUnusable(
            f"{where}: scope 'edge' needs an edge, and so do grants to write; the other scopes must not have one"
        )
    if identity.sha256 == _OF_NOTHING:
        raise TokensUnusable(f"{where}: sha256 is that of an empty text, so no token opens it. Hash the token itself")
    if len(identity.sha256) != 64 or not set(identity.sha256) <= set("0123456789abcdef"):
        raise TokensUnusable(f"{where}: sha256 needs 64 lower-case hexadecimal digits")
