"""What a directory adds to the common promises: power cuts, killed processes, and neighbours on one machine."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.fakes import FakeFileSystem
from tests.support.waiting import PATIENCE_S
from weft.storage.object_store import AlreadyExists, NotFound, StoreError, open_store, probe
from weft.storage.object_store.directory import DirectoryStore, content_etag
from weft.storage.object_store.probe import probe_in_sequence

ROOT = "/store"
KEYS = ["a", "shard-0/chunk/0", "shard-0/chunk/1", "shard-0/manifest"]


def dying_at(filesystem: FakeFileSystem, call: int) -> None:
    """Let every call from this one on fail: to the disk, that is what a killed process looks like."""
    counted = iter(range(1 << 30))

    def fail(name: str, path: str) -> OSError | None:
        return OSError(errno.EIO, "the process is gone") if next(counted) >= call else None

    filesystem.fail = fail


async def content(store: DirectoryStore, key: str) -> bytes | None:
    try:
        return (await store.get(key)).data
    except NotFound:
        return None


def payload(number: int) -> bytes:
    """Long enough for a torn write to show."""
    return b"%d:" % number * 500


async def halves(data: bytes) -> AsyncIterator[bytes]:
    yield data[: len(data) // 2]
    yield data[len(data) // 2 :]


@settings(max_examples=150, deadline=None)
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["create", "create_from", "swap", "delete"]), st.sampled_from(KEYS)), max_size=6
    ),
    dies_at=st.integers(0, 80),
    cuts=st.integers(0, 3),
    seed=st.integers(0, 1 << 20),
)
def test_what_returned_survives_a_power_cut_and_nothing_is_ever_half_there(
    operations: list[tuple[str, str]], dies_at: int, cuts: int, seed: int
) -> None:
    async def scenario() -> None:
        filesystem = FakeFileSystem()
        store = DirectoryStore(ROOT, filesystem)
        known: dict[str, bytes | None] = dict.fromkeys(KEYS)
        etags: dict[str, str] = {}
        allowed: dict[str, set[bytes | None]] = {}
        dying_at(filesystem, dies_at)
        for number, (operation, key) in enumerate(operations):
            wanted = None if operation == "delete" else payload(number)
            if operation.startswith("create") != (known[key] is None):
                continue
            try:
                if operation == "create":
                    etags[key] = await store.create(key, payload(number))
                elif operation == "create_from":
                    await store.create_from(key, halves(payload(number)))
                    etags[key] = content_etag(payload(number))
                elif operation == "swap":
                    etags[key] = await store.swap(key, payload(number), etags[key])
                else:
                    await store.delete(key)
            except StoreError:
                allowed[key] = {known[key], wanted}
                break
            known[key] = wanted
        chance = random.Random(seed)
        for _ in range(cuts):
            filesystem = filesystem.power_cut(chance)
        filesystem.kill_process()
        found = DirectoryStore(ROOT, filesystem)
        for key in KEYS:
            assert await content(found, key) in allowed.get(key, {known[key]})
        listed = [item.key for item in await found.list("")]
        assert listed == [key for key in sorted(KEYS) if await content(found, key) is not None]

    asyncio.run(scenario())


async def test_leftovers_of_a_killed_writer_are_invisible_and_swept() -> None:
    filesystem = FakeFileSystem()
    filesystem.fail = lambda call, path: OSError(errno.EIO, "killed") if call in ("link", "remove") else None
    with pytest.raises(StoreError):
        await DirectoryStore(ROOT, filesystem).create("a", b"half done")
    filesystem.kill_process()
    assert [path for path in filesystem._names if "/temporary/" in path]
    store = DirectoryStore(ROOT, filesystem)
    assert await store.list("") == []
    await store.create("a", b"done")
    assert not [path for path in filesystem._names if "/temporary/" in path]


async def test_a_living_neighbours_temporary_files_are_left_alone() -> None:
    filesystem = FakeFileSystem()
    neighbour, store = DirectoryStore(ROOT, filesystem), DirectoryStore(ROOT, filesystem)
    await neighbour.create("a", b"1")
    await store.create("b", b"2")
    assert neighbour._slot is not None
    assert store._slot is not None
    assert neighbour._slot.new_path().rpartition("/")[0] != store._slot.new_path().rpartition("/")[0]


@pytest.mark.parametrize("look", ["get", "get_range", "create"])
async def test_what_a_reader_has_seen_survives_a_power_cut(look: str) -> None:
    """Its writer died between making the name and syncing it; the reader continues to acknowledge what it read."""
    filesystem = FakeFileSystem()
    writer = DirectoryStore(ROOT, filesystem)
    await writer.create("chunk/0", b"0")
    filesystem.fail = lambda call, path: (
        OSError(errno.EIO, "killed") if call == "sync_directory" and path.endswith("chunk") else None
    )
    with pytest.raises(StoreError):
        await writer.create("chunk/1", b"1")
    filesystem.kill_process()
    reader = DirectoryStore(ROOT, filesystem)
    if look == "get":
        assert (await reader.get("chunk/1")).data == b"1"
    elif look == "get_range":
        assert await reader.get_range("chunk/1", 0, 10) == b"1"
    else:
        with pytest.raises(AlreadyExists):
            await reader.create("chunk/1", b"other")
    for seed in range(20):
        after = DirectoryStore(ROOT, filesystem.power_cut(random.Random(seed)))
        assert await content(after, "chunk/1") == b"1"


async def test_sync_makes_a_strangers_file_durable() -> None:
    filesystem = FakeFileSystem()
    filesystem.make_directory(f"{ROOT}/tables/t")
    filesystem.create(f"{ROOT}/tables/t/file").write_at(0, payload(1))
    await DirectoryStore(ROOT, filesystem).sync("tables/t/file")
    for seed in range(20):
        after = DirectoryStore(ROOT, filesystem.power_cut(random.Random(seed)))
        assert await content(after, "tables/t/file") == payload(1)


async def test_a_full_disk_is_an_unknown_outcome_and_leaves_no_object() -> None:
    filesystem = FakeFileSystem()
    store = DirectoryStore(ROOT, filesystem)
    filesystem.fail = lambda call, path: OSError(errno.ENOSPC, "no space left") if call == "write_at" else None
    with pytest.raises(StoreError, match="no space left"):
        await store.create("a", b"1")
    filesystem.fail = lambda call, path: None
    assert await store.list("") == []
    await store.create("a", b"1")


async def test_names_that_are_no_keys_are_not_listed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    await store.create("a/b", b"1")
    (tmp_path / "a" / "b#1").write_bytes(b"a stranger's temporary file")
    (tmp_path / ".hidden").write_bytes(b"")
    assert [item.key for item in await store.list("")] == ["a/b"]


async def test_it_is_made_where_nothing_was(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/not/there/yet")
    assert await store.list("") == []
    await store.create("a", b"1")
    uri, options = store.location("a")
    assert (uri, options) == (str(tmp_path / "not/there/yet/a"), {})
    assert Path(uri).read_bytes() == b"1"


COUNTER = """
import asyncio, sys
from weft.storage.object_store import PreconditionFailed, AlreadyExists, open_store

