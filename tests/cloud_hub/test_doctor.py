"""The doctor of a hub, beside planted troubles: each is found, and its line says what to do."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.support.certificates import Authority
from weft.cloud_hub import preflight
from weft.cloud_hub.check import check
from weft.cloud_hub.clock import ClockWrong
from weft.config.load import parse
from weft.config.machine import Standing, Verdict, is_well
from weft.config.models import HubConfig
from weft.storage.host import DiskSpeed, judged
from weft.storage.object_store import StoreError, open_store

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
