"""Pictures of the console while the demo runs: an outage, the backlog behind it, and the timeline closed again.

``./run docs pictures`` makes them, with Chromium, in some minutes. They show real data at real times, so that each run
makes others: they are made again when the page has changed, and looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
from pathlib import Path

from tests.support.browser import PROGRAM, BrowserPage, browser_page

PICTURES = Path(__file__).parents[1] / "pictures"
WIDTH, HEIGHT = 1280, 760
SHOWN = "?window=1"
"""Minutes that the timeline shows."""
EACH_S = 1.0
"""Time between two pictures of the outage, of which the last one stays."""
OUTAGE_SHOWN_S = 25.0
"""Time of the outage after which no further one is made: its begin would leave the timeline."""
CLOSED = 0.1
"""Part of the outage that is left in the third picture, at most. The second one is the last before it."""
CLOSED_WITHIN_S = 240.0
_ADDRESS = re.compile(r"http://\S+/console#\S+")
_LANES = 'document.querySelectorAll(".lanes li").length >= 2'
_UNHEARD = """Math.max(0, ...[...document.querySelectorAll(".lanes rect.silent, .lanes rect.pending")].map(
    (each) => each.getBoundingClientRect().width))"""
"""Width of the longest stretch of which the hub does not have everything yet."""


async def make() -> None:
    """Run the demo, and take the pictures. It prints what the demo says."""
    demo = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "weft", "demo", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert demo.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        async with browser_page(Path(folder)) as page:
            await page.size(WIDTH, HEIGHT)
            is_back, taken = asyncio.Event(), asyncio.create_task(asyncio.sleep(0))
            async for line in demo.stdout:
                text = line.decode(errors="replace")
                sys.stdout.write(text)
                if found := _ADDRESS.search(text):
                    await page.open(found[0].partition("?")[0] + SHOWN)
                elif text.lstrip().startswith("cut "):
                    taken = asyncio.create_task(_take(page, is_back))
                elif text.lstrip().startswith("back "):
                    is_back.set()
            await taken
    if await demo.wait():
        raise SystemExit("the demo failed")


async def _take(page: BrowserPage, is_back: asyncio.Event) -> None:
    await page.until(_LANES)
    address = await page.js("location.href")
    now = asyncio.get_running_loop().time
    began = now()
    while not is_back.is_set() and now() - began < OUTAGE_SHOWN_S:
        await _again(page, address)
        await page.picture(PICTURES / "demo-outage.png")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_back.wait(), EACH_S)
    await is_back.wait()
    if now() - began > OUTAGE_SHOWN_S:
        address = address.replace(SHOWN, "?window=5")
    whole, left = 0.0, 1.0
    async with asyncio.timeout(CLOSED_WITHIN_S):
        while left >= CLOSED:
            await _again(page, address)
            unheard = await page.js(_UNHEARD)
            whole = max(whole, unheard)
            left = unheard / whole if whole else 1.0
            if left >= CLOSED:
                await page.picture(PICTURES / "demo-backlog.png")
    await page.picture(PICTURES / "demo-closed.png")


async def _again(page: BrowserPage, address: str) -> None:
    """Show the page as it is now: one that is open paces itself, and a busy hub makes it slower than the demo."""
    await page.open("about:blank")
    await page.open(address)
    await page.until(_LANES)
    await page.until('document.querySelector(".chart canvas")')


if __name__ == "__main__":
    if PROGRAM is None:
        raise SystemExit("no Chromium here (Debian: apt install chromium)")
    asyncio.run(make())
