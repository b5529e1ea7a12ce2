"""``/console``: the console's page, scripts and styles. They hold no data, so they need no token; the page asks the API
with the token that a person gives it."""

from __future__ import annotations

from aiohttp import web

from weft.cloud_hub.api.access import Access, ApiError
from weft.network.pages.assets import Assets

WAY = "/console"
PAGE = "console.html"


class ConsolePages:
    """Handlers of the console's files."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._assets = Assets(__package__)

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes([
            web.get("/", self._lead_here), web.get(WAY, self._get_page), web.get(f"{WAY}/{{asset}}", self._get_asset),
        ])  # fmt: skip

    async def _lead_here(self, request: web.Request) -> web.Response:
        """Lead a person who typed the hub's address to the page."""
        self._access.check_name(request)
        return web.Response(status=302, headers={"Location": WAY})

    async def _get_page(self, request: web.Request) -> web.Response:
        return await self._answer(request, PAGE)

    async def _get_asset(self, request: web.Request) -> web.Response:
        return await self._answer(request, request.match_info["asset"])

    async def _answer(self, request: web.Request, name: str) -> web.Response:
        self._access.check_name(request)
        answer = await self._assets.answer(request, name)
        if answer is None:
            raise ApiError(404, "the console has no such file", f"open {WAY}")
        return answer
