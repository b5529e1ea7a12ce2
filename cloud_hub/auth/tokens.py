"""Tokens by which an edge may link, or a client may read or administer. The cluster log has only their SHA-256, so a
lost token has to be replaced.

A token is 32 random bytes, so a fast hash is safe against guessing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec
import yaml

from weft.config.reader import explained
from weft.hub_api.rights import ANY, TOKEN_NAME_CHARACTERS_MAX, InvalidGrant, Right, Rights, Scope, rights_of
from weft.protocols.lane import NAME_RULE, valid_name

# Rights: what the bearer of a token may do, and with which streams or edges. Links, the API and readers ask here.


TOKEN_BYTES = 32
TOKEN_CHARACTERS_MAX = 256
JWT_CHARACTERS_MAX = 8000
"""Longest JSON Web Token: aiohttp accepts headers of 8,190 bytes."""
NAMES_SHOWN_MAX = 20


class TokensUnusable(ValueError):
    """A file that cannot be imported, or a token that cannot be declared. The message has the place and the reason."""


class TokenIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A secret of a token and its access, as in one entry of an imported file."""

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
        """Return the rights of the token in its tenant."""
        return rights_of(self.scope, self.grants)

    @property
    def is_region(self) -> bool:
        """Return whether it permits links of another region, and not of an edge."""
        return Right.RELAY in self.rights and Right.WRITE not in self.rights

    def may_relay(self, tenant: str, stream: str) -> bool:
        """Return whether a link with it may relay lanes of a stream."""
        return self.tenant in (ANY, tenant) and self.rights.allow(Right.RELAY, stream)

    @property
    def shown(self) -> str:
        """Return its name in messages."""
        return f"the token {self.name!r}"

    @property
    def holder(self) -> object:
        """Return the key of its bearer's bounds."""
        return self


_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN_LINE = re.compile(r"tokens:(?: \[\])?|[- ] [a-z0-9]+: [A-Za-z0-9_.@+/-][A-Za-z0-9_.@+/ -]*|#.*|")


_OF_NOTHING = sha256(b"").hexdigest()
"""Hash of an unset variable."""


class _TokensFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[TokenIdentity]


class ForeignTokens(Protocol):
    """Tokens of an external issuer. ``cloud_hub.auth.jwt.Jwts``, which imports this module, implements it."""

    async def check(self, token: str) -> TokenIdentity:
        """Return the identity of a token. Raises ``JwtRefused`` if it has none."""
        ...


class Tokens(Protocol):
    """The tokens of a hub, of the cluster log and of an issuer."""

    @property
    def jwts(self) -> ForeignTokens | None:
        """Return the tokens of the issuer; None if none is configured."""
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
        """Return why an admitted token of the issuer is no longer in force; None while it is, and for other tokens."""
        ...

    def revoked(self, identities: Iterable[TokenIdentity | None]) -> list[TokenIdentity | None]:
        """Return the admitted identities that are no longer in force; None among them if every request needs a token
        by now."""
        ...

    def until(self, identity: TokenIdentity) -> int | None:
        """Return the moment at which a token in force ends, nanoseconds since 1970; None for no end."""
        ...


class TokenRefusal(NamedTuple):
    """The reason why a token grants no access, and the remedy."""

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
    """Return a token's SHA-256 in hexadecimal digits, the form in the cluster log."""
    return sha256(token.encode()).hexdigest()


def read_tokens(data: bytes, path: str) -> list[TokenIdentity]:
    """Return the identities of a file of tokens, as ``weft hub token import`` takes it.

    Raises:
        TokensUnusable: it is not valid YAML, or an entry is not valid.
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
        path: name of the file or place, for the error.

    Raises:
        TokensUnusable: one of them is not valid.
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
