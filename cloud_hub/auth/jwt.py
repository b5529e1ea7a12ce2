"""Verification of JSON Web Tokens: form, algorithm, key and signature, then claims."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import aiohttp
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import CompactSignature, JWSRegistry, extract_compact, validate_compact
from joserfc.util import base64_to_int

from weft.cloud_hub.auth.claims import (
    JwtIdentity,
    JwtRefused,
    Signed,
    check_issuer,
    expired,
    identity_of,
    is_over,
    issued_after,
)
from weft.cloud_hub.auth.tokens import JWT_CHARACTERS_MAX, hash_token
from weft.cloud_hub.settings import JwtSettings
from weft.config.log_lines import Repeats, left_out
from weft.config.machine import why_unreadable
from weft.hub_api.answers import moment
from weft.hub_api.status import KeysOfIssuer

# A key set (RFC 7517): the public keys of it that may verify tokens.

KEY_SET_BYTES_MAX = 256 << 10
KEYS_MAX = 64
KEY_ID_CHARACTERS_MAX = 256
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
"""Sizes of RSA keys, bits: the minimum of RFC 7518, section 3.3, and a maximum so that a verification takes some 0.2
ms."""
RSA_EXPONENT_MAX = 1 << 32

NAMES = {"RS256": "RS256", "ES256": "ES256", "EdDSA": "EdDSA", "Ed25519": "EdDSA"}
"""Name of an algorithm in a token's header -> its name in the settings. RFC 9864 renamed one."""
ALGORITHMS = {
    each: JWSRegistry.algorithms[of] for each, of in {"RS256": "RS256", "ES256": "ES256", "EdDSA": "Ed25519"}.items()
}
"""Name in the settings -> algorithm. The library's own EdDSA is excluded, since it accepts curves that the settings do
not name."""
_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_KINDS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""Type and curve of a key -> the only algorithm for which it counts, whatever a token says."""
_CLASSES: Mapping[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


class KeySetUnusable(ValueError):
    """A document that is not a key set, or has no usable key. The message has the reason."""


class SigningKey(NamedTuple):
    """A key of the issuer."""

    name: str | None
    """Its ``kid``."""
    algorithm: str
    key: RSAKey | ECKey | OKPKey
    thumbprint: str


class KeySet(NamedTuple):
    """The issuer's usable keys."""

    keys: tuple[SigningKey, ...]
    passed_over: int
    """Number of keys that were ignored: they are for other uses or algorithms, or invalid."""

    def find(self, name: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of a token; None if there is none. A token without ``kid`` is accepted only if one key
        fits."""
        fit = [each for each in self.keys if each.algorithm == algorithm and name in (None, each.name)]
        return fit[0] if len(fit) == 1 or (fit and name is not None) else None

    @property
    def thumbprints(self) -> frozenset[str]:
        """Return the thumbprints of the keys."""
        return frozenset(each.thumbprint for each in self.keys)


def read_key_set(data: bytes, algorithms: Collection[str]) -> KeySet:
    """Return the keys of a key set for signatures of these algorithms. Takes a few milliseconds at most.

    Raises:
        KeySetUnusable: there is none.
    """
    if len(data) > KEY_SET_BYTES_MAX:
        raise KeySetUnusable(f"more than {KEY_SET_BYTES_MAX >> 10} KiB")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise KeySetUnusable("not JSON") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeySetUnusable("no key set (JWKS): it has no list `keys`")
    if len(listed) > KEYS_MAX:
        raise KeySetUnusable(f"{len(listed)} keys, more than {KEYS_MAX}")
    keys = tuple(_usable(listed, algorithms))
    if not keys:
        raise KeySetUnusable(f"none of its {len(listed)} keys is for signatures of {', '.join(algorithms)}")
    return KeySet(keys, len(listed) - len(keys))


def _usable(listed: list[Any], algorithms: Collection[str]) -> Iterator[SigningKey]:
    for each in listed:
        key = _signing_key(each) if isinstance(each, dict) else None
        if key is not None and key.algorithm in algorithms:
            yield key


def _signing_key(jwk: Mapping[str, Any]) -> SigningKey | None:
    """Return a key for signatures; None if it is for something else, or cannot be used."""
    kind, curve, name, use = (jwk.get(each) for each in ("kty", "crv", "kid", "use"))
    if not isinstance(kind, str) or use not in (None, "sig") or not _is_name(name) or not _verifies(jwk):
        return None
    algorithm = _KINDS.get((kind, curve)) if curve is None or isinstance(curve, str) else None
    if algorithm is None or NAMES.get(str(jwk.get("alg", algorithm))) != algorithm:
        return None
    # Only the public part: an issuer that shows a private one by mistake has it not spread further.
    public = {"kty": kind, **{each: jwk.get(each) for each in _MEMBERS[kind]}}
    try:
        if kind == "RSA" and not _is_fit(jwk["n"], jwk["e"]):
            return None
        key = _CLASSES[kind].import_key(public)  # type: ignore[arg-type]
        return SigningKey(name, algorithm, key, key.thumbprint())
    except (JoseError, KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _is_name(name: Any) -> bool:
    return name is None or (isinstance(name, str) and len(name) <= KEY_ID_CHARACTERS_MAX)


def _verifies(jwk: Mapping[str, Any]) -> bool:
    uses = jwk.get("key_ops")
    return uses is None or (isinstance(uses, list) and "verify" in uses)


def _is_fit(modulus: str, exponent: str) -> bool:
    bits = base64_to_int(modulus).bit_length()
    return RSA_BITS_MIN <= bits <= RSA_BITS_MAX and base64_to_int(exponent) <= RSA_EXPONENT_MAX


# The key set of an issuer, read from its URL or a file, and read again now and then, and for a key that is not known.
#
# An issuer may be away, hang, or answer with anything. Requests wait for it within bounds, and keys that were read
# stay in force for a time that is said.

_logger = logging.getLogger(__name__)

READ_S = 10.0
"""Longest time of one attempt to read the keys."""
WAIT_S = 3.0
"""Longest time for which one request waits for an attempt."""
WAITING_MAX = 1024
"""Maximum number of requests that wait for an attempt; the hub answers others with 503."""
SECOND = 10**9


class Issuer:
    """The keys of one issuer. Event loop's thread only.

    Args:
        monotonic: seconds.
        now: nanoseconds since 1970.
    """

    def __init__(self, settings: JwtSettings, monotonic: Callable[[], float], now: Callable[[], int]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._now = now
        self._keys: KeySet | None = None
        self._thumbprints: frozenset[str] = frozenset()
        self._read_at = 0.0
        """Moment of the last successful attempt, by the monotonic clock."""
        self.asked_at = 0
        """Start of the last attempt, nanoseconds since 1970. Keys that the issuer made later may be unknown here."""
        self._failing_since: float | None = None
        self._began: float | None = None
        """Start of the last attempt, by the monotonic clock."""
        self._attempt: asyncio.Task[None] | None = None
        self._blocked: asyncio.Future[KeySet] | None = None
        """A read of a file that is still blocked after its attempt timed out."""
        self._has_failed = asyncio.Event()
        self._waiting = 0
        self._repeats = Repeats()
        self._loop: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        """Reason why the last attempt failed; None after a success."""

    def start(self) -> None:
        """Begin to read the keys, and to read them again."""
        self._loop = asyncio.create_task(self._again(), name="jwt-keys")

    async def close(self) -> None:
        """Stop reading."""
        tasks = [each for each in (self._loop, self._attempt) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = self._attempt = None

    @property
    def is_known(self) -> bool:
        """Return whether the keys are in force: they were read, and not too long ago."""
        return self._keys is not None and self._monotonic() < self._read_at + self._settings.keep_s

    @property
    def failing_s(self) -> float:
        """Return for how many seconds reading the keys has failed; 0 after a success."""
        return 0.0 if self._failing_since is None else max(0.0, self._monotonic() - self._failing_since)

    @property
    def count(self) -> int:
        """Return the number of keys in force."""
        return len(self._keys.keys) if self._keys is not None and self.is_known else 0

    def has(self, thumbprint: str) -> bool:
        """Return whether the last read of the keys has this key."""
        return thumbprint in self._thumbprints

    def find(self, name: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of a token; None if none in force fits."""
        return self._keys.find(name, algorithm) if self._keys is not None and self.is_known else None

    async def look(self) -> bool:
        """Read the keys if an attempt is allowed now. Wait at most ``WAIT_S`` for it, or for a running one.

        Returns:
            False if the issuer may have keys that are not known here.
        """
        running = self._attempt
        if running is None:
            if self._began is not None and self._monotonic() < self._began + self._settings.unknown_key_s:
                return self.trouble is None
            running = self._begin()
        if self._waiting >= WAITING_MAX:
            return False
        self._waiting += 1
        try:
            done, _ = await asyncio.wait({running}, timeout=WAIT_S)
        finally:
            self._waiting -= 1
        return bool(done) and self.trouble is None

    def kept_until(self) -> int | None:
        """Return the moment until which the keys stay in force if they cannot be read again; None if none was read."""
        if self._keys is None:
            return None
        return self._now() + int((self._read_at + self._settings.keep_s - self._monotonic()) * SECOND)

    def view(self) -> KeysOfIssuer:
        """Return the state for status pages."""
        settings = self._settings
        known = self._keys is not None
        return KeysOfIssuer(
            issuer=settings.issuer,
            key_set=settings.jwks_url or settings.jwks_file or "",
            keys=self.count,
            passed_over=0 if self._keys is None else self._keys.passed_over,
            read_seconds_ago=self._monotonic() - self._read_at if known else None,
            kept_until=moment(self.kept_until()),
            failing_seconds=self.failing_s,
            trouble=self.trouble,
        )

    async def _again(self) -> None:
        while True:
            if self._attempt is None:
                self._begin()
            assert self._attempt is not None, "it has just begun"
            await asyncio.wait({self._attempt})
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next attempt is due: sooner if one fails meanwhile that a request began."""
        while True:
            self._has_failed.clear()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._has_failed.wait()
            except TimeoutError:
                return

    def _pause_s(self) -> float:
        """Return the pause after an attempt; after failed ones, the longer they fail, the longer."""
        settings = self._settings
        if self.trouble is None:
            return settings.refresh_s
        return min(max(settings.unknown_key_s, self.failing_s / 4), settings.refresh_s)

    def _begin(self) -> asyncio.Task[None]:
        self._began, self.asked_at = self._monotonic(), self._now()
        self._attempt = asyncio.create_task(self._read(), name="jwt-keys-attempt")
        return self._attempt

    async def read(self) -> KeySet:
        """Return the keys that the issuer publishes now.

        Raises:
            KeySetUnusable: they cannot be read or used, or the read takes longer than ``READ_S``.
        """
        try:
            async with asyncio.timeout(READ_S):
                return await (self._from_file() if self._settings.jwks_url is None else self._from_url())
        except TimeoutError:
            raise KeySetUnusable(f"no answer within {READ_S:.0f} s") from None
        except (aiohttp.ClientError, ssl.SSLError) as error:
            raise KeySetUnusable(str(error) or type(error).__name__) from error
        except OSError as error:
            raise KeySetUnusable(why_unreadable(error)) from error

    async def _read(self) -> None:
        try:
            keys = await self.read()
        except KeySetUnusable as error:
            self._failed(str(error))
        except Exception as error:  # without an end of the attempt, there would be none after it
            _logger.exception("the key set could not be read")
            self._failed(type(error).__name__)
        else:
            self._use(keys)
        finally:
            self._attempt = None

    def _use(self, keys: KeySet) -> None:
        if keys.thumbprints != self._thumbprints:
            _logger.info("read the key set of %s; keys: %d", self._settings.issuer, len(keys.keys))
        self._keys, self._thumbprints = keys, keys.thumbprints
        self._read_at, self._failing_since, self.trouble = self._monotonic(), None, None
        self._repeats.clear()

    def _failed(self, why: str) -> None:
        now = self._monotonic()
        self.trouble = why
        self._has_failed.set()
        self._failing_since = now if self._failing_since is None else self._failing_since
        count = self._repeats.due(why, now)
        if count is not None:
            place = self._settings.jwks_url or self._settings.jwks_file
            kept = moment(self.kept_until())
            until = f"the keys stay in force until {kept}" if self.is_known else "no JWT is accepted"
            _logger.warning("the key set %s cannot be read, %s: %s%s", place, until, why, left_out(count))

    async def _from_file(self) -> KeySet:
        if self._blocked is not None:
            if not self._blocked.done():
                raise TimeoutError  # a disk that hangs may keep one thread, and no more
            self._blocked = None
        reading = asyncio.ensure_future(asyncio.to_thread(self._parse_file))
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # one that no one awaits
        self._blocked = reading
        keys = await asyncio.shield(reading)
        self._blocked = None
        return keys

    def _parse_file(self) -> KeySet:
        assert self._settings.jwks_file is not None, "checked with the configuration"
        with open(self._settings.jwks_file, "rb") as file:
            return read_key_set(file.read(KEY_SET_BYTES_MAX + 1), self._settings.algorithms)

    async def _from_url(self) -> KeySet:
        settings = self._settings
        assert settings.jwks_url is not None, "asked before"
        context = await asyncio.to_thread(ssl.create_default_context, cafile=settings.ca_file)
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        # A proxy sees the inside of plain HTTP, which is for an issuer on this machine, and could answer in its place.
        may_use_proxy = settings.jwks_url.startswith("https:")
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=may_use_proxy) as session,
            session.get(settings.jwks_url, allow_redirects=False, headers={"Accept": "application/json"}) as answer,
        ):
            if answer.status != 200:
                raise KeySetUnusable(f"the issuer answered with HTTP status {answer.status}")
            data = bytearray()
            async for part in answer.content.iter_any():
                data += part
                if len(data) > KEY_SET_BYTES_MAX:
                    break
        return await asyncio.to_thread(read_key_set, bytes(data), settings.algorithms)


CHECKED_MAX = 4096
"""Maximum number of verified tokens that are cached, about 1 kB each. The least recently used is dropped first."""
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
        now: nanoseconds since 1970, by a clock that other nodes agree on, since it ends tokens.
        doubted: returns the error of this machine's clock; None while it is right.
    """

    def __init__(
        self,
        settings: JwtSettings,
        now: Callable[[], int],
        doubted: Callable[[], str | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
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
        """Stop following them."""
        await self.issuer.close()

    async def check(self, token: str) -> JwtIdentity:
        """Return the bearer of a token. If its key is unknown, wait for the issuer for ``WAIT_S`` at most.

        Raises:
            JwtRefused: it grants no access.
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
            advice = f"this hub accepts {allowed}, as in `jwt.algorithms`"
            raise JwtRefused("the algorithm of the JWT is not allowed", advice)
        if "crit" in header:  # RFC 7515, section 4.1.11: what is critical and not understood is refused
            raise JwtRefused(
                "the JWT requires extensions that this hub does not support", "have the issuer leave out `crit`"
            )
        if key is not None and (not isinstance(key, str) or len(key) > KEY_ID_CHARACTERS_MAX):
            raise JwtRefused("the JWT names no key", f"expected up to {KEY_ID_CHARACTERS_MAX} characters in `kid`")
        return _Header(name, key)

    def why_over(self, identity: JwtIdentity) -> JwtRefused | None:
        """Return why an admitted token is no longer in force; None while it is."""
        if is_over(identity.until, self._settings, self._now()):
            return expired(identity.shown, identity.until, self._doubted())
        if not self.issuer.has(identity.key):
            return JwtRefused(f"the issuer withdrew the key of {identity.shown}", "get a new one from the issuer")
        return None

    def view(self) -> KeysOfIssuer:
        """Return the state for status pages."""
        return self.issuer.view()

    def figures(self) -> tuple[int, float, int]:
        """Return the number of keys in force, the seconds for which reading them has failed, and the number of verified
        signatures."""
        return self.issuer.count, self.issuer.failing_s, self._verified


def _extracted(token: str, registry: JWSRegistry) -> CompactSignature:
    try:
        if _FORM.fullmatch(token) is None:
            raise ValueError
        signed = extract_compact(token.encode(), registry=registry)
        if not isinstance(signed.protected, dict):
            raise TypeError
    except (JoseError, ValueError, TypeError, RecursionError):
        raise JwtRefused("this is not a JWT", "expected header, claims and signature, as issued") from None
    return signed


def _claims(signed: CompactSignature) -> dict[str, Any]:
    try:
        claims = json.loads(signed.payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise JwtRefused("the claims of the JWT are not a JSON object", "get a new one from the issuer")
    return claims
