"""Writers of the cluster log as processes on one folder, killed at any moment."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.storage.cluster_log.declaring import MARA, counts, log_of
from weft.storage import hub_keys
from weft.storage.object_store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.processes]
WRITERS, KILLS = 3, 24


def write(folder: str) -> None:
    """Declare until it is killed, and say so after each declaration."""

    async def main() -> None:
        log = log_of(open_store(folder), random.SystemRandom().getrandbits(64))
        while True:
            await log.append(counts, MARA)
            print("declared", flush=True)

    asyncio.run(main())


def started(folder: Path, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"from {__name__} import write; write({str(folder)!r})"]
    with output.open("ab") as file:
        return subprocess.Popen(command, stdout=file, cwd=Path(__file__).parents[3])


def test_what_killed_writers_declared_is_there_once(tmp_path: Path) -> None:
    folder, rng = tmp_path / "store", random.Random(1)
    outputs = [tmp_path / f"output-{i}" for i in range(WRITERS)]
    writers = [started(folder, output) for output in outputs]
    try:
        for kill in range(KILLS):
            time.sleep(0.2 + rng.random())
            at = kill % WRITERS
            writers[at].kill()
            writers[at].wait()
            writers[at] = started(folder, outputs[at])
    finally:
        for each in writers:
            each.kill()
            each.wait()
    sure = sum(output.read_text().count("declared") for output in outputs)

    async def found() -> tuple[int, int, list[int | None]]:
        store = open_store(str(folder))
        state = await log_of(store).load()
        assert state.skipped == (), "a writer that is killed leaves no part of an entry"
        keys = [hub_keys.number_of(item.key) for item in await store.list(hub_keys.ENTRIES)]
        return int(state.facts("count")["all"].document), state.n, keys

    count, n, keys = asyncio.run(found())
    print(f"{sure} declarations acknowledged, {count} in the log, after {KILLS + WRITERS} kills")
    assert sure <= count <= sure + KILLS + WRITERS
    assert keys == list(range(1, n + 1))
    assert count == n, "each entry was decided on the one before it"
    assert sure > WRITERS * 4
