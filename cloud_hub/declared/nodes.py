"""``/v1/drains`` and ``/v1/splits``: processes of the hub give their shards away, and a shard becomes two."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from weft.cloud_hub.api.access import ApiError
from weft.cloud_hub.api.answers import integer
from weft.cloud_hub.api.identity.rights import Right
from weft.cloud_hub.api.views import moment
from weft.cloud_hub.clock import ClockWrong
from weft.cloud_hub.cluster.owners import LEAVING
from weft.cloud_hub.declared import changes
from weft.cloud_hub.declared.acts.acting import acting
from weft.cloud_hub.declared.declarations import Drained
from weft.cloud_hub.declared.requested import Reason, RequestedChanges, json_answer, reason_of
from weft.cloud_hub.splits import declaring
from weft.protocols.errors import CodecError
from weft.protocols.shard.placement import SHARDS_MAX
from weft.storage.cluster import Cluster, ClusterUnusable, read_cluster
from weft.storage.cluster_log.entry import NAME_CHARACTERS_MAX
from weft.storage.cluster_log.log import ChangeRefused, Contended
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.presence.nodes import NodeEntry, running

DRAINS, SPLITS = "/v1/drains", "/v1/splits"
_DRAIN, _SPLIT = "weft hub drain", "weft hub split"


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the process or the machine that is to give its shards and edges to others."""

    node: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
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
                    new = await declaring.split(
                        self._store, cluster, wanted.shard, wall_clock=clock, random_bits=self._random_bits
                    )
            except (declaring.CannotSplit, ChangeRefused) as error:
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

    async def _look(self, shard: int, *, force: bool) -> tuple[Cluster, declaring.Parts]:
        try:
            cluster = await read_cluster(self._store)
            return cluster, await declaring.look(self._store, cluster, shard, force=force)
        except declaring.CannotSplit as error:
            raise ApiError(409, str(error), "nothing was split") from None
        except (StoreError, CodecError, ClusterUnusable) as error:
            raise ApiError(503, f"the shard cannot be read: {error}", "nothing was split; try again") from error
