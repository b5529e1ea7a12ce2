"""Changes of the cluster log that requests of the API ask for: the line says which token asked, from where, and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from weft.cloud_hub.api.access import Access, ApiError
from weft.cloud_hub.api.identity.rights import Right
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.declared.changes import CannotDeclare, Decision
from weft.protocols.errors import CodecError
from weft.storage.cluster_log.entry import REASON_CHARACTERS_MAX
from weft.storage.cluster_log.log import Author, ChangeRefused, ClusterLog, Contended
from weft.storage.cluster_log.state import ClusterState
from weft.storage.object_store import StoreError

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
