"""``weft trace``: what a person and a program see of a row's records."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from examples.demo.fabric import free_port
from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.support.processes import Start, publish, weft
from tests.support.waiting import wait_until
from weft.protocols.lane import Origin, OriginKind
from weft.storage.object_store import open_store

LOG = "0000000000000007"


@pytest.fixture
def store(tmp_path: Path) -> str:
    async def write() -> None:
        log = await LogWriter.open(open_store(str(tmp_path / "store")))
        await log.append(0, Run(LANE, 0, 10, payloads=[b"\x1b[2J", b"\xff\x00", *(b"%d" % n for n in range(8))]))

    asyncio.run(write())
    return str(tmp_path / "store")


@pytest.fixture
def silver(tmp_path: Path) -> str:
    lineage = [{"edge": LANE.edge, "log": LOG, "first": 2, "last": 4, "count": 3}]
    window = {"start": datetime(2023, 11, 14, 22, tzinfo=UTC), "end": datetime(2023, 11, 14, 23, tzinfo=UTC)}
    rows = pa.table({"machine": ["m1", "m2"], "window": [window] * 2, "mean": [1.0, 2.0], "_from": [lineage] * 2})
    write_deltalake(str(tmp_path / "silver"), rows)
    return str(tmp_path / "silver")


def test_a_row_of_a_table(store: str, silver: str) -> None:
    done = weft("trace", "--store", store, "--table", silver, "--where", "machine = 'm1' -- the first")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        'row machine=m1, window={"start":"2023-11-14T22:00:00Z","end":"2023-11-14T23:00:00Z"}, mean=1.0',
        f"  telemetry, lane press-1/{LOG}, seq 2 to 4: 3 records",
        "    2023-11-14T22:13:22.000000Z 2 plant/a/m1/telemetry 0",
        "    2023-11-14T22:13:23.000000Z 3 plant/a/m1/telemetry 1",
        "    2023-11-14T22:13:24.000000Z 4 plant/a/m1/telemetry 2",
        "read 0 of 0 table files, and the records of 1 of 1 chunk above the tables",
    ]


def test_programs_get_everything(store: str, silver: str) -> None:
    done = weft("trace", "--store", store, "--table", silver, "--where", "true", "--rows", 1, "--json")
    found = json.loads(done.output)
    assert (found["more_rows"], found["looked_at"]["sections"]) == (True, 1)
    (row,) = found["rows"]
    assert row["row"]["machine"] == "m1"
    (step,) = row["made_of"]
    assert (step["stream"], step["is_exact"]) == ("telemetry", True)
    assert [record["payload"] for record in step["records"]] == ["0", "1", "2"]
    raw = json.loads(weft("trace", "--store", store, "--record", "press-1/7/1", "--json").output)
    assert raw["rows"][0]["made_of"][0]["records"][0]["payload_base64"] == "/wA="


def test_bytes_of_devices_do_not_reach_the_terminal(store: str) -> None:
    lines = weft("trace", "--store", store, "--record", "press-1/7/0-1").output.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["hex:1b5b324a", "hex:ff00"]


def test_the_exit_status_says_whether_anything_was_found(store: str, silver: str) -> None:
    assert weft("trace", "--store", store, "--table", silver, "--where", "machine = 'm3'").return_value == 1
    none = weft("trace", "--store", store, "--record", "press-1/7/77")
    assert (none.return_value, "0 records; 1 were used" in none.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name what to trace: either --table with --where, or --from, or --record"),
        (("--record", "a/1/1", "--from", "[]"), "name what to trace"),
        (("--table", "<silver>"), "--table and --where belong together"),
        (("--record", "a/1/1", "--where", "true"), "--table and --where belong together"),
        (("--record", "press-1"), "expected EDGE/LOG/SEQ such as"),
        (("--from", "{"), "expected the value of a column _from"),
        (("--table", "<silver>", "--where", "machin = 1"), "No field named machin. Did you mean 'machine'?"),
        (("--table", "<store>", "--where", "true"), "is not a Delta table"),
    ],
)
def test_mistakes(store: str, silver: str, arguments: tuple[str, ...], said: str) -> None:
    given = [text.replace("<silver>", silver).replace("<store>", store) for text in arguments]
    done = weft("trace", "--store", store, *given)
    assert done.exception is not None
    assert said in str(done.exception)


def test_what_a_record_of_a_function_does_not_say_is_told_as_unknown(tmp_path: Path) -> None:
    origin = Origin(3, OriginKind.FUNCTION, "minutes", "3f1c9a70", b"")

    async def write() -> None:
        log = await LogWriter.open(open_store(str(tmp_path / "store")))
        await log.append(0, Run(LANE, 0, 2), Run(LANE._replace(stream="minutes"), 0, 1, origin=origin))

    asyncio.run(write())
    trace = ("trace", "--store", str(tmp_path / "store"), "--record", "press-1/7/0")
    lines = weft(*trace, "--stream", "minutes").output.splitlines()
    assert lines[2] == "      unknown source: the record does not name its inputs"
    forward = weft(*trace, "--stream", "telemetry", "--forward")
    assert (forward.return_value, forward.output.splitlines()[-1]) == (1, "  no record says that it was made of it")
    reported = weft("trace", "--store", str(tmp_path / "store"), "--from", "[]", "--forward")
    assert "--forward goes with --record" in str(reported.output) + str(reported.exception)


# --- ``weft trace`` over an edge node and a hub: from a row of a function to its messages, and from one to its rows


EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry", payload: json}}
  seconds:
    from_stream: telemetry
    functions:
      - set: {{double: v * 2}}
      - window: {{every: 1s, by: [machine], emit: {{n: count(), sum: sum(double)}}}}
  all: {{from_stream: seconds, functions: [{{sql: {{every: 1s, by: none, select: SELECT sum(n) AS n FROM input}}}}]}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", retry_min: 50ms, retry_max: 200ms}}}}
"""
HUB = "listen: 127.0.0.1:{port}\nstore: store\nshards: 2\nprocesses: 1\ncommit_interval: 20ms\ntables: null\n"


