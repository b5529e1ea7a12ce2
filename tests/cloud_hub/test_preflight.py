"""What `weft hub check` says of the store that a hub would use."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.storage.object_store.racy_server import racy_server
from tests.support.certificates import Authority, Pem
from tests.support.issuer import KeySetServer, key_of, key_set
from weft.cloud_hub import preflight
from weft.cloud_hub.auth.tokens import TokenIdentity, hash_token
from weft.cloud_hub.facts.fact import Decision
from weft.cloud_hub.facts.tokens import add_token, open_hubs, remove_token
from weft.config.listeners import HubTls, Jwt
from weft.config.models import HubConfig
from weft.config.sources import Collector
from weft.hub_api.rights import Scope
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import open_store

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_bucket_is_probed_unless_the_check_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with racy_server(checks_late=False) as (uri, options):
        for name, value in options.items():
            monkeypatch.setenv(name, value)
        config = HubConfig(store=uri)
        found = await asyncio.to_thread(preflight.look, config, NOW, offline=False)
        assert [finding.path for finding in found.needed] == [("store",)]
        assert "RacyStore/1.0" in str(found.needed[0])
        assert (await asyncio.to_thread(preflight.look, config, NOW, offline=True)).needed == []
    async with racy_server(checks_late=True) as (uri, options):
        monkeypatch.setenv("AWS_ENDPOINT_URL", options["AWS_ENDPOINT_URL"])
        assert (await asyncio.to_thread(preflight.look, HubConfig(store=uri), NOW, offline=False)).needed == []


def test_a_folder_is_probed_and_left_as_it_was(tmp_path: Path) -> None:
    config = HubConfig(store=str(tmp_path / "none yet"))
    assert preflight.look(config, NOW, offline=False).needed == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").mkdir()
    assert preflight.look(HubConfig(store=str(tmp_path / "store")), NOW, offline=False).needed == []


async def test_a_store_with_another_number_of_shards_is_said(tmp_path: Path) -> None:
    await open_cluster(open_store(str(tmp_path)), 8)
    found = await asyncio.to_thread(preflight.look, HubConfig(store=str(tmp_path), shards=4), NOW, offline=False)
    assert "set shards to 8" in str(found.needed[0])


async def test_a_store_of_an_earlier_release_keeps_its_number_of_shards(tmp_path: Path) -> None:
    config = HubConfig(store=str(tmp_path))
    assert (await asyncio.to_thread(preflight.look, config, NOW)).shards == 16
    await open_cluster(open_store(str(tmp_path)), 4)
    found = await asyncio.to_thread(preflight.look, config, NOW)
    assert (found.needed, found.shards) == ([], 4)
    assert preflight.shards_of(config, found) == 4


async def test_the_number_of_shards_in_a_bucket_is_read_before_processes_are_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with racy_server(checks_late=True) as (uri, options):
        for name, value in options.items():
            monkeypatch.setenv(name, value)
        config = HubConfig(store=uri)
        found = await asyncio.to_thread(preflight.look, config, NOW)
        assert await asyncio.to_thread(preflight.shards_of, config, found) == 16
        await open_cluster(open_store(uri), 2)
        assert await asyncio.to_thread(preflight.shards_of, config, found) == 2


async def test_the_keys_of_an_issuer_are_read_unless_the_check_is_offline(tmp_path: Path) -> None:
    async with KeySetServer(b"<html>").running() as server:
        issuer = Jwt(issuer="https://login.test", audience="hub", jwks_url=server.url)
        config = HubConfig(store=str(tmp_path / "store"), jwt=issuer)
        (found,) = (await asyncio.to_thread(preflight.look, config, NOW, offline=False)).doubtful
        assert found.path == ("jwt", "jwks_url")
        assert "not JSON. Until the hub has read it, tokens of the issuer are refused" in str(found)
        assert (await asyncio.to_thread(preflight.look, config, NOW)).doubtful == []
        server.document = key_set(key_of("ES256", "1"))
        assert (await asyncio.to_thread(preflight.look, config, NOW, offline=False)).doubtful == []
    file = Jwt(issuer="https://login.test", audience="hub", jwks_file=str(tmp_path / "keys"))
    config = HubConfig(store=str(tmp_path / "store"), jwt=file)
    (found,) = (await asyncio.to_thread(preflight.look, config, NOW)).doubtful
    assert "no such file" in str(found)


def test_a_hub_without_tables_says_that_it_makes_no_spans(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra `otel`")
    tracing = Collector(endpoint="http://127.0.0.1:4318")
    found = preflight.look(HubConfig(store=str(tmp_path), tables=None, tracing=tracing), NOW)
    assert "they belong to the tables" in str(next(each for each in found.doubtful if each.path == ("tracing",)))
    found = preflight.look(HubConfig(store=str(tmp_path), tracing=tracing), NOW)
    assert not [each for each in found.doubtful if each.path == ("tracing",)]


def secure(tmp_path: Path, own: Pem, client_ca: str | None = None, **settings: Any) -> preflight.HubFindings:
    """What is found of a hub with TLS, on the day that the certificates of these tests are good for."""
    tls = HubTls(certificate=own.certificate, key=own.key, client_ca=client_ca)
    return preflight.look(HubConfig(store=str(tmp_path / "store"), tls=tls, **settings), datetime.now(UTC))


def test_what_edges_and_readers_would_refuse_of_the_certificates_is_unfit(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.sign("hub")
    good = secure(tmp_path, own, authority.path, advertise=("https://hub.test:1", "https://[::1]:2"))
    assert (good.needed, good.unfit) == ([], [])
    (ended,) = secure(tmp_path, authority.sign("ended", expired=True), advertise=("https://hub.test",)).unfit
    assert ended.path == ("tls", "certificate")
    (named,) = secure(tmp_path, own, advertise=("https://hub.test", "https://10.0.0.1")).unfit
    assert named.path == ("advertise", 1)
    assert "under the name 10.0.0.1: it is for 127.0.0.1, ::1, localhost, hub.test." in named.message
    (leaf,) = secure(tmp_path, own, own.certificate).unfit
    assert leaf.path == ("tls", "client_ca")
    assert "no client is ever accepted" in leaf.message
    assert "the certificate of 'hub' that one has signed" in leaf.message


def declare(store: str, *decisions: Decision) -> None:
    async def append() -> None:
        log = ClusterLog(open_store(store), (await open_cluster(open_store(store), 2)).cluster_id)
        for decision in decisions:
            await log.append(decision, Author(1, "mara", ""))

    asyncio.run(append())


def test_a_hub_that_no_token_opens_is_said(tmp_path: Path) -> None:
    store = str(tmp_path / "store")

    def said(**settings: Any) -> list[str]:
        found = preflight.look(HubConfig(store=store, shards=2, **settings), NOW)
        return [f"{each.path[0]}: {each.message}" for each in found.doubtful if "refuses every request" in each.message]

    assert said() == [], "anyone on this machine may come"
    (empty,) = said(anonymous="never")
    assert empty.startswith("anonymous: the store declares no token")
    identity = TokenIdentity("press", hash_token("secret"), Scope.READER)
    declare(store, add_token(identity, int((NOW - timedelta(days=1)).timestamp() * 1e9)))
    for settings in ({}, {"anonymous": "never"}):
        (ended,) = said(**settings)
        assert ended.startswith("store: every token in it has ended")
    declare(store, remove_token("press"))
    (withdrawn,) = said()
    assert withdrawn.startswith("store: its last token was withdrawn")
    assert said(anonymous="never")[0].startswith("anonymous: the store declares no token")
    declare(store, open_hubs)
    assert said() == [], "`weft hub open` has opened it"
    declare(store, add_token(identity, None))
    assert said() == []


def test_numbers_of_processes_and_shards_that_do_not_fit_are_said(tmp_path: Path) -> None:
    found = preflight.look(HubConfig(store=str(tmp_path / "store"), processes=40, shards_max=8), NOW)
    said = {str(each.path[0]): each.message for each in found.doubtful}
    assert "only 16 of them run" in said["processes"]
    assert "16 shards, so it never splits" in said["shards_max"]


def test_a_hub_without_its_libraries_is_said_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (found,) = preflight.look(HubConfig(store=str(tmp_path / "store")), NOW).needed
    assert 'needs pyarrow, not installed here: pip install "weft-fabric[hub]"' in found.message
