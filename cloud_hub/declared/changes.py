"""Changes of facts by an operator: each function returns a decision for ``ClusterLog.append``.

A decision sees the state that its entry will follow, so several facts may depend on each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Set

import msgspec

from weft.cloud_hub.api.identity.rights import ANY
from weft.cloud_hub.api.tokens import NAMES_SHOWN_MAX, TokenIdentity, check_identity
from weft.cloud_hub.declared.documents import (
    BACKUP,
    HUBS,
    NODE,
    OPENING,
    REGION,
    SECRETS_MAX,
    STREAM,
    TENANT,
    TOKEN,
    BackupDocument,
    Document,
    NodeDocument,
    Pairing,
    RegionDocument,
    Secret,
    StreamDocument,
    TenantDocument,
    TokenDocument,
    UnreadableDocument,
    decode,
    encode,
    stream_name,
)
from weft.cloud_hub.shard.message_lanes import AUDIT_TENANT
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState, Fact

Decision = Callable[[ClusterState], Change | None]
ALWAYS_THERE = "default"
"""Tenant that need not be declared. The hub's own of the stream of acts need not be, either."""


PLACE_CHARACTERS_MAX = 200


class CannotDeclare(Exception):
    """A change that does not fit the facts. The message says what to do."""


class KnownTokens:
    """The tokens of a state, by their secrets and edges.

    Decisions that follow each other share one: it then reads a document when it is declared, and not once for each
    decision behind it.
    """

    def __init__(self) -> None:
        self._state: ClusterState | None = None
        self._n = 0
        self._adds = ""
        """Name of the token that the last decision adds."""
        self._by_hash: dict[str, str] = {}
        self._edges: dict[str, set[str | None]] = {}

    def adding(self, name: str, state: ClusterState) -> None:
        """Take over the tokens of the state on which a decision is made.

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


def add_token(identity: TokenIdentity, until: int | None, known: KnownTokens | None = None) -> Decision:
    """Declare a token.

    Args:
        identity: its name, access, and the hash of its secret.
        until: nanoseconds since 1970; None for no end.
        known: of the decisions before and after this one, if there are some.

    Raises:
        TokensUnusable: a name is not valid, or scope and edge do not fit.
        CannotDeclare: from the decision: the name or the secret is taken, the tenant is unknown, or its quota is used
            up.
    """
    check_identity(identity, "the cluster log")
    tokens = KnownTokens() if known is None else known

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


def import_token(identity: TokenIdentity, known: KnownTokens | None = None, until: int | None = None) -> Decision:
    """Declare a token of a file. One that is declared already with this secret and access is left as it is.

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
            has_secret = any(each.sha256 == identity.sha256 for each in found.secrets)
            if has_secret and (found.scope, found.tenant, found.edge, found.grants) == wanted:
                return None
        return adds(state)

    return decide


def rotate_token(name: str, secret: Secret, now: int, old_until: int, *, ends_oldest: bool = False) -> Decision:
    """Give a token a second secret. The one before stays in force for some time.

    Args:
        secret: the new one, with its end (``end_of_token``).
        now: nanoseconds since 1970.
        old_until: moment at which the secret before ends at the latest; not after ``now`` for at once.
        ends_oldest: if two secrets are in force, end the older one at once.

    Raises:
        CannotDeclare: from the decision: there is no such token, two secrets are in force, or another has this one.
    """

    def decide(state: ClusterState) -> Change:
        before = _token(state, name)
        tokens = KnownTokens()
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
    """A code that gives nothing. There is no reason in it, since strangers may ask."""


