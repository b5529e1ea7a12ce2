"""The console in a real browser, over a real hub, at three widths."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.auth.test_tokens import call
from tests.cloud_hub.console.fleet import LOST, NS, PRESS, READINGS, STEP_S, hub_with_fleet, messages, readings
from tests.cloud_hub.live import EdgeLog, running_link
from tests.cloud_hub.regions.fabric import to
from tests.cloud_hub.test_administration import ADMIN, open_to_an_administrator
from tests.support.browser import BrowserPage, axe_finds, browser_page, needs_browser
from tests.support.processes import Node
from tests.support.speed import slowness
from tests.support.steps import TRIES
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cloud_hub.http import changes
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import records
from weft.cloud_hub.reads.views import Search
from weft.hub_api.rights import Scope
from weft.protocols.link import FunctionReport, NodeReport
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.placement import shard_of
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore

pytestmark = [pytest.mark.slow, needs_browser]

HOSTILE = ("<img src=x onerror=alert(1)>", "\u202egnp.exe\u202c", "x" * 60_000)
SOON_S = 2.0
WIDTHS = (390, 820, 1440)
ROWS = 'document.querySelectorAll(".table tbody tr th").length'
GAP_S = "((t) => (Date.parse(t[1]) - Date.parse(t[0])) / 1000)({}.match(/20[0-9-]+ [0-9:]+/g))"
"""Seconds between the two moments of a text."""
HAS = "document.querySelector('{}')?.textContent.includes('{}')"
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[BrowserPage]:
    async with browser_page(tmp_path / "browser") as opened:
        yield opened
        assert opened.errors == []


async def test_a_large_fleet_is_seen_soon_at_every_width(page: BrowserPage) -> None:
    async with hub_with_fleet(5000, 200) as (hub, _):
        for width in WIDTHS:
            await page.size(width)
            worked: list[float] = []
            while not worked or (min(worked) >= SOON_S and len(worked) < TRIES):
                await page.open("about:blank")
                began = await page.worked_s() + time.process_time()
                await page.open(f"{hub.url}/console#/fleet")
                await page.until(f"{ROWS} > 20")
                # Processor time of page and hub together: the time by the clock on a machine without other work.
                worked.append(await page.worked_s() + time.process_time() - began)
            assert min(worked) < SOON_S * slowness(), worked
            await page.until('document.querySelector(".figures dd").textContent === "5,001"')
            drawn = await page.js('document.querySelector(".map canvas").getBoundingClientRect().height')
            assert 20 < drawn <= 96, "a cell for each edge, and the list is still on the first screen"
            assert await page.js(FITS), f"the page is wider than {width}"
            assert await page.js(ROWS) == (25 if width < 700 else 100), "the document stays small"
            assert await page.js("document.documentElement.scrollHeight") < 4500
        assert all(url.startswith((hub.url, "about:")) for url in page.requested)


async def test_edges_are_found_by_word_and_by_state_and_sorted(page: BrowserPage) -> None:
    async with hub_with_fleet() as (hub, _):
        await page.open(f"{hub.url}/console")
        await page.until(f"{ROWS} === 41")
        assert await page.js('document.querySelector(".table tbody tr").innerText.includes("silent")')
        await page.js('document.querySelector("#edge-filter").focus()')
        await page.call("Input.insertText", text="press weft")
        await page.until(f'{ROWS} === 1 && document.querySelector(".table tbody th").textContent === "press-1"')
        assert await page.js('document.querySelector(".count").textContent') == "1, of 41 rows"
        await page.js('document.querySelector("#edge-filter").value = ""')
        await page.js(
            's = document.querySelector("#edge-state"); s.value = "linked"; s.dispatchEvent(new Event("change"))'
        )
        await page.until(f"{ROWS} === 1")
        await page.js(
            's = document.querySelector("#edge-state"); s.value = "lost records"; s.dispatchEvent(new Event("change"))'
        )
        lost = '[...document.querySelectorAll(".table tbody tr")].map((row) => row.innerText)'
        await page.until(f'{lost}.length === 1 && {lost}[0].includes("press-1") && {lost}[0].includes("60")')
        await page.js('document.querySelector("#edge-state").value = "any state"')
        await page.js('document.querySelector("#edge-state").dispatchEvent(new Event("change"))')
        await page.js('document.querySelector("thead button").focus()')
        for _ in range(2):
            await page.key("Enter", 13)
        assert await page.js('document.querySelector("thead th").getAttribute("aria-sort")') == "descending"
        assert await page.js('document.querySelector(".table tbody th").textContent') == "press-1"


COLUMN = '[...document.querySelectorAll(".table thead th")].findIndex((each) => each.textContent === "{}")'
CELL = 'document.querySelector(".table tbody tr").children[{}]'
NEARLY_FULL = NodeReport(
    950 << 20, 1 << 30, 74 << 20, 10_000, 3 * 3600, [FunctionReport("hot", "where, set", 30, 20, 1, HOSTILE[0])], 2
)


async def test_an_edge_whose_disk_is_nearly_full_stands_out_with_its_functions(page: BrowserPage) -> None:
    async with hub_with_fleet(report=NEARLY_FULL) as (hub, _):
        await page.open(f"{hub.url}/console")
        await page.until(f"{ROWS} === 41")
        for title, wanted in (("Outage left", "3 h"), ("Disk", "74 MiB of 1 GiB free")):
            button = f'[...document.querySelectorAll(".table thead button")].find((e) => e.textContent === "{title}")'
            await page.js(f"{button}.click()")
            cell = CELL.format(COLUMN.format(title))
            # The edge that asks for something is first, with a mark; the others have not said it.
            await page.until(f'{cell}?.querySelector(".badge.bad")?.textContent.includes("{wanted}")')
            assert await page.js('document.querySelector(".table tbody th").textContent') == "press-1"
        assert await page.js('document.querySelectorAll(".table tbody .unknown").length') > 40
        await page.js('document.querySelector(".table tbody th a").click()')
        await page.until('document.querySelector(".figures .badge.bad")?.textContent.includes("3 h")')
        functions = 'document.querySelector("section[aria-label=Functions], [aria-label=Functions]")'
        await page.until(f'{functions}.innerText.includes("where, set")')
        assert HOSTILE[0] in await page.js(f"{functions}.innerText")
        assert "2 more" in await page.js("document.body.innerText")
        for width in WIDTHS:
            await page.size(width)
            assert await page.js(FITS), f"the page is wider than {width}"
        await page.open("about:blank")  # before the hub ends: it continues asking for the streams of the edge


HAS_ROOM = NodeReport(
    32 << 20, 1 << 30, 992 << 20, 10_000, 3 * 86400, [FunctionReport("hot", "where", 30, 20, 1, "no " * 50)], 0
)
LINES_OF = """((cell) => { const text = document.createRange(); text.selectNodeContents(cell.firstElementChild || cell);
    return new Set([...text.getClientRects()].map((each) => Math.round(each.bottom))).size; })"""
SCROLLS_BY = "((box) => box.scrollWidth - box.clientWidth)(document.querySelector('.table .scroll'))"


async def test_amounts_stay_on_one_line_and_the_table_scrolls_in_its_box(page: BrowserPage) -> None:
    async with hub_with_fleet(report=HAS_ROOM) as (hub, _):
        await page.size(1100)
        await page.open(f"{hub.url}/console#/fleet")
        await page.until(f"{ROWS} === 41")
        await page.js(
            '[...document.querySelectorAll(".table thead button")].find((e) => e.textContent === "Disk").click()'
        )
        for width in (1100, 390):
            await page.size(width)
            cell = CELL.format(COLUMN.format("Disk"))
            await page.until(f'{cell}?.textContent === "992 MiB of 1 GiB free"')
            assert await page.js(f"{LINES_OF}({cell})") == 1, width
            assert await page.js(FITS), f"the page is wider than {width}"
            # A narrow window has the cells of a row below each other.
            assert (await page.js(SCROLLS_BY) > 0) == (width == 1100)
        await page.size(1100)
        await page.open(f"{hub.url}/console#/edges/default/press-1")
        last = "document.querySelector(\"[aria-label=Functions] tbody td[data-label='Last error']\")"
        await page.until(f"{last}?.textContent.startsWith('no no')")
        assert await page.js(f"{LINES_OF}({last})") > 1, "long texts wrap"
        assert await page.js(FITS)
        await page.open("about:blank")


async def test_a_person_signs_in_once_and_the_token_goes_with_the_tab(page: BrowserPage, tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    reader = create_token(tokens, "mara", Scope.READER, "default")
    link = create_token(tokens, "link", Scope.EDGE, "default", "press-1")
    async with hub_with_fleet(token=link, tokens=tokens) as (hub, _):
        await page.open(f"{hub.url}/console")
        await page.until('document.activeElement.id === "token"')
        await page.call("Input.insertText", text="wrong")
        await page.key("Enter", 13)
        await page.until('document.querySelector("[role=alert]")?.textContent.includes("token")')
        assert await page.js("sessionStorage.length") == 0
        await page.call("Input.insertText", text=reader)
        await page.key("Enter", 13)
        await page.until(f"{ROWS} > 20")
        assert await page.js("document.cookie + Object.values(localStorage).join()") == "system"
        assert not any(reader in url for url in page.requested)
        await page.open("about:blank")
        await page.open(f"{hub.url}/console")
        await page.until(f"{ROWS} > 20")
        await page.js('document.querySelector("#leave").click()')
        await page.until('document.activeElement.id === "token"')
        assert await page.js('Object.keys(sessionStorage).includes("weft-token")') is False
        page.errors[:] = [each for each in page.errors if " 401 " not in each]  # the browser notes each refusal


async def test_every_control_has_a_name_and_the_page_its_landmarks(page: BrowserPage) -> None:
    async with hub_with_fleet() as (hub, _):
        await page.open(f"{hub.url}/console")
        await page.until(f"{ROWS} > 20")
        await page.key("Tab", 9)
        assert await page.js("document.activeElement.textContent") == "Skip to content"
        tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        found = [(each["role"]["value"], each.get("name", {}).get("value", "")) for each in tree if not each["ignored"]]
        roles = {role for role, _ in found}
        assert {"main", "navigation", "banner", "table", "columnheader", "rowheader", "search"} <= roles
        controls = {"button", "link", "textbox", "searchbox", "combobox", "table", "region"}
        assert [role for role, name in found if role in controls and not name] == []


async def test_a_stream_shows_what_is_here_what_is_to_come_and_what_never_comes(page: BrowserPage) -> None:
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        for width in WIDTHS:
            await page.size(width)
            await page.open("about:blank")
            await page.open(f"{hub.url}/console#/streams/telemetry{'' if width == WIDTHS[0] else '?window=60'}")
            # The edges of the gap are found by asking for records nearer and nearer to it.
            title = 'document.querySelector(".lanes rect.gap title")?.textContent'
            await page.until(f'{title}?.includes("60 records never come (budget)")')
            await page.until(f"{GAP_S.format(title)} <= {(LOST[1] - LOST[0] + 1) * STEP_S}")
            assert await page.js('document.querySelectorAll(".lanes line.moment").length') == 1
            assert await page.js('document.querySelector(".figures .good dd").textContent.endsWith(" ago")')
            assert await page.js('document.querySelector(".notice.warn, .notice.bad")') is None, "a live stream is well"
            assert await page.js(FITS), f"the page is wider than {width}"
        await page.open(f"{hub.url}/console#/streams/line-002")
        await page.until('document.querySelectorAll(".lanes rect.pending").length === 1')
        lane = 'document.querySelector(".lanes rect.pending").closest("li")'
        assert (await page.js(f"{lane}.innerText")).startswith("edge-00002")
        assert "100 records are to come" in await page.js(f'{lane}.querySelector("svg").getAttribute("aria-label")')
        await page.until('document.querySelectorAll(".lanes li").length > 5')
        assert "edge-00002" in await page.js('document.querySelector("section.notice.warn").innerText')
        await page.js('location.hash = "#/streams"')
        await page.until(f"{ROWS} > 5")
        held_back = '[...document.querySelectorAll(".badge.warn")].map((e) => e.closest("tr").firstChild.textContent)'
        assert "line-002" in await page.js(held_back)
        assert "telemetry" not in await page.js(held_back)


@asynccontextmanager
async def answered(page: BrowserPage, url: str, otherwise: str) -> AsyncIterator[None]:
    """The pages of a console whose requests have the answers that a script chooses for a URL, or the hub's."""
    await page.open(url)
    await page.until('document.querySelector("h1")')
    await page.js(
        f"hub = window.fetch; asked = []; otherwise = {otherwise}; window.fetch = (at, how) => {{ "
        "const url = String(at); asked.push(url); return otherwise(url) ?? hub(at, how); }; 0"
    )
    try:
        yield
    finally:
        await page.open("about:blank")


