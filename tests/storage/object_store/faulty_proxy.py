"""A proxy before a server of buckets, which loses answers, delays them, and answers 503 in the server's place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import ClientSession, web
from yarl import URL

_HOP = {"transfer-encoding", "connection", "content-encoding", "content-length"}


@dataclass
class FaultyProxy:
    """Where it listens, and what happens to requests."""

    url: str = ""
    refused: int = 0
    """Number of requests that are answered 503 from now on."""
    lost: int = 0
    """Number of requests that the server gets and whose answers are lost."""
    delay_s: float = 0.0
    """Delay of answers that the server has given already."""
    seen: list[str] = field(default_factory=list)
    """Methods of requests for ``watched``."""
    watched: Callable[[str], bool] = lambda path: True
    """Whether requests for a path are counted and disturbed."""


@asynccontextmanager
async def faulty_proxy(server: str) -> AsyncIterator[FaultyProxy]:
    """Run a proxy before the server at a URL."""
    proxy = FaultyProxy()

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        disturbed = proxy.watched(request.path)
        if disturbed:
            proxy.seen.append(request.method)
        if disturbed and proxy.refused:
            proxy.refused -= 1
            return web.Response(status=503, text="busy")
        url = URL(server + request.raw_path, encoded=True)
        async with session.request(
            request.method, url, data=body, headers=request.headers, skip_auto_headers=("Content-Type",)
        ) as found:
            data = await found.read()
        if disturbed and proxy.delay_s:
            await asyncio.sleep(proxy.delay_s)
        if disturbed and proxy.lost:
            proxy.lost -= 1
            assert request.transport is not None
            request.transport.abort()
        headers = {name: value for name, value in found.headers.items() if name.lower() not in _HOP}
        if request.method == "HEAD" and "Content-Length" in found.headers:
            headers["Content-Length"] = found.headers["Content-Length"]
        return web.Response(status=found.status, body=data if request.method != "HEAD" else None, headers=headers)

    application = web.Application(client_max_size=64 << 20)
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with ClientSession(auto_decompress=False) as session:
        try:
            yield proxy
        finally:
            await runner.cleanup()
