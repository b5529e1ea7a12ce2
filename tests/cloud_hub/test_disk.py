"""Until when the disk of a store lasts: a process sees its free space, and tells operators."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.cloud_hub.live import get, running_hub
from tests.support.waiting import until
from weft.cloud_hub.store import DAY_S, LOOK_S, StoreDisk
from weft.storage.filesystem import OSFileSystem
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import DirectoryStore, MemoryStore
from weft.text.fleet import disk_text

GI = 1 << 30
NOW = 1_767_225_600.0  # 2026-01-01


class SmallDisk(OSFileSystem):
    """A file system whose free space a test sets; None: it does not answer."""

    free: int | None = 100 * GI

    def free_bytes(self, path: str) -> int:
        if self.free is None:
            raise OSError(errno.EIO, "Input/output error", path)
        return self.free


class Watch:
    """A disk that is looked at each minute of a clock that a test moves."""

    def __init__(self, root: Path) -> None:
        self.files, self.now = SmallDisk(), 1000.0
        self.store = DirectoryStore(str(root), self.files)
        self.disk = StoreDisk(self.store, lambda: self.now)

    async def look(self, hours: float, bytes_a_look: int = 0) -> None:
        for _ in range(int(hours * 3600 / LOOK_S)):
            self.now += LOOK_S
            if self.files.free is not None:
                self.files.free -= bytes_a_look
            await self.disk.look(self.store)

    def says(self) -> str:
        return disk_text(self.disk.view(), NOW)


async def test_it_says_until_when_the_disk_lasts_once_the_growth_is_known(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    assert watch.says() == "unknown"
    await watch.look(0.5, GI // 60)
    assert watch.says() == "99.5 GiB free; until when it lasts is unknown for an hour after the start"
    await watch.look(3.5, GI // 60)
    assert (
        watch.says() == "96 GiB free; it lasts until 2026-01-05 00:00Z at the rate of the last 4.0 hours: 24 GiB a day"
    )
    await watch.look(30)
    view = watch.disk.view()
    assert view is not None
    assert view.seen_seconds == DAY_S, "what was before the last day no longer counts"
    assert watch.says() == "96 GiB free; it did not shrink in the last 24.0 hours"
    watch.files.free = 0
    await watch.look(0.1)
    assert watch.says() == "none free: the hub accepts nothing until space is freed"
    full = watch.disk.view()
    assert full is not None
    assert full.seconds_left == 0


async def test_a_disk_that_does_not_answer_has_no_figure(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    await watch.look(2, GI // 60)
    watch.files.free = None
    await watch.look(0.1)
    assert watch.says() == "unknown"
    assert not list(watch.disk.samples())


async def test_a_closed_hub_looks_at_the_disk_no_more(tmp_path: Path) -> None:
    async with running_hub(open_store(str(tmp_path))):
        assert "store-disk" in {task.get_name() for task in asyncio.all_tasks()}
    assert "store-disk" not in {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.parametrize("is_folder", [True, False])
async def test_status_and_metrics_of_a_hub_say_what_is_free(tmp_path: Path, *, is_folder: bool) -> None:
    async with running_hub(open_store(str(tmp_path)) if is_folder else MemoryStore()) as hub:

        async def reported() -> bool:
            return "\nweft_hub_store_free_bytes " in (await get(hub, "/metrics"))[1]

        if is_folder:
            await until(reported)
        disk = (await get(hub, "/v1/status"))[1]["store"]["disk"]
        assert await reported() is is_folder
    if is_folder:
        assert disk["free_bytes"] > 0
        assert disk["seconds_left"] is None, "no growth was seen yet"
    else:
        assert disk_text(disk, NOW) == "a bucket: it has no such bound"