BROKEN = 'new Response(JSON.stringify({detail: "the store is away", advice: "wait"}), {status: 503})'


async def test_what_is_new_is_shown_while_neighbours_of_gaps_are_searched(page: BrowserPage) -> None:
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        hangs = '(url) => url.includes("/records?") ? new Promise(() => {}) : undefined'
        async with answered(page, f"{hub.url}/console#/fleet", hangs):
            await page.js('location.hash = "#/streams/telemetry"')
            figures = 'document.querySelector(".figures")?.innerText'
            await page.until(f'{figures}?.includes("{READINGS - LOST[1] + LOST[0]}")')
            await page.until('asked.some((each) => each.includes("/records?"))')
            log.append(*readings(READINGS, READINGS + 60, time.time_ns() - (READINGS + 60) * STEP_S * NS))
            await page.until(f'{figures}?.includes("{READINGS + 60 - LOST[1] + LOST[0]}")')


async def test_a_search_that_failed_is_made_again_for_the_chosen_tenant_and_passes_what_is_gone(
    page: BrowserPage,
) -> None:
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        once = (
            '(url) => { const offset = new URL(url).searchParams.get("offset"); if (offset === null) return; '
            f"if (!window.failed) {{ window.failed = true; return Promise.resolve({BROKEN}); }} "
            'if (Number(offset) < 200) return Promise.resolve(new Response("{}", {status: 410})); }'
        )
        async with answered(page, f"{hub.url}/console#/fleet", once):
            await page.js('sessionStorage.setItem("weft-tenant", "default"); location.hash = "#/streams/telemetry"')
            await page.until("window.failed")
            log.append(*readings(READINGS, READINGS + 60, time.time_ns() - (READINGS + 60) * STEP_S * NS))
            title = 'document.querySelector(".lanes rect.gap title")?.textContent'
            await page.until(f"{GAP_S.format(title)} <= {(LOST[1] - LOST[0] + 1) * STEP_S}")
            asked = await page.js('asked.filter((each) => each.includes("/v1/streams/telemetry"))')
            assert [each for each in asked if "tenant=default" not in each] == []
        # The page of an edge asks for no record of another.
        async with answered(page, f"{hub.url}/console#/fleet", "() => undefined"):
            await page.js('location.hash = "#/edges/default/press-1"')
            await page.until(f"{GAP_S.format(title)} <= {(LOST[1] - LOST[0] + 1) * STEP_S}")
            asked = await page.js('asked.filter((each) => each.includes("/records?"))')
            assert [each for each in asked if "edge=press-1" not in each] == []


