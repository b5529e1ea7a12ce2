"""Identities from the claims of verified JSON Web Tokens: a tenant, rights, and an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.settings import JwtSettings
from weft.hub_api.answers import moment
from weft.hub_api.rights import (
    CONCERNS,
    GRANTS_MAX,
    ROLES,
    TOKEN_NAME_CHARACTERS_MAX,
    InvalidGrant,
    Right,
    Rights,
    Scope,
    grants_of,
    parse_grant,
)
from weft.protocols.lane import AUDIT_TENANT, NAME_RULE, valid_name

SECOND = 10**9
TIME_MAX = 253_402_300_800
"""Seconds from 1970 to the year 10000."""
DEPTH_MAX = 8
"""Maximum depth of a claim's path, whose names are separated by dots."""
WORDS_MAX = 256
"""Maximum number of words in a claim of rights or of audiences."""
SUBJECT_CHARACTERS_MAX = 1024
NAME_PREFIX = "jwt:"
"""Prefix of the names of such identities, so that a subject is never the name of a token."""
DIGEST_CHARACTERS = 16


class JwtIdentity(TokenIdentity, frozen=True, kw_only=True):
    """The bearer of a JSON Web Token: ``name`` has its subject, ``sha256`` is that of the token."""

    until: int
    """End of the token, nanoseconds since 1970."""
    key: str
    """Thumbprint of the key that signed it."""

    @property
    def shown(self) -> str:
        """Return what it is called in messages."""
        return f"the JWT of {self.name.removeprefix(NAME_PREFIX)!r}"

    @property
    def holder(self) -> object:
        """Return the key of its bearer's bounds. It is not the token's name, since an edge presents a new token each
        time."""
        return self.name, self.tenant, self.edge


