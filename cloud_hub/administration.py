"""Administration of a hub: operations on what all of its processes share, by their store.

Each method has the name, the parameters and the answer of its operation (``weft.hub_api.operations``). A running hub
serves the methods by HTTP. Commands call them on the store that a configuration names, whether a hub runs or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import msgspec

from weft.cloud_hub import splits
from weft.cloud_hub.auth.tokens import TokenIdentity, TokensUnusable, hash_token, new_token
from weft.cloud_hub.clock import ClockWrong, HubClock
from weft.cloud_hub.cluster import FOREIGN, GONE, LEAVING, node_views
from weft.cloud_hub.facts.acts import acting, lines
from weft.cloud_hub.facts.fact import (
    ALWAYS_THERE,
    TENANT,
    TOKEN,
    CannotDeclare,
    Decision,
    UnreadableDocument,
    decode,
    listed,
    noting,
    parse_stream_name,
)
from weft.cloud_hub.facts.hub import DeclaredRegions, Drained, drain, pause_region, undo_drain
from weft.cloud_hub.facts.streams import remove_schema, schema_answer, schema_views, set_schema
from weft.cloud_hub.facts.tenants import Quotas, TenantDocument, remove_tenant, set_tenant, tenant_of_token
from weft.cloud_hub.facts.tokens import (
    Secret,
    TokenCache,
    add_token,
    end_of_token,
    has_other_secret,
    import_token,
    last_uses,
    new_pairing,
    pair_token,
    remove_token,
    rotate_token,
    token_view,
)
from weft.cloud_hub.regions.budget import budget_views
from weft.cloud_hub.regions.regions import region_views
from weft.cloud_hub.settings import HubSettings
from weft.config.limits import REASON_CHARACTERS_MAX
from weft.hub_api.acts import ACTS_DEFAULT, ActsAnswer
from weft.hub_api.answers import ApiError, moment, moment_after, moment_of
from weft.hub_api.operation import NUMBER_MAX, PAGE_DEFAULT, Operation, decoded, reader_of
from weft.hub_api.regions import RegionOfHub, RegionOrder, RegionOrderAnswer, RegionsAnswer
from weft.hub_api.rights import Scope, role_grants
from weft.hub_api.schemas import DeclaredSchema, RemovedSchemaAnswer, SchemaAnswer, SchemasAnswer
from weft.hub_api.shards import Drain, DrainAnswer, DrainOfNode, DrainsAnswer, Split, SplitAnswer, SplitLook
from weft.hub_api.status import NodeOfStore, NodesAnswer
from weft.hub_api.tenants import QuotasAnswer, RemovedTenantAnswer, TenantAnswer, TenantQuotas, TenantsAnswer
from weft.hub_api.tokens import (
    ImportedTokensAnswer,
    NewToken,
    PairingAnswer,
    PairingOfToken,
    RemovedTokenAnswer,
    Rotation,
    SecretAnswer,
    TokensAnswer,
    TokensToImport,
)
from weft.protocols.errors import CodecError
from weft.protocols.lane import NAME_RULE
from weft.protocols.link import CODE_CHARACTERS, code_of, spoken
from weft.storage.cluster import Cluster, ClusterCache, ClusterUnusable, read_cluster
from weft.storage.cluster_log import Author, Change, ChangeRefused, ClusterLog, ClusterState, Contended, Fact
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.presence import running
from weft.storage.table.schemas import SCHEMA, STREAM, UnreadableSchema, decode_schema, encode_schema

READ_AGE_S = 5.0
"""Maximum age of the entries that answers about processes and regions use: requests within this time share one read."""
ACTS_AT_ONCE = 2
"""Number of concurrent answers about acts. Each line of an answer is a GET of the store."""
T = TypeVar("T")
NOTHING, AGAIN = "nothing was declared", "nothing was declared; try again"
PERHAPS = "what comes before the error may be declared: repeat the request once that is mended"


class Administration:
    """The operations on one store. Every method raises ``ApiError`` with the statuses of its operation.

    A method that changes facts takes the author as its first argument, and returns when the change is durable. Running
    hubs apply it within two seconds.

    Args:
        cluster: the cluster as last read.
        orders: declared orders to the links to other regions.
        known: returns the facts as last read.
        split: called after a split of a shard, so that this process loads the new one.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: ClusterLog,
        clock: HubClock,
        settings: HubSettings,
        cluster: ClusterCache,
        *,
        orders: DeclaredRegions,
        known: Callable[[], ClusterState],
        split: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._log, self._clock = store, log, clock
        self._cluster, self._orders, self._known = cluster, orders, known
        self._regions, self._retain_log_s, self._was_split = settings.regions, settings.retain_log_s, split
        self._splitting = asyncio.Lock()
        self._acts_turns = asyncio.Semaphore(ACTS_AT_ONCE)
        self._nodes: _Recent[NodesAnswer] = _Recent()
        self._links: _Recent[RegionsAnswer] = _Recent()

    async def perform(
        self, operation: Operation, texts: Mapping[str, str], body: bytes | None, author: Callable[[str], Author]
    ) -> msgspec.Struct:
        """Return the answer of an operation.

        Args:
            texts: parameters of path and query, undecoded.
            author: returns the author of a change, given its reason.
        """
        named, given = _named(operation, texts), list[Any]()
        reason = named.pop("reason", "")
        if operation.body is not None:
            given.append(decoded(body or b"", operation.body))
            reason = given[0].reason
        if len(reason) > REASON_CHARACTERS_MAX:
            error = f"reason= has {len(reason)} characters; the limit is {REASON_CHARACTERS_MAX}"
            raise ApiError(400, error, "give a shorter reason")
        by = [] if operation.method == "get" else [author(reason)]
        answer: msgspec.Struct = await getattr(self, operation.name)(*by, *given, **named)
        return answer

    # -- the record of acts

    async def acts(self, *, after: str | None = None, limit: int = ACTS_DEFAULT) -> ActsAnswer:
        """Return lines in the order of their entries: those after an entry, or the newest."""
        async with _readable():
            last = self._known().n
            begin = max(0, last - limit) if after is None else int(after)
            if begin > NUMBER_MAX:
                raise ApiError(400, f"after={after}", f"expected a number up to {NUMBER_MAX}")
            end = min(last, begin + limit)
            async with self._acts_turns:
                found = await lines(self._log, begin + 1, end + 1)
        return ActsAnswer(acts=found, last=max(0, last), next_after=str(end) if begin < end < last else None)

    # -- tokens

    async def tokens(self, *, after: str = "", limit: int = PAGE_DEFAULT) -> TokensAnswer:
        """Return the declared tokens by name, without their secrets."""
        state = await self._load()
        async with _readable():
            uses = await last_uses(self._store)
        page, more = _page(sorted(state.facts(TOKEN)), after, limit)
        now = self._clock.agreed()
        return TokensAnswer(
            tokens=[token_view(state.facts(TOKEN)[name], now, uses.get(name)) for name in page], next_after=more
        )

    async def add_token(self, author: Author, wanted: NewToken) -> SecretAnswer:
        """Declare a token, and return its secret."""
        if (wanted.scope is None) == (not wanted.grants) or wanted.scope is Scope.GRANTED:
            raise ApiError(400, "a token has a scope, or grants", 'send "scope": "reader", or "grants": ["read"]')
        secret, until = new_token(), _end(wanted.expires, author.at, "expires")
        scope, grants = wanted.scope or Scope.GRANTED, role_grants(wanted.grants)
        identity = TokenIdentity(wanted.name, hash_token(secret), scope, wanted.tenant, wanted.edge, grants)
        try:
            decision = add_token(identity, until)
        except TokensUnusable as error:
            raise ApiError(400, str(error), NOTHING) from None
        await self._declare(decision, by=author)
        return SecretAnswer(name=wanted.name, token=secret, until=moment(until))

    async def rotate_token(self, author: Author, wanted: Rotation, *, name: str) -> SecretAnswer:
        """Declare another secret of a token, and return it. The previous one stays in force for the requested
        overlap."""
        secret, now = new_token(), author.at
        given = None if wanted.expires == "never" else _end(wanted.expires, now, "expires")
        old_until = _end(wanted.overlap, now, "overlap") or now
        ends: list[int | None] = []

        def decide(state: ClusterState) -> Change | None:
            until = given if wanted.expires is not None else end_of_token(state, name, now)
            ends[:] = [until]
            made = Secret(hash_token(secret), until)
            return rotate_token(name, made, now, old_until, ends_oldest=wanted.end_oldest)(state)

        await self._declare(decide, by=author)
        return SecretAnswer(name=name, token=secret, until=moment(ends[0]))

    async def pair_token(self, author: Author, wanted: PairingOfToken, *, name: str) -> PairingAnswer:
        """Declare a code by which an edge gets a token, and return it. An existing token keeps its secrets until the
        code is used."""
        code = code_of(secrets.token_bytes(CODE_CHARACTERS))
        identity = TokenIdentity(name, hash_token(spoken(code)), Scope.EDGE, wanted.tenant, wanted.edge)
        try:
            pairing = new_pairing(identity.sha256, wanted.within, wanted.expires, author.at)
            decision = pair_token(identity, pairing)
        except ValueError as error:
            raise ApiError(400, str(error), NOTHING) from None
        await self._declare(decision, by=author)
        return PairingAnswer(
            name=name, code=code, tenant=wanted.tenant, edge=wanted.edge, until=moment_of(pairing.until)
        )

    async def import_tokens(self, author: Author, wanted: TokensToImport) -> ImportedTokensAnswer:
        """Declare tokens by the hashes of their secrets. An entry of the cluster log declares all of its tokens or
        none."""
        identities = [
            TokenIdentity(each.name, each.sha256, each.scope, each.tenant, each.edge, tuple(each.grants))
            for each in wanted.tokens
        ]
        known = TokenCache()
        try:
            decisions, changed = noting([import_token(each, known) for each in identities])
        except TokensUnusable as error:
            raise ApiError(400, str(error), NOTHING) from None
        state = await self._declare(*decisions, by=author)
        added = [each.name for each, is_new in zip(identities, changed, strict=True) if is_new]
        other = [each.name for each in identities if has_other_secret(state, each)]
        return ImportedTokensAnswer(added=added, existing=len(identities) - len(added), other_secret=other)

    async def remove_token(self, author: Author, *, name: str) -> RemovedTokenAnswer:
        """Withdraw a token. Running hubs refuse it, and end its links, within two seconds."""
        state = await self._declare(remove_token(name), by=author)
        return RemovedTokenAnswer(name=name, left=len(state.facts(TOKEN)))

    # -- tenants

    async def tenants(self, *, after: str = "", limit: int = PAGE_DEFAULT) -> TenantsAnswer:
        """Return the declared tenants and ``default``, by name."""
        state = await self._load()
        page, more = _page(sorted({ALWAYS_THERE, *state.facts(TENANT)}), after, limit)
        return TenantsAnswer(tenants=await self._tenants(state, page), next_after=more)

    async def tenant(self, *, tenant: str) -> TenantAnswer:
        """Return a tenant's quotas, and the numbers of its tokens and of its streams with declared edges."""
        state = await self._load()
        if tenant != ALWAYS_THERE and tenant not in state.facts(TENANT):
            there = listed({ALWAYS_THERE, *state.facts(TENANT)})
            error = f"there is no tenant {tenant!r} in the cluster log; there are: {there}"
            raise ApiError(404, error, "PUT declares it with its quotas")
        return (await self._tenants(state, [tenant]))[0]

    async def set_tenant(self, author: Author, wanted: TenantQuotas, *, tenant: str) -> TenantAnswer:
        """Declare all quotas of a tenant, and the tenant if it is new."""
        given = {each: getattr(wanted, each) for each in Quotas.__struct_fields__}
        cleared = frozenset(each for each, value in given.items() if value is None)

        def decide(state: ClusterState) -> Change | None:
            fact = state.facts(TENANT).get(tenant)
            if wanted.version == 0 and fact is not None:
                raise CannotDeclare(f"tenant {tenant} is declared already: `weft hub tenant set` changes its quotas")
            if wanted.version not in (None, 0 if fact is None else fact.version):
                raise CannotDeclare(f"tenant {tenant} was changed meanwhile: read it again")
            return set_tenant(tenant, Quotas(**given), cleared, is_new=fact is None)(state)

        state = await self._declare(decide, by=author)
        return (await self._tenants(state, [tenant]))[0]

    async def remove_tenant(self, author: Author, *, tenant: str) -> RemovedTenantAnswer:
        """Withdraw a tenant that has no token, stream, group, configuration, schema or table in the cluster log."""
        await self._declare(remove_tenant(tenant), by=author)
        return RemovedTenantAnswer(tenant=tenant)

    async def _tenants(self, state: ClusterState, names: Sequence[str]) -> list[TenantAnswer]:
        # It reads the document of each token: tens of milliseconds for the largest fleet.
        return await asyncio.to_thread(_tenants, state, names, self._cluster.cluster.tree.apart)

    # -- schemas of streams

    async def schema(self, *, stream: str, tenant: str = ALWAYS_THERE, version: int | None = None) -> SchemaAnswer:
        """Return the schema of a stream that is in force, or a version of it, also a withdrawn one."""
        if version is None:
            return _schema(self._known(), tenant, stream)
        async with _readable(), self._acts_turns:
            entry = await self._log.entry(version)
        name = f"{tenant}/{stream}"
        if entry is None or (entry.kind, entry.name) != (SCHEMA, name) or entry.document is None:
            raise ApiError(
                404,
                f"entry {version} of the cluster log is not a schema of stream {name}",
                "GET without version= has the newest",
            )
        return schema_answer(entry.name, version, entry.document, entry)

    async def set_schema(
        self, author: Author, wanted: DeclaredSchema, *, stream: str, tenant: str = ALWAYS_THERE
    ) -> SchemaAnswer:
        """Declare the schema of a stream, or another version of it."""
        try:
            decode_schema(encode_schema(wanted.schema), 0)
            decision = set_schema((tenant, stream), wanted.schema, wanted.compatibility)
        except (UnreadableSchema, CannotDeclare) as error:
            raise ApiError(400, f"schema: {error}", NOTHING) from None
        return _schema(await self._declare(decision, by=author), tenant, stream)

    async def remove_schema(self, author: Author, *, stream: str, tenant: str = ALWAYS_THERE) -> RemovedSchemaAnswer:
        """Withdraw the schema of a stream."""
        await self._declare(remove_schema((tenant, stream)), by=author)
        return RemovedSchemaAnswer(tenant=tenant, stream=stream)

    async def schemas(self, *, after: str = "", limit: int = PAGE_DEFAULT) -> SchemasAnswer:
        """Return the schemas in force, of all tenants."""
        state = self._known()
        page, more = _page(sorted(state.facts(SCHEMA)), after, limit)
        return SchemasAnswer(schemas=await asyncio.to_thread(schema_views, state, page), next_after=more)

    # -- processes and shards

    async def nodes(self) -> NodesAnswer:
        """Return the processes that share the store."""

        async def read() -> NodesAnswer:
            now = self._clock.now()
            return NodesAnswer(nodes=node_views(await running(self._store, now), self._cluster.cluster, now))

        return await self._nodes.get(read)

    async def drains(self) -> DrainsAnswer:
        """Return the processes and machines that are drained, whether they run or not."""
        known = Drained()
        known.refresh(self._known())
        there: list[NodeOfStore] | None = None  # the drains themselves are known without the store
        with contextlib.suppress(StoreError):
            there = (await self.nodes()).nodes if known.facts else []
        return DrainsAnswer(drains=[_drain(each, there) for each in known.facts])

    async def drain(self, author: Author, wanted: Drain) -> DrainAnswer:
        """Declare a drain. Other processes load the shards within seconds, and the edges are redirected to them."""
        node = wanted.node.rstrip("/")
        try:
            named = [each for each in await running(self._store, self._clock.now()) if each.name]
        except StoreError as error:
            raise ApiError(503, f"the processes are not known: {error}", AGAIN) from error
        own = [each for each in named if node in (each.host, each.name)]
        if not own:
            names = ", ".join(sorted({each.host for each in named} | {each.name for each in named})) or "none"
            why = f"no hub process {node} runs on this store; there are: {names}"
            raise ApiError(404, why, "GET /v1/nodes lists them")
        others = [(each.host, each.name) for each in named if each not in own and each.state != LEAVING]
        await self._declare(drain(node, others), by=author)
        return DrainAnswer(node=node, drained=True, links=sum(each.links for each in own))

    async def undo_drain(self, author: Author, *, node: str) -> DrainAnswer:
        """Withdraw a drain: the process accepts shards and edges again."""
        node = node.rstrip("/")
        await self._declare(undo_drain(node), by=author)
        return DrainAnswer(node=node, drained=False, links=None)

    async def look_at_split(self, *, shard: int) -> SplitLook:
        """Return how many edges a split of a shard would move. Nothing is written."""
        async with self._one_split():
            _, parts = await self._look(shard, force=True)
        return SplitLook(shard=shard, moving=len(parts.moving), staying=len(parts.staying))

    async def split(self, author: Author, wanted: Split) -> SplitAnswer:
        """Split a shard. Return when the new shard exists; all processes load it within seconds."""
        clock = self._clock.sound
        async with self._one_split():
            cluster, parts = await self._look(wanted.shard, force=wanted.force)
            try:
                async with acting(self._log, secrets.token_hex(8), f"shard {wanted.shard}", author, clock):
                    new = await splits.split(
                        self._store, cluster, wanted.shard, wall_clock=clock, random_bits=secrets.randbits
                    )
            except (splits.CannotSplit, ChangeRefused) as error:
                raise ApiError(409, str(error), "nothing was split") from None
            except (StoreError, Contended, CodecError, ClusterUnusable, ClockWrong) as error:
                advice = "read GET /v1/status before you try again: a declared split is completed"
                raise ApiError(503, f"the split was not completed: {error}", advice) from error
        self._was_split()
        return SplitAnswer(shard=wanted.shard, new_shard=new, moved=len(parts.moving), stayed=len(parts.staying))

    @asynccontextmanager
    async def _one_split(self) -> AsyncIterator[None]:
        """Look at or make the one split of a process at a time: it reads a whole shard."""
        if self._splitting.locked():
            raise ApiError(429, "this process is busy with another split", "try again", retry_s=1.0)
        async with self._splitting:
            yield

    async def _look(self, shard: int, *, force: bool) -> tuple[Cluster, splits.Parts]:
        try:
            cluster = await read_cluster(self._store)
            return cluster, await splits.look(self._store, cluster, shard, force=force)
        except splits.CannotSplit as error:
            raise ApiError(409, str(error), "nothing was split") from None
        except (StoreError, CodecError, ClusterUnusable) as error:
            raise ApiError(503, f"the shard cannot be read: {error}", "nothing was split; try again") from error

    # -- other regions

    async def regions(self) -> RegionsAnswer:
        """Return the configured regions, and the link of each shard to each of them."""

        async def read() -> RegionsAnswer:
            cluster, now = self._cluster.cluster, self._clock.now()
            links = await region_views(self._store, cluster, self._regions, self._retain_log_s, now)
            budgets = await budget_views(self._store, self._regions, cluster.tree.count, now)
            configured = [
                RegionOfHub(region=name, paused=False, pin_seconds=settings.pin_s, budget=budgets.get(name))
                for name, settings in sorted(self._regions.items())
            ]
            return RegionsAnswer(regions=links, configured=configured)

        found = await self._links.get(read)
        now = [msgspec.structs.replace(each, paused=self._orders.of(each.region).paused) for each in found.configured]
        return RegionsAnswer(regions=found.regions, configured=now)

    async def pause_region(self, author: Author, wanted: RegionOrder, *, region: str) -> RegionOrderAnswer:
        """Declare that the records for a region wait, or continue."""
        if region not in self._regions:
            there = ", ".join(sorted(self._regions)) or "none"
            why = f"`regions` of this hub has no {region[:80]!r}; there are: {there}"
            raise ApiError(404, why, "GET /v1/regions names them")
        await self._declare(pause_region(region, paused=wanted.paused), by=author)
        return RegionOrderAnswer(region=region, paused=wanted.paused)

    # -- the cluster log

    async def _load(self) -> ClusterState:
        async with _readable():
            return await self._log.load()

    async def _declare(self, *decisions: Decision, by: Author) -> ClusterState:
        """Change facts. Return the facts with the changes when these are durable."""
        state = await self._load()
        try:
            return await self._log.append_all(decisions, by, state)
        except (CannotDeclare, ChangeRefused) as error:
            raise ApiError(409, str(error), PERHAPS if decisions[1:] else NOTHING) from error
        except (StoreError, Contended, CodecError) as error:
            advice = PERHAPS if decisions[1:] else AGAIN
            raise ApiError(503, f"the cluster log cannot be written: {error}", advice) from error


