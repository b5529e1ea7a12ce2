"""Tokens: their declaration, the tokens in force in a process, and the time of their last use."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.auth.claims import JwtIdentity
from weft.cloud_hub.auth.tokens import (
    NO_TOKEN,
    TOKEN_CHARACTERS_MAX,
    TokenIdentity,
    TokenRefusal,
    TokensUnusable,
    check_identity,
    hash_token,
)
from weft.cloud_hub.facts.fact import (
    HUBS,
    OPENING,
    TENANT,
    TOKEN,
    CannotDeclare,
    Decision,
    UnreadableDocument,
    decode,
    encode,
    known_fact,
    listed,
    read_fact,
)
from weft.cloud_hub.facts.tenants import TenantDocument, check_tenant
from weft.cloud_hub.part import Part
from weft.config.log_lines import Repeats, left_out
from weft.hub_api.answers import moment, moment_after, moment_of
from weft.hub_api.rights import ANY, GRANT_CHARACTERS_MAX, GRANTS_MAX, Scope
from weft.hub_api.tokens import TokenOfStore
from weft.storage import hub_keys
from weft.storage.cluster_log import Change, ClusterState, Fact
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError

if TYPE_CHECKING:
    from weft.cloud_hub.auth.jwt import Jwts

PAIRING_MAX_NS = 24 * 3_600_000_000_000
"""Longest validity of a pairing code."""
SECRETS_MAX = 2
"""Maximum number of secrets of a token in force at once: the old and the new one during a rotation."""


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of a token's secrets."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    until: int | None = None
    """Moment from which on it opens nothing, nanoseconds since 1970; None for no end."""


class Pairing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A single-use code by which an edge sets the secret of its token."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Hash of the code."""
    until: int
    """Moment from which on it opens nothing, nanoseconds since 1970."""
    token_until: int | None = None
    """End of the secret; None for no end."""
    is_used: bool = False
    """True once the edge has used the code. The pairing is kept, so that a repetition of the edge's request is
    recognised."""


class TokenDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token; the name of the fact is that of the token."""

    scope: Scope
    secrets: Annotated[tuple[Secret, ...], Meta(max_length=8)]
    """Oldest first."""
    tenant: str = "default"
    edge: str | None = None
    """Edge that may link with the token; only for the scope ``edge``, and for grants to write."""
    grants: Annotated[
        tuple[Annotated[str, Meta(max_length=GRANT_CHARACTERS_MAX)], ...], Meta(max_length=GRANTS_MAX)
    ] = ()
    """Rights, such as ``read:press-*``; only for the scope ``granted``."""
    pairing: Pairing | None = None
    """The last one; only for the scope ``edge``."""


class TokenCache:
    """The tokens of a state, by their secrets and edges.

    Consecutive decisions share one, so that each document is decoded once instead of for every decision after it.
    """

    def __init__(self) -> None:
        self._state: ClusterState | None = None
        self._n = 0
        self._adds = ""
        """Name of the token that the last decision adds."""
        self._by_hash: dict[str, str] = {}
        self._edges: dict[str, set[str | None]] = {}

    def adding(self, name: str, state: ClusterState) -> None:
        """Apply the tokens of the state on which a decision is made.

        Args:
            name: of the token that the decision adds.
        """
        added, facts = self._adds, state.facts(TOKEN)
        is_next = state is self._state and state.n == self._n + 1
        if is_next and added in facts and facts[added].version == state.n:
            self._take(added, _readable(facts[added]))
        elif state is not self._state or state.n != self._n:
            self._by_hash, self._edges = {}, {}
            for known, document in tokens_of(state):
                self._take(known, document)
        self._state, self._n, self._adds = state, state.n, name

    def owner(self, sha256: str) -> str | None:
        """Return the name of the token with a secret; None if there is none."""
        return self._by_hash.get(sha256)

    def edges(self, tenant: str) -> Set[str | None]:
        """Return the edges of a tenant that have tokens."""
        return self._edges.get(tenant, frozenset())

    def _take(self, name: str, document: TokenDocument | None) -> None:
        if document is None:
            return
        self._by_hash.update((secret.sha256, name) for secret in document.secrets)
        if document.edge is not None:
            self._edges.setdefault(document.tenant, set()).add(document.edge)


def add_token(identity: TokenIdentity, until: int | None, known: TokenCache | None = None) -> Decision:
    """Declare a token.

    Args:
        identity: its name, access, and the hash of its secret.
        until: nanoseconds since 1970; None for no end.
        known: cache that this decision shares with those before and after it.

    Raises:
        TokensUnusable: a name is not valid, or scope and edge do not fit.
        CannotDeclare: from the decision: the name or the secret is taken, the tenant is unknown, or its quota is used
            up.
    """
    check_identity(identity, "the cluster log")
    tokens = TokenCache() if known is None else known

    def decide(state: ClusterState) -> Change:
        if identity.name in state.facts(TOKEN):
            raise CannotDeclare(
                f"there is a token {identity.name!r} already: `weft hub token rotate` gives it another secret, `weft "
                "hub token remove` withdraws it"
            )
        if identity.tenant != ANY:
            check_tenant(state, identity.tenant)
        tokens.adding(identity.name, state)
        _check_secret(tokens, identity.name, identity.sha256)
        _check_edges(state, identity, tokens.edges(identity.tenant))
        secrets = (Secret(identity.sha256, until),)
        document = TokenDocument(identity.scope, secrets, identity.tenant, identity.edge, identity.grants)
        return Change(TOKEN, identity.name, encode(document))

    return decide


def import_token(identity: TokenIdentity, known: TokenCache | None = None, until: int | None = None) -> Decision:
    """Declare a token of a file. A declared token with the same access stays unchanged, even if its secret differs.

    Args:
        known, until: as of ``add_token``.

    Raises:
        TokensUnusable, CannotDeclare: as ``add_token``.
    """
    adds = add_token(identity, until, known)

    def decide(state: ClusterState) -> Change | None:
        if identity.name in state.facts(TOKEN):
            found = _token(state, identity.name)
            wanted = identity.scope, identity.tenant, identity.edge, identity.grants
            if (found.scope, found.tenant, found.edge, found.grants) == wanted:
                return None
        return adds(state)

    return decide


def has_other_secret(state: ClusterState, identity: TokenIdentity) -> bool:
    """Return whether a token is declared without the secret of the identity."""
    if identity.name not in state.facts(TOKEN):
        return False
    return all(each.sha256 != identity.sha256 for each in _token(state, identity.name).secrets)


def rotate_token(name: str, secret: Secret, now: int, old_until: int, *, ends_oldest: bool = False) -> Decision:
    """Give a token a second secret. The previous one stays in force until ``old_until``.

    Args:
        secret: the new one, with its end (``end_of_token``).
        now: nanoseconds since 1970.
        old_until: latest moment at which the previous secret ends; ``now`` or earlier ends it at once.
        ends_oldest: if two secrets are in force, end the older one at once.

    Raises:
        CannotDeclare: from the decision: there is no such token, two secrets are in force, or another has this one.
    """

    def decide(state: ClusterState) -> Change:
        before = _token(state, name)
        tokens = TokenCache()
        tokens.adding(name, state)
        _check_secret(tokens, name, secret.sha256)
        valid = [each for each in before.secrets if each.until is None or each.until > now]
        if len(valid) >= SECRETS_MAX and old_until > now and not ends_oldest:
            raise CannotDeclare(
                f"token {name!r} has {SECRETS_MAX} secrets in force. Wait until the older one ends (`weft hub token "
                "list`), or end it now: --end-oldest"
            )
        kept = [_ending(valid[-1], old_until)] if valid and old_until > now else []
        document = msgspec.structs.replace(before, secrets=(*kept, secret))
        return Change(TOKEN, name, encode(document, state.facts(TOKEN)[name].document))

    return decide


class NotPaired(Exception):
    """A code that is not valid. The reason is not given, since anyone may ask."""


def new_pairing(code: str, within: str, expires: str | None, now: int) -> Pairing:
    """Return a pairing code that is valid from now on.

    Args:
        code: its hash.
        within: duration of its validity.
        expires: end of the secret: a duration, or a date; None for no end.
        now: nanoseconds since 1970.

    Raises:
        ValueError: a time cannot be read or is over, or the code would be valid for more than 24 h.
    """
    until = _moment_of("within", within, now)
    if until > now + PAIRING_MAX_NS:
        raise ValueError(f"within: the limit of a code is {PAIRING_MAX_NS // 3_600_000_000_000} h, got {within}")
    return Pairing(code, until, None if expires is None else _moment_of("expires", expires, now))


def _moment_of(field: str, text: str, now: int) -> int:
    try:
        return moment_after(text, now)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def pair_token(identity: TokenIdentity, pairing: Pairing) -> Decision:
    """Declare a code by which an edge sets the secret of its token. An existing token keeps its secrets until the code
    is used.

    Args:
        identity: the token's name, tenant and edge; its hash does not matter.

    Raises:
        TokensUnusable: a name is not valid.
        CannotDeclare: from the decision: the token is another one's, the tenant is unknown, or its quota is used up.
    """
    check_identity(identity, "the cluster log")

    def decide(state: ClusterState) -> Change:
        if identity.name in state.facts(TOKEN):
            found = _token(state, identity.name)
            if (found.scope, found.tenant, found.edge) != (identity.scope, identity.tenant, identity.edge):
                raise CannotDeclare(
                    f"the token {identity.name!r} is not that of edge {identity.edge} of tenant {identity.tenant}: "
                    "give the new one another name (--name)"
                )
            document = msgspec.structs.replace(found, pairing=pairing)
            return Change(TOKEN, identity.name, encode(document, state.facts(TOKEN)[identity.name].document))
        check_tenant(state, identity.tenant)
        tokens = TokenCache()
        tokens.adding(identity.name, state)
        _check_edges(state, identity, tokens.edges(identity.tenant))
        document = TokenDocument(identity.scope, (), identity.tenant, identity.edge, pairing=pairing)
        return Change(TOKEN, identity.name, encode(document))

    return decide


def redeem(name: str, code: str, sha256: str, asks_for: tuple[str | None, str | None], now: int) -> Decision:
    """Set the secret of a token by its code. Earlier secrets end, since the machine is another one.

    A repetition with the same secret changes nothing, so an edge may retry after a lost answer.

    Args:
        code: hash of the code.
        sha256: hash of the secret.
        asks_for: tenant and edge in the machine's configuration; None for those that it leaves open.
        now: nanoseconds since 1970.

    Raises:
        NotPaired: from the decision: the code is not valid.
        CannotDeclare: from the decision: another token has the secret.
    """

    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(TOKEN).get(name)
        found = None if fact is None else _readable(fact)
        if fact is None or found is None or found.pairing is None:
            raise NotPaired
        pairing = found.pairing
        is_asked = all(wanted in (None, own) for wanted, own in zip(asks_for, (found.tenant, found.edge), strict=True))
        if pairing.sha256 != code or pairing.until <= now or not is_asked:
            raise NotPaired
        if pairing.is_used:
            if any(each.sha256 == sha256 for each in found.secrets):
                return None
            raise NotPaired
        tokens = TokenCache()
        tokens.adding(name, state)
        _check_secret(tokens, name, sha256)
        document = msgspec.structs.replace(
            found,
            secrets=(Secret(sha256, pairing.token_until),),
            pairing=msgspec.structs.replace(pairing, is_used=True),
        )
        return Change(TOKEN, name, encode(document, fact.document))

    return decide


def end_of_token(state: ClusterState, name: str, now: int) -> int | None:
    """Return the end of a token's newest secret, which the next one keeps; None for no end.

    Args:
        now: nanoseconds since 1970.

    Raises:
        CannotDeclare: there is no such token, or it has ended.
    """
    secrets = _token(state, name).secrets
    until = secrets[-1].until if secrets else None
    if until is not None and until <= now:
        raise CannotDeclare(
            f"token {name!r} has expired, and so would a new secret with the same end. Set its end: --expires 365d, "
            "or --expires never"
        )
    return until


def open_hubs(state: ClusterState) -> Change:
    """Declare that hubs require no token until the next one is declared.

    Raises:
        CannotDeclare: tokens are declared, or none is required.
    """
    if tokens := state.facts(TOKEN):
        raise CannotDeclare(
            f"tokens are declared: {listed(tokens)}. With open hubs they would restrict no one: withdraw "
            "them first (`weft hub token remove`)"
        )
    if state.last(TOKEN) <= state.version(OPENING, HUBS):
        raise CannotDeclare("the cluster log requires no token: its hubs are open already")
    return Change(OPENING, HUBS, b"{}")


def remove_token(name: str) -> Decision:
    """Withdraw a token.

    Raises:
        CannotDeclare: from the decision: there is no such token.
    """

    def decide(state: ClusterState) -> Change:
        known_fact(state, TOKEN, name)
        return Change(TOKEN, name, None)

    return decide


def _ending(secret: Secret, until: int) -> Secret:
    return secret if secret.until is not None and secret.until < until else Secret(secret.sha256, until)


def _check_secret(tokens: TokenCache, name: str, sha256: str) -> None:
    """Refuse the secret of another token: it would be open which of the two it opens."""
    owner = tokens.owner(sha256)
    if owner is not None and owner != name:
        raise CannotDeclare(
            f"the secret of {name!r} is that of token {owner!r}: give it one of its own, or withdraw {owner!r} first "
            "(`weft hub token remove`)"
        )


def _check_edges(state: ClusterState, identity: TokenIdentity, edges: Set[str | None]) -> None:
    """Refuse the token of a further edge of a tenant that has as many as it may have."""
    fact = state.facts(TENANT).get(identity.tenant)
    quota = None if fact is None else read_fact(identity.tenant, TENANT, fact.document, TenantDocument).quotas.edges
    if quota is None or identity.edge is None:
        return
    if identity.edge not in edges and len(edges) >= quota:
        raise CannotDeclare(
            f"tenant {identity.tenant} has tokens for {len(edges)} edges, its quota. Withdraw tokens of edges that are "
            "gone, or raise it: `weft hub tenant set HUB NAME --edges N`"
        )


def tokens_of(state: ClusterState) -> Iterator[tuple[str, TokenDocument]]:
    """Yield the tokens that this release can read. Its hubs refuse all others."""
    for name, fact in state.facts(TOKEN).items():
        if (document := _readable(fact)) is not None:
            yield name, document


def _readable(fact: Fact) -> TokenDocument | None:
    with contextlib.suppress(UnreadableDocument):
        return decode(fact.document, TokenDocument)
    return None


def _token(state: ClusterState, name: str) -> TokenDocument:
    known_fact(state, TOKEN, name)
    return read_fact(name, TOKEN, state.facts(TOKEN)[name].document, TokenDocument)


_Ends = dict[str, tuple[TokenIdentity, int | None]]
_ANOTHER = "give the edge one (`weft hub token add HUB NAME --scope edge --edge EDGE`) if it still belongs here"
WITHOUT_TOKEN = TokenRefusal("every link now requires a token", _ANOTHER)
"""Reason for which links without a token end."""


class _Read(NamedTuple):
    fact: Fact
    hashes: tuple[str, ...]
    """Those that it has, or had until the document of an older fact named them too."""
    code: str | None = None
    """Hash of the code of its pairing."""


class TokenEnd(NamedTuple):
    """The end of a declared token's last secret."""

    name: str
    until: int