async def test_what_fails_beside_a_list_is_named_and_takes_nothing_away(page: BrowserPage) -> None:
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        broken = f'(url) => url.includes("/v1/troubles") ? Promise.resolve({BROKEN}) : undefined'
        async with answered(page, f"{hub.url}/console#/streams", broken):
            await page.js('location.hash = "#/fleet"')
            await page.until(f"{ROWS} === 41")
            await page.until('document.body.innerText.includes("at the hub is not known: the store is away")')
            await page.js('location.hash = "#/tenants"')
            await page.until('document.querySelector("h1").textContent === "Tenants"')
            await page.until('document.body.innerText.includes("reached a quota is not known: the store is away")')
        hangs = '(url) => url.includes("/v1/troubles") ? new Promise(() => {}) : undefined'
        async with answered(page, f"{hub.url}/console#/streams", hangs):
            await page.js('location.hash = "#/fleet"')
            await page.until(f"{ROWS} === 41")
        once = (
            f'((failed) => (url) => {{ if (!failed && url.includes("limit=610")) {{ failed = true; '
            f"return Promise.resolve({BROKEN}); }} }})(false)"
        )
        async with answered(page, f"{hub.url}/console#/fleet", once):
            await page.js('location.hash = "#/topics?stream=telemetry"')
            await page.until('document.body.innerText.includes("the store is away")')
            log.append(*readings(READINGS, READINGS + 60, time.time_ns() - (READINGS + 60) * STEP_S * NS))
            await page.until('asked.filter((each) => each.includes("limit=610")).length === 2')


TROUBLES = {
    "at_quota": [{"tenant": "default", "quota": "bytes_per_second", "limit": 1024, "wait_seconds": 99, "edges": 41}],
    "conflicts": [],
    "conflicts_more": 0,
    "open_gaps": [
        {"tenant": "default", "edge": "scrapped", "log": "00000000000000aa", "stream": "telemetry", "first": 7}
        | {"records": None, "since": "2026-11-20T05:00:00Z", "until": "2026-11-20T06:00:00Z", "why": "no last word"}
    ],
    "open_gaps_more": 0,
    "lost": [
        {"tenant": "acme", "edge": "restored", "log": "00000000000000bb", "stream": "telemetry", "shard": 0}
        | {"records": 2856, "first_seq": 5892}
    ],
}


async def test_who_waits_at_a_quota_and_all_that_is_lost_are_a_click_away(page: BrowserPage) -> None:
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        answer = f"Promise.resolve(new Response({json.dumps(json.dumps(TROUBLES))}))"
        told = f'(url) => url.includes("/v1/troubles") ? {answer} : undefined'
        async with answered(page, f"{hub.url}/console#/streams", told):
            await page.js('location.hash = "#/fleet"')
            await page.until(HAS.format(".notice", "Its 41 edges wait 1 min 39 s"))
            await page.js('document.querySelector(".notice a").click()')
            await page.until(f'document.querySelector("#edge-filter").value === "default" && {ROWS} === 41')
            await page.js('document.querySelector(".figures a").click()')
            lines = '[...document.querySelectorAll(".table tbody tr")].map((row) => row.innerText)'
            await page.until(f'{lines}.length === 3 && {lines}[2].includes("its log was full")')
            assert await page.js(f'{lines}[0].includes("unknown") && {lines}[0].includes("05:00:00 to 06:00:00")')
            assert await page.js(f'{lines}[1].includes("2,856") && {lines}[1].includes("lost by the hub")')
            await page.js('sessionStorage.setItem("weft-tenant", "default"); location.hash = "#/fleet"')
            await page.js('location.hash = "#/losses"')
            await page.until(f'{lines}.length === 2 && !{lines}.some((each) => each.includes("restored"))')


