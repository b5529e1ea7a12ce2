"""A hub with TLS on a real port: links and readers, certificates of edges, files that change, and who is kept out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.support.certificates import Authority, Pem
from tests.support.tokens import create_token, withdraw_token
from tests.support.waiting import until
from weft.cloud_hub import preflight
from weft.cloud_hub.cluster import Owners, Site
from weft.cloud_hub.hub import Hub
from weft.commands.running import get_status
from weft.config.listeners import HubTls
from weft.config.models import HubConfig
from weft.config.units import parse_bind
from weft.hub_api.rights import Scope
from weft.hub_api.status import CertificateInForce
from weft.network.admission import AdmissionLimits
from weft.network.tls import ClientTlsFiles, TlsFiles, certificate_end, client_context
from weft.output import Failed
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore


@pytest.fixture(autouse=True)
def _look_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cloud_hub.http.listener.LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr("weft.network.admission.SWEEP_INTERVAL_S", 0.05)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.asynccontextmanager
async def secure_hub(
    authority: Authority,
    *,
    client_ca: str | None = None,
    crl_file: str | None = None,
    store: ObjectStore | None = None,
    **settings: Any,
) -> AsyncIterator[Hub]:
    own = authority.sign("hub")
    files = TlsFiles(
        certificate=own.certificate,
        key=own.key,
        client_ca=client_ca,
        crl_file=crl_file,
        client_certificate_required=False,
    )
    settings = {"edges_need_certificate": client_ca is not None, **settings}
    async with running_hub(store or MemoryStore(), tls=files, **settings) as hub:
        yield hub


@contextlib.asynccontextmanager
async def linked(
    hub: Hub, authority: Authority, own: Pem | None = None, *, edge: LinkIdentity = EDGE, url: str | None = None
) -> AsyncIterator[tuple[LinkStatus, EdgeLog]]:
    files = ClientTlsFiles(
        ca_file=authority.path, certificate=own.certificate if own else None, key=own.key if own else None
    )
    log = EdgeLog()
    log.append(*records(0, [b"a"]))
    async with running_link(hub, log, edge, url=url, tls=files) as link:
        yield link, log


def replace(old: Pem, new: Pem) -> None:
    os.replace(new.certificate, old.certificate)
    os.replace(new.key, old.key)


async def get(hub: Hub, authority: Authority, path: str) -> tuple[int, str]:
    trust = client_context(ClientTlsFiles(ca_file=authority.path))
    async with aiohttp.ClientSession() as session, session.get(hub.url + path, ssl=trust) as answer:
        return answer.status, await answer.text()


async def presented(hub: Hub, authority: Authority) -> str:
    """The serial number of the certificate that the hub shows to a new connection."""
    context = ssl.create_default_context(cafile=authority.path)
    _, writer = await asyncio.open_connection("127.0.0.1", hub._listener.port, ssl=context)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return str(certificate["serialNumber"])


async def metrics(hub: Hub, authority: Authority) -> dict[str, float]:
    _, text = await get(hub, authority, "/metrics")
    return {each.name: each.value for family in text_string_to_metric_families(text) for each in family.samples}


async def test_links_and_readers_come_by_tls_and_the_hub_says_when_its_certificate_ends(
    authority: Authority, tmp_path: Path
) -> None:
    async with secure_hub(authority) as hub:
        assert hub.url == f"https://127.0.0.1:{hub._listener.port}"
        async with linked(hub, authority) as (_, log):
            await log.until_released(1)
            assert (await get(hub, authority, "/healthz"))[0] == 200
        end = certificate_end(str(tmp_path / "hub.crt"))
        assert (await metrics(hub, authority))["weft_hub_certificate_expires_timestamp_seconds"] == end.timestamp()
        assert hub.status().tls == CertificateInForce(str(tmp_path / "hub.crt"), end.isoformat(), 0)


async def test_commands_on_the_hubs_machine_know_its_certificate(authority: Authority, tmp_path: Path) -> None:
    async with secure_hub(authority) as hub:
        bind, certificate = f"127.0.0.1:{hub._listener.port}", str(tmp_path / "hub.crt")
        facts = await asyncio.to_thread(get_status, bind, "/v1/status", None, certificate)
        assert facts["tls"]["certificate"] == certificate
        other = authority.sign("hub", "other")
        with pytest.raises(Failed, match="does not answer"):
            await asyncio.to_thread(get_status, bind, "/v1/status", None, other.certificate)
        renewed = HubTls(certificate=other.certificate, key=other.key)
        config = HubConfig(store="x", listen=bind, tls=renewed)
        taken, untried = await asyncio.to_thread(preflight.ports, config, [parse_bind(bind)])
        assert (taken, [each.message for each in untried]) == (
            [],
            [f"a hub answers at {bind} already, so the port was not tried"],
        )


async def test_a_new_certificate_is_shown_to_new_connections_and_open_links_stay(
    authority: Authority, tmp_path: Path
) -> None:
    async with secure_hub(authority) as hub, linked(hub, authority) as (link, log):
        await log.until_released(1)
        before, own = await presented(hub, authority), Pem(str(tmp_path / "hub.crt"), str(tmp_path / "hub.key"))
        replace(own, authority.sign("hub", "next"))
        await until(lambda: hub._listener.counters.reloads > 0)
        assert await presented(hub, authority) != before
        Path(own.key).write_text("no key")
        await until(lambda: hub._listener.counters.reload_failures > 0)
        assert await presented(hub, authority) != before  # the last good one stays in use
        log.append(*records(1, [b"b"]))
        await log.until_released(2)
        assert link.connections == 1


async def test_a_certificate_names_the_edge_and_no_other(authority: Authority) -> None:
    async with secure_hub(authority, client_ca=authority.path) as hub:
        own = authority.sign(EDGE.edge)
        async with linked(hub, authority, own) as (_, log):
            await log.until_released(1)
        async with linked(hub, authority, own, edge=EDGE._replace(edge="another")) as (link, _):
            await until(lambda: "certificate" in link.last_error)
            assert EDGE.edge in link.last_error
            assert "use this edge's own certificate" in link.last_error
            assert link.connections == 0
        files = ClientTlsFiles(ca_file=authority.path, certificate=own.certificate, key=own.key)
        async with running_link(hub, EdgeLog(), EDGE._replace(edge="another"), "x", tls=files) as link:
            await until(lambda: "certificate" in link.last_error)  # this hub has no tokens, so words set none aside
            assert link.connections == 0
        async with linked(hub, authority) as (link, _):
            await until(lambda: link.last_error)
            assert "client certificate" in link.last_error
        assert (await get(hub, authority, "/healthz"))[0] == 200  # probes show none


async def test_a_link_by_certificate_stays_beside_links_by_token(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cloud_hub.links.open_links.LOOK_INTERVAL_S", 0.02)
    tokens = str(tmp_path / "tokens")
    token = create_token(tokens, "other", Scope.EDGE, edge="other")
    store = MemoryStore()
    of_tokens: dict[str, Any] = {"store": store, "tokens": tokens, "cluster_log_interval_s": 0.05}
    async with secure_hub(authority, client_ca=authority.path, edges_need_certificate=False, **of_tokens) as hub:
        own, trust = authority.sign(EDGE.edge), ClientTlsFiles(ca_file=authority.path)
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        other = EDGE._replace(edge="other", log_id=2)
        async with (
            linked(hub, authority, own) as (link, own_log),
            running_link(hub, log, other, token, tls=trust) as by_token,
        ):
            await own_log.until_released(1)
            await log.until_released(1)
            await withdraw_token(store, "other")
            await until(lambda: "was revoked" in by_token.last_error)
            own_log.append(*records(1, [b"b"]))
            await own_log.until_released(2)
            assert link.connections == 1


async def test_a_revoked_edge_loses_its_link_and_is_told_why(authority: Authority) -> None:
    own, other = authority.sign(EDGE.edge), authority.sign("other")
    async with secure_hub(authority, client_ca=authority.path, crl_file=authority.revoke()) as hub:
        async with (
            linked(hub, authority, own) as (link, log),
            linked(hub, authority, other, edge=EDGE._replace(edge="other", log_id=2)) as (kept, kept_log),
        ):
            await log.until_released(1)
            await kept_log.until_released(1)
            authority.revoke(own)
            await until(lambda: "the certificate of the link was revoked" in link.last_error)
            await until(lambda: "certificate revoked" in link.last_error)
            assert kept.connections == 1
            kept_log.append(*records(1, [b"b"]))
            await kept_log.until_released(2)


async def test_a_connection_that_stays_open_gives_a_revoked_edge_no_further_link(authority: Authority) -> None:
    own = authority.sign(EDGE.edge)
    trust = client_context(ClientTlsFiles(ca_file=authority.path, certificate=own.certificate, key=own.key))
    async with (
        secure_hub(authority, client_ca=authority.path, crl_file=authority.revoke()) as hub,
        aiohttp.ClientSession() as one,
        aiohttp.ClientSession() as other,
    ):
        for session in one, other:
            async with session.get(f"{hub.url}/healthz", ssl=trust) as answer:
                assert answer.status == 200
        reloads = hub._listener.counters.reloads
        authority.revoke(own)
        await until(lambda: hub._listener.counters.reloads > reloads)
        # On the connections of before: a new one would end in its handshake.
        for session, headers in (one, {}), (other, {"Authorization": "Bearer x"}):
            async with session.get(f"{hub.url}/v1/link", ssl=trust, headers=headers) as answer:
                assert (answer.status, "the certificate of the link was revoked" in await answer.text()) == (403, True)


async def test_an_edge_of_an_unknown_authority_is_told_so(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "strange").mkdir()
    stranger = Authority(tmp_path / "strange", "stranger").sign(EDGE.edge)
    async with secure_hub(authority, client_ca=authority.path) as hub:
        async with linked(hub, authority, stranger) as (link, _):
            await until(lambda: link.last_error)
            assert "the hub refuses the link's certificate (unknown ca)" in link.last_error
        async with linked(hub, authority, authority.sign(EDGE.edge, "old", expired=True)) as (link, _):
            await until(lambda: link.last_error)
            assert "the hub refuses the link's certificate (certificate expired)" in link.last_error


async def test_an_edge_refuses_a_hub_of_an_unknown_authority_or_with_an_expired_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    async with secure_hub(authority) as hub:
        async with linked(hub, other) as (link, _):
            await until(lambda: link.last_error)
            assert "the hub's certificate is refused" in link.last_error
            assert link.connections == 0
        replace(Pem(str(tmp_path / "hub.crt"), str(tmp_path / "hub.key")), authority.sign("hub", "old", expired=True))
        await until(lambda: hub._listener.counters.reloads > 0)
        async with linked(hub, authority) as (link, _):
            await until(lambda: link.last_error)
            assert "certificate has expired" in link.last_error


async def test_a_link_reads_its_files_again_when_it_connects_again(authority: Authority, tmp_path: Path) -> None:
    """The edge's first certificate has expired: a new one under the same name is enough."""
    own = authority.sign(EDGE.edge, expired=True)
    async with secure_hub(authority, client_ca=authority.path) as hub, linked(hub, authority, own) as (link, log):
        await until(lambda: "certificate expired" in link.last_error)
        replace(own, authority.sign(EDGE.edge, "new"))
        await log.until_released(1)