class Credentials:
    """The tokens that this process admits.

    Args:
        is_closed: true if every request needs a token, even while there is none.
        now: nanoseconds since 1970, by a clock that other nodes agree on, since it ends tokens.
        doubted: returns by how much this machine's clock is off; None while it is right.
        jwts: the tokens of an issuer; None if none are taken.
    """

    def __init__(
        self,
        is_closed: bool,
        now: Callable[[], int],
        doubted: Callable[[], str | None] = lambda: None,
        jwts: Jwts | None = None,
    ) -> None:
        self.jwts = jwts
        self._doubted = doubted
        self._is_closed_anyway, self._is_closed = is_closed, False
        self.used: dict[str, int] = {}
        """Name of a declared token -> moment of its last use here, nanoseconds since 1970."""
        self._is_in_doubt = False
        """True if an entry of the cluster log cannot be read: it may declare the first token."""
        self._now = now
        self._read: dict[str, _Read] = {}
        self._by_hash: _Ends = {}
        self._last_ends: dict[str, int] = {}
        """Name of a token whose last secret has an end -> that end."""
        self._pairings: dict[str, str] = {}
        """Hash of the code of a pairing -> name of its token."""
        self._deprived: set[str] = set()
        """Names of tokens without effect, because an older fact has the same hash."""
        self.unusable: dict[str, str] = {}
        """Names of declared tokens that grant no access, each with the reason."""

    @property
    def required(self) -> bool:
        """Return whether every request needs a token: one was declared since an operator last opened the hubs, an entry
        of the cluster log cannot be read, or there is an issuer."""
        return self._is_closed_anyway or self._is_closed or self._is_in_doubt or self.jwts is not None

    def is_declared(self, name: str) -> bool:
        """Return whether the cluster log has a token of a name."""
        return name in self._read

    def version(self, name: str) -> int | None:
        """Return the number of the entry that declared or changed a token last; None if the cluster log has none."""
        return self._read[name].fact.version if name in self._read else None

    def paired_by(self, code: str) -> str | None:
        """Return the name of the token with a code, given the code's hash; None if this process knows none."""
        return self._pairings.get(code)

    @property
    def declared(self) -> int:
        """Return the number of tokens in the cluster log."""
        return len(self._read)

    def refresh(self, state: ClusterState) -> None:
        """Apply the tokens of the cluster log. Only changed ones are decoded: a fleet has one for each edge."""
        facts = state.facts(TOKEN)
        self._is_closed = demands_tokens(state)
        self._is_in_doubt = bool(state.skipped)
        # By the whole fact: after a restore of the store, an entry of the same number may say something else.
        stale = [
            name
            for name, known in self._read.items()
            if (fact := facts.get(name)) is not known.fact and fact != known.fact
        ]
        for name in {*stale, *self._deprived} if stale or len(facts) > len(self._read) else ():
            self._forget(name)
        for name in self.used.keys() - facts.keys():
            del self.used[name]
        for name, fact in facts.items():
            if name not in self._read:
                self._take(fact)

    def identify(self, token: str | None) -> TokenIdentity | None:
        """Return the identity of a token, or None."""
        if not token or len(token) > TOKEN_CHARACTERS_MAX:
            return None
        now = self._now()
        declared = self._in_force(hash_token(token), now)
        if declared is not None:
            self.used[declared.name] = now
        return declared

    def refusal(self, token: str | None) -> TokenRefusal:
        """Return why a token has no identity. The answer may name the token, since its bearer has the secret."""
        if not token or len(token) > TOKEN_CHARACTERS_MAX:
            return NO_TOKEN
        identity, until = self._by_hash.get(hash_token(token), (None, None))
        if identity is None or until is None:
            return NO_TOKEN
        return TokenRefusal(self._ended(identity, until), _renewed(identity))

    def until(self, identity: TokenIdentity) -> int | None:
        """Return the moment at which the secret of an identity ends; None for no end."""
        if isinstance(identity, JwtIdentity):
            return identity.until
        return self._by_hash.get(identity.sha256, (None, None))[1]

    def lapsed(self, identity: TokenIdentity) -> TokenRefusal | None:
        """Return why an admitted token of the issuer is no longer in force; None while it is, and for other tokens."""
        if self.jwts is None or not isinstance(identity, JwtIdentity):
            return None
        why = self.jwts.why_over(identity)
        return None if why is None else TokenRefusal(why.error, why.advice)

    def why_over(self, identity: TokenIdentity) -> TokenRefusal:
        """Return why an identity that was in force no longer is."""
        if (why := self.lapsed(identity)) is not None:
            return why
        known, until = self._by_hash.get(identity.sha256, (None, None))
        if known == identity and until is not None and self._now() >= until:
            return TokenRefusal(self._ended(identity, until), _renewed(identity))
        return TokenRefusal(f"{identity.shown} was revoked", _ANOTHER)

    @property
    def next_end(self) -> TokenEnd | None:
        """Return the declared token whose last secret ends next; None if none ends."""
        return next(iter(self.ends(math.inf, 1)), None)

    def ends(self, within_ns: float, most: int) -> list[TokenEnd]:
        """Return the declared tokens whose last secret ends within a time, the next first."""
        now = self._now()
        ends = ((until, name) for name, until in self._last_ends.items() if now < until <= now + within_ns)
        return [TokenEnd(name, until) for until, name in heapq.nsmallest(most, ends)]

    @property
    def seconds_to_next_end(self) -> float:
        """Return the seconds until the next end; infinity if no token ends."""
        found = self.next_end
        return math.inf if found is None else (found.until - self._now()) / 1e9

    def _ended(self, identity: TokenIdentity, until: int) -> str:
        doubt = self._doubted()
        return f"{identity.shown} ended at {moment(until)}" + (
            f" ({doubt}, and was corrected for this)" if doubt else ""
        )

    def revoked(self, identities: Iterable[TokenIdentity | None]) -> list[TokenIdentity | None]:
        """Return the identities of links that are no longer in force: withdrawn, changed or expired. They include None,
        for links without a token, if every request now needs one."""
        given, now = list(identities), self._now()
        for each in given:
            if each is not None and each.name in self.used:  # a link that is open is a use
                self.used[each.name] = now
        ended: list[TokenIdentity | None] = [None] if None in given and self.required else []
        jwts = [each for each in given if isinstance(each, JwtIdentity)]
        ended += [each for each in jwts if self.jwts is None or self.jwts.why_over(each) is not None]
        return ended + [
            each
            for each in given
            if each is not None and not isinstance(each, JwtIdentity) and self._in_force(each.sha256, now) != each
        ]

    def _in_force(self, sha256: str, now: int) -> TokenIdentity | None:
        identity, until = self._by_hash.get(sha256, (None, None))
        return None if until is not None and now >= until else identity

    def _forget(self, name: str) -> None:
        self.unusable.pop(name, None)
        self._deprived.discard(name)
        self._last_ends.pop(name, None)
        known = self._read.pop(name, None)
        if known is not None and known.code is not None:
            self._pairings.pop(known.code, None)
        for sha256 in known.hashes if known is not None else ():
            owner = self._by_hash.get(sha256)
            if owner is not None and owner[0].name == name:
                del self._by_hash[sha256]

    def _take(self, fact: Fact) -> None:
        hashes: list[str] = []
        code = None
        self._read[fact.name] = _Read(fact, ())
        try:
            document = decode(fact.document, TokenDocument)
            secrets = list(_identities(fact.name, document))
            if document.pairing is not None:
                code = document.pairing.sha256
                self._pairings[code] = fact.name
            ends = [until for _, until in secrets if until is not None]
            if ends and len(ends) == len(secrets):
                self._last_ends[fact.name] = max(ends)
            for identity, until in secrets:
                owner = self._by_hash.get(identity.sha256)
                known = None if owner is None else self._read[owner[0].name].fact
                # The older fact has a hash that several name, in whatever order a process reads them: an entry must not
                # change what a known secret opens.
                if known is not None and (known.version, known.name) <= (fact.version, fact.name):
                    self._deprived.add(fact.name)
                    continue
                if known is not None:
                    self._deprived.add(known.name)
                self._by_hash[identity.sha256] = identity, until
                hashes.append(identity.sha256)
        except (UnreadableDocument, TokensUnusable) as error:
            self.unusable[fact.name] = str(error)
        self._read[fact.name] = _Read(fact, tuple(hashes), code)


