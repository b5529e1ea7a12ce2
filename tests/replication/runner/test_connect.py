"""A link whose URLs a hub has set: when they lead nowhere for long, the edge goes back to those of its own file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from tests.replication.loopback import Hub
from tests.replication.model import ModelLog
from tests.replication.test_runner import IDENTITY, Link, drained
from tests.support.certificates import Authority
from tests.support.epochs import MemoryEpochs
from tests.support.proxies import connect_proxy
from tests.support.waiting import until
from weft.network.tls import ClientTlsFiles
from weft.protocols.link import ConfigDesired, ConfigState
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import LINK_PATH, LinkSettings, run_link
from weft.replication.runner.connect import OWN_URLS_S
from weft.replication.runner.settings import LinkProxy


class Door:
    """A node with a confirmed configuration (``ConfigReceiver``)."""

    def __init__(self, *own: str) -> None:
        self.own = own

    def opened(self, cluster_id: str, tell: Callable[[ConfigState], None]) -> ConfigState:
        del cluster_id, tell
        return ConfigState(1, "d", 2, "", 1, "d")

    def closed(self) -> None:
        pass

    def desire(self, desired: ConfigDesired, cluster_id: str) -> None:
        pass

    def own_urls(self) -> tuple[str, ...]:
        return self.own


@pytest.mark.parametrize("has_own", [True, False])
async def test_the_files_urls_are_tried_after_two_minutes_without_a_link(has_own: bool) -> None:
    hub, log, seconds = Hub(), ModelLog({1: "telemetry"}), 0.0
    await hub.start()
    log.append(1, 10)
    settings = LinkSettings(
        ("http://127.0.0.1:1",), retry_min_s=0.01, retry_max_s=0.02, sender=SenderSettings(mark_interval=SECOND // 20)
    )
    status = LinkStatus("cloud")
    task = asyncio.create_task(
        run_link(
            log,
            IDENTITY,
            settings,
            MemoryEpochs(),
            status,
            clock=lambda: time.monotonic_ns() + int(seconds * SECOND),
            config=Door(hub.url) if has_own else Door(),
        )
    )
    try:
        await until(lambda: status.attempts_failed >= 3)
        assert status.url == "http://127.0.0.1:1"
        seconds += OWN_URLS_S
        if has_own:
            await until(lambda: drained(log))
            assert status.url == hub.url
        else:
            before = status.attempts_failed
            await until(lambda: status.attempts_failed >= before + 3)
            assert status.url == "http://127.0.0.1:1"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await hub.stop()


# --- Links through an HTTP proxy that asks for credentials, and whose names lead elsewhere later


async def hub_with_tls(authority: Authority) -> Hub:
    hub, server = Hub(), authority.sign("localhost")
    hub.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    hub.tls.load_cert_chain(server.certificate, server.key)
    await hub.start()
    return hub


async def test_a_link_goes_through_a_proxy_and_follows_a_name_that_leads_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    authority = Authority(tmp_path)
    first, second = await hub_with_tls(authority), await hub_with_tls(authority)
    password = tmp_path / "password"
    password.write_text("wrong\n")
    log = ModelLog({1: "telemetry"})
    log.append(1, 5)
    async with connect_proxy("press-7:s3cret", {"localhost": first.port}) as proxy:
        settings = LinkProxy(proxy.url, "press-7", password_file=str(password))
        tls = ClientTlsFiles(ca_file=authority.path)
        async with Link(log, "https://localhost:8443", proxy=settings, tls=tls) as link:
            await until(lambda: "the proxy wants credentials, or does not accept them (407)" in link.status.last_error)
            assert not first.hellos
            password.write_text("s3cret\n")
            await until(lambda: drained(log))
            assert set(proxy.targets) == {"localhost:8443"}
            proxy.hosts["localhost"] = second.port
            await first.stop()
            log.append(1, 5)
            await until(lambda: drained(log))
            assert len(second.stored) + len(first.stored) >= 10
    assert "s3cret" not in caplog.text
    await second.stop()


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (LinkProxy("http://127.0.0.1:1"), "cannot connect to the proxy"),
        (LinkProxy("http://127.0.0.1:1", "u", "/nonexistent"), "proxy_password_file /nonexistent"),
        (LinkProxy("http://127.0.0.1:1", "u", password_env="WEFT_NONE"), "no environment variable WEFT_NONE"),
    ],
)
async def test_what_is_wrong_with_a_proxy_is_told(proxy: LinkProxy, said: str) -> None:
    async with Link(ModelLog({1: "telemetry"}), "https://localhost:8443", proxy=proxy) as link:
        await until(lambda: said in link.status.last_error)


async def test_a_hub_is_reached_by_ipv6() -> None:
    hub = Hub()
    app = web.Application()
    app.router.add_get(LINK_PATH, hub._link)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "::1", 0).start()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    log = ModelLog({1: "telemetry"})
    log.append(1, 5)
    async with Link(log, f"http://[::1]:{runner.addresses[0][1]}"):
        await until(lambda: drained(log))
    assert len(hub.stored) == 5
    await runner.cleanup()
