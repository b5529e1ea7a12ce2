"""Tokens of a hub process: those of the cluster log, and those of an issuer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.admin_facts.documents import HUBS, OPENING, TOKEN, TokenDocument, UnreadableDocument, decode
from weft.cloud_hub.api.claims import JwtIdentity
from weft.cloud_hub.api.tokens import (
    NO_TOKEN,
    TOKEN_CHARACTERS_MAX,
    TokenIdentity,
    TokenRefusal,
    TokensUnusable,
    check_identity,
    hash_token,
)
from weft.cloud_hub.api.views import View, moment
from weft.config.log_lines import Repeats, left_out
from weft.hub_api.rights import Scope
from weft.storage import hub_keys
from weft.storage.cluster_log import ClusterState, Fact
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError

if TYPE_CHECKING:
    from weft.cloud_hub.api.jwt import Jwts


_Ends = dict[str, tuple[TokenIdentity, int | None]]
_ANOTHER = "give the edge one (`weft hub token add NAME --scope edge --edge EDGE`) if it still belongs here"

WITHOUT_TOKEN = TokenRefusal("every link needs a token by now", _ANOTHER)
"""Reason for the end of links without one."""


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
        now: nanoseconds since 1970, on a clock that is not this machine's alone: it ends tokens.
        doubted: returns by how much this machine's clock is off; None while it is right.
        jwts: the tokens of an issuer; None if none are taken.
    """

    def __init__(
        self, is_closed: bool, now: Callable[[], int],
        doubted: Callable[[], str | None] = lambda: None, jwts: Jwts | None = None,
    ) -> None:  # fmt: skip
        self.jwts = jwts
        self._doubted = doubted
        self._is_closed_anyway, self._is_closed = is_closed, False
        self.used: dict[str, int] = {}
        """Name of a declared token -> moment of its last use here, nanoseconds since 1970."""
        self._is_in_doubt = False
        """True if an entry of the cluster log cannot be read: it may be that of the first token."""
        self._now = now
        self._read: dict[str, _Read] = {}
        self._by_hash: _Ends = {}
        self._last_ends: dict[str, int] = {}
        """Name of a token whose last secret has an end -> that."""
        self._pairings: dict[str, str] = {}
        """Hash of the code of a pairing -> name of its token."""
        self._deprived: set[str] = set()
        """Names of tokens with a hash that an older fact has."""
        self.unusable: dict[str, str] = {}
        """Names of tokens in the cluster log that open nothing, each with the reason."""

    @property
    def required(self) -> bool:
        """Return whether every request needs a token: the cluster log had a token since an operator opened the
        hubs, or it has an entry that cannot be read, or there is an issuer of tokens."""
        return self._is_closed_anyway or self._is_closed or self._is_in_doubt or self.jwts is not None

    def is_declared(self, name: str) -> bool:
        """Return whether the cluster log has a token of a name."""
        return name in self._read

    def paired_by(self, code: str) -> str | None:
        """Return the name of the token that has a code, given its hash; None if none has, as far as is known here."""
        return self._pairings.get(code)

    @property
    def declared(self) -> int:
        """Return the number of tokens in the cluster log."""
        return len(self._read)

    def refresh(self, state: ClusterState) -> None:
        """Take over the tokens of the cluster log. Only changed ones are decoded: a fleet has one for each edge."""
        facts = state.facts(TOKEN)
        self._is_closed = demands_tokens(state)
        self._is_in_doubt = bool(state.skipped)
        # By the whole fact: after a restore of the store, an entry of the same number may say something else.
        stale = [
            name for name, known in self._read.items()
            if (fact := facts.get(name)) is not known.fact and fact != known.fact
        ]  # fmt: skip
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
        """Return why a token has no identity. Its bearer has the secret, so it may be named."""
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
        """Return why a token of the issuer that was admitted no longer counts; None while it does, and for others."""
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
        """Return the declared token that ends next, and has no later secret; None if none ends."""
        now = self._now()
        ends = ((until, name) for name, until in self._last_ends.items() if until > now)
        until, name = min(ends, default=(0, ""))
        return TokenEnd(name, until) if name else None

    @property
    def seconds_to_next_end(self) -> float:
        """Return the time until the next end; infinity if no token ends."""
        found = self.next_end
        return math.inf if found is None else (found.until - self._now()) / 1e9

    def _ended(self, identity: TokenIdentity, until: int) -> str:
        doubt = self._doubted()
        return f"{identity.shown} ended at {moment(until)}" + (
            f" ({doubt}, and was corrected for this)" if doubt else ""
        )

    def revoked(self, identities: Iterable[TokenIdentity | None]) -> list[TokenIdentity | None]:
        """Return the identities of links that are no longer in force: withdrawn, changed or at their end. None, for
        links without a token, is one of them if every request needs a token by now."""
        given, now = list(identities), self._now()
        for each in given:
            if each is not None and each.name in self.used:  # a link that is open is a use
                self.used[each.name] = now
        ended: list[TokenIdentity | None] = [None] if None in given and self.required else []
        jwts = [each for each in given if isinstance(each, JwtIdentity)]
        ended += [each for each in jwts if self.jwts is None or self.jwts.why_over(each) is not None]
        return ended + [
            each for each in given
            if each is not None and not isinstance(each, JwtIdentity) and self._in_force(each.sha256, now) != each
        ]  # fmt: skip

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
    """Return whether hubs of a store demand a token, whatever their configurations say: from the first token on, also
    without any, since to withdraw the last one must not open them to everyone. ``weft hub open`` does."""
    return state.last(TOKEN) > state.version(OPENING, HUBS)


