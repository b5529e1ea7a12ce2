"""People and programs that come to a hub by a client certificate, over real TLS: what each may do, and who may not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from tests.cloud_hub.live import running_hub
from tests.cloud_hub.test_tls import linked
from tests.support.certificates import Authority, Pem
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cli import cli
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import CertificateRights
from weft.hub_api.rights import Scope
from weft.network.tls import ClientTlsFiles, TlsFiles, client_context
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

READERS = {
    "CN=mara": CertificateRights(("admin",)),
    "OU=operators": CertificateRights(("operator",), "acme"),
    "OU=line-1": CertificateRights(("read:press-1-*", "edges"), "acme"),
}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.asynccontextmanager
async def secure_hub(authority: Authority, tokens: str, **tls: Any) -> AsyncIterator[Hub]:
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
    async with secure_hub(authority, tokens) as hub:
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
    async with secure_hub(authority, tokens) as hub:
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
    async with secure_hub(authority, tokens, crl_file=authority.revoke()) as hub:
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
    async with secure_hub(authority, tokens) as hub, shown(authority, authority.sign("mara")) as session:
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

    async with secure_hub(authority, tokens) as hub:
        files = "--ca-file", authority.path, "--certificate", own.certificate, "--key", own.key
        assert "as the certificate 'jo', tenant acme" in await weft("login", "plant", hub.url, *files)
        answer = json.loads(await weft("hub", "whoami", "plant", "--json"))
        assert (answer["certificate"], answer["tenant"], answer["scope"]) == ("jo", "acme", "granted")
        assert "publish:*" in answer["rights"]
        lines = dict(line.split(None, 1) for line in (await weft("hub", "whoami", "plant")).splitlines())
        assert (lines["certificate"], lines["token"]) == ("jo", "none")
