"""Pictures of the console: of a fleet of 200 edges, and while the demo runs: an outage, the backlog behind it, and the
timeline closed again. And those of the tutorials, by the configurations of their pages.

``./run docs pictures`` makes them, with Chromium, in some minutes. They show real data at real times, so that each run
makes others: they are made again when the page has changed, and looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from paho.mqtt.client import CallbackAPIVersion, Client
from PIL import Image

from tests.cloud_hub.console.fleet import NS, readings
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.support.browser import PROGRAM, BrowserPage, browser_page
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import NodeReport
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import LaneState
from weft.replication.flow_control import LatestReport, SenderSettings
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

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
        sys.executable, "-m", "examples.demo.run", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
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
        await _picture(page, "demo-outage.png")
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
                await _picture(page, "demo-backlog.png")
    await _picture(page, "demo-closed.png")


async def _picture(page: BrowserPage, name: str) -> None:
    """Save what the page shows with 128 colours, which takes a third of the bytes."""
    file = PICTURES / name
    await page.picture(file)
    with Image.open(file) as shown:
        shown.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)


async def _again(page: BrowserPage, address: str) -> None:
    """Show the page as it is now: one that is open paces itself, and a busy hub makes it slower than the demo."""
    await page.open("about:blank")
    await page.open(address)
    await page.until(_LANES)
    await page.until('document.querySelector(".chart canvas")')


# Pictures of the tutorials: what their readers see after a minute of messages.

TUTORIAL = Path(__file__).parents[1] / "tutorial" / "data-engineer.md"
EDGE_PAGE, STREAM_PAGE = "http://127.0.0.1:8080/", "http://127.0.0.1:8090/console#/streams/telemetry?window=2"
MACHINES = {"m1": 21.5, "m2": 19.0}
MESSAGES_S, SEND_EACH_S = 75.0, 0.5


@contextlib.asynccontextmanager
async def _running(folder: Path, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a hub or a node until the end, or until it was ended."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "weft", *command, cwd=folder)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _publish(seconds: float) -> None:
    """Be the two machines for some time; one topic is misspelt, as in the tutorial."""
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", 1883)
    client.loop_start()
    for number in range(round(seconds / SEND_EACH_S)):
        for machine, base in MACHINES.items():
            reading = json.dumps({"temperature": base + number % 40 / 20})
            client.publish(f"plant/press/{machine}/telemetry", reading, 1)
        if not number % 20:
            client.publish("plant/press/m1/temperatur", "22.0", 1)
        await asyncio.sleep(SEND_EACH_S)
    client.disconnect()
    client.loop_stop()


async def make_tutorials() -> None:
    """Take a picture of the node's page, of the stream's timeline, and of the node's page without its hub."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for text, file in re.findall(r"```yaml\n(# (\w+\.yaml)\n.*?)```", TUTORIAL.read_text(), re.DOTALL):
            (folder / file).write_text(text)
        async with (
            _running(folder, "hub", "run", "hub.yaml") as hub,
            _running(folder, "edge", "run", "edge.yaml"),
            browser_page(folder / "browser") as page,
        ):
            await page.size(1100, HEIGHT)
            await until(lambda: _listens(EDGE_PAGE) and _listens(STREAM_PAGE))
            sending = asyncio.create_task(_publish(MESSAGES_S))
            await asyncio.sleep(MESSAGES_S - 20)
            for file, url, shown in (
                ("tutorial-node", EDGE_PAGE, 'document.querySelectorAll("canvas").length >= 3'),
                ("tutorial-timeline", STREAM_PAGE, 'document.querySelector(".lanes li")'),
            ):
                await page.open("about:blank")
                await page.open(url)
                await page.until(shown)
                await asyncio.sleep(2.0)  # what is drawn comes with the next readings
                await _picture(page, f"{file}.png")
            hub.terminate()
            await hub.wait()
            await page.open("about:blank")
            await page.open(f"{EDGE_PAGE}#links")
            await page.until('document.body.innerText.includes("cannot connect")')
            await page.js('document.getElementById("links").scrollIntoView()')
            await _picture(page, "tutorial-outage.png")
            await sending


