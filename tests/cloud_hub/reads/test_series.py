"""Numbers of a stream over time, as charts ask for them."""

from __future__ import annotations

import json
import re
import struct
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.cloud_hub.http.test_application import deliver
from tests.cloud_hub.live import EdgeLog, get, running_hub
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import series
from weft.hub_api.answers import moment, parse_moment
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.chunk_index import GapRange
from weft.protocols.payloads import PayloadKind
from weft.protocols.segment import GapReason
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

SECOND = 1_000_000_000
BEGIN = (time.time_ns() // (3600 * SECOND) - 2) * 3600 * SECOND
SPAN = f"since={BEGIN}&until={BEGIN + 3600 * SECOND}&late=31d"
PATH = "/v1/streams/telemetry/series"
DASHBOARD = Path(__file__).parents[3] / "deploy/monitoring/grafana-stream.json"


def append(log: EdgeLog, first: int, readings: list[tuple[float, str, Any]]) -> None:
    """Append records: seconds since the begin, key, payload."""
    times = struct.pack(f"<{len(readings)}q", *(BEGIN + int(at * SECOND) for at, _, _ in readings))
    payloads = [each if isinstance(each, bytes) else json.dumps(each).encode() for _, _, each in readings]
    columns = batch.columns_from_lists(times, [key.encode() for _, key, _ in readings], payloads)
    data = batch.encode(1, first, columns, ClockReading(1, 1, ClockState.SYNCED))
    log.append(batch.verify(data), data)


async def rows(hub: Hub, query: str) -> list[tuple[float, str, str, float | None]]:
    status, answer = await get(hub, f"{PATH}?{SPAN}&{query}")
    assert (status, answer["is_whole"]) == (200, True), answer
    assert [each["time"] for each in answer["rows"]] == sorted(each["time"] for each in answer["rows"])
    return [
        ((parse_moment(each["time"]) - BEGIN) / SECOND, each["key"], each["field"], each["value"])
        for each in answer["rows"]
    ]


def press() -> EdgeLog:
    log = EdgeLog(payload=PayloadKind.JSON)
    append(log, 0, [(at, "plant/a", {"celsius": 20 + at, "motor": {"rpm": 100 * at}, "ok": True}) for at in range(5)])
    append(log, 5, [(5, "plant/b", {"celsius": -1}), (5.5, "plant/a", b"no json"), (6, "plant/a", {"celsius": "warm"})])
    append(log, 12, [(60, "plant/a", {"celsius": 80.5}), (61, "plant/a", 7)])
    log.gaps.append(GapRange(8, 12, GapReason.BUDGET))
    return log


async def test_a_field_over_time_has_a_row_without_a_value_where_records_are_missing() -> None:
    async with running_hub(MemoryStore()) as hub:
        await deliver(hub, press(), 14)
        assert await rows(hub, "fields=celsius&key=plant/a") == [
            *((float(at), "plant/a", "celsius", 20.0 + at) for at in range(5)),
            (pytest.approx(6.0), "plant/a", "celsius", None),
            (60.0, "plant/a", "celsius", 80.5),
        ]
        assert [each[1:] for each in await rows(hub, "fields=motor.rpm,celsius&key=plant/b")] == [
            ("plant/b", "celsius", -1.0)
        ]
        assert await rows(hub, "key=plant/a") == [(61.0, "plant/a", "value", 7.0)]
        assert (
            await rows(hub, "fields=ok")
            == await rows(hub, "fields=nothing.here")
            == await rows(hub, "edge=other")
            == []
        )


async def test_an_interval_makes_one_row_of_its_values() -> None:
    async with running_hub(MemoryStore()) as hub:
        await deliver(hub, press(), 14)
        for value, of_first in (("mean", 21.0), ("last", 22.0), ("min", 20.0), ("max", 22.0)):
            found = await rows(hub, f"fields=celsius&key=plant/a&step=3s&value={value}")
            assert found[0] == (0.0, "plant/a", "celsius", of_first)
            assert found[1][0] == 3.0
            assert found[2][3] is None
            assert found[3] == (60.0, "plant/a", "celsius", 80.5)
        # An interval that has values on both sides of a gap bridges it.
        assert len(await rows(hub, "fields=celsius&key=plant/a&step=2m")) == 1


async def test_records_that_came_in_another_order_are_no_gap() -> None:
    log = EdgeLog(payload=PayloadKind.JSON)
    append(log, 0, [(at, "plant/a", {"celsius": at}) for at in range(10)])
    async with running_hub(MemoryStore()) as hub:
        await deliver(hub, log, 10)
        await deliver(hub, press(), 14, LinkIdentity("default", "press-2", 5, "test"))
        status, answer = await get(hub, f"{PATH}?{SPAN}&fields=celsius")
        assert status == 200
        assert {each["edge"] for each in answer["rows"]} == {"press-1", "press-2"}
        assert {each["edge"] for each in answer["rows"] if each["value"] is None} == {"press-2"}
    assert series.missing([(3, 30), (1, 10), (2, 20)]) == []


async def test_an_answer_that_met_a_bound_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_hub(MemoryStore()) as hub:
        await deliver(hub, press(), 14)
        status, answer = await get(hub, f"{PATH}?{SPAN}&fields=celsius&limit=2")
        assert (status, len(answer["rows"]), answer["is_whole"]) == (200, 2, False)
        for name, most in (("RECORDS_READ_MAX", 3), ("SERIES_MAX", 1), ("RECORD_BYTES_READ_MAX", 60)):
            with monkeypatch.context() as patched:
                patched.setattr(series, name, most)
                patched.setattr(series, "READ_AT_ONCE", 3)
                status, answer = await get(hub, f"{PATH}?{SPAN}&fields=celsius")
                assert (status, answer["is_whole"]) == (200, False), name
        # What came later than the span's end and the time for it is left out.
        status, answer = await get(hub, f"{PATH}?since={BEGIN}&until={BEGIN + 3600 * SECOND}&fields=celsius")
        assert (status, answer["rows"]) == (200, [])


async def test_what_is_asked_wrongly_is_refused_with_advice() -> None:
    async with running_hub(MemoryStore()) as hub:
        await deliver(hub, press(), 14)
        many = ",".join("abcdefghi")
        for query in (
            "",
            "since=soon",
            "since=0&step=soon",
            "since=0&step=32d",
            "since=0&step=9999999d",
            "since=0&late=9999999d",
            "since=0&value=sum",
            "since=0&key=%23/x",
            f"since=0&fields={many}",
            "since=0&limit=10001",
        ):
            status, answer = await get(hub, f"{PATH}?{query}")
            assert (status, bool(answer["advice"])) == (400, True), query


async def test_every_request_of_the_dashboard_is_answered_with_its_columns() -> None:
    """Grafana fills in its variables, and the data source its columns."""
    document = json.loads(DASHBOARD.read_text())
    chosen = {each["name"]: each["current"].get("value") for each in document["templating"]["list"]}
    chosen |= {"__from:date:iso": moment(BEGIN), "__to:date:iso": moment(BEGIN + 100 * SECOND), "__interval": "2s"}
    async with running_hub(MemoryStore()) as hub:
        await deliver(hub, press(), 14)
        targets = [target for panel in document["panels"] for target in panel["targets"]]
        assert len(targets) == 2
        for target in targets:
            query = {each["key"]: filled(each["value"], chosen) for each in target["url_options"]["params"]}
            if "until" in query:
                query["late"] = "31d"
            status, answer = await get(hub, f"{filled(target['url'], chosen)}?{urlencode(query)}")
            assert status == 200, answer
            found = answer[target["root_selector"]] if target["root_selector"] else [answer]
            assert found
            assert all({column["selector"] for column in target["columns"]} <= row.keys() for row in found)


def filled(text: str, chosen: dict[str, Any]) -> str:
    return re.sub(r"\$\{([^}]+)\}", lambda found: str(chosen[found[1]]), text)


async def test_what_one_device_sends_spoils_no_chart_of_another() -> None:
    """Text that is too deep for a decoder, a number of 5,000 digits, and a clock that is a day off."""
    log = EdgeLog(payload=PayloadKind.TEXT)
    append(log, 0, [(0, "plant/a", 1), (1, "evil", b"[" * 60_000 + b"]" * 60_000), (2, "evil", b"9" * 5_000)])
    append(log, 3, [(86_400, "evil", 5), (4, "plant/a", 2)])
    async with running_hub(MemoryStore()) as hub:
        await deliver(hub, log, 5)
        assert await rows(hub, "") == [(0.0, "plant/a", "value", 1.0), (4.0, "plant/a", "value", 2.0)]


def test_between_two_values_stands_one_gap_at_most() -> None:
    points = [series.Point(time, 1.0) for time in (90, 10, 50)]
    found = list(series.joined(points, 0, "mean", series.gap_begins([(at, at + 1) for at in range(10, 200)], 0)))
    assert [row.time for row in found] == [10, 11, 50, 51, 90]
    assert [row.value for row in found] == [1.0, None, 1.0, None, 1.0]
    assert series.gap_begins([(10, 12), (13, 31), (38, 40)], 10) == [10, 30]
