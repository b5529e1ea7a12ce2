"""``GET /v1/acts``: the record of administrative acts, page by page (docs/reference/api.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web

from weft.cloud_hub.api.access import Access, ApiError
from weft.cloud_hub.api.answers import integer
from weft.cloud_hub.api.identity.rights import Right
from weft.cloud_hub.declared.acts.lines import lines
from weft.protocols.errors import UnsupportedVersion
from weft.storage.cluster_log.log import ClusterLog
from weft.storage.object_store import ObjectStore

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
