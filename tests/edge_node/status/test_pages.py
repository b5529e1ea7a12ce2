"""The node's own pages."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.edge_node.status.test_messages import GUARDED, OPEN, guard, publisher, url
from tests.support.browser import BrowserPage, axe_finds, browser_page, needs_browser
from tests.support.live_node import running
from tests.support.mqtt_client import PahoClient
from weft.bounds import Refusals
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.status import messages
from weft.edge_node.status.facts import Health, History
from weft.edge_node.status.messages import MessagePages
from weft.edge_node.status.pages import Pages, tables, trouble
from weft.edge_node.subscriptions.subscriptions import Subscriptions

FACTS: dict[str, Any] = {
    "node": "press-shop-7",
    "tenant": "default",
    "uptime_seconds": 7200.0,
    "clock": "synchronised",
    "log_error": None,
    "log_full": None,
    "log_low": None,
    "disk": {"bytes": 64 << 20, "budget_bytes": 16 << 30, "outage_seconds_left": None, "bytes_per_second": None},
    "streams": {"telemetry": {"next_seq": 12, "durable_end": 10, "lost": {"budget": 3}}},
    "functions": {
        "calm": {
            "version": "8a1f03c4",
            "rows_in": 1000,
            "rows_out": 37,
            "rows_rejected": 5,
            "lag_records": 12,
            "lag_seconds": 120.0,
            "state_bytes": 4 << 20,
            "trouble": "failed (KeyError: <x>) and is started again",
            "refused": "the former functions remain in use",
            "warning": "",
        }
    },
    "sources": {},
    "links": {
        "cloud": {"state": "waiting", "pending_records": 10, "pending_seconds": 90.0, "last_error": "no <route>"}
    },
    "mqtt": {"connections": 3, "publishes_received": 12, "publishes_unrouted": 4},
    "unrouted": {"policy": "keep", "messages": 4, "busiest": [{"topic": "test/<b>", "messages": 4}]},
}


def test_the_page_shows_what_people_ask_and_escapes_what_others_wrote() -> None:
    text = tables(FACTS)
    for shown in (
        "press-shop-7",
        "2.0 hours",
        "64 MiB of 16 GiB",
        "unknown yet",
        "telemetry",
        "3 budget",
        "90 seconds",
        "8a1f03c4",
        "<td>37</td>",
        "2.0 minutes",
        "4 MiB",
        "KeyError: &lt;x&gt;",
        "the former functions remain in use",
        "no &lt;route&gt;",
        "test/&lt;b&gt;",
    ):
        assert shown in text
    assert "<route>" not in text
    assert "<b>" not in text


def test_both_halves_of_a_pair_are_on_the_page() -> None:
    copy = {"tenant": "t", "node": "press-8", "taking_over": False, "connected": True, "records": 12, "trouble": ""}
    pair = {
        "state": "connected",
        "node": "press-8",
        "peer": ["https://press-8:7443"],
        "acks": "both",
        "records_with_one_disk": 34,
        "alone_since": 86400.0,
        "last_error": "the copy is full",
        "copies": {"a": {**copy, "bytes": 1 << 20, "budget_bytes": 8 << 20}},
    }
    text = tables({**FACTS, "pair": pair})
    for shown in (
        "of press-8: connected to https://press-8:7443, acks: both",
        "34",
        "1970-01-02 00:00:00 UTC",
        "t/press-8",
        "1 MiB of 8 MiB",
    ):
        assert shown in text


def test_a_store_that_takes_nothing_is_trouble_of_a_connected_link() -> None:
    link = {"state": "connected", "last_error": "no <route>", "canary_alarm": "its store has taken nothing"}
    assert trouble(link) == "its store has taken nothing"


def test_an_error_that_is_over_is_not_trouble() -> None:
    link = copy.deepcopy(FACTS["links"]["cloud"])
    assert trouble(link) == "no <route>"
    link["state"] = "connected"
    assert trouble(link) == ""


class Well(Health):
    def __init__(self) -> None:
        pass

    def unhealthy(self) -> list[str]:
        return []

    def unready(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("", "text/html", "page/edge.js"),
        ("page/edge.js", "text/javascript", "Records stored"),
        ("page/uplot.min.js", "text/javascript", "uPlot"),
        ("tables", "text/html", "press-shop-7"),
        ("history?span=day", "application/json", '"interval_seconds":300.0'),
        ("status", "application/json", '"node"'),
        ("metrics", "text/plain", "weft_x 1"),
        ("healthz", "text/plain", "healthy\n"),
        ("readyz", "text/plain", "ready\n"),
    ],
)
async def test_every_page_is_served(path: str, kind: str, text: str) -> None:
    async with serving() as address, aiohttp.ClientSession() as session, session.get(f"{address}/{path}") as answer:
        assert answer.status == 200
        assert answer.content_type == kind
        assert text in await answer.text()


async def test_where_no_client_comes_without_a_name_nobody_sees_messages_without_one() -> None:
    for takes_anyone, status in ((True, 200), (False, 403)):
        async with serving(takes_anyone=takes_anyone) as address, aiohttp.ClientSession() as session:
            assert (await session.get(f"{address}/topics")).status == status


@asynccontextmanager
async def serving(*, takes_anyone: bool = True) -> AsyncIterator[str]:
    messages = MessagePages(Subscriptions(), Accounts(), (), time.monotonic, time.time_ns, takes_anyone=takes_anyone)
    pages = Pages(
        lambda: FACTS,
        lambda: b"weft_x 1\n",
        Well(),
        history=lambda of_day: History(10.0).view(of_day=of_day),
        messages=messages,
        connections_max=4,
        monotonic=time.monotonic,
        refusals=Refusals(time.monotonic),
    )
    await pages.start("127.0.0.1:0")
    try:
        yield f"http://127.0.0.1:{pages.port}"
    finally:
        await pages.close()


# --- The page of a node in a real browser, at three widths


WIDTHS = (360, 768, 1280)
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
WAITING = """Number([...document.querySelectorAll("#figures dt")].find(
    (each) => each.innerText === "Waiting for a hub")?.nextElementSibling.innerText)"""
LINKED = OPEN + "links: {cloud: {to: 'http://127.0.0.1:1', streams: [telemetry]}}\n"


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[BrowserPage]:
    async with browser_page(tmp_path / "browser") as opened:
        yield opened


@pytest.mark.slow
@needs_browser
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


@pytest.mark.slow
@needs_browser
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


@pytest.mark.slow
@needs_browser
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


@pytest.mark.slow
@needs_browser
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


@pytest.mark.slow
@needs_browser
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
