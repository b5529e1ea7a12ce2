"""The console for people who do not see it, or have no mouse: axe finds nothing, and the keys reach everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.auth.test_rights import call
from tests.cloud_hub.console.fleet import PRESS, READINGS, hub_with_fleet
from tests.cloud_hub.facts.test_administration import ADMIN, open_to_an_administrator
from tests.cloud_hub.regions.fabric import to
from tests.support.axe import axe_finds
from tests.support.browser import BrowserPage, browser_page, needs_browser
from weft.storage.object_store import open_store

pytestmark = [pytest.mark.slow, needs_browser]
PAGES = {
    "fleet": ".table tbody th a",
    "edges/default/press-1": ".lanes rect.gap",
    "edges/default/edge-00002": ".notice",
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
async def page(tmp_path: Path) -> AsyncIterator[BrowserPage]:
    async with browser_page(tmp_path / "browser") as opened:
        yield opened
        assert [each for each in opened.errors if " 401 " not in each] == []


@pytest.mark.timeout(400)
async def test_axe_finds_nothing_on_any_page_in_the_dark_and_in_the_light(page: BrowserPage, tmp_path: Path) -> None:
    found: dict[str, list[Any]] = {}
    async with signed_in(page, tmp_path):
        found["login"] = await axe_finds(page)
        await page.call("Input.insertText", text=ADMIN)
        await page.key("Enter", 13)
        await page.until(f"document.querySelector({PAGES['fleet']!r})")
        for is_dark in (False, True):
            await page.dark(is_dark)
            for name in PAGES:
                await opened(page, name)
                found[f"{name}, dark: {is_dark}"] = await axe_finds(page)
            await opened(page, "nodes")
            await page.js('document.querySelector("button[aria-label^=Drain]").click()')
            await page.until('document.querySelector("dialog[open]")')
            found[f"dialogue, dark: {is_dark}"] = await axe_finds(page)
            await page.key("Escape", 27)
            await opened(page, "tenants")
            await page.js('document.querySelector("button[aria-label^=Set]").click()')
            await page.until('document.querySelector("dialog[open]")')
            found[f"dialogue of quotas, dark: {is_dark}"] = await axe_finds(page)
            await page.key("Escape", 27)
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.timeout(400)
async def test_the_keys_alone_reach_every_page_and_all_of_it(page: BrowserPage, tmp_path: Path) -> None:
    async with signed_in(page, tmp_path):
        await page.call("Input.insertText", text=ADMIN)
        await page.key("Enter", 13)
        await page.until(f"document.querySelector({PAGES['fleet']!r})")
        names = await page.js('[...document.querySelectorAll("nav a")].map((each) => each.textContent)')
        for name in names:
            await page.js("document.body.tabIndex = -1, document.body.focus()")
            for _ in range(TABS_MAX):
                await page.key("Tab", 9)
                if (await page.js(FOCUS))[1] == name:
                    break
            await page.key("Enter", 13)
            await page.until(f"document.title.startsWith({name!r}) && document.activeElement.id === 'main'")
        for name in PAGES:
            await opened(page, name)
            # What comes into a page while it is walked through is reached by the next walk.
            for _ in range(WALKS):
                await page.js("document.querySelector('#main').focus()")
                await page.js("globalThis.reached = new Set(), 0")
                for _ in range(TABS_MAX):
                    await page.key("Tab", 9)
                    kind, text, is_seen = await page.js(FOCUS)
                    assert is_seen, f"{name}: {kind} {text!r} has the focus and does not show it"
                    if not await page.js('document.querySelector("main").contains(document.activeElement)'):
                        break
                    await page.js(f"globalThis.reached.add({NAME}(document.activeElement)), 0")
                if (missed := await page.js(REACHABLE.replace("{NAME}", NAME))) == []:
                    break
            assert missed == [], name
