"""The XML API of Google Cloud Storage, as far as obstore uses it, before fake-gcs-server, which has the JSON API alone:
``python -m tests.storage.object_store.gcs_front PORT_OF_SERVER``.

Whether a condition holds is decided by the server: each conditional request here is one of its own. Uploads in parts
are joined here.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from aiohttp import ClientSession, web

GENERATION = "x-goog-generation"
CONDITION = "x-goog-if-generation-match"
SOURCE = "x-goog-copy-source"
PAGE = 1000


class Front:
    """The server's answers, in the words of the other API."""

    def __init__(self, upstream: str, session: ClientSession) -> None:
        self._upstream, self._session = upstream, session
        self._uploads: dict[str, dict[int, bytes]] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0].lstrip("/")
        bucket, _, key = path.partition("/")
        key = unquote(key)
        if not key:
            return await self._list(bucket, request)
        if request.method == "PUT" and "partNumber" in request.query:
            self._uploads[request.query["uploadId"]][int(request.query["partNumber"])] = await request.read()
            return web.Response(headers={"ETag": f'"{request.query["partNumber"]}"'})
        if request.method == "POST" and "uploads" in request.query:
            upload = uuid.uuid4().hex
            self._uploads[upload] = {}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
        if request.method == "POST":
            parts = self._uploads.pop(request.query["uploadId"])
            made = await self._put(bucket, key, b"".join(parts[number] for number in sorted(parts)), None)
            etag = f"<ETag>{made.headers['ETag']}</ETag>"
            answer = _xml(f"<CompleteMultipartUploadResult>{etag}</CompleteMultipartUploadResult>")
            answer.headers[GENERATION] = made.headers[GENERATION]
            return answer
        if request.method == "DELETE" and "uploadId" in request.query:
            self._uploads.pop(request.query["uploadId"], None)
            return web.Response(status=204)
        if request.method == "PUT" and (source := request.headers.get(SOURCE)):
            origin, _, name = source.lstrip("/").partition("/")
            async with self._session.get(self._object(origin, unquote(name), "?alt=media")) as found:
                if found.status != 200:
                    return web.Response(status=found.status)
                return await self._put(bucket, key, await found.read(), request.headers.get(CONDITION))
        if request.method == "PUT":
            return await self._put(bucket, key, await request.read(), request.headers.get(CONDITION))
        if request.method == "DELETE":
            async with self._session.delete(self._object(bucket, key)) as gone:
                return web.Response(status=204 if gone.status == 200 else gone.status)
        return await self._get(bucket, key, request)

    def _object(self, bucket: str, key: str, query: str = "") -> str:
        return f"{self._upstream}/storage/v1/b/{bucket}/o/{quote(key, safe='')}{query}"

    async def _get(self, bucket: str, key: str, request: web.Request) -> web.Response:
        async with self._session.get(self._object(bucket, key, "?alt=media")) as found:
            if found.status != 200:
                return web.Response(status=found.status)
            data = await found.read()
            headers = {name: found.headers[name] for name in (GENERATION, "ETag", "Last-Modified")}
        wanted = request.http_range
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(len(data))})
        if wanted.start is None and wanted.stop is None:
            return web.Response(body=data, headers=headers)
        first, end, _ = wanted.indices(len(data))
        if first >= end:
            return web.Response(status=416)
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
        return web.Response(status=206, body=data[first:end], headers=headers)

    async def _put(self, bucket: str, key: str, data: bytes, condition: str | None) -> web.Response:
        query = f"?uploadType=media&name={quote(key, safe='')}"
        query += f"&ifGenerationMatch={condition}" if condition is not None else ""
        async with self._session.post(f"{self._upstream}/upload/storage/v1/b/{bucket}/o{query}", data=data) as made:
            if made.status != 200:
                return web.Response(status=made.status, text=await made.text())
            facts = json.loads(await made.read())
        return web.Response(headers={GENERATION: facts["generation"], "ETag": f'"{facts["etag"].strip(chr(34))}"'})

    async def _list(self, bucket: str, request: web.Request) -> web.Response:
        query = request.query
        wanted = {"prefix": query.get("prefix", ""), "maxResults": str(min(int(query.get("max-keys", PAGE)), PAGE))}
        if "continuation-token" in query:
            wanted["pageToken"] = query["continuation-token"]
        if "start-after" in query:
            wanted["startOffset"] = query["start-after"]
        async with self._session.get(f"{self._upstream}/storage/v1/b/{bucket}/o", params=wanted) as found:
            if found.status != 200:
                return web.Response(status=found.status)
            facts = json.loads(await found.read())
        lines = "".join(
            f"<Contents><Key>{escape(each['name'])}</Key><Size>{each['size']}</Size><ETag>1</ETag>"
            f"<LastModified>{each['updated']}</LastModified></Contents>"
            for each in facts.get("items", ())
            if each["name"] != query.get("start-after")
        )
        token = facts.get("nextPageToken", "")
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        is_cut = str(bool(token)).lower()
        return _xml(f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{more}{lines}</ListBucketResult>")


def _xml(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/xml")


async def serve(upstream: str) -> None:
    """Serve until the process is killed; the first line of output is the port."""
    async with ClientSession() as session:
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", Front(upstream, session).answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
