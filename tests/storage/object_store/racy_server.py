"""A small S3 server that looks at conditions early or late: early is what several real servers do, wrongly."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from xml.sax.saxutils import escape

from aiohttp import web

_OPTIONS = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class RacyBucket:
    """The bucket of the server.

    Args:
        checks_late: whether a condition is looked at when the whole request has come, as it must be.
    """

    def __init__(self, *, checks_late: bool) -> None:
        self._objects: dict[str, bytes] = {}
        self.checks_late = checks_late
        self.puts = 0
        self.unavailable = 0
        """Number of next PUTs that are answered with 503."""
        self._one_at_a_time = asyncio.Lock()

    def _etag(self, key: str) -> str | None:
        data = self._objects.get(key)
        return None if data is None else f'"{hashlib.sha256(data).hexdigest()}"'

    def _refused(self, request: web.Request, key: str) -> bool:
        etag = self._etag(key)
        if request.headers.get("If-None-Match") == "*":
            return etag is not None
        return "If-Match" in request.headers and request.headers["If-Match"] != etag

    async def put(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        self.puts += 1
        if self.unavailable:
            self.unavailable -= 1
            return web.Response(status=503)
        if self.checks_late:
            body = await request.read()
            refused = self._refused(request, key)
        else:
            # One request after the other is right even so, and so are quick ones that a client happens to send at once.
            if int(request.headers["Content-Length"]) < 1000:
                async with self._one_at_a_time:
                    return self._store(key, await request.read(), refused=self._refused(request, key))
            refused = self._refused(request, key)
            body = await request.read()
        return self._store(key, body, refused=refused)

    def _store(self, key: str, body: bytes, *, refused: bool) -> web.Response:
        if refused:
            return web.Response(status=412)
        self._objects[key] = body
        return web.Response(headers={"ETag": self._etag(key) or ""})

    async def get(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if not key:
            return self._list(request.query.get("prefix", ""), request.query.get("start-after", ""))
        if key not in self._objects:
            return web.Response(status=404)
        data, headers = self._objects[key], {"ETag": self._etag(key) or "", "Last-Modified": _MODIFIED}
        wanted = request.http_range
        if wanted.start is None and wanted.stop is None:
            return web.Response(body=data, headers=headers)
        first, end, _ = wanted.indices(len(data))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
        return web.Response(status=206, body=data[first:end], headers=headers)

    def _list(self, prefix: str, after: str) -> web.Response:
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>1</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, data in sorted(self._objects.items())
            if key.startswith(prefix) and key > after
        )
        return web.Response(
            text=f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>",
            content_type="application/xml",
        )

    async def delete(self, request: web.Request) -> web.Response:
        self._objects.pop(request.match_info["key"], None)
        return web.Response(status=204)

    async def delete_many(self, request: web.Request) -> web.Response:
        text = await request.text()
        for part in text.split("<Key>")[1:]:
            self._objects.pop(part.partition("</Key>")[0], None)
        return web.Response(text="<DeleteResult></DeleteResult>", content_type="application/xml")


_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"


@asynccontextmanager
async def racy_server(
    *, checks_late: bool = True, bucket: RacyBucket | None = None
) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Run the server; yield the URI of its bucket and the options.

    Args:
        checks_late: as of a new bucket.
        bucket: instead of a new one.
    """
    bucket = bucket or RacyBucket(checks_late=checks_late)
    application = web.Application(client_max_size=64 << 20)
    path = "/bucket{slash:/?}{key:.*}"
    application.add_routes(
        [
            web.put(path, bucket.put),
            web.get(path, bucket.get),
            web.delete(path, bucket.delete),
            web.post(path, bucket.delete_many),
        ]
    )

    async def sign(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "RacyStore/1.0"

    application.on_response_prepare.append(sign)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "s3://bucket", {**_OPTIONS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    finally:
        await runner.cleanup()