def _listens(url: str) -> bool:
    """Return whether a page is there."""
    address = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname, address.port)) == 0


# Pictures of a plant: edges with links of their own to a hub in this process, of which some are in trouble.

PLANT = (("press", "telemetry", 70), ("weld", "telemetry", 50), ("paint", "energy", 48), ("mill", "vibration", 32))
"""Machines, the stream of their edges, and their number."""
HOUR, STEP_S = 60, 60
"""Readings that each edge has sent before the pictures, and seconds between them."""
LOSSES = {"press-17": (21, 29, GapReason.BUDGET), "press-52": (40, 42, GapReason.EXPIRED)}
SILENT_MINUTES = {"weld-08": 22, "weld-09": 22, "weld-10": 22, "mill-31": 9}
FULL = "paint-12"


async def _edge(hub: Hub, links: contextlib.AsyncExitStack, number: int, name: str, stream: str) -> EdgeLog:
    """Link an edge that has sent an hour of readings."""
    log, free = EdgeLog(stream, PayloadKind.JSON), (90 if name == FULL else 700 + number) << 20
    first, end, reason = LOSSES.get(name, (0, 0, 0))
    start, topic = time.time_ns() - (HOUR - 1) * STEP_S * NS, f"plant/hall-{number % 3 + 1}/{name}/{stream}"
    for part in ((0, first), (end, HOUR)):
        if part[0] < part[1]:
            log.append(*readings(*part, start, topic, STEP_S))
    log.gaps = [GapRange(first, end, reason)] if end else []
    report = LatestReport()
    report.report = NodeReport((1 << 30) - free, 1 << 30, free, 2100, 3 * 3600 if name == FULL else 4 * 86400, [], 0)
    identity = LinkIdentity("default", name, number + 1, "weft 0.1.0")
    await links.enter_async_context(running_link(hub, log, identity, sender=SenderSettings(report=report)))
    await log.until_released(HOUR)
    return log


def _fall_silent(hub: Hub, number: int, name: NodeName, stream: str, minutes: int) -> None:
    """Make an edge one that the hub heard of some minutes ago."""
    mark = Mark(time.time_ns() - minutes * 60 * NS, HOUR)
    held = LaneState(ranges=RangeSet([(0, HOUR)]), mark=mark, whole_mark=mark, last_seen=mark.time)
    states = {each.log.shard: each.state for each in hub.sequencers}
    states[hub._shards.place(name)].set_lane(Lane(*name, number + 1, stream), held)


async def make_plant() -> None:
    """Take pictures of the fleet and of a stream."""
    plant = [(f"{kind}-{n + 1:02d}", stream) for kind, stream, edges in PLANT for n in range(edges)]
    async with running_hub(MemoryStore()) as hub, contextlib.AsyncExitStack() as links:
        for number, (name, stream) in enumerate(plant):
            if name in SILENT_MINUTES:
                _fall_silent(hub, number, NodeName("default", name), stream, SILENT_MINUTES[name])
            else:
                await _edge(hub, links, number, name, stream)
        with tempfile.TemporaryDirectory() as folder:
            async with browser_page(Path(folder)) as page:
                await page.size(WIDTH, HEIGHT)
                for file, place, shown in (
                    ("plant-fleet", "fleet", "document.querySelectorAll('tbody tr').length > 90"),
                    (
                        "plant-stream",
                        "streams/telemetry",
                        "document.querySelectorAll('rect.gap:not(.loose)').length > 1",
                    ),
                ):
                    await page.open("about:blank")
                    await page.open(f"{hub.url}/console#/{place}")
                    await page.until(shown)
                    await asyncio.sleep(3.0)  # where lanes begin and gaps lie comes with further answers
                    await _picture(page, f"{file}.png")


if __name__ == "__main__":
    if PROGRAM is None:
        raise SystemExit("no Chromium here (Debian: apt install chromium)")
    asyncio.run(make_plant())
    asyncio.run(make_tutorials())
    asyncio.run(make())
