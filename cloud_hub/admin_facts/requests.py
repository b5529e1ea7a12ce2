"""Requests of the API that read and change declared facts: tokens, pairings, drains, splits, tenants, and the record
of acts. The line of a change says which token asked, from where, and why."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from weft.bounds import Owner, OwnerKind, address_owner
from weft.bounds.bound import Rates
from weft.cloud_hub import splits
from weft.cloud_hub.admin_facts import changes
from weft.cloud_hub.admin_facts.acts import acting, lines
from weft.cloud_hub.admin_facts.changes import ALWAYS_THERE, CannotDeclare, Decision, NotPaired, redeem, set_tenant
from weft.cloud_hub.admin_facts.credentials import Credentials, last_uses, token_view
from weft.cloud_hub.admin_facts.declarations import Drained
from weft.cloud_hub.admin_facts.documents import (
    TENANT,
    TOKEN,
    Quotas,
    Secret,
    TenantDocument,
    TokenDocument,
    UnreadableDocument,
    decode,
)
from weft.cloud_hub.admin_facts.tenants import StreamUse, TenantUse
from weft.cloud_hub.api.access import Access, ApiError
from weft.cloud_hub.api.answers import PAGE_DEFAULT, PAGE_MAX, LongAnswer, encoded, integer
from weft.cloud_hub.api.summaries import ShardSummaries
from weft.cloud_hub.api.tokens import (
    GRANT_CHARACTERS_MAX,
    GRANTS_MAX,
    TOKEN_NAME_CHARACTERS_MAX,
    Right,
    Scope,
    TokenIdentity,
    TokensUnusable,
    hash_token,
    new_token,
    role_grants,
)
from weft.cloud_hub.api.views import View, moment, moment_after
from weft.cloud_hub.clock import ADVICE, ClockWrong, HubClock
from weft.cloud_hub.cluster import LEAVING
from weft.network.http_server import Handler
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.link import PAIR_BODY_BYTES_MAX, PAIR_PATH, PairAnswer, PairRequest, spoken
from weft.protocols.shard.placement import SHARDS_MAX
from weft.storage.cluster import Cluster, ClusterUnusable, read_cluster
from weft.storage.cluster_log import (
    FACT_NAME_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    Author,
    Change,
    ChangeRefused,
    ClusterLog,
    ClusterState,
    Contended,
)
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.presence import NodeEntry, running

# Changes of the cluster log that requests of the API ask for: the line says which token asked, from where, and why.

BODY_BYTES_MAX = 16 << 10
Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
"""Words for the record of administrative acts."""
T = TypeVar("T")


class RequestedChanges:
    """The way from a request to a line of the cluster log.

    Args:
        read_body: reads the body of a request with a bound.
    """

    def __init__(
        self, log: ClusterLog, access: Access, clock: HubClock,
        read_body: Callable[[web.Request, int, str], Awaitable[bytes]],
    ) -> None:  # fmt: skip
        self.log, self.access, self.clock, self._read_body = log, access, clock, read_body

    def author(self, request: web.Request, right: Right, reason: str = "", *, instead: str) -> Author:
        """Return the author of a change, if the request may make it.

        Args:
            instead: the command that does the same.

        Raises:
            ApiError: 401, 403, 421, and 503 while the clock of this machine is wrong.
        """
        self.access.operate(request, right)
        identity = self.access.reader(request)
        if identity is None and "Origin" in request.headers:
            # Only browsers send it, and any page opened on this machine could reach a loopback port.
            raise ApiError(403, "without tokens, this is not for browsers", f"use `{instead}`")
        if (wrong := self.clock.wrong()) is not None:
            raise ApiError(503, wrong, ADVICE)
        who = "the API" if identity is None else f"token {identity.name}"
        resource = request.match_info.route.resource
        way = request.path if resource is None else resource.canonical
        return Author(self.clock.now(), who, reason, request.remote or "", f"{request.method} {way}")

    async def body(self, request: web.Request, right: Right, wanted: type[T], what: str) -> T:
        """Return the body of a request that has a right.

        Raises:
            ApiError: 400, 401, 403, 408, 413, 421.
        """
        self.access.operate(request, right)
        body = await self._read_body(request, BODY_BYTES_MAX, f"{what} has some hundred bytes")
        try:
            return msgspec.json.decode(body, type=wanted)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, f"the body is not {what}: {error}", "see docs/reference/api.md") from None

    async def load(self) -> ClusterState:
        """Return the declared facts.

        Raises:
            ApiError: 503.
            StoreError: the store did not answer.
        """
        try:
            return await self.log.load()
        except CodecError as error:
            raise ApiError(503, str(error), "ask a hub process of that release") from error

    async def declare(self, decision: Decision, author: Author) -> ClusterState:
        """Change a fact, and return when the change is durable. Hubs follow two seconds later.

        Raises:
            ApiError: 409, 503.
        """
        try:
            return await self.log.append(decision, author, await self.load())
        except (CannotDeclare, ChangeRefused) as error:
            raise ApiError(409, str(error), "nothing was declared") from error
        except (StoreError, Contended, CodecError) as error:
            again = "nothing was declared; try again"
            raise ApiError(503, f"the cluster log cannot be written: {error}", again) from error


def reason_of(request: web.Request) -> str:
    """Return the reason of a request without a body.

    Raises:
        ApiError: 400.
    """
    reason = request.query.get("reason", "")
    if len(reason) > REASON_CHARACTERS_MAX:
        raise ApiError(400, f"reason= has {len(reason)} characters", f"{REASON_CHARACTERS_MAX} are possible")
    return reason


def json_answer(value: Any) -> web.Response:
    """Return an answer that no cache may keep: it may have a secret."""
    body = msgspec.json.encode(value) + b"\n"
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


# ``GET /v1/acts``: the record of administrative acts, page by page (docs/reference/api.md).

WAY = "/v1/acts"
LIMIT, LIMIT_MAX = 100, 200
"""Number of lines of an answer: each is a GET of the store."""
NUMBER_MAX = (1 << 63) - 1
AT_ONCE = 2
"""Number of answers that are made at once; others wait."""


class ActsRequests:
    """Handler of the request.

    Args:
        position: returns the number of the last entry that this process knows.
    """

    def __init__(self, store: ObjectStore, cluster_id: bytes, position: Callable[[], int]) -> None:
        self.log = ClusterLog(store, cluster_id)
        self._position = position
        self._turns = asyncio.Semaphore(AT_ONCE)

    def add_to(self, application: web.Application, access: Access) -> None:
        """Add the request to the application of the API."""
        self._access = access
        application.add_routes([web.get(WAY, self.get)])

    async def get(self, request: web.Request) -> web.Response:
        """Return lines in their order: those after an entry, or the newest ones."""
        self._access.operate(request, Right.ACTS)
        limit = integer(request, "limit", LIMIT, 1, LIMIT_MAX)
        last = self._position()
        after = integer(request, "after", max(0, last - limit), 0, NUMBER_MAX)
        end = min(last, after + limit)
        try:
            async with self._turns:
                found = await lines(self.log, after + 1, end + 1)
        except UnsupportedVersion as error:
            raise ApiError(503, str(error), "ask a hub process of that release") from error
        more = str(end) if after < end < last else None
        body = msgspec.json.encode({"acts": found, "last": last, "next_after": more}) + b"\n"
        return web.Response(body=body, content_type="application/json")


# ``/v1/pair``: an edge gives its token a secret, by a code that ends soon and works once (docs/reference/api.md).

WRONG_BURST = 10
"""Wrong codes that one address may send at once."""
WRONG_PER_S = 0.1
ALL_WRONG_BURST, ALL_WRONG_PER_S = 1000, 10.0
"""The same of all addresses together: an attacker may have many."""
FLOOD_S = 60.0
"""Time after a wrong code for which the bound of all addresses holds for its address. It holds for no others: an edge
with the right code pairs while strangers guess."""
_EVERYBODY = Owner(OwnerKind.ADDRESS, "")
_WRONG = "this code opens nothing here"
_ADVICE = (
    "it is wrong, was used, has ended, is for another edge, or is younger than two seconds. "
    "`weft hub token pair` makes another one"
)


class PairRequests:
    """Handler of the requests. Who asks has no token yet, so that an answer to a wrong code tells nothing.

    Args:
        credentials: the tokens that this process knows: a code that none of them has costs no read of the store.
        now: nanoseconds since 1970.
        monotonic: seconds.
        read_body: reads the body of a request with a bound.
    """

    def __init__(
        self, log: ClusterLog, credentials: Credentials, now: Callable[[], int], monotonic: Callable[[], float],
        read_body: Callable[[web.Request, int, str], Awaitable[bytes]],
    ) -> None:  # fmt: skip
        self._log, self._credentials, self._now, self._read_body = log, credentials, now, read_body
        self._wrong: Rates[Owner] = Rates(WRONG_PER_S, WRONG_BURST, monotonic)
        self._all_wrong: Rates[Owner] = Rates(ALL_WRONG_PER_S, ALL_WRONG_BURST, monotonic)
        self._recent: Rates[Owner] = Rates(1 / FLOOD_S, 0.0, monotonic)
        """Addresses with a wrong code in the last ``FLOOD_S``."""

    def add_to(self, application: web.Application) -> None:
        """Add the request to the application of the API."""
        application.router.add_post(PAIR_PATH, self.post)

    async def post(self, request: web.Request) -> web.Response:
        """Give a token its secret. Answered when that is durable."""
        if "Origin" in request.headers:
            # Only browsers send it, and no page has a reason to try codes with the addresses of its readers.
            raise ApiError(403, "pairing is not for browsers", "use `weft edge pair`")
        owner = address_owner(request.remote or "")
        self._check(owner)
        asked = _decode(await self._read_body(request, PAIR_BODY_BYTES_MAX, "a pairing has some hundred bytes"))
        self._check(owner)  # other connections of the address may have had wrong codes while this one held its back
        code = hash_token(spoken(asked.code))
        try:
            answer = await self._redeem(asked, code, request.remote or "")
        except NotPaired:
            self._wrong.charge(owner, 1)
            self._all_wrong.charge(_EVERYBODY, 1)
            self._recent.charge(owner, 1 - self._recent.debt_s(owner) / FLOOD_S)
            raise ApiError(403, _WRONG, _ADVICE) from None
        return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")

    def _check(self, owner: Owner) -> None:
        """Refuse an address that sent too many wrong codes, or one of too many that all sent.

        Raises:
            ApiError: 429.
        """
        flood_s = min(self._all_wrong.debt_s(_EVERYBODY), self._recent.debt_s(owner))
        if wait_s := max(self._wrong.debt_s(owner), flood_s):
            raise ApiError(429, "too many wrong codes came", "wait, and ask for a new code", retry_s=wait_s)

    async def _redeem(self, asked: PairRequest, code: str, origin: str) -> PairAnswer:
        name = self._credentials.paired_by(code)
        if name is None:
            raise NotPaired
        now = self._now()
        author = Author(now, f"edge with a code of {name}", "", origin, f"POST {PAIR_PATH}")
        decision = redeem(name, code, asked.sha256, (asked.tenant, asked.edge), now)
        try:
            state = await self._log.append(decision, author, await self._log.load())
        except (CannotDeclare, ChangeRefused) as error:
            raise ApiError(409, str(error), "nothing was declared") from error
        except (StoreError, Contended, CodecError) as error:
            again = "ask again with the same code"
            raise ApiError(503, f"the cluster log cannot be written: {error}", again) from error
        document = decode(state.facts(TOKEN)[name].document, TokenDocument)
        ends = [each.until for each in document.secrets if each.sha256 == asked.sha256]
        until = None if not ends or ends[0] is None else moment(ends[0])
        return PairAnswer(tenant=document.tenant, edge=document.edge or "", token=name, until=until)


def _decode(body: bytes) -> PairRequest:
    try:
        return msgspec.json.decode(body, type=PairRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ApiError(400, "the body is not that of a pairing", "use `weft edge pair`") from None


# ``/v1/tokens``: the declared tokens for administrators. A secret is in the answer to the request that made it, and
# nowhere else; the cluster log has its hash.

TOKENS = "/v1/tokens"
TOKEN_WAY, ROTATION = f"{TOKENS}/{{name}}", f"{TOKENS}/{{name}}/rotate"
OVERLAP = "7d"
_END_CHARACTERS_MAX = 40
_COMMAND = "weft hub token"
_End = Annotated[str, Meta(max_length=_END_CHARACTERS_MAX)]


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a token that is to be made. It has a scope, or grants."""

    name: Annotated[str, Meta(min_length=1, max_length=TOKEN_NAME_CHARACTERS_MAX)]
    scope: Scope | None = None
    tenant: str = "default"
    edge: str | None = None
    """Edge that may link with it; for the scope `edge`, and for grants to write."""
    grants: Annotated[list[Annotated[str, Meta(max_length=GRANT_CHARACTERS_MAX)]], Meta(max_length=GRANTS_MAX)] = []
    """Rights such as `read:press-*`, or names of roles."""
    expires: _End | None = None
    """Its end: a duration such as `90d`, or a date; null for none."""
    reason: Reason = ""
    """For the record of administrative acts."""


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a token that is to have another secret."""

    expires: _End | None = None
    """End of the new secret: a duration, a date, or `never`; null for that of the one before."""
    overlap: _End = OVERLAP
    """Time for which the secret before stays in force; `0s` for none."""
    end_oldest: bool = False
    """True to end the older of two secrets that are in force already."""
    reason: Reason = ""
    """For the record of administrative acts."""


class TokenRequests:
    """Handlers of the requests."""

    def __init__(self, store: ObjectStore, changes: RequestedChanges) -> None:
        self._store, self._changes = store, changes

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes([
            web.get(TOKENS, self._list), web.post(TOKENS, self._add), web.post(ROTATION, self._rotate),
            web.delete(TOKEN_WAY, self._remove),
        ])  # fmt: skip

    async def _list(self, request: web.Request) -> web.Response:
        """Return the declared tokens by name, without their secrets."""
        self._changes.access.operate(request, Right.ACTS)
        after, limit = request.query.get("after", ""), integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX)
        try:
            facts, uses = (await self._changes.load()).facts(TOKEN), await last_uses(self._store)
        except StoreError as error:
            raise ApiError(503, f"the cluster log cannot be read: {error}", "try again") from error
        names, now = [name for name in sorted(facts) if name > after], self._changes.clock.agreed()
        return json_answer({
            "tokens": [token_view(facts[name], now, uses.get(name)) for name in names[:limit]],
            "next_after": names[limit - 1] if len(names) > limit else None,
        })  # fmt: skip

    async def _add(self, request: web.Request) -> web.Response:
        """Declare a token, and return its secret."""
        wanted = await self._changes.body(request, Right.TOKENS, NewToken, "a token")
        author = self._changes.author(request, Right.TOKENS, wanted.reason, instead=f"{_COMMAND} add")
        if self._changes.access.reader(request) is None:
            # It would end the links of all edges without a token; the command says which, and asks.
            raise ApiError(403, "a hub without tokens makes the first one by its command", f"use `{_COMMAND} add`")
        if (wanted.scope is None) == (not wanted.grants) or wanted.scope is Scope.GRANTED:
            raise ApiError(400, "a token has a scope, or grants", 'send "scope": "reader", or "grants": ["read"]')
        secret, until = new_token(), _end(wanted.expires, author.at, "expires")
        scope, grants = wanted.scope or Scope.GRANTED, role_grants(wanted.grants)
        identity = TokenIdentity(wanted.name, hash_token(secret), scope, wanted.tenant, wanted.edge, grants)
        try:
            decision = changes.add_token(identity, until)
        except TokensUnusable as error:
            raise ApiError(400, str(error), "nothing was declared") from None
        await self._changes.declare(decision, author)
        return json_answer({"name": wanted.name, "token": secret, "until": moment(until)})

    async def _rotate(self, request: web.Request) -> web.Response:
        """Declare another secret of a token, and return it. The one before stays in force for a while."""
        wanted = await self._changes.body(request, Right.TOKENS, Rotation, "a rotation")
        author = self._changes.author(request, Right.TOKENS, wanted.reason, instead=f"{_COMMAND} rotate")
        name, secret, now = request.match_info["name"], new_token(), author.at
        given = None if wanted.expires == "never" else _end(wanted.expires, now, "expires")
        old_until = _end(wanted.overlap, now, "overlap") or now
        ends: list[int | None] = []

        def decide(state: ClusterState) -> Change | None:
            until = given if wanted.expires is not None else changes.end_of_token(state, name, now)
            ends[:] = [until]
            made = Secret(hash_token(secret), until)
            return changes.rotate_token(name, made, now, old_until, ends_oldest=wanted.end_oldest)(state)

        await self._changes.declare(decide, author)
        return json_answer({"name": name, "token": secret, "until": moment(ends[0])})

    async def _remove(self, request: web.Request) -> web.Response:
        """Withdraw a token. Its links end two seconds later."""
        author = self._changes.author(request, Right.TOKENS, reason_of(request), instead=f"{_COMMAND} remove")
        name = request.match_info["name"]
        state = await self._changes.declare(changes.remove_token(name), author)
        return json_answer({"name": name, "left": len(state.facts(TOKEN))})


def _end(text: str | None, now: int, field: str) -> int | None:
    try:
        return None if text is None else moment_after(text, now)
    except ValueError as error:
        raise ApiError(400, f"{field}: {error}", "see docs/reference/api.md") from None


# ``/v1/drains`` and ``/v1/splits``: processes of the hub give their shards away, and a shard becomes two.

DRAINS, SPLITS = "/v1/drains", "/v1/splits"
_DRAIN, _SPLIT = "weft hub drain", "weft hub split"


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the process or the machine that is to give its shards and edges to others."""

    node: Annotated[str, Meta(min_length=1, max_length=FACT_NAME_CHARACTERS_MAX)]
    """Name of a process, or of a machine for all of its processes, as `/v1/nodes` has it."""
    reason: Reason = ""
    """For the record of administrative acts."""