def demands_tokens(state: ClusterState) -> bool:
    """Return whether hubs of a store require a token, whatever their configurations say: from the first declared token
    on, also after the last one was withdrawn. ``weft hub open`` reverts it."""
    return state.last(TOKEN) > state.version(OPENING, HUBS)


def _renewed(identity: TokenIdentity) -> str:
    return f"use its later secret, or make one: `weft hub token rotate CONFIG {identity.name} --expires 365d`"


def identities_of(fact: Fact) -> Iterator[tuple[TokenIdentity, int | None]]:
    """Return the identity of each secret of a declared token, and the moment at which it ends; None for no end.

    Raises:
        UnreadableDocument, TokensUnusable: the document is not a token's, or its values are not valid.
    """
    return _identities(fact.name, decode(fact.document, TokenDocument))


def _identities(name: str, document: TokenDocument) -> Iterator[tuple[TokenIdentity, int | None]]:
    for secret in document.secrets:
        identity = TokenIdentity(
            name, secret.sha256, Scope(document.scope), document.tenant, document.edge, document.grants
        )
        check_identity(identity, "the cluster log")
        yield identity, secret.until


def token_view(fact: Fact, now: int, used: int | None) -> TokenOfStore:
    """Return a declared token for display, without its secrets.

    Args:
        now, used: nanoseconds since 1970; ``used`` is the last known use.
    """
    blank = TokenOfStore(
        name=fact.name,
        scope=None,
        tenant=None,
        edge=None,
        grants=[],
        until=None,
        older_until=None,
        last_used=None,
        secrets=0,
        version=fact.version,
        changed=moment_of(fact.at),
        by=fact.by,
        reason=fact.reason,
        unusable=None,
    )
    try:
        document, secrets = decode(fact.document, TokenDocument), list(identities_of(fact))
    except (UnreadableDocument, TokensUnusable) as error:
        return msgspec.structs.replace(blank, unusable=str(error))
    in_force = [until for _, until in secrets if until is None or until > now]
    ends = None if None in in_force else max((until for until in in_force if until is not None), default=now)
    older = in_force[0] if len(in_force) > 1 else None
    return msgspec.structs.replace(
        blank,
        scope=str(document.scope),
        tenant=document.tenant,
        edge=document.edge,
        grants=list(document.grants),
        until=moment(ends) if in_force else "ended" if secrets else "not paired yet",
        older_until=moment(older),
        last_used=moment(used),
        secrets=len(in_force),
    )


