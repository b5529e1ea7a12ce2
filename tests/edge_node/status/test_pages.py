"""The node's own pages."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from weft.bounds import Refusals
from weft.edge_node.access.authentication import Accounts
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
