"""A hub's store is lost, and a backup restored: edges send again what they hold, and what is lost is named."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from examples.demo.fabric import free_port
from tests.cloud_hub.live import STREAM, Edge, get, running_hub
from tests.storage.object_store.buckets import bucket_server
from tests.support.waiting import PATIENCE_S, until
from weft.cli import cli
from weft.cloud_hub.hub import Hub
from weft.edge_node.links import links
from weft.proofs.audit.audit import audit
from weft.proofs.backup.backup import make_backup, restore
from weft.proofs.backup.view import open_backup
from weft.proofs.verify import verify
from weft.protocols.ranges import RangeSet
from weft.storage.object_store import ObjectStore, open_store

TABLES = {"table_interval_s": 0.1}


async def backed_up(store: ObjectStore, place: ObjectStore) -> None:
    await make_backup(store, place, clock=time.time_ns, note=lambda line: None)


async def restored_from(place: ObjectStore, target: ObjectStore) -> None:
    view = await open_backup(place)
    assert view is not None
    await restore(view, target, clock=time.time_ns, note=lambda line: None)


async def lane_of(hub: Hub, edge: str) -> dict[str, Any]:
    lanes = (await get(hub, f"/v1/streams/{STREAM}/lanes"))[1].get("lanes", ())
    return next((lane for lane in lanes if lane["edge"] == edge), {"ranges": [], "gaps": []})


async def until_complete(hub: Hub, edge: Edge) -> None:
    """Wait until the hub accounts for every number of an edge."""

    async def is_reported() -> bool:
        found = await lane_of(hub, edge.name)
        return bool(RangeSet((run["first"], run["end"]) for run in found["ranges"]).covers(0, edge.sent))

    await until(is_reported)


@contextlib.asynccontextmanager
async def load(*edges: Edge) -> AsyncIterator[None]:
    """Keep edges busy."""
    ended = asyncio.Event()
    tasks = [asyncio.create_task(edge.load(ended)) for edge in edges]
    try:
        yield
    finally:
        ended.set()
        await asyncio.gather(*tasks)


Opener = Callable[[str], ObjectStore]
"""Function from a name to the store of that name."""


@pytest.fixture(params=["folder", "gs", "az"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Stores in folders, or in buckets of one server."""
    if request.param == "folder":
        yield lambda name: open_store(str(tmp_path / name))
        return
    with bucket_server(request.param, tmp_path) as server:
        bucket = server.new_bucket()
        yield lambda name: open_store(f"{bucket}/{name}", server.options)


@pytest.mark.search(turns=3)
async def test_what_edges_hold_comes_again_and_what_is_lost_is_named(tmp_path: Path, opener: Opener) -> None:
    store, place, port = opener("store"), opener("backup"), free_port()
    url = f"http://127.0.0.1:{port}"
    async with Edge(tmp_path, "keeps", url, 4096) as keeps, Edge(tmp_path, "forgets", url, 8) as forgets:
        async with running_hub(store, port=port, **TABLES) as hub:
            async with load(keeps, forgets):
                await asyncio.sleep(1)
                await backed_up(store, place)
                await asyncio.sleep(1)
                await backed_up(store, place)  # continues where the first one ended
                await asyncio.sleep(2)
            for edge in (keeps, forgets):
                await until_complete(hub, edge)
        assert (await verify(place)).is_whole
        anew = opener("store")  # that of the hub deletes nothing any more without its cluster.json
        for item in await anew.list(""):
            await anew.delete(item.key)
        new = opener("new")
        await restored_from(place, new)
        found = await verify(new)
        assert (found.findings, found.lost, [lane.gone for lane in found.lanes]) == ([], [], [[], []])
        ends = {lane.edge: lane.next_seq for lane in found.lanes}
        assert 0 < ends["keeps"] < keeps.sent
        assert 0 < ends["forgets"] < forgets.sent
        held = forgets.held
        lost = RangeSet(held.missing(ends["forgets"], forgets.sent))
        assert lost, "the edge deleted nothing that the backup lacks"
        async with running_hub(new, port=port, **TABLES) as hub:
            for edge in (keeps, forgets):
                await until_complete(hub, edge)
            await keeps.bring(3)
            await forgets.bring(3)
            for edge in (keeps, forgets):
                await until_complete(hub, edge)
            assert (await lane_of(hub, "keeps"))["gaps"] == []
            named = (await lane_of(hub, "forgets"))["gaps"]
            assert [(gap["first"], gap["end"], gap["reason"]) for gap in named] == [(*run, "absent") for run in lost]
            # Who holds the stream back says so only until the next mark; the status, for as long as they are missing.
            [named] = [each for each in (await get(hub, "/v1/status"))[1]["lost"] if each["edge"] == "forgets"]
            assert (named["first_seq"], named["records"]) == (next(iter(lost))[0], lost.count())

            async def is_tabled() -> bool:
                return (await audit(new, "default", STREAM)).total("waiting") == 0

            await until(is_tabled)
        report = await audit(new, "default", STREAM)
        counts = {lane.edge: (lane.records, lane.table_records, lane.missing, lane.gaps) for lane in report.lanes}
        assert counts["keeps"] == (keeps.sent, keeps.sent, 0, {})
        kept = forgets.sent - lost.count()
        assert counts["forgets"] == (kept, kept, 0, {"absent": lost.count()})
        found = await verify(new)
        assert found.findings == []
        assert {lane.edge: lane.gone for lane in found.lanes} == {"keeps": [], "forgets": list(lost)}