async def main():
    store, made = open_store(sys.argv[1]), 0
    for number in range(30):
        try:
            await store.create(f"race/{number}", sys.argv[2].encode())
            made += 1
        except AlreadyExists:
            pass
    done = 0
    while done < 20:
        data, etag, _ = await store.get("counter")
        try:
            await store.swap("counter", b"%d" % (int(data) + 1), etag)
            done += 1
        except PreconditionFailed:
            pass
    print(made)

asyncio.run(main())
"""


@pytest.mark.processes
async def test_processes_of_one_machine_race_fairly(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    await store.create("counter", b"0")
    command = [sys.executable, "-c", COUNTER, str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()) for n in range(3)
    ]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert sum(map(int, outputs)) == 30
    assert (await store.get("counter")).data == b"60"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EROFS, "Mount its disk writable"),
        (errno.ENOENT, "mount its disk"),
        (errno.ENOTDIR, "Make the folder"),
    ],
)
async def test_a_folder_that_cannot_be_used_says_which_it_is_and_what_to_do(number: int, advice: str) -> None:
    filesystem = FakeFileSystem()
    filesystem.fail = lambda name, path: OSError(number, os.strerror(number), path)
    with pytest.raises(StoreError) as raised:
        await probe(DirectoryStore(ROOT, filesystem))
    sentence = str(raised.value)
    assert sentence.startswith(f"the store's folder {ROOT} cannot be used")
    assert os.strerror(number) in sentence
    assert advice in sentence
    assert "[Errno" not in sentence


async def test_a_probe_leaves_no_folder_and_clears_what_killed_ones_left(tmp_path: Path) -> None:
    killed, running = tmp_path / "probe" / ("a" * 16), tmp_path / "probe" / ("b" * 16)
    for each in (killed, running):
        (each / "order").mkdir(parents=True)
        (each / "object").write_bytes(b"of a process that was killed, or runs")
    long_ago = killed.stat().st_mtime - 25 * 3600
    os.utime(killed, (long_ago, long_ago))
    (tmp_path / "shard-0" / "chunk").mkdir(parents=True)
    await probe_in_sequence(open_store(str(tmp_path)))
    assert [each.name for each in (tmp_path / "probe").iterdir()] == [running.name]
    assert (running / "object").exists()
    assert (tmp_path / "shard-0" / "chunk").exists(), "only folders of probes are removed"


async def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StoreError, match=r"Not a directory.*Make the folder"):
        await probe(open_store(str(tmp_path / "store")))
