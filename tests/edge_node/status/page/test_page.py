"""The page of a node in a real browser, at three widths."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.edge_node.status.page.test_messages import GUARDED, OPEN, guard, publisher, url
from tests.support.axe import axe_finds
from tests.support.browser import BrowserPage, browser_page, needs_browser
from tests.support.live_node import running
from tests.support.mqtt_client import PahoClient
from weft.edge_node.status import messages

pytestmark = [pytest.mark.slow, needs_browser]
WIDTHS = (360, 768, 1280)
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
WAITING = """Number([...document.querySelectorAll("#figures dt")].find(
    (each) => each.innerText === "Waiting for a hub")?.nextElementSibling.innerText)"""
LINKED = OPEN + "links: {cloud: {to: 'http://127.0.0.1:1', streams: [telemetry]}}\n"


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[BrowserPage]:
    async with browser_page(tmp_path / "browser") as opened:
        yield opened


async def test_a_person_sees_what_waits_and_what_comes_at_every_width(page: BrowserPage, tmp_path: Path) -> None:
    async with running(tmp_path, LINKED) as node:
        client = await publisher(node)
        for step in range(3):
            await client.publish("plant/a/temperature", json.dumps({"celsius": 20 + step}))
            node.status.sample()
            time.sleep(0.01)
        for seen, width in enumerate(WIDTHS):
            await page.size(width)
            await page.dark(width == 768)
            await page.open(url(node, ""))
            await page.until('document.title === "default/press-shop-7"')
            await page.until('document.querySelector("#links").innerText.includes("cannot connect")')
            await page.until(f"{WAITING} >= {3 + seen}")
            await page.until('document.querySelectorAll(".charts canvas").length === 4')
            await page.until('document.querySelector("#topics .tree")')
            await page.js('document.querySelector("#live button").click()')
            await page.until('document.querySelector("#live .advice").innerText.includes("Waiting")')
            await client.publish("plant/b/<b>door</b>", "<i>open</i>")
            await page.until('document.querySelector(".lines li").innerText.includes("<i>open</i>")')
            assert await page.js('document.querySelector("main b, main i")') is None
            assert await page.js(FITS), f"the page is wider than {width}"
            await page.js('document.querySelector("#live button").click()')
        assert all(each.startswith((url(node, ""), "about:")) for each in page.requested)
        assert page.errors == []
        await client.close()


async def test_numbers_of_a_topic_are_drawn(page: BrowserPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "POINT_INTERVAL_S", 0.0)
    async with running(tmp_path, OPEN) as node:
        await page.open(url(node, ""))
        await page.until('document.querySelector("#topics .tree")')
        client = await publisher(node)
        for celsius in (20, 21.5, 19):
            await client.publish("plant/a/temperature", json.dumps({"celsius": celsius}))
        await page.until('document.querySelector("#topics .spark").innerText.startsWith("celsius: 19")')
        assert len((await page.js('document.querySelector("#topics polyline").getAttribute("points")')).split()) == 3
        await page.js('document.querySelector("#topic-filter").value = "other/#"')
        await page.js('document.querySelector("#topic-filter").dispatchEvent(new Event("change"))')
        await page.until('document.querySelector("#topics .empty")')
        await client.close()


async def test_topics_are_seen_over_a_line_that_is_slow(page: BrowserPage, tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as node:
        slow = {"offline": False, "latency": 700, "downloadThroughput": -1, "uploadThroughput": -1}
        await page.call("Network.emulateNetworkConditions", **slow)
        await page.open(url(node, ""))
        await page.until('document.querySelector("#topics .tree")')
        client = await publisher(node)
        await client.publish("plant/a/open", "2")
        await page.until('document.querySelector("#topics").innerText.includes("plant/a/open")')
        await client.close()


async def test_a_user_signs_in_and_sees_own_topics_only(page: BrowserPage, tmp_path: Path) -> None:
    guard(tmp_path)
    async with running(tmp_path, GUARDED) as node:
        await page.open(url(node, ""))
        await page.until('document.querySelector("#topics form")')
        for word in ("wrong", "correct horse"):
            await page.js('document.querySelector("#user").value = "reader"')
            await page.js(f'document.querySelector("#password").value = "{word}"')
            await page.js('document.querySelector("#topics form button").click()')
            sign = "#topics form .notice.bad" if word == "wrong" else "#topics .tree"
            await page.until(f'document.querySelector("{sign}")')
        client = PahoClient()
        client.paho.username_pw_set("writer", "battery staple")
        await client.connect(node.addresses["mqtt"].port)  # type: ignore[union-attr]
        await client.publish("plant/b/secret", "1")
        await client.publish("plant/a/open", "2")
        await page.until('document.querySelector("#topics").innerText.includes("plant/a/open")')
        assert "secret" not in await page.js("document.body.innerText")
        assert await page.js("document.cookie") == ""
        await page.js('document.querySelector("#leave").click()')
        await page.until('document.querySelector("#topics form")')
        assert "plant/a/open" not in await page.js("document.body.innerText")
        await asyncio.sleep(0)
        await client.close()


async def test_axe_finds_nothing_in_the_dark_and_in_the_light(page: BrowserPage, tmp_path: Path) -> None:
    async with running(tmp_path, LINKED) as node:
        client = await publisher(node)
        for _ in range(3):
            node.status.sample()
            time.sleep(0.01)
        await page.open(url(node, ""))
        await page.until('document.querySelector("#topics").innerText.includes("No message has come")')
        await client.publish("plant/a/temperature", json.dumps({"celsius": 20}))
        for is_dark in (False, True):
            await page.dark(is_dark)
            await page.until('document.querySelector("#topics .tree") && document.querySelector(".charts canvas")')
            assert await axe_finds(page) == []
        await client.close()