async def test_records_are_decoded_drawn_with_their_gap_and_followed(
    page: BrowserPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A request that ends before it finds the newest records, as in a long log, says where to continue.
    monkeypatch.setattr(records, "Search", partial(Search, 1))
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        for width in WIDTHS:
            await page.size(width)
            await page.open("about:blank")
            await page.open(f"{hub.url}/console#/records/telemetry")
            await page.until('document.querySelector(".chart canvas")')
            assert await page.js(FITS), f"the page is wider than {width}"
        assert await page.js('[...document.querySelector("#field").options].map((each) => each.value)') == [
            "motor.current",
            "temperature",
        ]
        assert "60 records are not here" in await page.js('document.querySelector("ul[aria-label^=Gaps]").innerText')
        newest = 'document.querySelector(".table tbody tr").innerText'
        assert '"temperature"' in await page.js(newest)
        await page.until('document.querySelector("#live").textContent === "live"')
        log.append(*readings(READINGS, READINGS + 1, time.time_ns() - READINGS * STEP_S * NS))
        await page.until(f'{newest}.includes("{READINGS}")')
        await page.js(
            'document.querySelector("#record-edge").value = "none"; '
            'document.querySelector("#record-edge").dispatchEvent(new Event("input"))'
        )
        await page.until('document.querySelector(".table tbody").innerText.includes("No record.")')


async def test_a_record_is_followed_to_its_object_in_the_store(page: BrowserPage) -> None:
    store = MemoryStore()
    async with hub_with_fleet(store=store) as (hub, log):
        await log.until_released(READINGS)
        await page.open(f"{hub.url}/console#/records/telemetry")
        await page.until('document.querySelector(".table tbody a")')
        seq = await page.js('document.querySelector(".table tbody a").textContent')
        await page.js('document.querySelector(".table tbody a").click()')
        await page.until('document.querySelectorAll(".steps > li").length === 4')
        reported = await page.js('document.querySelector(".steps").innerText')
        wanted = ("plant/hall-2/press-1/telemetry", "press-1", seq, '"motor"')
        assert [each for each in wanted if each not in reported] == []
        assert await store.get(await page.js('[...document.querySelectorAll(".steps code")].at(-1).textContent'))
        for width in WIDTHS:
            await page.size(width)
            assert await page.js(FITS), f"the page is wider than {width}"
        lane = f"edge=press-1&log={PRESS.log_id:016x}&seq={LOST[0] + 1}"
        await page.open(f"{hub.url}/console#/trace/telemetry?{lane}")
        await page.until('document.querySelector("[role=alert]")?.textContent.includes("It never comes: budget.")')


async def test_records_are_followed_where_more_streams_change_than_an_event_names(
    page: BrowserPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "NAMED_MAX", 0)
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        await page.open(f"{hub.url}/console#/records/telemetry")
        newest = 'document.querySelector(".table tbody tr").innerText'
        await page.until(f'{newest}.includes("temperature")')
        await page.until('document.querySelector("#live").textContent === "live"')
        log.append(*readings(READINGS, READINGS + 1, time.time_ns() - READINGS * STEP_S * NS))
        await page.until(f'{newest}.includes("{READINGS}")')
        # An edge in a shard in which the stream had no record when the page was opened.
        other = next(
            name
            for name in (f"saw-{n}" for n in range(50))
            if shard_of("default", name, 2) != shard_of("default", "press-1", 2)
        )
        second = EdgeLog("telemetry", PayloadKind.JSON)
        second.append(*readings(0, 1, time.time_ns()))
        async with running_link(hub, second, LinkIdentity("default", other, 7, "test")):
            await page.until(f'document.querySelector(".table tbody").innerText.includes("{other}")')


async def test_a_tenant_is_forgotten_with_the_token_that_chose_it(page: BrowserPage, tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    link = create_token(tokens, "link", Scope.EDGE, "default", "press-1")
    admin = create_token(tokens, "admin", Scope.ADMIN, "default")
    reader = create_token(tokens, "reader", Scope.READER, "default")
    async with hub_with_fleet(token=link, tokens=tokens) as (hub, _):
        await page.open(f"{hub.url}/console")
        await page.until('document.activeElement.id === "token"')
        await page.call("Input.insertText", text=admin)
        await page.key("Enter", 13)
        await page.until(f"{ROWS} > 20")
        await page.js(
            'const t = document.querySelector("#tenant"); t.value = "acme"; t.dispatchEvent(new Event("change"))'
        )
        await page.until('document.querySelector(".table tbody").innerText.includes("No edge")')
        await page.js('document.querySelector("#leave").click()')
        await page.until('document.activeElement.id === "token"')
        await page.call("Input.insertText", text=reader)
        await page.key("Enter", 13)
        await page.until(f"{ROWS} > 20")
        page.errors[:] = [each for each in page.errors if " 401 " not in each]


async def test_an_operator_sees_nodes_tables_and_acts_and_a_reader_does_not(page: BrowserPage, tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    link = create_token(tokens, "link", Scope.EDGE, "default", "press-1")
    given = {scope: create_token(tokens, scope.value, scope, "default") for scope in (Scope.ADMIN, Scope.READER)}
    pages = {
        Scope.ADMIN: "Fleet Streams Topics Tables Pipelines Nodes Regions Tokens Audit log",
        Scope.READER: "Fleet Streams Topics Tables Pipelines",
    }
    store = open_store(str(tmp_path / "store"))
    async with hub_with_fleet(token=link, store=store, tokens=tokens, table_interval_s=0.05) as (hub, log):
        await log.until_released(READINGS)
        await page.open(f"{hub.url}/console")
        for scope, token in given.items():
            await page.until('document.activeElement.id === "token"')
            await page.call("Input.insertText", text=token)
            await page.key("Enter", 13)
            links = '[...document.querySelectorAll("nav a")].filter((a) => !a.hidden)'
            await page.until(f"{ROWS} > 20")
            assert await page.js(f'{links}.map((a) => a.textContent).join(" ")') == pages[scope]
            await page.js('location.hash = "#/tables"')
            row = '[...document.querySelectorAll(".table tbody tr")].find((r) => r.innerText.includes("telemetry"))'
            await page.until(
                f'document.querySelector("h1").textContent === "Tables" && {row}.innerText.includes("good")'
            )
            assert "660" in await page.js(f"{row}.innerText")
            process = hub.status().name
            await page.until(f'{row}.innerText.includes("{process}")')  # who makes the table
            assert await page.js(f'{row}.querySelector(".unknown[title*=removed]") !== null'), "no vacuum so far"
            if scope is Scope.ADMIN:
                await page.js('location.hash = "#/nodes"')
                await page.until(f'document.querySelector("h1").textContent === "Nodes" && {ROWS} === 3')
                assert await page.js('document.querySelectorAll(".table tbody button").length') == 0
                reported = await page.js('document.querySelector(".table tbody tr").innerText')
                assert " cores" in reported, "its load"
                assert "0.0 s" in reported, "its clock"
                await page.js('location.hash = "#/regions"')
                await page.until('document.querySelector(".table tbody").innerText.includes("No region.")')
                await page.js('location.hash = "#/tokens"')
                names = '[...document.querySelectorAll(".table tbody th")].map((name) => name.textContent)'
                await page.until(f'{names}.sort().join(" ") === "admin link reader"')
                await page.js('location.hash = "#/audit"')
                await page.until('document.querySelector(".table tbody").innerText.includes("a test")')
                acts = await page.js('document.querySelector(".table tbody").innerText')
                assert acts.count("link") == 1, "the first of several names stands there once"
            await page.js('document.querySelector("#leave").click(); location.hash = ""')
        page.errors[:] = [each for each in page.errors if " 401 " not in each]


async def test_an_administrator_makes_a_token_drains_a_process_and_splits_a_shard_by_the_keys(
    page: BrowserPage,
) -> None:
    store, second = MemoryStore(), EdgeLog()
    second.append(*readings(0, 1, time.time_ns()))
    async with hub_with_fleet(store=store, cluster_log_interval_s=0.02) as (hub, _):
        async with running_link(hub, second, LinkIdentity("default", "saw-7", 7, "test")):  # it and press-1 would part
            await second.until_released(1)
        await open_to_an_administrator(hub, store)
        await page.open(f"{hub.url}/console#/tokens")
        await page.until('document.activeElement.id === "token"')
        await page.call("Input.insertText", text=ADMIN)
        await page.key("Enter", 13)
        await page.until(f'{ROWS} === 1 && document.querySelector(".table tbody th").textContent === "ada"')
        await page.js('document.querySelector("form.filters button").focus()')
        await page.key("Enter", 13)
        await page.until('document.activeElement.name === "name"')
        await page.call("Input.insertText", text=HOSTILE[0])
        await page.key("Enter", 13)
        secret = await page.until('document.querySelector("#secret")?.value')
        await until(lambda: hub._declared.credentials.identify(secret) is not None)
        await page.key("Escape", 27)
        await page.until(f'!document.querySelector("dialog") && {ROWS} === 2')
        assert secret not in await page.js("document.documentElement.outerHTML")
        assert await page.js('document.querySelector("main img")') is None
        await page.js(f'document.querySelector("button[aria-label=\\"Remove {HOSTILE[0]}\\"]").focus()')
        await page.key("Enter", 13)
        await page.until('document.activeElement.name === "reason"')
        await page.key("Enter", 13)
        await page.until(f"{ROWS} === 1")
        assert hub._declared.credentials.identify(secret) is None
        await page.js('location.hash = "#/nodes"')
        drain = 'document.querySelector("button[aria-label^=Drain]")'
        await page.until(f"Boolean({drain})")
        await page.js(f"{drain}.focus()")
        await page.key("Enter", 13)
        await page.until('document.querySelector("dialog").innerText.includes("2 shards")')
        await page.key("Enter", 13)
        await page.until('document.querySelector("dialog .notice").innerText.includes("no other running process")')
        await page.key("Escape", 27)
        await page.until(f"document.activeElement === {drain}")
        await page.js('document.querySelector("button[aria-label^=Split]").click()')
        await page.until('document.querySelector("dialog").innerText.includes("1 of its 2 edges move")')
        await page.key("Enter", 13)
        await page.until('document.querySelector(".notice.good").innerText.includes("is split")')
        assert hub.cluster.tree.count == 3
        page.errors[:] = [each for each in page.errors if " 401 " not in each and " 409 " not in each]


def _is_bound(hub: Hub, links: int | None) -> bool:
    return hub._declared.quotas.of("default").links == links


def _is_paused(hub: Hub, state: bool) -> bool:
    return hub._declared.regions.of("east").paused is state


async def test_an_administrator_sets_and_removes_a_quota_and_pauses_a_region_by_the_keys(page: BrowserPage) -> None:
    store = MemoryStore()
    regions = to("http://127.0.0.1:9")  # no hub answers there
    async with hub_with_fleet(store=store, cluster_log_interval_s=0.02, regions=regions) as (hub, _):
        await open_to_an_administrator(hub, store)
        await page.open(f"{hub.url}/console#/tenants")
        await page.until('document.activeElement.id === "token"')
        await page.call("Input.insertText", text=ADMIN)
        await page.key("Enter", 13)
        row = 'document.querySelector(".table tbody tr")'
        verb = f'{row}?.querySelector("button[aria-label^=Set]")'
        for links, shown in (("7", '!== "no bound"'), ("", '=== "no bound"')):
            await page.until(f"Boolean({verb})")
            await page.js(f"{verb}.focus()")
            await page.key("Enter", 13)
            await page.until('document.querySelector("dialog[open]")')
            await page.js('document.querySelector("dialog input[name=links]").select()')
            await page.call("Input.insertText", text=links) if links else await page.key("Delete", 46)
            await page.key("Enter", 13)
            await page.until(f'!document.querySelector("dialog") && {row}.querySelectorAll("td")[2].innerText {shown}')
            wanted = int(links) if links else None
            await until(partial(_is_bound, hub, wanted))
        for width in WIDTHS:
            await page.size(width)
            assert await page.js(FITS), f"the page is wider than {width}"
        await page.js('location.hash = "#/regions"')
        for verb, state in (("Pause", True), ("Resume", False)):
            found = f'document.querySelector("button[aria-label=\\"{verb} east\\"]")'
            await page.until(f"Boolean({found})")
            await page.js(f"{found}.focus()")
            await page.key("Enter", 13)
            await page.until('document.activeElement.name === "reason"')
            await page.call("Input.insertText", text=f"{verb} it")
            await page.key("Enter", 13)
            await page.until('document.querySelector(".notice.good")')
            await until(partial(_is_paused, hub, state))
        await page.until('document.querySelectorAll(".table")[1].querySelectorAll("tbody tr").length === 2')
        await page.until('document.querySelector(".table tbody .badge.warn, .table tbody .badge.quiet")')
        for width in WIDTHS:
            await page.size(width)
            assert await page.js(FITS), f"the page is wider than {width}"
        await page.js('location.hash = "#/audit"')
        await page.until('document.querySelector(".table tbody").innerText.includes("Resume it")')
        assert "PUT /v1/tenants/{tenant}" in await page.js('document.querySelector(".table tbody").innerText')
        page.errors[:] = [each for each in page.errors if " 401 " not in each]


async def test_topics_are_a_tree_that_is_searched_as_one_types(page: BrowserPage) -> None:
    async with hub_with_fleet(60, 60) as (hub, log):  # more streams than the tree has, most without a record
        names = [f"plant/hall-{n % 3}/press-{n}/celsius" for n in range(60)] + [
            f"plant/{each}/celsius" for each in HOSTILE
        ]
        log.append(*messages(READINGS, names))
        for width in WIDTHS:
            await page.size(width)
            await page.open("about:blank")
            await page.open(f"{hub.url}/console#/topics")
            await page.until('document.querySelector(".tree") && document.body.innerText.includes("64 topics")')
            assert await page.js(FITS), f"the page is wider than {width}"
        assert await page.js('document.querySelector(".tree img")') is None
        assert await page.js('document.querySelectorAll(".tree .leaf").length') < 30, (
            "branches open as they are asked for"
        )
        await page.js('document.querySelector("#topic-search").focus()')
        await page.call("Input.insertText", text="press-41")
        await page.until('document.querySelectorAll(".tree .leaf").length === 1')
        leaf = await page.js('document.querySelector(".tree .leaf").innerText')
        assert "press-41/celsius" in leaf
        assert "41" in leaf
        assert "ago" in leaf
        await page.js('document.querySelector(".tree .leaf a").click()')
        await page.until('document.querySelector("#record-topic")?.value.endsWith("press-41/celsius")')
        await page.until(f"{ROWS} === 1")


async def test_time_is_zoomed_from_weeks_to_seconds_and_charted_with_its_gap(page: BrowserPage) -> None:
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        await page.size(1440)
        await page.open(f"{hub.url}/console#/streams/telemetry?window=120")
        said = 'document.querySelector("section[aria-label^=\\"A field\\"] > p").textContent'
        await page.until(f'{said}.includes("1 gap: records are missing there")')
        gap = 'document.querySelector(".lanes rect.gap")'
        await page.until(f'{gap}?.textContent.includes("60 records never come (budget)")')
        await page.js('document.querySelector("#window").value = 12 * 7 * 86400000')
        await page.js('document.querySelector("#window").dispatchEvent(new Event("change"))')
        await page.until('/^[0-9]{2}-[0-9]{2}$/.test(document.querySelector(".axis text").textContent)')
        await page.js('document.querySelector("#window").value = 21600000')
        await page.js('document.querySelector("#window").dispatchEvent(new Event("change"))')
        # Not each of them: midnight has its date.
        times = "(each) => /^[0-9]{2}:[0-9]{2}$/.test(each.textContent)"
        await page.until(f'[...document.querySelectorAll(".axis text")].some({times})')
        title = f'{gap}?.querySelector("title").textContent'  # its ends are asked for nearer and nearer
        await page.until(f"{GAP_S.format(title)} <= {(LOST[1] - LOST[0] + 1) * STEP_S}")
        # A stretch around the gap is drawn with the mouse; then the keys continue to seconds.
        box = await page.js(f"(({{x, y, width}}) => [x, y, width])({gap}.getBoundingClientRect())")
        for kind, x in (("mousePressed", box[0] - 20), ("mouseMoved", box[0]), ("mouseReleased", box[0] + box[2] + 20)):
            await page.call("Input.dispatchMouseEvent", type=kind, x=x, y=box[1] + 5, button="left", clickCount=1)
        await page.until(f"{gap}.getBoundingClientRect().width > 4 * {box[2]}")
        shown = 'document.querySelector("#window option:checked").textContent'
        for _ in range(9):
            await page.call("Input.dispatchKeyEvent", type="keyDown", key="+", windowsVirtualKeyCode=187)
        await page.until(f"/^[0-9]+ s(econds)?$/.test({shown})")
        await page.until(f'{said}.includes("This time is complete.")')
        await page.key("End", 35)
        await page.until('document.querySelector(".axis").textContent.endsWith("now")')
        await page.until(f'{said}.includes("Shaded: records of this time may still come.")')


async def test_an_edge_has_a_page_of_its_own(page: BrowserPage) -> None:
    async with hub_with_fleet() as (hub, log):
        await log.until_released(READINGS)
        await page.open(f"{hub.url}/console")
        await page.until(f"{ROWS} === 41")
        await page.js(
            '[...document.querySelectorAll(".table tbody th a")].find((a) => a.textContent === "press-1").click()'
        )
        await page.until('document.querySelector("h1").textContent === "press-1"')
        await page.until('document.querySelector(".lanes .lane").textContent.startsWith("telemetry")')
        assert await page.js('document.querySelectorAll(".lanes li").length') == 1
        await page.until(
            'document.querySelector(".lanes rect.gap title")?.textContent.includes("60 records never come (budget)")'
        )
        title = 'document.querySelector(".lanes rect.gap title")?.textContent'
        await page.until(f"{GAP_S.format(title)} <= {(LOST[1] - LOST[0] + 1) * STEP_S}")
        figures = await page.js('document.querySelector(".figures").innerText')
        assert "linked" in figures
        assert "weft 0.1.0" in figures
        for width in WIDTHS:
            await page.size(width)
            assert await page.js(FITS), f"the page is wider than {width}"
        await page.js('location.hash = "#/edges/default/edge-00002"')
        await page.until('document.querySelectorAll(".lanes li").length === 2')
        assert "hole" in await page.js('document.querySelector(".notice").innerText')
        for nowhere, said in (
            ("edges/default/nobody", "knows no edge nobody"),
            ("streams/none", "There is no stream none"),
        ):
            await page.js(f'location.hash = "#/{nowhere}"')
            await page.until(f'document.querySelector(".notice")?.innerText.includes("{said}")')
            assert await page.js(
                '[...document.querySelectorAll("main .table, main .timeline")].every((e) => !e.checkVisibility())'
            )
        page.errors[:] = [each for each in page.errors if " 404 " not in each]  # the browser notes what is not there


CLICK = """(() => {{ const found = [...document.querySelectorAll({within})].find((each) => each.offsetParent
    && each.textContent.trim().startsWith({text})); found?.click(); return Boolean(found); }})()"""
LINES = "[...document.querySelectorAll('.table tbody tr')]"
STREAM = ["nav a|Streams", "tbody a|telemetry"]
QUESTIONS = {
    "which edge was not heard of for the longest time, and why": (
        ["thead button|Last seen"],
        f"{LINES}[0]?.innerText.includes('silent')",
    ),
    "what is missing of an edge, and what to do": (
        ["tbody a|edge-00002"],
        f"{HAS.format('.notice', 'hole')} && document.querySelector('.lanes rect.pending')",
    ),
    "is the time before complete for line 4": (
        ["nav a|Streams", "tbody a|line-004", "button|Before"],
        f"{HAS.format('.filters .count', ' to ')} && document.querySelector('.lanes rect.held')"
        f" && {HAS.format('.verdict', 'This time is complete:')}",
    ),
    "who holds a stream back": (["nav a|Streams", "tbody a|line-001"], HAS.format("section.notice", "edge-00001")),
    "how many records never come, and for which reason": (
        STREAM,
        HAS.format(".lanes rect.gap title", "60 records never come (budget)"),
    ),
    "how was the temperature, and where is nothing known of it": (
        STREAM,
        HAS.format('section[aria-label^="A field"] > p', "1 gap"),
    ),
    "which records are lost for good, and why": (
        [".figures a|60"],
        f"{HAS.format('.table tbody', 'its log was full')} && {HAS.format('.table td.short', ' to ')}",
    ),
    "which message made this row": (
        ["nav a|Streams", 'tbody a[aria-label="Records of telemetry"]|', "td.number a|"],
        f"{HAS.format('.steps', 'plant/hall-2/press-1/telemetry')} && {HAS.format('.way', 'Hub')}",
    ),
    "what does a machine say now": (["nav a|Topics"], HAS.format(".tree .leaf .value", "temperature")),
    "does a table stand still": (
        ["nav a|Tables"],
        f"{LINES}.some((e) => /telemetry/.test(e.innerText) && /good/.test(e.innerText))",
    ),
    "is this node well, and what does it own": (
        ["nav a|Nodes"],
        f"{HAS.format('.figures', 'ready')} && {LINES}.length === 3",
    ),
    "how far is the other region behind, and why": (
        ["nav a|Regions"],
        f"{HAS.format('.table tbody', 'cannot connect')} && {HAS.format('.table tbody', 'of at most 7 d')}",
    ),
    "what may a tenant use": (["nav a|Tenants"], HAS.format(".table tbody", "no bound")),
}
CLICKS_MAX = 3


async def test_questions_of_an_operator_are_answered_by_few_clicks(page: BrowserPage, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    regions = to("http://127.0.0.1:9")  # no hub answers there
    async with hub_with_fleet(store=store, table_interval_s=0.05, regions=regions) as (hub, log):
        await log.until_released(READINGS)
        await page.size(1440)
        for question, (clicks, answer) in QUESTIONS.items():
            assert len(clicks) <= CLICKS_MAX
            await page.open("about:blank")
            await page.open(f"{hub.url}/console")
            for click in clicks:
                within, text = click.split("|")
                await page.until(CLICK.format(within=json.dumps(within), text=json.dumps(text)))
            assert await page.until(f"Boolean({answer})"), question
    # So many pages in so few seconds are more listeners than one address may have for a moment.
    page.errors[:] = [each for each in page.errors if " 429 " not in each]


async def test_a_hub_that_was_killed_is_shown_again_under_an_open_page(page: BrowserPage, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = tmp_path / "hub.yaml"
    config.write_text(f"listen: 127.0.0.1:{port}\nstore: {tmp_path / 'store'}\nshards: 2\n")
    live = 'document.querySelector("#live").textContent'
    hub = Node("hub", config)
    try:
        await page.open(f"{hub.url}console")
        await page.until(f'{live} === "live"')
        await asyncio.to_thread(hub.kill)
        await page.until(f'{live} === "reconnecting"')
        hub = await asyncio.to_thread(Node, "hub", config)
        await page.until(f'{live} === "live"')
        await page.until('document.querySelector(".table .empty")')
    finally:
        hub.kill()
    page.errors[:] = [each for each in page.errors if "ERR_" not in each]  # the browser notes what was not answered


# --- The console for people who do not see it, or have no mouse: axe finds nothing, and the keys reach everything


PAGES = {
    "fleet": ".table tbody th a",
    "edges/default/press-1": ".lanes rect.gap",
    "edges/default/edge-00002": ".notice",
    "losses": ".table tbody th a",
    "streams": ".table tbody th a",
    "streams/telemetry": ".chart canvas",
    "topics": ".tree .leaf",
    "tables": ".table tbody .badge.good",
    "records/telemetry": ".chart canvas",
    f"trace/telemetry?edge=press-1&log={PRESS.log_id:016x}&seq=5": ".steps > li:nth-child(4)",
    "pipelines": ".table tbody .badge.bad",
    "nodes": "button[aria-label^=Split]",
    "regions": "button[aria-label^=Pause]",
    "tokens": "button[aria-label^=Rotate]",
    "tenants": "button[aria-label^=Set]",
    "audit": ".table tbody th",
}
"""Page -> what is there when it is whole."""
FOCUS = """(() => { const at = document.activeElement;
    const named = at.getAttribute("aria-label") || at.labels?.[0]?.textContent || at.textContent.trim().slice(0, 60);
    const seen = getComputedStyle(at); const box = at.getBoundingClientRect();
    return [at.localName, named, at === document.body || (seen.outlineStyle !== "none" && box.width > 0)]; })()"""
NAME = """((each) => [each.localName, (each.getAttribute("aria-label") || "").split(".")[0]
    || each.labels?.[0]?.textContent || each.textContent].join(" "))"""
REACHABLE = """[...document.querySelectorAll(
    "main a[href], main button, main input, main select, main summary, main [tabindex='0']")].filter((each) =>
    !each.disabled && each.checkVisibility() && !each.closest("details:not([open]) > :not(summary)"))
    .map({NAME}).filter((each) => !globalThis.reached.has(each))"""
TABS_MAX = 400
WALKS = 3


@asynccontextmanager
async def signed_in(page: BrowserPage, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a console that an administrator has opened."""
    store = open_store(str(tmp_path / "store"))
    quick: dict[str, Any] = {
        "table_interval_s": 0.05,
        "cluster_log_interval_s": 0.02,
        "regions": to("http://127.0.0.1:9"),
    }
    async with hub_with_fleet(4, 3, store=store, **quick) as (hub, log):
        await log.until_released(READINGS)
        failed = {
            "stream": "telemetry",
            "state": "failed",
            "error": "no such column",
            "batch": 3,
            "records": 7,
            "seconds": 1.5,
            "rate": 2.5,
        }
        assert (await call(hub, "PUT", "/v1/pipelines/machine-hours", "", failed))[0] == 200
        await open_to_an_administrator(hub, store)
        await page.size(1440, 1000)
        await page.open(f"{hub.url}/console")
        await page.until('document.activeElement.id === "token"')
        yield f"{hub.url}/console"


async def opened(page: BrowserPage, name: str) -> None:
    await page.js(f"location.hash = '#/{name}'")
    await page.until(f"document.querySelector({PAGES[name]!r})")


@pytest.fixture
async def accessibility_page(tmp_path: Path) -> AsyncIterator[BrowserPage]:
    async with browser_page(tmp_path / "browser") as opened:
        yield opened
        assert [each for each in opened.errors if " 401 " not in each] == []


@pytest.mark.timeout(400)
async def test_axe_finds_nothing_on_any_page_in_the_dark_and_in_the_light(
    accessibility_page: BrowserPage, tmp_path: Path
) -> None:
    found: dict[str, list[Any]] = {}
    async with signed_in(accessibility_page, tmp_path):
        found["login"] = await axe_finds(accessibility_page)
        await accessibility_page.call("Input.insertText", text=ADMIN)
        await accessibility_page.key("Enter", 13)
        await accessibility_page.until(f"document.querySelector({PAGES['fleet']!r})")
        for is_dark in (False, True):
            await accessibility_page.dark(is_dark)
            for name in PAGES:
                await opened(accessibility_page, name)
                found[f"{name}, dark: {is_dark}"] = await axe_finds(accessibility_page)
            await opened(accessibility_page, "nodes")
            await accessibility_page.js('document.querySelector("button[aria-label^=Drain]").click()')
            await accessibility_page.until('document.querySelector("dialog[open]")')
            found[f"dialogue, dark: {is_dark}"] = await axe_finds(accessibility_page)
            await accessibility_page.key("Escape", 27)
            await opened(accessibility_page, "tenants")
            await accessibility_page.js('document.querySelector("button[aria-label^=Set]").click()')
            await accessibility_page.until('document.querySelector("dialog[open]")')
            found[f"dialogue of quotas, dark: {is_dark}"] = await axe_finds(accessibility_page)
            await accessibility_page.key("Escape", 27)
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.timeout(400)
async def test_the_keys_alone_reach_every_page_and_all_of_it(accessibility_page: BrowserPage, tmp_path: Path) -> None:
    async with signed_in(accessibility_page, tmp_path):
        await accessibility_page.call("Input.insertText", text=ADMIN)
        await accessibility_page.key("Enter", 13)
        await accessibility_page.until(f"document.querySelector({PAGES['fleet']!r})")
        names = await accessibility_page.js('[...document.querySelectorAll("nav a")].map((each) => each.textContent)')
        for name in names:
            await accessibility_page.js("document.body.tabIndex = -1, document.body.focus()")
            for _ in range(TABS_MAX):
                await accessibility_page.key("Tab", 9)
                if (await accessibility_page.js(FOCUS))[1] == name:
                    break
            await accessibility_page.key("Enter", 13)
            await accessibility_page.until(
                f"document.title.startsWith({name!r}) && document.activeElement.id === 'main'"
            )
        for name in PAGES:
            await opened(accessibility_page, name)
            # What comes into a page while it is walked through is reached by the next walk.
            for _ in range(WALKS):
                await accessibility_page.js("document.querySelector('#main').focus()")
                await accessibility_page.js("globalThis.reached = new Set(), 0")
                for _ in range(TABS_MAX):
                    await accessibility_page.key("Tab", 9)
                    kind, text, is_seen = await accessibility_page.js(FOCUS)
                    assert is_seen, f"{name}: {kind} {text!r} has the focus and does not show it"
                    if not await accessibility_page.js(
                        'document.querySelector("main").contains(document.activeElement)'
                    ):
                        break
                    await accessibility_page.js(f"globalThis.reached.add({NAME}(document.activeElement)), 0")
                if (missed := await accessibility_page.js(REACHABLE.replace("{NAME}", NAME))) == []:
                    break
            assert missed == [], name