async def weft(*arguments: str, exits: int = 0) -> str:
    """Run a command in a thread, and return what it prints."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments))
    assert result.exit_code == exits, result.output
    return result.output


@pytest.mark.slow
async def test_a_last_word_from_before_the_restore_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edge stopped in order, came again after the backup, and its disk is gone: the hub cannot know what it brought.
    Another one has come since, and is believed."""
    # A node gives up after a second by the clock. On a busy machine its last word would then never come.
    monkeypatch.setattr(links, "LAST_WORD_S", PATIENCE_S)
    config, port = tmp_path / "hub.yaml", free_port()
    config.write_text(f"listen: 127.0.0.1:{port}\nstore: {tmp_path}/store\n")
    url, store = f"http://127.0.0.1:{port}", open_store(str(tmp_path / "store"))
    async with running_hub(store, port=port) as hub:
        for name in ("lost", "back"):
            async with Edge(tmp_path, name, url, 8) as edge:
                await edge.bring(10)
                await until_complete(hub, edge)
        await until(lambda: is_in_order(hub, "lost", "back"))
        assert "copied" in await weft("hub", "backup", str(config), "--to", str(tmp_path / "backup"))
        async with Edge(tmp_path, "lost", url, 8) as edge:
            edge.sent = 10
            await edge.bring(10)
            await until_complete(hub, edge)
    assert "good" in await weft("hub", "verify", "--store", str(tmp_path / "backup"))
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(tmp_path / "lost")
    await weft("hub", "restore", "--from", str(tmp_path / "backup"), "--to", str(tmp_path / "store"))
    shown = await weft("hub", "verify", "--store", str(tmp_path / "store"))
    assert "NOT YET HEARD since the restore, so that later records may be lost: back, lost" in shown
    async with running_hub(open_store(str(tmp_path / "store")), port=port) as hub:
        before = (await lane_of(hub, "back"))["epoch"]
        async with Edge(tmp_path, "back", url, 8) as edge:
            await until(lambda: has_come(hub, "back", before))
            # Only a link that is taken says a last word. It may have been compared before: a lane that the hub closed,
            # for the edge to connect again, has had its answer, too.
            await until(lambda: edge.links.statuses[0].is_taken)
        await until(lambda: is_in_order(hub, "lost", "back"))
        reported = await weft("hub", "retire", str(config), "lost", "--reason", "its disk is gone", "--yes")
        assert "open gap" in reported.lower()
        reported = await weft("hub", "retire", str(config), "back", "--reason", "taken out", "--yes")
        assert "open gap" not in reported.lower()

        async def names_one() -> bool:
            found = (await get(hub, f"/v1/streams/{STREAM}/completeness"))[1]["open_gaps"]
            return [gap["edge"] for gap in found] == ["lost"]

        await until(names_one)
    shown = await weft("hub", "verify", "--store", str(tmp_path / "store"), "--lanes")
    assert ", restored at " in shown
    assert "HEARD" not in shown, "both are retired"


async def is_in_order(hub: Hub, *edges: str) -> bool:
    return all([(await lane_of(hub, edge)).get("last_word") is not None for edge in edges])


async def has_come(hub: Hub, edge: str, before: int) -> bool:
    return bool((await lane_of(hub, edge))["epoch"] > before)
