"""Chromium without a window, by the DevTools protocol: pages as people see them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.third_party import AXE
from tests.support.waiting import PATIENCE_S

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt install chromium)")
FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-proxy-server",
    "--force-color-profile=srgb",
)
LISTENING = re.compile(r"DevTools listening on (ws://\S+)")
MESSAGE_BYTES_MAX = 64 << 20


class BrowserPage:
    """One page. ``errors`` has what its console shows as errors, and what its scripts throw."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session: str | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.errors: list[str] = []
        self.requested: list[str] = []
        """URLs that the page has asked for."""

    async def read(self) -> None:
        """Read what the browser says, until it leaves."""
        async for message in self._socket:
            answer = json.loads(message.data)
            if "id" in answer:
                self._waiting.pop(answer["id"]).set_result(answer)
            else:
                self._note(answer["method"], answer["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert", "warning"):
            self.errors.append(" ".join(str(each.get("value", each)) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} ({params['entry'].get('url', '')})")
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        session = {} if self._session is None else {"sessionId": self._session}
        await self._socket.send_json({"id": self._number, "method": method, "params": params, **session})
        async with asyncio.timeout(PATIENCE_S):
            reported = await future
        assert "error" not in reported, f"{method}: {reported['error']}"
        result: dict[str, Any] = reported["result"]
        return result

    async def attach(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Performance.enable", timeDomain="threadTicks")

    async def worked_s(self) -> float:
        """Return the processor time of the page's thread so far, whatever else the machine does."""
        reported = await self.call("Performance.getMetrics")
        return float(next(each["value"] for each in reported["metrics"] if each["name"] == "TaskDuration"))

    async def size(self, width: int, height: int = 900) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def dark(self, is_dark: bool = True) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # or a colour is seen on its way to another
        await self.call("Emulation.setEmulatedMedia", features=[feature, still])

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def js(self, expression: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        reported = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reported, reported["exceptionDetails"]
        return reported["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is true. The page itself waits, frame by frame."""
        return await self.js(
            f"new Promise((done, fail) => {{ const began = performance.now(); const look = () => {{ let value; "
            f"try {{ value = ({expression}); }} catch {{ value = false; }} if (value) done(value); "
            f"else if (performance.now() - began > {PATIENCE_S * 250:.0f}) "
            f"fail(new Error('never true: ' + {json.dumps(expression)} + ' in ' + "
            f"document.body.innerText.slice(0, 2000))); else setTimeout(look, 20); }}; look(); }})"
        )

    async def key(self, key: str, code: int, *, shift: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=8 if shift else 0,
                **text,
            )

    async def picture(self, path: Path) -> None:
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def browser_page(folder: Path) -> AsyncIterator[BrowserPage]:
    """A page of a browser of its own, whose files are in ``folder``."""
    assert PROGRAM is not None
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *FLAGS,
        f"--user-data-dir={folder}",
        "about:blank",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    drain: asyncio.Task[Any] | None = None
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while (found := LISTENING.search((await process.stderr.readline()).decode())) is None:
                assert not process.stderr.at_eof(), "Chromium does not start"
        drain = asyncio.create_task(process.stderr.read())
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(found[1], max_msg_size=MESSAGE_BYTES_MAX) as socket,
        ):
            page = BrowserPage(socket)
            reading = asyncio.create_task(page.read())
            try:
                await page.attach()
                yield page
            finally:
                with contextlib.suppress(Exception):
                    await page.call("Browser.close")  # a signal would leave its files
                await reading
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await process.wait()
        if drain is not None:
            await drain


# --- axe-core: what its rules find on a page of a browser


RULES_MIN = 10
"""Number of rules that pass on any page of ours: fewer, and axe did not look."""
_RUN = """axe.run(document).then((told) => [told.passes.length, told.violations.map((each) => [each.id, each.impact,
    each.nodes.slice(0, 5).map((node) => node.html.slice(0, 300) + " " +
        [...node.any, ...node.all, ...node.none].map((check) => check.message).join("; ").slice(0, 300))])])"""


async def axe_finds(page: BrowserPage) -> list[Any]:
    """Return the violations on the page as it is: rule, impact, and elements."""
    try:
        source = (AXE.obtain() / "node_modules/axe-core/axe.min.js").read_text("utf-8")
    except LookupError as error:
        pytest.skip(str(error))
    await page.js(f"{source};0")
    passed, found = await page.js(_RUN)
    assert passed >= RULES_MIN
    violations: list[Any] = found
    return violations