async def test_plain_http_on_the_port_of_tls_is_refused_in_words(authority: Authority) -> None:
    async with secure_hub(authority) as hub:
        plain = hub.url.replace("https", "http")
        with pytest.raises(aiohttp.ClientError):
            async with aiohttp.ClientSession() as session, session.get(f"{plain}/healthz"):
                pass
        await until(lambda: hub._listener.counters.handshakes_failed)
        async with linked(hub, authority, url=plain) as (link, _):
            await until(lambda: link.last_error)
            assert "Write https://" in link.last_error
        assert (await get(hub, authority, "/healthz"))[0] == 200


async def test_handshakes_that_never_end_are_few_and_keep_nobody_out(authority: Authority) -> None:
    async with secure_hub(authority, admission=AdmissionLimits(half_open_max=4, connect_timeout_s=0.5)) as hub:
        counters, port = hub._listener.counters, hub._listener.port
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in slow:
            writer.write(b"\x16\x03\x01")
        await until(lambda: counters.half_open_evicted >= 16)
        assert counters.connections_half_open <= 4
        async with linked(hub, authority) as (link, log):
            await log.until_released(1)
            await until(lambda: counters.connections_half_open == 0)
            # Each ended in one of these ways: on a busy machine more of them in time, before the link's handshake.
            assert counters.half_open_evicted + counters.connect_timeouts + counters.handshakes_failed >= 20
            assert link.connections == 1
        for _, writer in slow:
            writer.close()


