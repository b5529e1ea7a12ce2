"""A hub with TLS on a real port: links and readers, certificates of edges, files that change, and who is kept out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.end_to_end.page_reader import Block, blocks
from tests.support.certificates import Authority, Pem
from tests.support.proxies import PACKAGES, proxy
from tests.support.tokens import create_token, withdraw_token
from tests.support.waiting import until
from weft.cli import cli
from weft.cloud_hub import preflight
from weft.cloud_hub.cluster import Owners, Site
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import CertificateRights
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
from weft.storage.cluster import Cluster, ClusterCache
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore


@pytest.fixture
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
async def test_commands_on_the_hubs_machine_know_its_certificate(authority: Authority, tmp_path: Path) -> None:
    async with secure_hub(authority) as hub:
        bind, certificate = f"127.0.0.1:{hub._listener.port}", str(tmp_path / "hub.crt")
        facts = await asyncio.to_thread(get_status, bind, "/v1/status", None, certificate)
        assert facts["tls"]["certificate"] == certificate
        other = authority.sign("hub", "other")
        with pytest.raises(Failed, match="certificate is refused"):
            await asyncio.to_thread(get_status, bind, "/v1/status", None, other.certificate)
        renewed = HubTls(certificate=other.certificate, key=other.key)
        config = HubConfig(store="x", listen=bind, tls=renewed)
        taken, untried = await asyncio.to_thread(preflight.ports, config, [parse_bind(bind)])
        assert (taken, [each.message for each in untried]) == (
            [],
            [f"a hub answers at {bind} already, so the port was not tried"],
        )


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
async def test_a_link_reads_its_files_again_when_it_connects_again(authority: Authority, tmp_path: Path) -> None:
    """The edge's first certificate has expired: a new one under the same name is enough."""
    own = authority.sign(EDGE.edge, expired=True)
    async with secure_hub(authority, client_ca=authority.path) as hub, linked(hub, authority, own) as (link, log):
        await until(lambda: "certificate expired" in link.last_error)
        replace(own, authority.sign(EDGE.edge, "new"))
        await log.until_released(1)


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
async def test_a_hub_at_an_ipv6_address(authority: Authority) -> None:
    async with secure_hub(authority, host="::1") as hub:
        assert hub.url == f"https://[::1]:{hub._listener.port}"
        async with linked(hub, authority) as (_, log):
            await log.until_released(1)


@pytest.mark.usefixtures("_look_soon")
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


@pytest.mark.usefixtures("_look_soon")
async def test_an_edge_is_sent_on_by_tls_also_to_an_ipv6_address(authority: Authority) -> None:
    site = Site("machine", 8090, process=0, processes=2, scheme="https")
    owners = Owners(ClusterCache(Cluster(bytes(16), 2)), site, "id")
    elsewhere = next(shard for shard in range(2) if not owners.is_own(shard))
    assert owners.elsewhere("[2001:db8::7]:8090")(elsewhere) == "https://[2001:db8::7]:8091"
    assert owners.elsewhere("hub.example.com")(elsewhere) == "https://hub.example.com:8091"


# --- People and programs that come to a hub by a client certificate, over real TLS: what each may do, and who may not


READERS = {
    "CN=mara": CertificateRights(("admin",)),
    "OU=operators": CertificateRights(("operator",), "acme"),
    "OU=line-1": CertificateRights(("read:press-1-*", "edges"), "acme"),
}


@contextlib.asynccontextmanager
async def reader_certificates_secure_hub(authority: Authority, tokens: str, **tls: Any) -> AsyncIterator[Hub]:
    own = authority.sign("hub")
    files = TlsFiles(
        certificate=own.certificate, key=own.key, client_ca=authority.path, client_certificate_required=False, **tls
    )
    async with running_hub(
        MemoryStore(), tls=files, tokens=tokens, certificate_readers=READERS, edges_need_certificate=False
    ) as hub:
        yield hub