@pytest.mark.processes
@pytest.mark.slow
def test_the_trail_goes_on_through_functions_of_the_edge(start: Start, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "edge.yaml").write_text(EDGE.format(port=port))
    (tmp_path / "hub.yaml").write_text(HUB.format(port=port))
    hub, edge = start("hub", tmp_path / "hub.yaml"), start("edge", tmp_path / "edge.yaml")
    for machine in ("m1", "m2"):
        publish(edge.mqtt_port, f"plant/a/{machine}/telemetry", [json.dumps({"v": at}) for at in range(17)])

    def rows(stream: str) -> list[dict[str, Any]]:
        if stream not in (each["stream"] for each in hub.json("v1/streams")["streams"]):
            return []
        found: list[dict[str, Any]] = hub.json(f"v1/streams/{stream}/records?limit=1000")["records"]
        return found

    def counted(stream: str) -> int:
        return sum(json.loads(row["payload"])["n"] for row in rows(stream))

    wait_until(lambda: counted("all") == counted("seconds") == len(rows("telemetry")) == 34, 60)
    log = rows("telemetry")[0]["log"]
    store = ("--store", str(tmp_path / "store"), "--json")

    def traced(stream: str, seq: int) -> list[dict[str, Any]]:
        name = f"press-shop-7/{log}/{seq}"
        (row,) = json.loads(weft("trace", *store, "--record", name, "--stream", stream).output)["rows"]
        found: list[dict[str, Any]] = row["made_of"][0]["records"][0]["made_of"]
        return found

    used: dict[int, tuple[str, int]] = {}
    for row in rows("seconds"):
        (step,) = traced("seconds", row["seq"])
        assert (step["stream"], step["is_exact"]) == ("telemetry", True)
        values = json.loads(row["payload"])
        assert sum(2 * json.loads(each["payload"])["v"] for each in step["records"]) == values["sum"]
        assert {each["key"] for each in step["records"]} == {f"plant/a/{values['machine']}/telemetry"}
        used |= {each["seq"]: ("seconds", row["seq"]) for each in step["records"]}
    assert sorted(used) == [*range(34)]
    (step,) = traced("all", 0)
    assert step["records"][0]["made_of"][0]["stream"] == "telemetry"
    name = f"press-shop-7/{log}/20"
    found = json.loads(weft("trace", *store, "--record", name, "--stream", "telemetry", "--forward").output)
    assert [(each["stream"], each["record"]["seq"]) for each in found["made"]][:1] == [used[20]]
    assert {each["stream"] for each in found["made"]} == {"seconds", "all"}