_logger = logging.getLogger(__name__)
LOOK_S = 60.0
WRITE_S = 3600.0
"""Shortest time between two writes without a token's first use, seconds."""
TRIES_MAX = 5
CLOSE_S = 5.0
TOKENS_MAX = 65_536
"""Maximum number of tokens in the object; the most recently used are kept."""
OBJECT_BYTES_MAX = 16 << 20
_DECODER = msgspec.json.Decoder(dict[str, int])


class TokenUse(Part):
    """Writer of the uses of tokens that one process sees.

    Args:
        used: returns the moment of the last use of each declared token, nanoseconds since 1970, that this process saw.
        is_declared: whether the cluster log has a token of a name.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        used: Callable[[], Mapping[str, int]],
        is_declared: Callable[[str], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._used, self._is_declared, self._monotonic = store, used, is_declared, monotonic
        self._written: dict[str, int] = {}
        """The moments that the store has, as far as this process knows."""
        self._written_at = monotonic()
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Write in the background."""
        self._task.start(self._run(), name="token-use")

    async def close(self) -> None:
        """Write what is new, and stop."""
        if await self._task.close():
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._write()
            except (StoreError, TimeoutError) as error:
                _logger.info("the last uses of tokens were not stored: %s", error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except StoreError as error:
                count = self._repeats.due("write", self._monotonic())
                if count is not None:
                    _logger.warning("uses of tokens wait for the store: %s%s", error, left_out(count))
            except Exception:  # without this task, tokens would seem to be unused
                _logger.exception("uses of tokens could not be stored")

    async def look(self) -> None:
        """Write if a token was used for the first time, or an hour has passed.

        Raises:
            StoreError: the store did not answer.
        """
        is_due = self._monotonic() - self._written_at >= WRITE_S
        if is_due or any(name not in self._written for name in self._used()):
            await self._write()

    async def _write(self) -> None:
        news = {name: at for name, at in self._used().items() if at > self._written.get(name, 0)}
        for _ in range(TRIES_MAX if news else 0):
            found, etag = await _read(self._store)
            merged = {**found, **{name: max(at, found.get(name, 0)) for name, at in news.items()}}
            kept = sorted((at, name) for name, at in merged.items() if self._is_declared(name))[-TOKENS_MAX:]
            wanted = {name: at for at, name in kept}
            try:
                if etag is None:
                    await self._store.create(hub_keys.LAST_USES, msgspec.json.encode(wanted))
                elif wanted != found:
                    await self._store.swap(hub_keys.LAST_USES, msgspec.json.encode(wanted), etag)
            except (AlreadyExists, PreconditionFailed):
                continue
            self._written = wanted | news
            break
        self._written_at = self._monotonic()


async def last_uses(store: ObjectStore) -> dict[str, int]:
    """Return the last known use of each token, nanoseconds since 1970.

    Raises:
        StoreError: the store did not answer.
    """
    return (await _read(store))[0]


async def _read(store: ObjectStore) -> tuple[dict[str, int], str | None]:
    try:
        found = await store.get(hub_keys.LAST_USES)
    except NotFound:
        return {}, None
    try:
        return _DECODER.decode(found.data) if len(found.data) <= OBJECT_BYTES_MAX else {}, found.etag
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}, found.etag  # it begins again
