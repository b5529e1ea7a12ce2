"""The check of JSON Web Tokens: form, algorithm, key, signature, and then claims."""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from joserfc.errors import JoseError
from joserfc.jws import CompactSignature, JWSRegistry, extract_compact, validate_compact

from weft.cloud_hub.api.identity.jwt.claims import (
    JwtIdentity,
    JwtRefused,
    Signed,
    check_issuer,
    expired,
    identity_of,
    is_over,
    issued_after,
)
from weft.cloud_hub.api.identity.jwt.issuer import Issuer
from weft.cloud_hub.api.identity.jwt.keys import ALGORITHMS, KEY_ID_CHARACTERS_MAX, NAMES, SigningKey
from weft.cloud_hub.api.tokens import JWT_CHARACTERS_MAX, hash_token
from weft.cloud_hub.api.views import View
from weft.cloud_hub.settings import JwtSettings

CHECKED_MAX = 4096
"""Maximum number of checked tokens that are remembered; the one that was longest not used is forgotten first. Each
has about a kilobyte."""
RETRY_S = 10.0
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


class _Header(NamedTuple):
    algorithm: str
    key: str | None


class _Registry(JWSRegistry):
    """The algorithms by their names in headers. Nothing of a header but ``alg`` and ``kid`` is used: a key, or the
    address of one, that a token brings along (``jwk``, ``jku``, ``x5c``, ``x5u``) is anyone's."""

    max_header_length = 4096

    def __init__(self) -> None:
        super().__init__(strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """Return the algorithm of a name that was checked before."""
        return ALGORITHMS[NAMES[name]]


class Jwts:
    """The tokens of one issuer. Event loop's thread only: a verification takes some 0.1 ms.

    Args:
        now: nanoseconds since 1970, on a clock that is not this machine's alone: it ends tokens.
        doubted: returns by how much this machine's clock is off; None while it is right.
    """

    def __init__(
        self, settings: JwtSettings, now: Callable[[], int], doubted: Callable[[], str | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._now = now
        self._doubted = doubted
        self._registry = _Registry()
        self._checked: OrderedDict[str, JwtIdentity] = OrderedDict()
        self._verified = 0
        self.issuer = Issuer(settings, monotonic, now)

    def start(self) -> None:
        """Begin to follow the issuer's keys."""
        self.issuer.start()

    async def close(self) -> None:
        """Stop that."""
        await self.issuer.close()

    async def check(self, token: str) -> JwtIdentity:
        """Return the bearer of a token. Waits for the issuer within bounds, if its key is not known.

        Raises:
            JwtRefused: it opens nothing.
        """
        if len(token) > JWT_CHARACTERS_MAX:
            raise JwtRefused(
                f"the JWT has {len(token):,} characters, more than {JWT_CHARACTERS_MAX:,}",
                "have the issuer leave out claims",
            )
        digest = hash_token(token)
        known = self._checked.get(digest)
        if known is not None:
            if self.why_over(known) is None and self.issuer.is_known:
                self._checked.move_to_end(digest)
                return known
            del self._checked[digest]
        return await self._verify(token, digest)

    async def _verify(self, token: str, digest: str) -> JwtIdentity:
        signed = _extracted(token, self._registry)
        header = self._header(signed)
        claims = _claims(signed)
        # Whose it says to be needs no key, and spares the issuer a request for a key that it cannot have.
        check_issuer(claims, self._settings)
        key = self.issuer.find(header.key, header.algorithm) or await self._looked_up(header, claims)
        self._verified += 1
        try:
            is_right = validate_compact(signed, key.key, registry=self._registry)
        except (JoseError, ValueError, TypeError):
            is_right = False
        if not is_right:
            raise JwtRefused("the signature of the JWT is wrong", "get a new one from the issuer")
        identity = self._opened(Signed(claims, digest, key.thumbprint))
        self._checked[digest] = identity
        if len(self._checked) > CHECKED_MAX:
            self._checked.popitem(last=False)
        return identity

    def _opened(self, signed: Signed) -> JwtIdentity:
        now = self._now()
        return identity_of(signed, self._settings, now, self._doubted)

    async def _looked_up(self, header: _Header, claims: Mapping[str, Any]) -> SigningKey:
        """Return the key of a token that is not known yet.

        Args:
            claims: not verified, and used only to refuse.
        """
        issuer = self.issuer
        is_sure = await issuer.look()
        key = issuer.find(header.key, header.algorithm)
        if key is not None:
            return key
        if not issuer.is_known:
            raise JwtRefused(
                "the hub has no keys of the issuer", f"they cannot be read: {issuer.trouble or 'not yet'}", RETRY_S
            )
        if is_sure and header.key is None:
            raise JwtRefused("the JWT names no key", "the issuer has several: have it add `kid` to the header")
        # A token that is newer than the last attempt may have a key that is, too, and be taken after the next one.
        if not is_sure or issued_after(claims, issuer.asked_at):
            why = f": {issuer.trouble}" if issuer.trouble else ""
            error = "the key of the JWT is not known, and the issuer's keys could not be read again"
            raise JwtRefused(error, f"try again later{why}", RETRY_S)
        raise JwtRefused("the issuer has no such key as the JWT names", "get a new one from the issuer")

    def _header(self, signed: CompactSignature) -> _Header:
        header = signed.protected
        algorithm, key = header.get("alg"), header.get("kid")
        name = NAMES.get(algorithm) if isinstance(algorithm, str) else None
        if name is None or name not in self._settings.algorithms:
            allowed = ", ".join(self._settings.algorithms)
            advice = f"this hub takes {allowed}, as in `jwt.algorithms`"
            raise JwtRefused("the algorithm of the JWT is not allowed", advice)
        if "crit" in header:  # RFC 7515, section 4.1.11: what is critical and not understood is refused
            raise JwtRefused("the JWT demands what this hub does not know", "have the issuer leave out `crit`")
        if key is not None and (not isinstance(key, str) or len(key) > KEY_ID_CHARACTERS_MAX):
            raise JwtRefused("the JWT names no key", f"expected up to {KEY_ID_CHARACTERS_MAX} characters in `kid`")
        return _Header(name, key)

    def why_over(self, identity: JwtIdentity) -> JwtRefused | None:
        """Return why a token that was admitted no longer counts; None while it does."""
        if is_over(identity.until, self._settings, self._now()):
            return expired(identity.shown, identity.until, self._doubted())
        if not self.issuer.has(identity.key):
            return JwtRefused(f"the issuer withdrew the key of {identity.shown}", "get a new one from the issuer")
        return None

    def view(self) -> View:
        """Return the state for status pages."""
        return self.issuer.view()

    def figures(self) -> tuple[int, float, int]:
        """Return the number of keys that count, the time since which they could not be read, and the number of
        signatures that were verified."""
        return self.issuer.count, self.issuer.failing_s, self._verified


def _extracted(token: str, registry: JWSRegistry) -> CompactSignature:
    try:
        if _FORM.fullmatch(token) is None:
            raise ValueError
        signed = extract_compact(token.encode(), registry=registry)
        if not isinstance(signed.protected, dict):
            raise TypeError
    except (JoseError, ValueError, TypeError, RecursionError):
        raise JwtRefused("this is no JWT", "expected header, claims and signature, as the issuer gave them") from None
    return signed


def _claims(signed: CompactSignature) -> dict[str, Any]:
    try:
        claims = json.loads(signed.payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise JwtRefused("the claims of the JWT are no JSON object", "get a new one from the issuer")
    return claims
