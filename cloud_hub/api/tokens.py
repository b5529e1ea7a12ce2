"""Tokens that permit an edge to link, or a client to read or administer. The file has only their SHA-256; a lost token
must be replaced by a new one.

A token is 32 random bytes, so a fast hash is safe: a dictionary cannot help to guess it.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec
import yaml

from weft.cloud_hub.api.identity.rights import ANY, InvalidGrant, Right, Rights, rights_of
from weft.config.log_lines.repeats import Repeats, left_out
from weft.config.machine import why_unreadable
from weft.config.reading.yaml_words import explained
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.private_file import replace_private_file

logger = logging.getLogger(__name__)

TOKEN_BYTES = 32
TOKEN_CHARACTERS_MAX = 256
JWT_CHARACTERS_MAX = 8000
"""Longest JSON Web Token: aiohttp takes headers of 8,190 bytes."""
NAME_CHARACTERS_MAX = 128
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
    """An invalid tokens file, or a token that cannot be created. The message names the place and the reason."""


class TokenIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of the tokens file."""

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


class _TokensFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[TokenIdentity] = []


class ForeignTokens(Protocol):
    """Tokens that an issuer elsewhere makes: ``cloud_hub.api.identity.jwt.tokens.Jwts``, which imports this module."""

    async def check(self, token: str) -> TokenIdentity:
        """Return the identity of a token; raise ``JwtRefused`` if it has none."""
        ...


class Tokens(Protocol):
    """The tokens of a hub: those of the cluster log and of a file, and those of an issuer."""

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
    """Return a token's hash for the file."""
    return sha256(token.encode()).hexdigest()


def read_tokens(data: bytes, path: str) -> list[TokenIdentity]:
    """Return the identities of a tokens file.

    Raises:
        TokensUnusable: it is not valid YAML, or an entry is not.
    """
    try:
        text = data.decode()
        identities = msgspec.convert(_load(text) or {}, _TokensFile).tokens
    except yaml.YAMLError as error:
        line, message = explained(error, text)
        raise TokensUnusable(f"{path}:{line}: {message}") from error
    except (UnicodeDecodeError, msgspec.ValidationError, RecursionError) as error:
        why = str(error).replace("`", "").replace(" - at $.", " at ")
        raise TokensUnusable(
            f"{path} is not a tokens file ({why}). Restore it, or name a file that `weft token add` made"
        ) from error
    for identity in identities:
        check_identity(identity, path)
    return identities


def _load(text: str) -> Any:
    """Return the value of the YAML. A fleet has a token for each edge, which the loader in C reads in a tenth of the
    time.

    Deep nesting makes that loader crash, so it gets only texts in the form that `weft token` writes: a name and a value
    a line.
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
    if not 0 < len(identity.name) <= NAME_CHARACTERS_MAX or not identity.name.isprintable():
        raise TokensUnusable(f"{where}: a name needs 1 to {NAME_CHARACTERS_MAX} printable characters")
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
    if len(identity.sha256) != 64 or not set(identity.sha256) <= set("0123456789abcdef"):
        raise TokensUnusable(f"{where}: sha256 needs 64 lower-case hexadecimal digits")


def create_token(
    path: str,
    name: str,
    scope: Scope,
    tenant: str = "default",
    edge: str | None = None,
    *,
    grants: tuple[str, ...] = (),
) -> str:
    """Add a token to a file (created if missing) durably. A running hub picks it up by itself.

    Returns:
        The token. It is stored nowhere: show it once.

    Raises:
        TokensUnusable: the file is not valid, or has a token of this name already.
        OSError: the file cannot be written.
    """
    known = _known(path)
    if any(identity.name == name for identity in known):
        raise TokensUnusable(f"{path}: there is a token {name!r} already; revoke it first, or choose another name")
    token = new_token()
    identity = TokenIdentity(name, hash_token(token), scope, tenant, edge, grants)
    check_identity(identity, path)
    _replace(path, [*known, identity])
    return token


def revoke_token(path: str, name: str) -> TokenIdentity:
    """Remove a token from a file, durably. A running hub rejects it immediately.

    Its open links end within seconds.

    Returns:
        The identity of the token.

    Raises:
        TokensUnusable: the file is not valid, or has no token of this name.
        OSError: the file cannot be written.
    """
    known = _known(path)
    revoked = next((identity for identity in known if identity.name == name), None)
    if revoked is None:
        names = ", ".join(repr(identity.name) for identity in known[:NAMES_SHOWN_MAX]) or "none"
        raise TokensUnusable(f"{path}: there is no token {name!r}; there are: {names}")
    _replace(path, [identity for identity in known if identity.name != name])
    return revoked


def _known(path: str) -> list[TokenIdentity]:
    try:
        with open(path, "rb") as file:
            return read_tokens(file.read(), path)
    except FileNotFoundError:
        return []


def tokens_text(identities: list[TokenIdentity]) -> str:
    """Return the content of a tokens file."""
    return yaml.safe_dump(msgspec.to_builtins(_TokensFile(identities)), sort_keys=False)


def _replace(path: str, identities: list[TokenIdentity]) -> None:
    replace_private_file(path, tokens_text(identities).encode())


class TokenFile:
    """The tokens of a hub node, read again whenever the file changes.

    Raises:
        TokensUnusable, OSError: at the start. Later, an unusable file leaves the last good one in force.
    """

    def __init__(self, path: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._repeats = Repeats()
        self._version: tuple[int, int, int] | None = self._stat()
        self._identities = self._read()

    def identify(self, token: str | None) -> TokenIdentity | None:
        """Return the identity of a token, or None."""
        if not token or len(token) > TOKEN_CHARACTERS_MAX:
            return None
        self._reload_if_changed()
        # The time of a look-up only reveals something about the SHA-256 of the presented token. Steering that towards
        # the hash of a token of 256 random bits is as hard as guessing the token, so a comparison in constant time is
        # not needed.
        return self._identities.get(hash_token(token))

    def revoked(self, identities: Iterable[TokenIdentity]) -> list[TokenIdentity]:
        """Return the identities whose tokens are no longer in force unchanged."""
        self._reload_if_changed()
        return [identity for identity in identities if self._identities.get(identity.sha256) != identity]

    @property
    def count(self) -> int:
        """Return the number of tokens in force."""
        return len(self._identities)

    def reload(self) -> bool:
        """Read the file again, changed or not. Return False if it cannot be used; the log has the reason."""
        self._version = None
        return self._reload_if_changed()

    def _reload_if_changed(self) -> bool:
        try:
            version = self._stat()
            if version != self._version:
                self._version = version
                self._identities = self._read()
        except OSError as error:
            self._say_unusable(f"{self._path}: {why_unreadable(error)}")
            return False
        except TokensUnusable as error:
            self._say_unusable(str(error))
            return False
        self._repeats.clear()
        return True

    def _say_unusable(self, reason: str) -> None:
        # Logged with a limit: every request finds that the file is gone.
        count = self._repeats.say(reason, self._monotonic())
        if count is not None:
            logger.error(
                "the tokens file cannot be used, the tokens read before stay in force: %s%s", reason, left_out(count)
            )

    def _stat(self) -> tuple[int, int, int]:
        stat = os.stat(self._path)
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> dict[str, TokenIdentity]:
        with open(self._path, "rb") as file:
            return {identity.sha256: identity for identity in read_tokens(file.read(), self._path)}
