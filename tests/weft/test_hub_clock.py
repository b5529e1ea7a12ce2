"""``weft hub clock``, beside a hub that runs."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.fabric import make_batch
from tests.cloud_hub.live import EdgeLog
from tests.cloud_hub.tables.logs import LogWriter, Run
from tests.support.epochs import MemoryEpochs
from tests.support.processes import Start, weft
from tests.support.waiting import wait_until
from weft.output import Failed, Refused
from weft.protocols.lane import Lane
from weft.protocols.link import Clock
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes

LANE = Lane("default", "press-1", 7, "telemetry")
YEARS = 14 * 365 * 86_400 * 10**9
SET_BACK = ("--set-back", "all", "--reason", "node b was of 2040", "--yes")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A hub with two shards, of which a wrong clock wrote to shard 1."""
    path = tmp_path / "hub.yaml"
    path.write_text(
        f"listen: 127.0.0.1:{free_port()}\nstore: {tmp_path / 'store'}\nshards: 2\nprocesses: 1\ntables: null\n"
    )

    async def write() -> None:
        log = await LogWriter.open(open_store(str(tmp_path / "store")))
        log.created = time.time_ns()
        await log.append(0, Run(LANE, 0, 3))
        log.created += YEARS
        await log.append(1, Run(LANE._replace(edge="press-2"), 0, 3))

    asyncio.run(write())
    return path


def created(config: Path, shard: int) -> int:
    async def read() -> int:
        store = open_store(str(config.parent / "store"))
        return (await ShardLog(store, await open_cluster(store, None), shard).load()).created

    return asyncio.run(read())


def test_times_in_the_future_are_shown_and_lowered_beside_a_running_hub(config: Path, start: Start) -> None:
    hub = start("hub", config)
    shown = weft("hub", "clock", config)
    assert shown.exit_code == 0
    assert "14.0 years ahead" in shown.output
    assert "weft hub clock CONFIG --set-back all --reason" in shown.output
    assert [each["ahead_s"] > 0 for each in json.loads(weft("hub", "clock", config, "--json").output)["shards"]] == [
        False,
        True,
    ]
    before = created(config, 0)
    assert weft("hub", "clock", config, "--set-back", "0", *SET_BACK[2:]).output == (
        "nothing was lowered: no such shard has a time in the future\n"
    )
    done = weft("hub", "clock", config, *SET_BACK)
    assert done.output == "the time of shard 1 is lowered to now: node b was of 2040\n"
    assert abs(created(config, 1) - time.time_ns()) < 60 * 10**9
    assert created(config, 0) == before
    assert "ahead" not in weft("hub", "clock", config).output
    # The running node follows, and writes on from there.
    wait_until(lambda: hub.json("v1/status")["shards"][1]["chunk"] >= 1, what="the hub's look at the record")
    assert hub.stop() == 0


def test_what_cannot_be_lowered_is_said(config: Path) -> None:
    unknown = weft("hub", "clock", config, "--set-back", "7", "--reason", "x", "--yes")
    assert isinstance(unknown.exception, Failed)
    assert "the hub has shards 0 to 1" in str(unknown.exception)
    assert isinstance(weft("hub", "clock", config, "--set-back", "1").exception, Refused)
    assert isinstance(weft("hub", "clock", config, "--reason", "x").exception, Refused)
    unasked = weft("hub", "clock", config, *SET_BACK[:-1])
    assert str(unasked.exception).startswith("nothing was lowered: there is no terminal to ask on")
    assert created(config, 1) > time.time_ns() + YEARS // 2


class _Synchronised:
    """The clocks of a machine whose time source is wrong, as its kernel cannot know."""

    is_synchronised, is_unknown = True, False

    def note_time(self, hub: str, time: int, error: int) -> None:
        """Its clock counts as right."""

    def notices(self) -> list[Clock]:
        return []


async def test_status_names_edges_whose_synchronised_clocks_are_not_the_hubs(config: Path, start: Start) -> None:
    hub, log = start("hub", config), EdgeLog()
    link = asyncio.create_task(
        run_link(
            log,
            LinkIdentity("default", "press-3", 9, "test"),
            LinkSettings((hub.url,), token=lambda: None),
            MemoryEpochs(),
            LinkStatus("cloud"),
            wall_clock=lambda: time.time_ns() - 3600 * 10**9,
            clocks=_Synchronised(),
        )
    )
    log.append(*make_batch(Lane("default", "press-3", 9, "telemetry"), 0, 1))
    await log.until_released(1)
    shown = await asyncio.to_thread(weft, "hub", "status", config)
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
    assert (
        "CLOCK: 1 of 1 linked edges have synchronised clocks a minute or more from this hub's (default/press-3): one "
        "side is wrong"
    ) in shown.output