@contextlib.asynccontextmanager
async def shown(authority: Authority, own: Pem | None) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that shows a certificate, on one connection after the other's end."""
    files = ClientTlsFiles(
        ca_file=authority.path, certificate=own.certificate if own else None, key=own.key if own else None
    )
    connector = aiohttp.TCPConnector(ssl=client_context(files), limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def ask(session: aiohttp.ClientSession, hub: Hub, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
    async with session.get(hub.url + path, headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    path = str(tmp_path / "tokens.yaml")
    (tmp_path / "reader.token").write_text(create_token(path, "reader", Scope.READER, "beta"))
    return path


async def test_a_certificates_name_or_unit_gives_the_rights(authority: Authority, tokens: str, tmp_path: Path) -> None:
    async with reader_certificates_secure_hub(authority, tokens) as hub:
        found = {}
        for name, unit in (("mara", "operators"), ("jo", "operators"), ("pi-1", "line-1"), ("jo", None)):
            async with shown(authority, authority.sign(name, unit=unit)) as session:
                paths = "/v1/whoami", "/v1/status", "/v1/streams", "/v1/streams?tenant=beta"
                answers = [await ask(session, hub, path) for path in paths]
                found[name, unit] = [status for status, _ in answers]
                if unit is not None:
                    reported = answers[0][1]
                    assert reported["certificate"] == name
                    assert (reported["token"], reported["edge"]) == (None, None)
                    assert reported["until"].startswith("20")
        # The name goes before the unit: an admin, who is of no tenant.
        assert found["mara", "operators"] == [200, 200, 200, 200]
        assert found["jo", "operators"] == [200, 200, 200, 403]
        assert found["pi-1", "line-1"] == [200, 403, 200, 403]
        assert found["jo", None] == [401, 401, 401, 401], "and a certificate of no reader gives nothing"
        async with shown(authority, authority.sign("mara")) as session:
            token = (tmp_path / "reader.token").read_text()
            status, reported = await ask(session, hub, "/v1/whoami", Authorization=f"Bearer {token}")
            assert (status, reported["token"], reported["certificate"], reported["tenant"]) == (
                200,
                "reader",
                None,
                "beta",
            )


async def test_readers_cannot_link_and_edges_cannot_read(authority: Authority, tokens: str) -> None:
    async with reader_certificates_secure_hub(authority, tokens) as hub:
        edge = authority.sign("press-1")
        async with linked(hub, authority, edge, edge=LinkIdentity("default", "press-1", 1, "t")) as (_, log):
            await log.until_released(1)
        async with shown(authority, edge) as session:
            assert (await ask(session, hub, "/v1/streams"))[0] == 401
        mara = authority.sign("mara")  # which would be a name of an edge
        async with linked(hub, authority, mara, edge=LinkIdentity("default", "mara", 2, "t")) as (status, _):
            await until(lambda: "names no edge" in status.last_error)
            assert status.connections == 0


async def test_a_certificate_ends_on_an_open_connection_when_it_is_revoked_or_over(
    authority: Authority, tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cloud_hub.http.listener.LOOK_INTERVAL_S", 0.02)
    async with reader_certificates_secure_hub(authority, tokens, crl_file=authority.revoke()) as hub:
        mara, jo = authority.sign("mara"), authority.sign("jo", unit="operators")
        async with shown(authority, mara) as first, shown(authority, jo) as second:
            for session in (first, second):
                assert (await ask(session, hub, "/v1/status"))[0] == 200
            authority.revoke(mara)

            async def is_refused() -> bool:
                status, reported = await ask(first, hub, "/v1/status")
                return status == 403 and "revoked" in reported["detail"]

            await until(is_refused)
            assert (await ask(second, hub, "/v1/status"))[0] == 200
            now = hub._access._now
            monkeypatch.setattr(hub._access, "_now", lambda: now() + 2 * 86_400 * 10**9)
            status, reported = await ask(second, hub, "/v1/status")
            assert (status, reported["detail"]) == (401, "the certificate 'jo' has expired")


async def test_a_page_of_another_site_cannot_use_the_certificate_of_a_browser(
    authority: Authority, tokens: str
) -> None:
    async with (
        reader_certificates_secure_hub(authority, tokens) as hub,
        shown(authority, authority.sign("mara")) as session,
    ):
        assert (await ask(session, hub, "/v1/streams", Origin=hub.url))[0] == 200
        for origin in ("https://evil.example", "null", "https://127.0.0.1"):
            status, reported = await ask(session, hub, "/v1/streams", Origin=origin)
            assert (status, reported["detail"]) == (403, "the certificate 'mara' is not for pages of other sites")
            async with session.post(hub.url + "/v1/messages", data=b"{}", headers={"Origin": origin}) as answer:
                assert answer.status == 403


async def test_a_login_keeps_a_certificate_and_whoami_shows_it(
    authority: Authority, tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    own = authority.sign("jo", unit="operators")

    async def weft(*words: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, cli, list(words))
        assert result.exit_code == 0, result.output
        return result.output

    async with reader_certificates_secure_hub(authority, tokens) as hub:
        files = "--ca-file", authority.path, "--certificate", own.certificate, "--key", own.key
        assert "as the certificate 'jo', tenant acme" in await weft("login", "plant", hub.url, *files)
        answer = json.loads(await weft("hub", "whoami", "plant", "--json"))
        assert (answer["certificate"], answer["tenant"], answer["scope"]) == ("jo", "acme", "granted")
        assert "publish:*" in answer["rights"]
        lines = dict(line.split(None, 1) for line in (await weft("hub", "whoami", "plant")).splitlines())
        assert (lines["certificate"], lines["token"]) == ("jo", "none")


# --- Links and readers through real proxies before a hub, configured as docs/how-to/tls-at-the-hub.md says


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tls-at-the-hub.md"
BLOCKS = [block for block in blocks(PAGE) if block.language in PACKAGES]
MEBIBYTE = 1 << 20


def passes_tls(block: Block) -> bool:
    return "mode tcp" in block.text


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.language + "-tcp" * passes_tls(block))
async def test_a_link_and_readers_come_through_the_proxy(block: Block, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem, own = authority.sign("hub"), authority.sign(EDGE.edge)
    trust = ClientTlsFiles(ca_file=authority.path, certificate=own.certificate, key=own.key)
    hubs_own = TlsFiles(
        certificate=pem.certificate, key=pem.key, client_ca=authority.path, client_certificate_required=False
    )
    tls = hubs_own if passes_tls(block) else None
    async with running_hub(MemoryStore(), tls=tls, edges_need_certificate=tls is not None) as hub:
        with proxy(block.language, block.text, hub._listener.port, pem, tmp_path) as port:
            log = EdgeLog()
            log.append(*records(0, [b"x" * MEBIBYTE] * 3))
            async with running_link(hub, log, EDGE, url=f"https://localhost:{port}", tls=trust) as link:
                await log.until_released(3)
                async with aiohttp.ClientSession() as session:
                    context = client_context(trust)
                    answers = await asyncio.gather(*(_status(session, port, context) for _ in range(20)))
                    assert set(answers) == {200}
                    await _lists_the_stream(session, port, context)
                log.append(*records(3, [b"y"]))
                await log.until_released(4)
                assert link.connections == 1
            await until(lambda: len(hub._links) == 0)


async def _status(session: aiohttp.ClientSession, port: int, context: object) -> int:
    async with session.get(f"https://localhost:{port}/healthz", ssl=context) as answer:  # type: ignore[arg-type]
        return answer.status


async def _lists_the_stream(session: aiohttp.ClientSession, port: int, context: object) -> None:
    async with session.get(f"https://localhost:{port}/v1/streams", ssl=context) as answer:  # type: ignore[arg-type]
        assert (await answer.json())["streams"][0]["stream"] == "telemetry"
