"""The console's files: open to everyone, and nothing in them comes from elsewhere."""

from __future__ import annotations

import re
import zlib
from importlib.resources import files
from pathlib import Path

import aiohttp

from tests.cloud_hub.live import get, running_hub
from tests.support.tokens import create_token
from weft.cloud_hub.http.changes import CONSOLE
from weft.hub_api.rights import Scope
from weft.network.pages.assets import POLICY
from weft.storage.object_store.directory import MemoryStore

STATIC = files("weft.cloud_hub.console").joinpath("static")
SHARED = files("weft.network.pages").joinpath("static")
FILES = [*STATIC.iterdir(), *SHARED.iterdir()]


async def test_the_files_need_no_token_and_everything_else_does(tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    create_token(tokens, "reader", Scope.READER, "acme")
    async with running_hub(MemoryStore(), tokens=tokens) as hub, aiohttp.ClientSession(hub.url) as session:
        for name in ("", *(f"/{each.name}" for each in FILES)):
            answer = await session.get(f"{CONSOLE}{name}")
            assert answer.status == 200, name
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "Set-Cookie" not in answer.headers
            again = await session.get(f"{CONSOLE}{name}", headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status, await again.read()) == (304, b"")
        for name in ("none.js", "assets.py", "..%2Fassets.py", "%2e%2e%2fassets.py", "static"):
            assert (await session.get(f"{CONSOLE}/{name}")).status == 404
        for path in ("/v1/whoami", "/v1/edges", "/v1/changes"):
            assert (await get(hub, path))[0] == 401


async def test_the_hubs_address_leads_to_the_console() -> None:
    async with running_hub(MemoryStore()) as hub, aiohttp.ClientSession(hub.url) as session:
        answer = await session.get("/")
        assert (answer.status, answer.url.path, answer.content_type) == (200, CONSOLE, "text/html")


async def test_a_page_under_a_foreign_name_is_refused() -> None:
    async with running_hub(MemoryStore(), hosts=frozenset()) as hub, aiohttp.ClientSession(hub.url) as session:
        for path in ("/", CONSOLE, f"{CONSOLE}/console.js", "/v1/changes"):
            assert (await session.get(path, headers={"Host": "evil.example"})).status == 421


async def test_a_page_is_small() -> None:
    async with running_hub(MemoryStore()) as hub, aiohttp.ClientSession(hub.url) as session:
        loaded = 0
        for name in ("", *(f"/{each.name}" for each in FILES if not each.name.endswith((".html", ".txt")))):
            loaded += len(zlib.compress(await (await session.get(f"{CONSOLE}{name}")).read()))
    assert loaded < 200_000


def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup() -> None:
    """What the policy would refuse in the browser is not there to begin with."""
    own = [each for each in FILES if not each.name.startswith("uplot")]
    for file in own:
        text = file.read_text().replace("http://www.w3.org", "")  # names of SVG, which nothing asks for
        assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", text) == []
        assert re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text) is None
    page = STATIC.joinpath("console.html").read_text()
    assert re.search(r"<script(?![^>]*src=)|<style|\son[a-z]+=|\sstyle=", page) is None
    assert "Permission is hereby granted" in SHARED.joinpath("uplot-license.txt").read_text()