async def test_a_hub_at_an_ipv6_address(authority: Authority) -> None:
    async with secure_hub(authority, host="::1") as hub:
        assert hub.url == f"https://[::1]:{hub._listener.port}"
        async with linked(hub, authority) as (_, log):
            await log.until_released(1)


async def test_each_connection_resolves_the_name_anew_and_tries_all_addresses(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secure_hub(authority) as hub:
        port, asked, real = hub._listener.port, list[str](), socket.getaddrinfo
        known = ["127.0.0.3"]  # where nothing listens

        def resolve(host: Any, *arguments: Any, **options: Any) -> Any:
            if host != "hub.test":
                return real(host, *arguments, **options)
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        async with linked(hub, authority, url=f"https://hub.test:{port}") as (link, log):
            await until(lambda: link.attempts_failed >= 2)
            assert len(asked) >= 2
            assert "cannot connect" in link.last_error
            known.append("127.0.0.1")
            await log.until_released(1)
            assert link.url == f"https://hub.test:{port}"


async def test_an_edge_is_sent_on_by_tls_also_to_an_ipv6_address(authority: Authority) -> None:
    site = Site("machine", 8090, process=0, processes=2, scheme="https")
    owners = Owners(lambda: 2, site, "id")
    elsewhere = next(shard for shard in range(2) if not owners.is_own(shard))
    assert owners.elsewhere("[2001:db8::7]:8090")(elsewhere) == "https://[2001:db8::7]:8091"
    assert owners.elsewhere("hub.example.com")(elsewhere) == "https://hub.example.com:8091"