class JwtRefused(Exception):
    """Refusal of a token that grants no access.

    Args:
        retry_s: seconds after which the same token may be accepted; None if it never will be.
    """

    def __init__(self, error: str, advice: str, retry_s: float | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.advice = advice
        self.retry_s = retry_s


class Signed(NamedTuple):
    """A token whose signature was verified."""

    claims: Mapping[str, Any]
    sha256: str
    key: str
    """Thumbprint of the key that signed it."""


def check_issuer(claims: Mapping[str, Any], rules: JwtSettings) -> None:
    """Check the issuer of a token, before its signature: that needs no key.

    Raises:
        JwtRefused: another issuer made it.
    """
    issuer = claims.get("iss")
    if issuer is None:
        raise _missing("iss")
    if issuer != rules.issuer:
        raise JwtRefused("the JWT has another issuer", f"use a token of {rules.issuer!r}, the `jwt.issuer` of this hub")


def identity_of(
    signed: Signed, rules: JwtSettings, now: int, doubted: Callable[[], str | None] = lambda: None
) -> JwtIdentity:
    """Return the bearer of a token whose issuer and signature were verified.

    Args:
        now: nanoseconds since 1970.
        doubted: returns the error of the hub's clock; None while it is right.

    Raises:
        JwtRefused: it has expired, is not for this hub, or grants nothing here.
    """
    claims = signed.claims
    name = _name(claims)
    shown = f"the JWT of {name.removeprefix(NAME_PREFIX)!r}"
    until = _time(claims, "exp", shown)
    if until is None:
        raise _missing("exp", "a token without an end could not be withdrawn")
    if is_over(until, rules, now):
        raise expired(shown, until, doubted())
    since = _time(claims, "nbf", shown)
    if since is not None and now + int(rules.leeway_s * SECOND) < since:
        advice = "wait, or compare the clocks of issuer and hub"
        raise JwtRefused(f"{shown} is not valid before {moment(since)}", advice)
    if not _is_for(claims.get("aud"), rules.audience):
        if claims.get("aud") is None:
            raise _missing("aud")
        advice = f"have the issuer make it for {rules.audience!r}, as in `jwt.audience`"
        raise JwtRefused(f"{shown} is for another audience", advice)
    scope, grants = _rights(claims, rules, shown)
    edge = _edge(claims, rules, shown) if Right.WRITE in Rights(grants) else None
    return JwtIdentity(
        name, signed.sha256, scope, _tenant(claims, rules, shown), edge, grants, until=until, key=signed.key
    )


def is_over(until: int, rules: JwtSettings, now: int) -> bool:
    """Return whether a token has expired, with the configured leeway between the clocks of hub and issuer."""
    return now >= until + int(rules.leeway_s * SECOND)


def issued_after(claims: Mapping[str, Any], moment: int) -> bool:
    """Return whether a token claims to be issued after a moment, nanoseconds since 1970."""
    at = claims.get("iat")
    return isinstance(at, int | float) and at * SECOND > moment


def expired(shown: str, until: int, doubt: str | None = None) -> JwtRefused:
    """Return the refusal of a token after its end.

    Args:
        doubt: the error of the hub's clock, if it is wrong.
    """
    by = f" ({doubt}, and was corrected for this)" if doubt else ""
    return JwtRefused(f"{shown} expired at {moment(until)}{by}", "get a new one from the issuer")


def claim_at(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by its path of names separated by dots; None if it is missing."""
    if name in claims:
        return claims[name]  # names of claims may be URLs, which have dots
    found: Any = claims
    for part in name.split(".", DEPTH_MAX - 1):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _missing(claim: str, why: str = "") -> JwtRefused:
    advice = f"have the issuer add it{f': {why}' if why else ''}"
    return JwtRefused(f"the JWT has no claim {claim!r}", advice)


def _name(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    if subject is None:
        raise _missing("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARACTERS_MAX or not subject.isprintable():
        error = f"the claim 'sub' of the JWT is not 1 to {SUBJECT_CHARACTERS_MAX} printable characters"
        raise JwtRefused(error, "have the issuer mend it")
    name = NAME_PREFIX + subject
    if len(name) <= TOKEN_NAME_CHARACTERS_MAX:
        return name
    digest = sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARACTERS]
    return f"{name[: TOKEN_NAME_CHARACTERS_MAX - DIGEST_CHARACTERS - 1]}~{digest}"


def _time(claims: Mapping[str, Any], claim: str, shown: str) -> int | None:
    value = claims.get(claim)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= TIME_MAX:
        raise JwtRefused(f"the claim {claim!r} of {shown} is not a time", "the issuer must give seconds since 1970")
    return int(value * SECOND) if isinstance(value, float) else value * SECOND


def _is_for(audience: Any, wanted: str) -> bool:
    several = audience if isinstance(audience, list) else [audience]
    return wanted in several[:WORDS_MAX]


def _tenant(claims: Mapping[str, Any], rules: JwtSettings, shown: str) -> str:
    if rules.tenant_claim is None:
        return rules.tenant
    tenant = _named(claims, rules.tenant_claim, "tenant", shown)
    if tenant == AUDIT_TENANT:  # its acts are those of all tenants, as what `Right.ACTS` opens
        advice = f"only a token of the hub opens it: `weft hub token add --tenant {AUDIT_TENANT}`"
        raise JwtRefused(f"{shown} names the hub's own tenant {tenant}", advice)
    return tenant


def _edge(claims: Mapping[str, Any], rules: JwtSettings, shown: str) -> str:
    return _named(claims, rules.edge_claim, "edge", shown)


def _named(claims: Mapping[str, Any], claim: str, what: str, shown: str) -> str:
    value = claim_at(claims, claim)
    if value is None:
        raise JwtRefused(f"{shown} has no claim {claim!r}", f"it has to name the {what}: `jwt.{what}_claim`")
    if not isinstance(value, str) or not valid_name(value):
        raise JwtRefused(f"the claim {claim!r} of {shown} names no {what}", f"expected {NAME_RULE}")
    return value


def _rights(claims: Mapping[str, Any], rules: JwtSettings, shown: str) -> tuple[Scope, tuple[str, ...]]:
    claim = rules.rights_claim
    value = claim_at(claims, claim)
    if value is None:
        raise JwtRefused(f"{shown} has no claim {claim!r}", "it has to have the rights: `jwt.rights_claim`")
    words = value.split(" ", WORDS_MAX) if isinstance(value, str) else value
    if not isinstance(words, list) or len(words) > WORDS_MAX:
        raise JwtRefused(
            f"the claim {claim!r} of {shown} is not a list of rights", f"expected a list or words, {WORDS_MAX} at most"
        )
    scope, grants = Scope.GRANTED, dict[str, None]()
    for word in words:
        for right in _meant(word, rules):
            if right == Scope.ADMIN:
                scope = Scope.ADMIN
            grants.update(dict.fromkeys(grants_of(right)))
    if not grants:
        raise JwtRefused(f"the claim {claim!r} of {shown} has no right at this hub", "see `jwt.roles` of the hub")
    if len(grants) > GRANTS_MAX:
        raise JwtRefused(f"{shown} has {len(grants)} rights, more than {GRANTS_MAX}", "use patterns with `*`")
    return scope, tuple(grants)


def _meant(word: Any, rules: JwtSettings) -> tuple[str, ...]:
    """Return the rights that a word of the claim gives; none for one that is for others."""
    if not isinstance(word, str):
        return ()
    if rules.roles is not None:
        return rules.roles.get(word, ())
    if word in ROLES:  # a common word, which may be another service's
        return ()
    try:
        grants = [parse_grant(each) for each in grants_of(word)]
    except InvalidGrant:
        return ()
    # A common word, such as the role "admin" of another service, must not open all tenants by chance.
    is_within = all(each.right in CONCERNS or each.right is Right.EDGES for each in grants)
    return (word,) if is_within else ()
