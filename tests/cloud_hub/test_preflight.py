"""What `weft hub check` says of the store that a hub would use."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.storage.object_store.racy_server import racy_server
from tests.support.issuer import KeySetServer, key_of, key_set
from weft.cloud_hub.checks import preflight
from weft.config.intake.jwt import Jwt
from weft.config.intake.tracing import Collector
from weft.config.models import HubConfig
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_bucket_is_probed_unless_the_check_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with racy_server(checks_late=False) as (uri, options):
        for name, value in options.items():
            monkeypatch.setenv(name, value)
        config = HubConfig(store=uri, tokens_file=None)
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
        assert "not JSON. Until the hub has read it, tokens of the issuer open nothing" in str(found)
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
    assert "they come with the tables" in str(next(each for each in found.doubtful if each.path == ("tracing",)))
    found = preflight.look(HubConfig(store=str(tmp_path), tracing=tracing), NOW)
    assert not [each for each in found.doubtful if each.path == ("tracing",)]
