"""Windows of records that a hub asks of an edge: both in one process, over loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.cloud_hub.pulls.plants import BEGIN, SECOND, ask, call, held, linked_plant, over, pull_of
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cloud_hub.facts import pulls
from weft.config.links import Pull
from weft.edge_node.links.high_watermarks import HubHighWatermarks
from weft.hub_api.rights import Scope
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

pytestmark = pytest.mark.slow


async def test_a_window_comes_and_nothing_else(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await plant.records("vibration", 10, batches=100)
        status, asked = await ask(hub, 20, 50)
        assert (status, asked["state"]) == (202, "asked")
        found = await over(hub, asked["id"])
        assert (found["state"], found["records"], found["records_received"]) == ("done", 300, 300), found
        assert held(hub, plant) == RangeSet([(200, 500)])


async def test_overlapping_pulls_bring_each_record_once(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await plant.records("vibration", 10, batches=100)
        asked = [(await ask(hub, *window))[1]["id"] for window in ((20, 50), (40, 70), (0, 30), (20, 50))]
        found = [await over(hub, each) for each in asked]
        assert [(each["state"], each["records_received"]) for each in found] == [("done", 300)] * 4
        assert held(hub, plant) == RangeSet([(0, 700)])
        # A chunk with a record that the state has already would be refused: each was committed once.
        assert offsets(hub) == {700}


def offsets(hub: Any) -> set[int]:
    """Return the numbers of records of the stream in the shards that have some."""
    found = {each.state.next_offset.get(("default", "vibration"), 0) for each in hub.sequencers}
    return found - {0}


def vibrations(hub: Any) -> list[LaneState]:
    """Return the lanes of the stream."""
    return [held for each in hub.sequencers for lane, held in each.state.lanes.items() if lane.stream == "vibration"]


async def completeness(hub: Any) -> Any:
    _, body = await call(hub, "GET", "/v1/streams/vibration/completeness")
    held_back_by = [each["edge"] for each in body["held_back_by"] if each["reason"] != "late"]
    del body["lanes"]  # with the times of their last chunks
    return body | {"held_back_by": held_back_by}


async def test_a_pull_claims_nothing(tmp_path: Path) -> None:
    both = ("telemetry", "vibration")
    async with (
        running_hub(MemoryStore()) as hub,
        linked_plant(tmp_path / "7", hub) as plant,
        linked_plant(tmp_path / "8", hub, None, node="press-8", streams=both) as other,
    ):
        await plant.records("vibration", 10, batches=20)
        await other.records("vibration", 10, batches=20)
        await until(lambda: len(offsets(hub)) == 1 and max(offsets(hub)) == 200)
        await until(lambda: any(lane.mark is not None for lane in vibrations(hub)))
        before = await completeness(hub)
        assert before["complete_up_to"] is not None
        found = [await over(hub, (await ask(hub, *window))[1]["id"]) for window in ((2, 4), (10, 12))]
        assert [each["state"] for each in found] == ["done", "done"]
        assert await completeness(hub) == before
        lane = next(lane for lane in vibrations(hub) if lane.partial)
        assert (lane.partial, lane.counts, lane.mark, list(lane.gaps)) == (True, False, None, [])
        assert list(lane.ranges) == [(20, 40), (100, 120)]


async def test_the_plant_decides(tmp_path: Path) -> None:
    allowed = Pull(streams=("vib*",), size_bytes=2000)
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, allowed) as plant:
        await plant.records("vibration", 10, batches=100)
        await plant.records("telemetry", 1)
        refused = {
            "does not allow this stream": await ask(hub, 0, 50, "telemetry"),
            "has no stream": await ask(hub, 0, 50, "vibrations"),
            "has no records of that time": await ask(hub, -50, 0),
            "more than 2000 bytes": await ask(hub, 0, 50),
            "more than 1000 bytes": await ask(hub, 0, 50, bytes_max=1000),
        }
        for reason, (status, asked) in refused.items():
            assert status == 202
            found = await over(hub, asked["id"])
            assert found["state"] == "refused"
            assert reason in found["reason"]
        assert not held(hub, plant)


async def test_a_plant_that_allows_nothing_sends_nothing(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, None) as plant:
        await plant.records("vibration", 10)
        found = await over(hub, (await ask(hub, 0, 50))[1]["id"])
        assert (found["state"], held(hub, plant)) == ("refused", RangeSet())
        assert "allows no pulls" in found["reason"]


async def test_a_stream_that_the_link_carries_is_not_pulled(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, Pull(streams=("*",))) as plant:
        await plant.records("telemetry", 10)
        found = await over(hub, (await ask(hub, 0, 50, "telemetry"))[1]["id"])
        assert (found["state"], "carries this stream" in found["reason"]) == ("refused", True)


async def test_a_lane_that_counts_takes_no_pull(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        async with linked_plant(tmp_path, hub, streams=("telemetry", "vibration")) as plant:
            await plant.records("vibration", 10)
            await until(lambda: held(hub, plant) == RangeSet([(0, 10)]))
        async with linked_plant(tmp_path, hub) as plant:
            plant.wall = BEGIN + 100 * SECOND
            await plant.records("vibration", 10)
            before = await completeness(hub)
            found = await over(hub, (await ask(hub, 50, 150))[1]["id"])
            assert (found["state"], held(hub, plant)) == ("failed", RangeSet([(0, 10)]))
            assert "counts for completeness" in found["reason"]
            assert await completeness(hub) == before


async def test_a_stream_that_a_link_carries_later_is_whole(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        async with linked_plant(tmp_path, hub) as plant:
            await plant.records("vibration", 10, batches=20)
            await over(hub, (await ask(hub, 5, 10))[1]["id"])
            assert held(hub, plant) == RangeSet([(50, 100)])
        async with linked_plant(tmp_path, hub, streams=("telemetry", "vibration")) as plant:
            await until(lambda: held(hub, plant) == RangeSet([(0, 200)]))
            assert offsets(hub) == {200}
            assert all(lane.counts for lane in vibrations(hub))


async def test_a_pull_is_cancelled_and_goes_on_in_another(tmp_path: Path) -> None:
    slow = Pull(streams=("vib*",), rate=20_000)
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, slow) as plant:
        await plant.records("vibration", 10, batches=200)
        _, asked = await ask(hub, 0, 200)
        await until(lambda: bool(held(hub, plant)))
        running = await pull_of(hub, asked["id"])
        assert running["state"] == "sending"
        assert 0 < running["records_received"] < running["records"] == 2000
        assert running["rest_seconds"] > 0
        assert "of 2000 records" in plant.status.pull
        assert plant.status.pending_records == 0, "the plant's own records do not wait"
        status, cancelled = await call(hub, "DELETE", f"/v1/pulls/{asked['id']}")
        assert (status, cancelled["state"]) == (200, "cancelled")
        before = held(hub, plant).count()
        await until(lambda: not plant.status.pull)
        await asyncio.sleep(0.5)
        assert held(hub, plant).count() <= before + 200, "what was under way, and no more"
        assert (await call(hub, "DELETE", f"/v1/pulls/{asked['id']}"))[1]["state"] == "cancelled"
        assert (await call(hub, "DELETE", "/v1/pulls/nothing"))[0] == 404
        plant.links.adopt(plant.with_pull(Pull(streams=("vib*",), rate=64 << 20)))
        found = await over(hub, (await ask(hub, 0, 200))[1]["id"])
        assert (found["state"], found["records_received"]) == ("done", 2000)


async def test_an_edge_that_is_away_is_asked_when_it_links(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        async with linked_plant(tmp_path, hub) as plant:
            await plant.records("vibration", 10, batches=20)
            await plant.records("telemetry", 10)
            await until(lambda: bool(held(hub, plant, "telemetry")))
        _, asked = await ask(hub, 5, 10)
        assert (asked["state"], asked["linked_here"]) == ("asked", False)
        async with linked_plant(tmp_path, hub) as plant:
            assert (await over(hub, asked["id"]))["records_received"] == 50
            assert held(hub, plant) == RangeSet([(50, 100)])


async def test_what_the_edge_deletes_meanwhile_is_named(tmp_path: Path) -> None:
    slow = Pull(streams=("vib*",), rate=30_000)
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, slow) as plant:
        await plant.records("vibration", 10, batches=200)
        _, asked = await ask(hub, 0, 200)
        await until(lambda: bool(held(hub, plant)))
        await plant.delete("vibration", 1000, 1500)
        found = await over(hub, asked["id"])
        have = held(hub, plant)
        assert found["state"] == "done"
        assert found["records_received"] == have.count() < 2000
        assert [(each["first"], each["end"]) for each in found["lost"]] == have.missing(0, 2000)


async def test_bounds_of_pulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Pull(streams=("vib*",), rate=1)
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, slow) as plant:
        await plant.records("vibration", 10, batches=200)
        answers = [(await ask(hub, 0, 100))[0] for _ in range(9)]
        assert answers == [202] * 8 + [429]
        monkeypatch.setattr(pulls, "RUNNING_PER_TENANT_MAX", 8)
        status, reported = await ask(hub, 0, 100)
        assert (status, "wait for one" in reported["detail"]) == (429, True)
        monkeypatch.setattr(pulls, "PULLS_PER_HOUR_MAX", 8)
        _, listed = await call(hub, "GET", "/v1/pulls")
        await call(hub, "DELETE", f"/v1/pulls/{listed['pulls'][0]['id']}")
        assert "in an hour" in (await ask(hub, 0, 100))[1]["detail"]


@pytest.mark.parametrize(
    ("fields", "status", "error"),
    [
        ({"from": "5", "to": "5"}, 400, "empty"),
        ({"from": "yesterday"}, 400, "from"),
        ({"to": "2222-01-01"}, 400, "31 days"),
        ({"stream": "../x"}, 400, "is not a name"),
        ({"edge": "nobody"}, 404, "no edge nobody"),
        ({"bytes_max": 0}, 400, "not a request"),
        ({"expires_s": 1e9}, 400, "not a request"),
        ({"more": 1}, 400, "not a request"),
    ],
)
async def test_requests_that_cannot_be(tmp_path: Path, fields: dict[str, Any], status: int, error: str) -> None:
    async with running_hub(MemoryStore()) as hub:
        body = {"edge": "press-7", "stream": "vibration", "from": "2023-11-14T00:00Z", "to": "2023-11-15"} | fields
        answer, reported = await call(hub, "POST", "/v1/pulls", body)
        assert (answer, error in reported["detail"]) == (status, True), reported


async def test_a_list_of_the_pulls_of_no_name_is_refused() -> None:
    async with running_hub(MemoryStore()) as hub:
        answer, reported = await call(hub, "GET", "/v1/pulls?edge=", None)
        assert (answer, reported["detail"]) == (400, "edge=''")


async def test_an_edge_of_a_release_without_pulls_is_asked_for_nothing(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        log, identity = EdgeLog(), LinkIdentity("default", "press-7", 7, "older")
        async with running_link(hub, log, identity) as status:
            await until(lambda: status.is_taken)
            await until(lambda: any(each.state.lane_count("default", "press-7") for each in hub.sequencers))
            _, asked = await ask(hub, 0, 10)
            await asyncio.sleep(0.3)
            found = await pull_of(hub, asked["id"])
            assert (found["state"], found["linked_here"], status.connections) == ("asked", False, 1)


async def test_a_hub_of_a_release_without_pulls_gets_records_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.replication.receiver.FEATURES", ("last-words", "config", "down"))
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await plant.records("telemetry", 10)
        await until(lambda: held(hub, plant, "telemetry") == RangeSet([(0, 10)]))
        assert plant.status.connections == 1
        assert not plant.status.last_error


async def test_a_hub_that_restarts_asks_again(tmp_path: Path) -> None:
    store, slow = MemoryStore(), Pull(streams=("vib*",), rate=30_000)
    async with running_hub(store) as hub, linked_plant(tmp_path, hub, slow) as plant:
        await plant.records("vibration", 10, batches=200)
        _, asked = await ask(hub, 0, 200)
        await until(lambda: bool(held(hub, plant)))
        first = held(hub, plant).count()
        assert first < 2000
        url = hub.url
        await hub.close()
        async with running_hub(store, port=int(url.rpartition(":")[2])) as again:
            found = await over(again, asked["id"])
            assert (found["state"], found["records_received"]) == ("done", 2000)
            assert offsets(again) == {2000}


async def test_a_log_that_was_put_back_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub has other records under numbers that the log uses again."""
    async with running_hub(MemoryStore()) as hub:
        async with linked_plant(tmp_path, hub) as plant:
            await plant.records("vibration", 10, batches=20)
            assert (await over(hub, (await ask(hub, 0, 10))[1]["id"]))["state"] == "done"
        monkeypatch.setattr(HubHighWatermarks, "get", lambda *_: 50)
        async with linked_plant(tmp_path, hub) as plant:
            for window in ((5, 15), (2, 8)):
                found = await over(hub, (await ask(hub, *window))[1]["id"])
                assert (found["state"], "restored from an older copy" in found["reason"]) == ("refused", True)
            assert held(hub, plant) == RangeSet([(0, 100)])
            assert plant.status.is_taken


async def test_a_token_for_pulls_opens_nothing_else(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    secrets = {scope: create_token(str(tokens), scope, Scope(scope)) for scope in ("pull", "reader", "publish")}
    async with running_hub(MemoryStore(), tokens=str(tokens)) as hub:
        found = {
            (scope, path): (await call(hub, "GET", path, token=secret))[0]
            for scope, secret in secrets.items()
            for path in ("/v1/pulls", "/v1/streams", "/v1/messages?edge=press-7")
        }
        assert {asked for asked, status in found.items() if status != 403} == {
            ("pull", "/v1/pulls"),
            ("reader", "/v1/streams"),
            ("publish", "/v1/messages?edge=press-7"),
        }
        assert (await call(hub, "GET", "/v1/pulls?tenant=other", token=secrets["pull"]))[0] == 403
        assert (await call(hub, "GET", "/v1/pulls"))[0] == 401
