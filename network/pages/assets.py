"""Files of pages: scripts, styles and pictures that stay as they are between releases, and the page that loads them.

They hold no data and come from the installed packages; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from importlib.resources import files
from typing import NamedTuple

from aiohttp import web

KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
"""Ending of a file that is served -> its media type."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy: nothing from elsewhere, no script in a page or an attribute, and no text becomes markup."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # another release's files have other tags; unchanged ones are not sent again
    "Vary": "Accept-Encoding",
}


class _Asset(NamedTuple):
    data: bytes
    packed: bytes
    """The data as gzip has it, for clients that take that: a third of the bytes."""
    kind: str
    tag: str


class Assets:
    """Files in the folder ``static`` of this package and of another one. They are read at the first request.

    Args:
        package: name of the package of a page.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._found: dict[str, _Asset] | None = None

    async def answer(self, request: web.Request, name: str) -> web.Response | None:
        """Return the answer with a file; None if there is no such file."""
        if self._found is None:
            self._found = await asyncio.to_thread(self._read)  # once; few nodes have a reader
        asset = self._found.get(name)
        if asset is None:
            return None
        headers = {**HEADERS, "ETag": f'W/"{asset.tag}"'}  # weak: it names both forms of the data
        if any(each.value == asset.tag for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        data = asset.data
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            data, headers["Content-Encoding"] = asset.packed, "gzip"
        return web.Response(body=data, content_type=asset.kind, charset="utf-8", headers=headers)

    def _read(self) -> dict[str, _Asset]:
        found = {}
        for package in (__package__, self._package):
            for file in files(package).joinpath("static").iterdir():
                kind = KINDS.get("." + file.name.rpartition(".")[2])
                if kind is not None:
                    data = file.read_bytes()
                    packed = gzip.compress(data, mtime=0)
                    found[file.name] = _Asset(data, packed, kind, hashlib.sha256(data).hexdigest()[:32])
        return found
