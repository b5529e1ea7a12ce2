"""Changes of facts by an operator: each function returns a decision for ``ClusterLog.append``.

A decision sees the state that its entry will follow, so several facts may depend on each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Set

import msgspec

from weft.cloud_hub.admin_facts.documents import (
    BACKUP,
    CONFIG,
    GROUP,
    HUBS,
    NODE,
    OPENING,
    REGION,
    SECRETS_MAX,
    TABLE,
    TENANT,
    TOKEN,
    BackupDocument,
    Document,
    Isolation,
    LatestDocument,
    NodeDocument,
    Pairing,
    Quotas,
    RegionDocument,
    Secret,
    TableDocument,
    TenantDocument,
    TokenDocument,
    UnreadableDocument,
    decode,
    encode,
    parse_stream_name,
    stream_name,
    wrong_columns,
    wrong_part,
)
from weft.cloud_hub.api.tokens import NAMES_SHOWN_MAX, TokenIdentity, check_identity
from weft.cloud_hub.shard.lane_session import AUDIT_TENANT
from weft.config.payload_schema.documents import Compatibility, incompatible
from weft.config.payload_schema.model import PayloadSchema, QualityRules
from weft.hub_api.rights import ANY
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.chunk_log import first_logs, load_every_shard
from weft.storage.cluster import Cluster
from weft.storage.cluster_log import DOCUMENT_BYTES_MAX, Change, ClusterState, Fact
from weft.storage.object_store import ObjectStore
from weft.storage.table.schemas import (
    OWN_KEYS,
    QUALITY,
    SCHEMA,
    STREAM,
    StreamDocument,
    UnreadableSchema,
    decode_schema,
    encode_quality,
    encode_schema,
)

Decision = Callable[[ClusterState], Change | None]
ALWAYS_THERE = "default"
"""Tenant that need not be declared. The hub's own of the stream of acts need not be, either."""


PLACE_CHARACTERS_MAX = 200


class CannotDeclare(Exception):
    """A change that does not fit the facts. The message says what to do."""


class TokenCache:
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


def add_token(identity: TokenIdentity, until: int | None, known: TokenCache | None = None) -> Decision:
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
    """Declare a token of a file. One that is declared already with this access is left as it is, also if it has another
    secret by now.

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
    """Return whether a token is declared, and with none of its secrets that of the identity."""
    if identity.name not in state.facts(TOKEN):
        return False
    return all(each.sha256 != identity.sha256 for each in _token(state, identity.name).secrets)


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
        tokens = TokenCache()
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
        tokens = TokenCache()
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
        edges: names and patterns; None to withdraw the declaration: then all known edges count.

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
    """Declare that the links to another region let records wait, or that they continue.

    Raises:
        CannotDeclare: from the decision: a region is to continue that is not paused.
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


# Changes of streams' quality rules: each function returns a decision for ``ClusterLog.append``.

_NUMBERS = ("int", "float", "decimal")


def set_quality(key: StreamKey, rules: QualityRules) -> Decision:
    """Declare the quality rules of a stream instead of those before.

    Raises:
        CannotDeclare: a name is not valid, or the rules are too long; from the decision: the tenant is unknown, or the
            stream has no table of all rows.
    """
    for each in key:
        if not valid_name(each):
            raise CannotDeclare(f"{each!r} cannot be a name: {NAME_RULE}")
    name, document = stream_name(key), encode_quality(rules)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise CannotDeclare(f"the rules have more than {DOCUMENT_BYTES_MAX >> 10} KiB: use shorter names, or fewer")

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        table, fact = state.facts(TABLE).get(name), state.facts(QUALITY).get(name)
        if table is not None and _has_no_history(table.document):
            raise CannotDeclare(
                f"{name} has a latest table instead of a table of all rows, with which quality rules are counted"
            )
        return None if fact is not None and fact.document == document else Change(QUALITY, name, document)

    return decide


def _has_no_history(document: bytes) -> bool:
    try:
        latest = decode(document, TableDocument).latest
    except UnreadableDocument:
        return False
    return latest is not None and latest.instead


