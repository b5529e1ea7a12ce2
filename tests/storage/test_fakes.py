"""The forgetful disk forgets in every way that a real one may, and nothing that was synced."""

from __future__ import annotations

import errno
import random

import pytest

from tests.storage.fake_disk import Inode, Write
from tests.storage.fakes import ERRNOS, FakeFile, FakeFileSystem, injected

SEEDS = range(200)


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem()
    disk.make_directory("/d")
    return disk


def synced_file(disk: FakeFileSystem, content: bytes) -> FakeFile:
    file = disk.create("/d/a")
    file.write_at(0, content)
    file.sync()
    disk.sync_directory("/d")
    return file


def outcomes(disk: FakeFileSystem, path: str = "/d/a") -> set[bytes]:
    return {disk.power_cut(random.Random(seed)).read(path) for seed in SEEDS}


def test_unsynced_writes_survive_in_any_order(disk: FakeFileSystem) -> None:
    file = synced_file(disk, b"....")
    file.write_at(0, b"1")
    file.write_at(2, b"2")
    assert outcomes(disk) == {b"....", b"1...", b"..2.", b"1.2."}


def test_a_write_tears_at_sectors_and_its_length_may_come_first(disk: FakeFileSystem) -> None:
    file = synced_file(disk, b"")
    file.write_at(0, b"a" * 1024)
    first, second, none = b"a" * 512, bytes(512) + b"a" * 512, b""
    assert outcomes(disk) >= {none, first, second, first + bytes(512), bytes(1024), b"a" * 1024}


def test_a_rename_may_be_lost_whole_and_never_by_half(disk: FakeFileSystem) -> None:
    synced_file(disk, b"old").close()
    disk.create("/d/b").sync()
    disk.sync_directory("/d")
    disk.rename("/d/b", "/d/a")
    left = {tuple(disk.power_cut(random.Random(seed)).list_names("/d")) for seed in SEEDS}
    assert left == {("a", "b"), ("a",)}
    assert outcomes(disk) == {b"old", b""}


def test_removals_before_one_sync_may_be_lost_one_by_one(disk: FakeFileSystem) -> None:
    for name in "xy":
        disk.create(f"/d/{name}")
    disk.sync_directory("/d")
    for name in "xy":
        disk.remove(f"/d/{name}")
    left = {tuple(disk.power_cut(random.Random(seed)).list_names("/d")) for seed in SEEDS}
    assert left == {(), ("x",), ("y",), ("x", "y")}


def test_a_full_disk_takes_a_part_and_says_so(disk: FakeFileSystem) -> None:
    file = synced_file(disk, b"1234")
    disk.capacity = 8
    assert disk.free_bytes("/d") == 4
    with pytest.raises(OSError, match="no space left"):
        file.allocate(9)
    with pytest.raises(OSError, match="no space left"):
        file.write_at(4, b"56789")
    assert disk.read("/d/a") == b"123456"
    file.write_at(0, b"4321")
    disk.capacity = None
    file.allocate(100)


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.__getitem__)
def test_an_injected_error_is_what_the_system_would_raise(number: int) -> None:
    with pytest.raises(OSError) as expected:
        raise OSError(number, "real")
    assert type(injected(number)) is type(expected.value)
    assert injected(number).errno == number


def test_a_sync_answers_for_what_was_written_before_it_began() -> None:
    node = Inode()
    node.change(Write(0, b"a"))
    began = node.changes
    node.change(Write(1, b"b"))
    node.sync(began)
    assert bytes(node.durable) == b"a"
    node.sync(began)
    assert bytes(node.durable) == b"a"
    node.sync()
    assert bytes(node.durable) == b"ab"
