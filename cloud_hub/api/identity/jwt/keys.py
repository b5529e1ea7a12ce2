"""A key set (RFC 7517): the public keys of it that may verify tokens."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import base64_to_int

KEY_SET_BYTES_MAX = 256 << 10
KEYS_MAX = 64
KEY_ID_CHARACTERS_MAX = 256
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
"""Sizes of RSA keys: RFC 7518, section 3.3; and what a verification may take, some 0.2 ms."""
RSA_EXPONENT_MAX = 1 << 32

NAMES = {"RS256": "RS256", "ES256": "ES256", "EdDSA": "EdDSA", "Ed25519": "EdDSA"}
"""Name of an algorithm in a token's header -> its name in the settings. RFC 9864 renamed one."""
ALGORITHMS = {each: JWSRegistry.algorithms[of] for each, of in {
    "RS256": "RS256", "ES256": "ES256", "EdDSA": "Ed25519",
}.items()}  # fmt: skip
"""Name in the settings -> algorithm. Not the library's own EdDSA, which takes curves that the settings do not name."""
_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_KINDS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""Type and curve of a key -> the only algorithm for which it counts, whatever a token says."""
_CLASSES: Mapping[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


class KeySetUnusable(ValueError):
    """A key set that has no usable key, or is none. The message says why."""


class SigningKey(NamedTuple):
    """A key of the issuer."""

    name: str | None
    """Its ``kid``."""
    algorithm: str
    key: RSAKey | ECKey | OKPKey
    thumbprint: str


class KeySet(NamedTuple):
    """The keys that count."""

    keys: tuple[SigningKey, ...]
    passed_over: int
    """Number of keys that are for other uses or algorithms, or cannot be used."""

    def find(self, name: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of a token; None if there is none. A token without a name of a key has to leave no choice."""
        fit = [each for each in self.keys if each.algorithm == algorithm and name in (None, each.name)]
        return fit[0] if len(fit) == 1 or (fit and name is not None) else None

    @property
    def thumbprints(self) -> frozenset[str]:
        """Return the thumbprints of the keys."""
        return frozenset(each.thumbprint for each in self.keys)


def read_key_set(data: bytes, algorithms: Collection[str]) -> KeySet:
    """Return the keys of a key set that are for signatures of these algorithms. Takes some milliseconds at most.

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