class Split(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the shard that is to become two. There is no way back."""

    shard: Annotated[int, Meta(ge=0, le=SHARDS_MAX - 1)]
    force: bool = False
    """Do it though all its edges would be in one of the two."""
    reason: Reason = ""
    """For the record of administrative acts."""


class NoSuchNode(Exception):
    """No process of that name, or on a machine of that name, runs on the store. The message names those that do."""


def draining(entries: list[NodeEntry], node: str) -> tuple[list[NodeEntry], changes.Decision]:
    """Return the processes that a drain concerns, and its decision.

    Args:
        entries: those of the running processes.

    Raises:
        NoSuchNode: there is none.
    """
    named = [each for each in entries if each.name]
    own = [each for each in named if node in (each.host, each.name)]
    if not own:
        names = sorted({each.host for each in named} | {each.name for each in named})
        raise NoSuchNode(f"no hub process {node} runs on this store; there are: {', '.join(names) or 'none'}")
    others = [(each.host, each.name) for each in named if each not in own and each.state != LEAVING]
    return own, changes.drain(node, others)


class NodeRequests:
    """Handlers of the requests.

    Args:
        drained: what this process knows of drains.
        random_bits: for nonces.
        split: called when a shard was split, so that this process takes the new one up.
    """

    def __init__(
        self, store: ObjectStore, changes: RequestedChanges, drained: Drained, *,
        random_bits: Callable[[int], int], split: Callable[[], None],
    ) -> None:  # fmt: skip
        self._store, self._changes, self._drained = store, changes, drained
        self._random_bits, self._was_split = random_bits, split
        self._splitting = asyncio.Lock()

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes([
            web.get(DRAINS, self._get_drains), web.post(DRAINS, self._post_drain), web.delete(DRAINS, self._undo_drain),
            web.get(SPLITS, self._get_split), web.post(SPLITS, self._post_split),
        ])  # fmt: skip

    async def _get_drains(self, request: web.Request) -> web.Response:
        """Return the processes and machines that are drained, whether they run or not, as this process knows them."""
        self._changes.access.operate(request, Right.STATUS)
        drained = [
            {"node": each.name, "since": moment(each.at), "by": each.by, "reason": each.reason}
            for each in self._drained.facts
        ]
        return json_answer({"drains": drained})

    async def _post_drain(self, request: web.Request) -> web.Response:
        """Declare a drain. The others load its shards within seconds, and its edges are sent on to them."""
        wanted = await self._changes.body(request, Right.NODES, Drain, "a drain")
        author = self._changes.author(request, Right.NODES, wanted.reason, instead=_DRAIN)
        node = wanted.node.rstrip("/")
        try:
            own, decision = draining(await running(self._store, self._changes.clock.now()), node)
        except NoSuchNode as error:
            raise ApiError(404, str(error), "GET /v1/nodes lists the processes") from None
        except StoreError as error:
            raise ApiError(503, f"the processes are not known: {error}", "nothing was declared; try again") from error
        await self._changes.declare(decision, author)
        return json_answer({"node": node, "drained": True, "links": sum(each.links for each in own)})

    async def _undo_drain(self, request: web.Request) -> web.Response:
        """Take a drain back: the process takes shards and edges again."""
        author = self._changes.author(request, Right.NODES, reason_of(request), instead=f"{_DRAIN} --undo")
        node = request.query.get("node", "").rstrip("/")
        if not node:
            raise ApiError(400, "node= is missing", "GET /v1/drains lists what is drained")
        await self._changes.declare(changes.undo_drain(node), author)
        return json_answer({"node": node, "drained": False, "links": None})

    async def _get_split(self, request: web.Request) -> web.Response:
        """Return how many edges a split of a shard would move. Nothing is written."""
        self._changes.access.operate(request, Right.NODES)
        if "shard" not in request.query:
            raise ApiError(400, "shard= is missing", "say which shard: GET /v1/status has those of this process")
        shard = integer(request, "shard", 0, 0, SHARDS_MAX - 1)
        async with self._one():
            _, parts = await self._look(shard, force=True)
        return json_answer({"shard": shard, "moving": len(parts.moving), "staying": len(parts.staying)})

    async def _post_split(self, request: web.Request) -> web.Response:
        """Split a shard. Answered when the new shard is there; this process and the others take it up in seconds."""
        wanted = await self._changes.body(request, Right.NODES, Split, "a split")
        author = self._changes.author(request, Right.NODES, wanted.reason, instead=_SPLIT)
        clock = self._changes.clock.sound
        async with self._one():
            cluster, parts = await self._look(wanted.shard, force=wanted.force)
            try:
                async with acting(self._changes.log, secrets.token_hex(8), f"shard {wanted.shard}", author, clock):
                    new = await splits.split(
                        self._store, cluster, wanted.shard, wall_clock=clock, random_bits=self._random_bits
                    )
            except (splits.CannotSplit, ChangeRefused) as error:
                raise ApiError(409, str(error), "nothing was split") from None
            except (StoreError, Contended, CodecError, ClusterUnusable, ClockWrong) as error:
                advice = "look at the shards before you try again: a split that was declared is put into force"
                raise ApiError(503, f"the split did not end: {error}", advice) from error
        self._was_split()
        return json_answer(
            {"shard": wanted.shard, "new_shard": new, "moved": len(parts.moving), "stayed": len(parts.staying)}
        )

    def _one(self) -> asyncio.Lock:
        """Return the lock of the one split that a process looks at or makes: it reads a whole shard."""
        if self._splitting.locked():
            raise ApiError(429, "this process is busy with another split", "try again", retry_s=1.0)
        return self._splitting

    async def _look(self, shard: int, *, force: bool) -> tuple[Cluster, splits.Parts]:
        try:
            cluster = await read_cluster(self._store)
            return cluster, await splits.look(self._store, cluster, shard, force=force)
        except splits.CannotSplit as error:
            raise ApiError(409, str(error), "nothing was split") from None
        except (StoreError, CodecError, ClusterUnusable) as error:
            raise ApiError(503, f"the shard cannot be read: {error}", "nothing was split; try again") from error


# ``/v1/tenants`` and ``/v1/usage``: quotas of tenants, and an account of their use (docs/reference/api.md).

USAGE, TENANTS, TENANT_WAY = "/v1/usage", "/v1/tenants", "/v1/tenants/{tenant}"
_Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None
_Rate = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None


class TenantQuotas(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: all quotas of a tenant. One that is left out is no bound."""

    edges: _Number = None
    streams: _Number = None
    bytes_per_second: _Rate = None
    stored_bytes: _Number = None
    records_per_second: _Rate = None
    lanes: _Number = None
    links: _Number = None
    table_bytes: _Number = None
    reason: Reason = ""
    """For the record of administrative acts."""
    version: Annotated[int, Meta(ge=0)] | None = None
    """Version of the tenant that was changed, 0 for a new one. It is refused after another change of the tenant."""


class Account(Protocol):
    """The account of a process (``tenants.Tenants``)."""

    def known(self, tenant: str) -> TenantUse | None:
        """Return the use of a tenant that had links here; None for others."""
        ...

    def links(self, tenant: str) -> int:
        """Return the number of a tenant's linked edges."""
        ...


_Usage = Callable[[web.Request], Awaitable[LongAnswer]]


class TenantRequests:
    """Handlers of the requests.

    Args:
        quotas: those of a tenant, as this process knows them.
        table_bytes, stream_bytes: bytes of the tables of a tenant, and of one stream; None where this process does not
            know.
        response_bytes_max: longest list of streams.
    """

    def __init__(
        self, changes: RequestedChanges, account: Account, summaries: ShardSummaries, *,
        quotas: Callable[[str], Quotas], table_bytes: Callable[[str], int | None],
        stream_bytes: Callable[[str, str], int | None], response_bytes_max: int,
    ) -> None:  # fmt: skip
        self._response_bytes_max = response_bytes_max
        self._changes, self._access = changes, changes.access
        self._account, self._summaries = account, summaries
        self._quotas, self._table_bytes, self._stream_bytes = quotas, table_bytes, stream_bytes
        self._since = changes.clock.now()

    def add_to(self, application: web.Application, bounded: Callable[[_Usage], Handler]) -> None:
        """Add the requests to the application of the API.

        Args:
            bounded: bounds the answers in progress of a reader.
        """
        application.add_routes([
            web.get(USAGE, bounded(self.get_usage)), web.get(TENANTS, self.get_list), web.get(TENANT_WAY, self.get),
            web.put(TENANT_WAY, self.put),
        ])  # fmt: skip

    async def get_list(self, request: web.Request) -> web.Response:
        """Return the declared tenants, and the one that need not be declared, by name."""
        self._access.operate(request, Right.TENANTS)
        after, limit = request.query.get("after", ""), integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX)
        state = await self._load()
        names = [name for name in sorted({ALWAYS_THERE, *state.facts(TENANT)}) if name > after]
        return json_answer({
            "tenants": [_tenant_view(state, name) for name in names[:limit]],
            "next_after": names[limit - 1] if len(names) > limit else None,
        })  # fmt: skip

    async def get(self, request: web.Request) -> web.Response:
        """Return a tenant's quotas."""
        self._access.operate(request, Right.TENANTS)
        return json_answer(_tenant_view(await self._load(), _name(request)))

    async def put(self, request: web.Request) -> web.Response:
        """Declare all quotas of a tenant, and the tenant if it is new. Answered when that is durable."""
        wanted = await self._changes.body(request, Right.TENANTS, TenantQuotas, "the quotas of a tenant")
        author = self._changes.author(request, Right.TENANTS, wanted.reason, instead="weft hub tenant set")
        name = _name(request)
        given = {each: getattr(wanted, each) for each in Quotas.__struct_fields__}
        cleared = frozenset(each for each, value in given.items() if value is None)

        def decide(state: ClusterState) -> Change | None:
            fact = state.facts(TENANT).get(name)
            if wanted.version not in (None, 0 if fact is None else fact.version):
                raise CannotDeclare(f"tenant {name} is declared already, or was changed meanwhile")
            return set_tenant(name, Quotas(**given), cleared, is_new=fact is None)(state)

        return json_answer(_tenant_view(await self._changes.declare(decide, author), name))

    async def _load(self) -> ClusterState:
        try:
            return await self._changes.load()
        except StoreError as error:
            raise ApiError(503, f"the cluster log cannot be read: {error}", "try again") from error

    async def get_usage(self, request: web.Request) -> LongAnswer:
        """Return what a tenant uses: numbers of all shards, and what came to this process."""
        tenant, is_readable = self._access.streams(request)
        limit, after = integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX), request.query.get("after", "")
        shards = await self._summaries.every()
        every = await shards.streams(tenant)
        use = self._account.known(tenant)
        names = [name for name in every if name > after and is_readable(name)]

        def stream(name: str) -> View:
            records = sum(part.end or 0 for part in every[name])
            came = use.streams.get(name, StreamUse()) if use is not None else StreamUse()
            size = self._stream_bytes(tenant, name)
            return {"stream": name, "records": records, "received": _received(came), "table_bytes": size}

        page = await encoded(names[:limit], stream, self._response_bytes_max)
        taken = len(page.views)
        view = {
            "tenant": tenant,
            "quotas": _quotas_view(self._quotas(tenant)),
            "since": moment(self._since),
            "share": 1.0 if use is None else use.share,
            "links": self._account.links(tenant),
            "lanes": sum(part.lanes for parts in every.values() for part in parts),
            "streams_count": len(every),
            "table_bytes": self._table_bytes(tenant),
            "received": _received(StreamUse() if use is None else use.total()),
            "throttled_seconds": 0.0 if use is None else use.waited_ns / 1e9,
            "refused": 0 if use is None else use.refused,
            "streams": page.views,
            "next_after": names[taken - 1] if taken < len(names) else None,
            **shards.view(),
        }
        return LongAnswer([msgspec.json.encode(view) + b"\n"], headers={"Cache-Control": "no-store"})


def _received(came: StreamUse) -> View:
    return {"bytes": came.bytes, "records": came.records}


def _quotas_view(quotas: Quotas) -> View:
    return {each: getattr(quotas, each) for each in Quotas.__struct_fields__}


def _tenant_view(state: ClusterState, name: str) -> View:
    fact = state.facts(TENANT).get(name)
    if fact is None and name != ALWAYS_THERE:
        raise ApiError(404, f"there is no tenant {name!r} in the cluster log", "PUT declares it with its quotas")
    try:
        quotas = Quotas() if fact is None else decode(fact.document, TenantDocument).quotas
    except UnreadableDocument as error:
        advice = "use the release that wrote it"
        raise ApiError(503, f"this release cannot read tenant {name!r}: {error}", advice) from error
    return {"tenant": name, "version": 0 if fact is None else fact.version, "quotas": _quotas_view(quotas)}


def _name(request: web.Request) -> str:
    name = request.match_info["tenant"]
    if not valid_name(name):
        raise ApiError(400, f"{name[:80]!r} is not a name", f"expected {NAME_RULE}")
    return name
