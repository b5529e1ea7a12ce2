"""What `weft hub check` says of the store that a hub would use."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.storage.object_store.racy_server import racy_server
from tests.support.certificates import Authority, Pem
from tests.support.tokens import KeySetServer, key_of, key_set
from weft.cloud_hub import preflight
from weft.cloud_hub.auth.tokens import TokenIdentity, hash_token
from weft.cloud_hub.check import check
from weft.cloud_hub.clock import ClockWrong
from weft.cloud_hub.facts.fact import Decision
from weft.cloud_hub.facts.tokens import add_token, open_hubs, remove_token
from weft.config.listeners import HubTls, Jwt
from weft.config.load import parse
from weft.config.machine import Standing, Verdict, is_well
from weft.config.models import HubConfig, Kafka
from weft.config.sources import Collector
from weft.hub_api.rights import Scope
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.host import DiskSpeed, judged
from weft.storage.object_store import StoreError, open_store

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


def test_a_hub_for_kafka_without_its_libraries_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == "kio" else name)
    (found,) = preflight.look(HubConfig(store=str(tmp_path / "store"), kafka=Kafka()), NOW).needed
    assert (found.path, found.message) == (
        ("kafka",),
        'needs kio, not installed here: pip install "weft-fabric[kafka]"',
    )


# --- The doctor of a hub, beside planted troubles: each is found, and its line says what to do


CONFIG = "listen: 127.0.0.1:{port}\nprocesses: 1\nstore: {folder}/store\nlimits: {{links: 8, idle_connections: 8}}\n"


def configuration(folder: Path, more: str = "", port: int | None = None) -> HubConfig:
    text = CONFIG.format(folder=folder, port=port or free_port()) + more
    return parse(text, str(folder / "hub.yaml"), HubConfig, check).config


def lines(config: HubConfig) -> list[Verdict]:
    return list(preflight.examine(config, time.monotonic, time.time))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder with a store that is there and empty."""
    (tmp_path / "store").mkdir()
    return tmp_path


def to_act_on(found: list[Verdict], check: str) -> str:
    return " | ".join(each.says for each in found if each.state is Standing.ACT and each.check == check)


def test_a_machine_in_order_has_nothing_to_act_on_and_nothing_is_left_in_its_store(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.storage.host.synchronised_reader", lambda: lambda: True)
    found = lines(configuration(there))
    of_a_busy_machine = "disk speed", "store"
    wrong = [each for each in found if each.state is Standing.ACT and each.check not in of_a_busy_machine]
    assert wrong == []
    assert {each.check for each in found} >= {"clock", "disk space", "disk speed", "store", "open files", "ports"}
    own = there / "store" / ".weft"  # locks of a store in a folder
    assert [path for path in (there / "store").rglob("*") if path.is_file() and own not in path.parents] == []


def test_a_store_that_is_not_there_yet_is_unknown_and_is_not_made(tmp_path: Path) -> None:
    found = lines(configuration(tmp_path))
    assert {each.check for each in found if each.state is Standing.UNKNOWN} >= {"store", "disk speed"}
    assert not (tmp_path / "store").exists()


def taken_port(folder: Path, _: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield configuration(folder, port=server.getsockname()[1])


def full_disk(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 20))
    yield configuration(folder)


def slow_disk(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    patch.setattr(preflight, "disk_speed", lambda *_: judged(DiskSpeed(8, 0.25, 0.4)))
    yield configuration(folder)


def few_files(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    patch.setattr(resource, "getrlimit", lambda _: (64, 64))
    yield configuration(folder)


def unset_clock(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    patch.setattr("weft.storage.host.synchronised_reader", lambda: lambda: False)
    yield configuration(folder)


def wrong_clock(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    async def off(_: object) -> Callable[[], int]:
        raise ClockWrong("this machine's clock is 2 h ahead of that of the store")

    patch.setattr(preflight, "sound_clock", off)
    yield configuration(folder)


def expired_certificate(folder: Path, _: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    pem = Authority(folder).sign("hub", expired=True)
    yield configuration(folder, f"tls: {{certificate: {pem.certificate}, key: {pem.key}}}\n")


def wrong_authority(folder: Path, _: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    pem = Authority(folder).sign("hub")
    tls = f"tls: {{certificate: {pem.certificate}, key: {pem.key}, client_ca: {pem.certificate}}}\n"
    yield configuration(folder, tls)


def wrong_name(folder: Path, _: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    pem = Authority(folder).sign("hub")
    more = f"tls: {{certificate: {pem.certificate}, key: {pem.key}}}\nadvertise: ['https://127.0.0.9:8090']\n"
    yield configuration(folder, more)


def no_name(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    async def unknown(_: str) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    patch.setattr(preflight, "_resolve", unknown)
    yield configuration(folder, "advertise: ['http://hub.invalid:8090']\n")


def no_tokens(folder: Path, _: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    yield configuration(folder, "anonymous: never\n")


def dead_store(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    def away(_: str) -> object:
        raise StoreError("s3://plant: no answer")

    patch.setattr(preflight, "open_store", away)
    yield configuration(folder)


def later_release(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubConfig]:
    async def there(*_: object) -> list[object]:
        return [type("Entry", (), {"software": "weft 9.0.0"})()]

    patch.setattr(preflight, "running", there)
    yield configuration(folder)


@pytest.mark.parametrize(
    ("plant", "check", "words"),
    [
        (unset_clock, "clock", "timedatectl set-ntp true"),
        (wrong_clock, "clock", "2 h ahead of that of the store. Set it"),
        (full_disk, "disk space", "free some space, or move the store"),
        (slow_disk, "disk speed", "use a faster disk"),
        (few_files, "open files", "LimitNOFILE"),
        (taken_port, "ports", "stop the program that has it"),
        (expired_certificate, "certificates", "has expired on"),
        (wrong_authority, "certificates", "Name the authority's own certificate"),
        (wrong_name, "configuration", "under the name 127.0.0.9"),
        (no_name, "names", "cannot be resolved"),
        (no_tokens, "configuration", "`weft hub token add` adds one"),
        (dead_store, "store", "the credentials in the environment"),
        (later_release, "versions", "Bring all to one release"),
    ],
)
def test_a_planted_trouble_is_found_with_its_remedy(
    there: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[..., Iterator[HubConfig]], check: str, words: str
) -> None:
    for config in plant(there, monkeypatch):
        found = lines(config)
        assert words in to_act_on(found, check), found
        assert not is_well(found)


def test_the_processes_of_a_store_are_asked_for_their_release(there: Path) -> None:
    assert any(each.check == "versions" and each.state is Standing.UNKNOWN for each in lines(configuration(there)))
    assert os.listdir(there) == ["store"]
    assert open_store(str(there / "store")) is not None