def remove_quality(key: StreamKey) -> Decision:
    """Withdraw the quality rules of a stream.

    Raises:
        CannotDeclare: from the decision: it has none.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, QUALITY, name)
        return Change(QUALITY, name, None)

    return decide


_NOT_THERE = "is not a field of the stream's schema, and no edge has named a topic level like this yet"


def doubts(rules: QualityRules, schema: PayloadSchema | None, levels: Collection[str]) -> Iterator[str]:
    """Yield what may be a mistake in rules: a rule that the stream, as it is now, gives nothing to check.

    Args:
        levels: the stream's topic levels, as edges have named them so far.
    """
    others = {*levels, *OWN_KEYS}
    for name, rule in rules.rules.items():
        if schema is None and (rule.fits or rule.range is not None):
            yield f"{name}: nothing is checked until the stream has a schema (`weft hub schema set`)"
            continue
        fields = {} if schema is None else schema.fields
        if rule.unique is not None:
            for each in rule.unique.fields:
                if each not in fields and each not in others:
                    yield f"{name}: {each!r} {_NOT_THERE}"
        if rule.not_null is not None and rule.not_null not in fields and rule.not_null not in levels:
            yield f"{name}: {rule.not_null!r} {_NOT_THERE}"
        if rule.range is None:
            continue
        field = fields.get(rule.range.field_)
        if field is None:
            yield f"{name}: the stream's schema has no field {rule.range.field_!r}, so nothing is checked"
        elif field.type.name not in _NUMBERS:
            yield f"{name}: {rule.range.field_!r} is {field.type}, and a range needs numbers, so nothing is checked"


# Changes of streams' schemas: each function returns a decision for ``ClusterLog.append``.


def set_schema(key: StreamKey, schema: PayloadSchema, compatibility: Compatibility | None = None) -> Decision:
    """Declare the schema of a stream, or another version of it. The number of its entry is its version.

    Args:
        compatibility: rule that this version has to keep to the one before, and later ones to it; None for the rule
            that holds.

    Raises:
        CannotDeclare: a name is not valid, or the schema is too long; from the decision: the tenant is unknown, or
            the version before is not kept to.
    """
    for each in key:
        if not valid_name(each):
            raise CannotDeclare(f"{each!r} cannot be a name: {NAME_RULE}")
    name = stream_name(key)
    size = len(encode_schema(schema))
    if size > DOCUMENT_BYTES_MAX - 100:
        raise CannotDeclare(
            f"the schema has {size} bytes, more than {DOCUMENT_BYTES_MAX >> 10} KiB: use shorter descriptions, or "
            "fewer fields"
        )

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        fact = state.facts(SCHEMA).get(name)
        if fact is None:
            return Change(SCHEMA, name, encode_schema(schema, compatibility=compatibility or "none"))
        try:
            known = decode_schema(fact.document, fact.version)
        except UnreadableSchema:  # of a later release, which it replaces
            return Change(SCHEMA, name, encode_schema(schema, fact.version, compatibility or "none"))
        rule = compatibility or known.compatibility
        if (known.schema, known.compatibility) == (schema, rule):
            return None
        if broken := incompatible(known.schema, schema, rule):
            raise CannotDeclare(
                f"the schema of {name} is not compatible ({rule}) with version {known.version}: {'; '.join(broken)}. "
                "Keep to it, or declare --compatibility none"
            )
        return Change(SCHEMA, name, encode_schema(schema, fact.version, rule))

    return decide


def remove_schema(key: StreamKey) -> Decision:
    """Withdraw the schema of a stream.

    Raises:
        CannotDeclare: from the decision: it has none.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, SCHEMA, name)
        return Change(SCHEMA, name, None)

    return decide


# Tables of streams, as the cluster log declares them: latest tables, and how long rows are kept.