def _named(operation: Operation, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of an operation, each as a value of its type."""
    named = {}
    for each in operation.parameters:
        text = texts.get(each.name, "")
        if each.required and not text:
            raise ApiError(400, f"{each.name}= is missing", each.advice or f"expected {NAME_RULE}")
        if each.name in texts:
            named[each.name] = reader_of(each)(text)
    return named


def _page(names: Sequence[str], after: str, limit: int) -> tuple[Sequence[str], str | None]:
    """Return a page of sorted names, and the ``after`` of the next one; None at the end."""
    left = names[bisect_right(names, after) :]
    return left[:limit], left[limit - 1] if len(left) > limit else None


def _end(text: str | None, now: int, field: str) -> int | None:
    try:
        return None if text is None else moment_after(text, now)
    except ValueError as error:
        raise ApiError(400, f"{field}: {error}", "see docs/reference/api.md") from None


def _drain(fact: Fact, nodes: Sequence[NodeOfStore] | None) -> DrainOfNode:
    """Return a drain, and what its processes still have.

    Args:
        nodes: all processes; None if they are not known.
    """
    found = DrainOfNode(node=fact.name, since=moment_of(fact.at), by=fact.by, reason=fact.reason)
    if nodes is None:
        return found
    own = [each for each in nodes if fact.name in (each.host, each.name) and each.state not in (GONE, FOREIGN)]
    tables = sum(each.tables or 0 for each in own)
    return msgspec.structs.replace(found, links=sum(each.links for each in own), tables=tables)


def _tenants(state: ClusterState, names: Sequence[str], apart: Mapping[str, int]) -> list[TenantAnswer]:
    """Return tenants that are declared, or need not be.

    Args:
        apart: tenants that are set apart, with the first shard of each.
    """
    tokens = Counter(tenant_of_token(fact.document) for fact in state.facts(TOKEN).values())
    streams = Counter(parse_stream_name(name)[0] for name in state.facts(STREAM))
    found = []
    for name in names:
        fact, document, why = state.facts(TENANT).get(name), TenantDocument(), None
        try:
            document = document if fact is None else decode(fact.document, TenantDocument)
        except UnreadableDocument as error:
            why = str(error)
        found.append(
            TenantAnswer(
                tenant=name,
                version=0 if fact is None else fact.version,
                quotas=quotas_answer(document.quotas),
                isolation="own" if name in apart else None,
                tokens=tokens[name],
                streams_with_edges=streams[name],
                changed=None if fact is None else moment_of(fact.at),
                by="" if fact is None else fact.by,
                reason="" if fact is None else fact.reason,
                unusable=why,
            )
        )
    return found


def _schema(state: ClusterState, tenant: str, stream: str) -> SchemaAnswer:
    """Return the schema of a stream that is in force."""
    name = f"{tenant}/{stream}"
    if (fact := state.facts(SCHEMA).get(name)) is None:
        there = listed(each for each in state.facts(SCHEMA) if parse_stream_name(each)[0] == tenant)
        raise ApiError(404, f"stream {name} has no schema; streams with one: {there}", "PUT declares one")
    return schema_answer(name, fact.version, fact.document, fact)


def quotas_answer(quotas: Quotas) -> QuotasAnswer:
    """Return quotas as the type of the API's answers."""
    return QuotasAnswer(**{each: getattr(quotas, each) for each in Quotas.__struct_fields__})


class _Recent(Generic[T]):
    """An answer that serves all who ask within ``READ_AGE_S``."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._found: tuple[float, T] | None = None

    async def get(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the last answer; a new one where that is too old."""
        async with self._reading, _readable():
            now = asyncio.get_running_loop().time()
            if self._found is None or now - self._found[0] >= READ_AGE_S:
                self._found = now, await read()
            return self._found[1]


@asynccontextmanager
async def _readable() -> AsyncIterator[None]:
    """Refuse with 503 what a later release wrote. Where the store does not answer, the listener says so."""
    try:
        yield
    except CodecError as error:
        raise ApiError(503, str(error), "ask a hub process of that release") from error
