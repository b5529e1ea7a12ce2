"""``weft hub retire``, ``adopt`` and ``finalize`` on a store that no node runs on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import pytest

from tests.cloud_hub.tables.logs import LogWriter, Run
from tests.support.processes import weft
from weft.output import Refused
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import shard_of
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

LANE = Lane("default", "press-1", 7, "telemetry")


def test_an_edge_is_retired_and_adopted_on_its_store(tmp_path: Path) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path / 'store'}\nshards: 2\n")

    async def prepare() -> None:
        store = open_store(str(tmp_path / "store"))
        logs = await LogWriter.open(store)
        await logs.append(shard_of(LANE.tenant, LANE.edge, 2), Run(LANE, 0, 3))

    async def counts() -> bool:
        store = open_store(str(tmp_path / "store"))
        log = ShardLog(store, await open_cluster(store, None), shard_of(LANE.tenant, LANE.edge, 2))
        return (await log.load()).lanes[LANE].counts

    asyncio.run(prepare())
    unknown = weft("hub", "retire", config, "press-9", "--reason", "gone", "--yes")
    assert unknown.exit_code == 1
    assert "knows no such lane of edge default/press-9" in str(unknown.exception)
    wrong = weft("hub", "retire", config, "press-1", "--log", "0000000000000001", "--reason", "gone", "--yes")
    assert "it has logs 0000000000000007" in str(wrong.exception)
    done = weft("hub", "retire", config, "press-1", "--reason", "gone", "--yes")
    first, gap = done.output.splitlines()
    assert first == "retired 1 lanes of default/press-1; 0 records count as lost"
    assert "open gap in telemetry: press-1/0000000000000007, from the beginning to " in gap
    assert "records from seq 3 on that its edge never delivered may be missing" in gap
    known = weft("hub", "retire", config, "press-1", "--reason", "all delivered", "--missing", "nothing", "--yes")
    assert known.output == "retired 1 lanes of default/press-1; 0 records count as lost\n"
    assert not asyncio.run(counts())
    assert weft("hub", "adopt", config, "press-1", "--yes").output == "adopted 1 lanes of default/press-1\n"
    assert asyncio.run(counts())
    assert (
        weft("hub", "finalize", config, "--yes").output
        == "the cluster is at level 4 already, the level of this release\n"
    )


@pytest.mark.parametrize(
    ("command", "done"),
    [
        (("retire", "press-1", "--reason", "gone"), "nothing was retired"),
        (("adopt", "press-1"), "nothing was adopted"),
        (("finalize",), "nothing was changed"),
        (("stream", "delete", "telemetry", "--reason", "over"), "nothing was deleted"),
        (("skip", "telemetry", "--from", "1", "--to", "2", "--reason", "bad"), "nothing was skipped"),
    ],
)
def test_what_cannot_be_taken_back_is_asked_for_and_a_script_is_told_yes(
    tmp_path: Path, command: tuple[str, ...], done: str
) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path / 'store'}\n")
    at = 2 if command[0] == "stream" else 1
    name, rest = command[:at], command[at:]
    unasked = weft("hub", *name, config, *rest)
    assert isinstance(unasked.exception, Refused)
    assert str(unasked.exception) == f"{done}: there is no terminal to ask on. Add --yes to confirm in advance"
    assert isinstance(weft("hub", *name, config, *rest, answer="n\n").exception, click.Abort)
    assert not (tmp_path / "store").exists()