def pair_token(identity: TokenIdentity, pairing: Pairing) -> Decision:
    """Declare a code by which an edge gives its token a secret. A token that is there keeps its own until then.

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
        tokens = KnownTokens()
        tokens.adding(identity.name, state)
        _check_edges(state, identity, tokens.edges(identity.tenant))
        document = TokenDocument(identity.scope, (), identity.tenant, identity.edge, pairing=pairing)
        return Change(TOKEN, identity.name, encode(document))

    return decide


def redeem(name: str, code: str, sha256: str, asks_for: tuple[str | None, str | None], now: int) -> Decision:
    """Give a token the secret of the edge that has its code. Secrets from before end: the machine is another one.

    A repetition with the same secret changes nothing, so that an edge may ask again after an answer that was lost.

    Args:
        code: hash of the code.
        sha256: hash of the secret.
        asks_for: tenant and edge for which the machine holds itself; None for those that it does not know.
        now: nanoseconds since 1970.

    Raises:
        NotPaired: from the decision: the code gives nothing.
        CannotDeclare: from the decision: another token has the secret.
    """

    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(TOKEN).get(name)
        found = None if fact is None else _readable(fact)
        if fact is None or found is None or found.pairing is None:
            raise NotPaired
        pairing = found.pairing
        is_asked = all(
            wanted in (None, own) for wanted, own in zip(asks_for, (found.tenant, found.edge), strict=True)
        )  # fmt: skip
        if pairing.sha256 != code or pairing.until <= now or not is_asked:
            raise NotPaired
        if pairing.is_used:
            if any(each.sha256 == sha256 for each in found.secrets):
                return None
            raise NotPaired
        tokens = KnownTokens()
        tokens.adding(name, state)
        _check_secret(tokens, name, sha256)
        document = msgspec.structs.replace(
            found, secrets=(Secret(sha256, pairing.token_until),),
            pairing=msgspec.structs.replace(pairing, is_used=True),
        )  # fmt: skip
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
            f"token {name!r} has ended, and another secret with the same end opens nothing. Say when it ends: "
            "--expires 365d, or --expires never"
        )
    return until


def open_hubs(state: ClusterState) -> Change:
    """Declare that hubs need no token again, until the next one is declared.

    Raises:
        CannotDeclare: tokens are declared, or none is demanded.
    """
    if tokens := state.facts(TOKEN):
        raise CannotDeclare(
            f"tokens are declared: {listed(tokens)}. Their bearers would be locked in with everybody else: withdraw "
            "them first (`weft hub token remove`)"
        )
    if state.last(TOKEN) <= state.version(OPENING, HUBS):
        raise CannotDeclare("the cluster log demands no token, so it has nothing to open")
    return Change(OPENING, HUBS, b"{}")


def note_backup(place: str, backup: BackupDocument) -> Decision:
    """Declare that a backup is complete.

    Args:
        place: URI; of a long one the end counts.
    """
    return lambda _: Change(BACKUP, place[-PLACE_CHARACTERS_MAX:], encode(backup))


def remove_token(name: str) -> Decision:
    """Withdraw a token.

    Raises:
        CannotDeclare: from the decision: there is no such token.
    """

    def decide(state: ClusterState) -> Change:
        known_fact(state, TOKEN, name)
        return Change(TOKEN, name, None)

    return decide


def expect_edges(key: StreamKey, edges: tuple[str, ...] | None) -> Decision:
    """Declare the edges without which a stream is not complete.

    Args:
        edges: names and patterns; None to withdraw the declaration, so that configurations count again.

    Raises:
        CannotDeclare: a name is not valid; from the decision: the tenant is unknown, or there is nothing to withdraw.
    """
    wrong = [each for each in (*key, *(edge.replace("*", "x") for edge in edges or ())) if not valid_name(each)]
    if wrong:
        raise CannotDeclare(f"{wrong[0]!r} cannot be a name: {NAME_RULE}; names of edges may have `*`")
    name = stream_name(key)

    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(STREAM).get(name)
        if edges is None and fact is None:
            raise CannotDeclare(f"the cluster log declares no edges of stream {name}")
        check_tenant(state, key[0])
        before = None if fact is None else fact.document
        document: bytes | None = encode(StreamDocument(edges), before)
        if document == b"{}":
            document = None
        return None if document == before else Change(STREAM, name, document)

    return decide


def drain(name: str, others: Collection[tuple[str, str]]) -> Decision:
    """Declare that a process, or all of a machine, gives its shards and edges to others.

    Args:
        others: machine and name of each of the other processes that run.

    Raises:
        CannotDeclare: from the decision: no other process takes them, as all are drained or none runs.
    """

    def decide(state: ClusterState) -> Change | None:
        if not any(_takes_shards(state, host) and _takes_shards(state, process) for host, process in others):
            raise CannotDeclare(
                f"no other process that runs takes the shards of {name}. Start one, or let a drained node take shards "
                f"again (--undo). Drained are: {listed(state.facts(NODE))}"
            )
        fact = state.facts(NODE).get(name)
        document = encode(NodeDocument(drained=True), None if fact is None else fact.document)
        return None if fact is not None and document == fact.document else Change(NODE, name, document)

    return decide


def undo_drain(name: str) -> Decision:
    """Declare that a drained process or machine takes shards and edges again.

    Raises:
        CannotDeclare: from the decision: it is not drained.
    """

    def decide(state: ClusterState) -> Change | None:
        if name not in state.facts(NODE):
            raise CannotDeclare(f"{name} is not drained; drained are: {listed(state.facts(NODE))}")
        return Change(NODE, name, None)

    return decide


def pause_region(name: str, *, paused: bool) -> Decision:
    """Declare that the links to another region let records wait, or that they go on.

    Raises:
        CannotDeclare: from the decision: a region is to go on that is not paused.
    """

    def change(before: RegionDocument) -> RegionDocument:
        if not paused and not before.paused:
            raise CannotDeclare(f"region {name} is not paused")
        return msgspec.structs.replace(before, paused=paused)

    return _region(name, change)


def compare_region(name: str) -> Decision:
    """Declare that the links to another region begin at the start of the log, and send what the region lacks."""
    return _region(name, lambda before: msgspec.structs.replace(before, comparison=before.comparison + 1))


def _region(name: str, change: Callable[[RegionDocument], RegionDocument]) -> Decision:
    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(REGION).get(name)
        before = RegionDocument() if fact is None else read_fact(name, REGION, fact.document, RegionDocument)
        document = encode(change(before), None if fact is None else fact.document)
        return None if fact is not None and document == fact.document else Change(REGION, name, document)

    return decide


def _takes_shards(state: ClusterState, node: str) -> bool:
    fact = state.facts(NODE).get(node)
    try:
        return fact is None or not decode(fact.document, NodeDocument).drained
    except UnreadableDocument:
        return True  # as its processes do


def _ending(secret: Secret, until: int) -> Secret:
    return secret if secret.until is not None and secret.until < until else Secret(secret.sha256, until)


def known_fact(state: ClusterState, kind: str, name: str) -> None:
    """Refuse a change of a fact that is not declared."""
    if name not in state.facts(kind):
        raise CannotDeclare(f"there is no {kind} {name!r} in the cluster log; there are: {listed(state.facts(kind))}")


def listed(names: Iterable[str]) -> str:
    """Return names for a message, in their order; of many only the first."""
    shown = sorted(names)
    more = f" and {len(shown) - NAMES_SHOWN_MAX} more" if len(shown) > NAMES_SHOWN_MAX else ""
    return (", ".join(shown[:NAMES_SHOWN_MAX]) or "none") + more


def check_tenant(state: ClusterState, tenant: str) -> None:
    """Refuse a fact of a tenant that is not declared."""
    if tenant not in (ALWAYS_THERE, AUDIT_TENANT) and tenant not in state.facts(TENANT):
        raise CannotDeclare(
            f"there is no tenant {tenant!r}: declare it first (`weft hub tenant add`); there are: "
            f"{listed({ALWAYS_THERE, *state.facts(TENANT)})}"
        )


def _check_secret(tokens: KnownTokens, name: str, sha256: str) -> None:
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
            "gone, or raise it: `weft hub tenant set --edges`"
        )


def tokens_of(state: ClusterState) -> Iterator[tuple[str, TokenDocument]]:
    """Yield the tokens that this release can read; its hubs admit no bearer of the others."""
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


def read_fact(name: str, kind: str, document: bytes, wanted: type[Document]) -> Document:
    """Return the document of a fact that a change depends on; refuse the change if this release cannot read it."""
    try:
        return decode(document, wanted)
    except UnreadableDocument as error:
        raise CannotDeclare(
            f"this release cannot read {kind} {name!r} ({error}): use the release that wrote it, or withdraw it"
        ) from error