class DeclaredTables:
    """Declarations about tables, as of the last ``refresh``."""

    def __init__(self) -> None:
        self._seen: tuple[ClusterState, int] | None = None
        self.documents: Mapping[StreamKey, TableDocument] = {}
        """Another mapping after each change."""
        self.unusable: dict[str, str] = {}
        """Names of streams whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log, if there is an entry about a table since the last call."""
        last = state.last(TABLE)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return
        self._seen, self.unusable = (state, last), {}
        found: dict[StreamKey, TableDocument] = {}
        for name, fact in state.facts(TABLE).items():
            try:
                document = decode(fact.document, TableDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            if document.latest is not None and (wrong := wrong_part(document.latest.key)) is not None:
                self.unusable[name] = wrong
                continue
            found[parse_stream_name(name)] = document
        self.documents = found

    def log_terms(self) -> dict[StreamKey, int]:
        """Return the seconds for which the log is kept for streams with a term of their own."""
        return {key: each.log_s for key, each in self.documents.items() if each.log_s is not None}

    def is_instead(self, key: StreamKey) -> bool:
        """Return whether a stream's latest table replaces a table of all rows."""
        document = self.documents.get(key)
        return document is not None and document.latest is not None and document.latest.instead

    def sort_of(self, key: StreamKey) -> tuple[str, ...]:
        """Return the columns by which the rows of a stream's files are sorted first."""
        document = self.documents.get(key)
        return () if document is None else document.sort


def set_table(
    key: StreamKey,
    *,
    latest: LatestDocument | None = None,
    retain_s: int | None = None,
    retain_bytes: int | None = None,
    log_s: int | None = None,
    sort: tuple[str, ...] | None = None,
) -> Decision:
    """Declare something about a stream's tables. What is None stays as it was declared.

    Raises:
        CannotDeclare: a name is not valid; from the decision: the tenant is unknown, or something needs the table of
            all rows that would not be made.
    """
    if wrong := [each for each in key if not valid_name(each)]:
        raise CannotDeclare(f"{wrong[0]!r} cannot be a name: {NAME_RULE}")
    if sort and (unsortable := wrong_columns(sort)) is not None:
        raise CannotDeclare(unsortable)
    name = stream_name(key)
    given = {"latest": latest, "retain_s": retain_s, "retain_bytes": retain_bytes, "log_s": log_s, "sort": sort}

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        fact = state.facts(TABLE).get(name)
        before = TableDocument() if fact is None else read_fact(name, TABLE, fact.document, TableDocument)
        wanted = msgspec.structs.replace(before, **{part: value for part, value in given.items() if value is not None})
        if wanted.latest is not None and wanted.latest.instead:
            _check_instead(state, name, wanted)
        document = encode(wanted, None if fact is None else fact.document)
        return None if fact is not None and document == fact.document else Change(TABLE, name, document)

    return decide


def _check_instead(state: ClusterState, name: str, wanted: TableDocument) -> None:
    if wanted.retain_s is not None or wanted.retain_bytes is not None:
        raise CannotDeclare(
            f"{name} has a retention of the table of all rows (--retain), and with --instead it has no such table. "
            "Withdraw what is declared (`weft hub table remove`), and declare the latest table alone"
        )
    if name in state.facts(QUALITY):
        raise CannotDeclare(
            f"{name} has quality rules, which are counted with the table of all rows, and with --instead it has no "
            "such table. Withdraw them first (`weft hub quality remove`)"
        )


def remove_table(key: StreamKey) -> Decision:
    """Withdraw what is declared of a stream's tables. The tables stay as they are.

    Raises:
        CannotDeclare: from the decision: nothing is declared.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, TABLE, name)
        return Change(TABLE, name, None)

    return decide


# Changes of tenants by an operator. See ``changes``.


def set_tenant(
    name: str, quotas: Quotas, cleared: frozenset[str] = frozenset(), *, is_new: bool, isolation: Isolation = None
) -> Decision:
    """Declare a tenant, or change quotas of one.

    Args:
        quotas: those to set; None leaves one unchanged.
        cleared: names of quotas about which nothing is declared any more.
        is_new: true to add a tenant, false to change one.
        isolation: of the tenant; None leaves it unchanged.

    Raises:
        CannotDeclare: the name is not valid; from the decision: the tenant is declared already, or it is not.
    """
    if not valid_name(name):
        raise CannotDeclare(f"{name!r} cannot be the name of a tenant: {NAME_RULE}")
    if 0 in (quotas.bytes_per_second, quotas.records_per_second):
        raise CannotDeclare("a rate has to be at least 1 a second; to keep a tenant out, withdraw its tokens")

    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(TENANT).get(name)
        if is_new and fact is not None:
            raise CannotDeclare(f"tenant {name} is declared already: `weft hub tenant set` changes its quotas")
        if not is_new and name != ALWAYS_THERE:
            known_fact(state, TENANT, name)
        before = TenantDocument() if fact is None else read_fact(name, TENANT, fact.document, TenantDocument)
        wanted = {field: value for field in Quotas.__struct_fields__ if (value := getattr(quotas, field)) is not None}
        changed = msgspec.structs.replace(before.quotas, **dict.fromkeys(cleared), **wanted)
        document = encode(TenantDocument(changed, isolation or before.isolation), fact.document if fact else None)
        return None if fact is not None and document == fact.document else Change(TENANT, name, document)

    return decide


def remove_tenant(name: str) -> Decision:
    """Withdraw a tenant that has no token, stream, group, configuration, schema or table in the cluster log.

    Raises:
        CannotDeclare: from the decision: there is no such tenant, or it has some.
    """

    def decide(state: ClusterState) -> Change:
        known_fact(state, TENANT, name)
        tokens = [token for token, document in tokens_of(state) if document.tenant == name]
        if tokens:
            raise CannotDeclare(f"tenant {name} has tokens: {listed(tokens)}. Withdraw them first")
        streams = [each for each in state.facts(STREAM) if parse_stream_name(each)[0] == name]
        if streams:
            raise CannotDeclare(f"edges of streams are declared: {listed(streams)}. Withdraw them first")
        others = (each for kind in (GROUP, CONFIG, SCHEMA, TABLE) for each in state.facts(kind))
        if found := [each for each in others if parse_stream_name(each)[0] == name]:
            raise CannotDeclare(
                f"groups, configurations, schemas or tables of it are declared: {listed(found)}. Withdraw them first"
            )
        return Change(TENANT, name, None)

    return decide


# The newest payloads of a stream, from the logs of its shards.

CHUNKS_BYTES = 64 << 20
"""Bytes of chunks that are kept in memory."""


class NoRecords(Exception):
    """A stream without records in the log. The message says what to do."""


async def topic_levels(store: ObjectStore, cluster: Cluster, stream: StreamKey) -> set[str]:
    """Return the topic levels of a stream, as edges have named them so far.

    Raises:
        StoreError, Corrupt: the log cannot be read.
    """
    found = await load_every_shard(first_logs(store, cluster), frozenset({stream}))
    return {name for _, state in found for name in state.stream_fields(*stream)}


async def newest_payloads(
    store: ObjectStore, cluster: Cluster, stream: StreamKey, count: int
) -> AsyncIterator[list[bytes]]:
    """Yield payloads, some thousands at a time: about ``count`` of the newest ones, of each shard as many as its share
    of the stream's records.

    Raises:
        NoRecords: the stream is unknown, or its records have left the log.
        StoreError, Corrupt: the log cannot be read.
    """
    from weft.storage.table.rows import RowsOf, rows_of  # imports pyarrow, which a hub without tables does not need
    from weft.storage.table_writer.shards import ChunkCache

    found = await load_every_shard(first_logs(store, cluster), frozenset({stream}))
    ends = {log.shard: state.next_offset.get(stream, 0) for log, state in found}
    total, seen = sum(ends.values()), 0
    for log, state in found:
        if not (end := ends[log.shard]):
            continue
        first = max(0, end - max(1, count * end // total))
        n = max(await log.locate(*stream, first), log.watermark)
        cache = ChunkCache(log, CHUNKS_BYTES, whole=False)
        async for chunk, section, _ in cache.of_stream(stream, n, state.n):
            if section is None or section.base_offset + section.count <= first:
                continue
            data = await cache.section(chunk.header.n, section)
            rows = RowsOf(section, data, chunk.footer.lanes_of(section), chunk.footer.clocks_of(section))
            for batch in rows_of([rows], log.shard, (), lambda _: (), first, columns={"payload"}, rows_max=8192):
                seen += batch.num_rows
                yield batch.column("payload").to_pylist()
    if not seen:
        name = "/".join(stream)
        raise NoRecords(
            f"the log has no records of stream {name}: they are in its table alone, or there are none. `weft streams` "
            "lists the streams; --file reads a sample from a file"
        )