def _renewed(identity: TokenIdentity) -> str:
    return f"use its later secret, or make one: `weft hub token rotate CONFIG {identity.name} --expires 365d`"


def identities_of(fact: Fact) -> Iterator[tuple[TokenIdentity, int | None]]:
    """Return the identity of each secret of a declared token, and the moment at which it ends; None for no end.

    Raises:
        UnreadableDocument, TokensUnusable: the document is not that of a token, or has values that make none.
    """
    return _identities(fact.name, decode(fact.document, TokenDocument))


def _identities(name: str, document: TokenDocument) -> Iterator[tuple[TokenIdentity, int | None]]:
    for secret in document.secrets:
        identity = TokenIdentity(
            name, secret.sha256, Scope(document.scope), document.tenant, document.edge, document.grants
        )
        check_identity(identity, "the cluster log")
        yield identity, secret.until


def token_view(fact: Fact, now: int, used: int | None) -> View:
    """Return a declared token for people, without its secrets.

    Args:
        now, used: nanoseconds since 1970; the moment of its last use as far as it is known.
    """
    about = {"version": fact.version, "changed": moment(fact.at), "by": fact.by, "reason": fact.reason}
    try:
        document, secrets = decode(fact.document, TokenDocument), list(identities_of(fact))
    except (UnreadableDocument, TokensUnusable) as error:
        nothing = dict.fromkeys(("scope", "tenant", "edge", "until", "older_until", "last_used"))
        return {"name": fact.name, **nothing, "grants": [], "secrets": 0, **about, "unusable": str(error)}
    in_force = [until for _, until in secrets if until is None or until > now]
    ends = None if None in in_force else max((until for until in in_force if until is not None), default=now)
    older = in_force[0] if len(in_force) > 1 else None
    return {
        "name": fact.name,
        "scope": str(document.scope),
        "tenant": document.tenant,
        "edge": document.edge,
        "grants": list(document.grants),
        "until": moment(ends) if in_force else "ended" if secrets else "not paired yet",
        "older_until": moment(older),
        "last_used": moment(used),
        "secrets": len(in_force),
        **about,
        "unusable": None,
    }


# Last uses of the tokens of the cluster log, for people: an object in the store, written about once an hour.
#
# A process notes each use in memory. It writes the first use of a token within a minute, and later uses once an hour,
# so that ten thousand tokens in use cost a write an hour and process. What is shown may be an hour old, and a process
# that is killed takes an hour of uses with it. No right depends on it.

_logger = logging.getLogger(__name__)
LOOK_S = 60.0
WRITE_S = 3600.0
"""Shortest time between two writes that tell of no token for the first time."""
TRIES_MAX = 5
CLOSE_S = 5.0
TOKENS_MAX = 65_536
"""Maximum number of tokens in the object, those that were used last."""
OBJECT_BYTES_MAX = 16 << 20
_DECODER = msgspec.json.Decoder(dict[str, int])


class TokenUse:
    """The uses that one process sees.

    Args:
        used: returns the moment of the last use of each declared token, nanoseconds since 1970, that this process saw.
        is_declared: whether the cluster log has a token of a name.
        monotonic: seconds.
    """

    def __init__(
        self, store: ObjectStore, used: Callable[[], Mapping[str, int]], is_declared: Callable[[str], bool],
        monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store, self._used, self._is_declared, self._monotonic = store, used, is_declared, monotonic
        self._written: dict[str, int] = {}
        """The moments that this process knows to be in the store."""
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
        """Write if a token was used for the first time, or an hour is over.

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
