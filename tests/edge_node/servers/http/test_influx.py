"""InfluxDB's interface: its client library writes, points become records, errors are those of InfluxDB."""

from __future__ import annotations

import asyncio
import gzip
import shutil
from pathlib import Path

import pytest

from tests.edge_node.servers.http.harness import running
from tests.edge_node.servers.http.test_access import basic, guarded
from tests.support.waiting import PATIENCE_S
from weft.protocols.message_headers import SENT

__all__ = ["guarded"]
MORE = '  points: {from: "metrics/#"}'
V2 = "/api/v2/write?org=o&bucket=metrics&precision=s"


async def test_a_point_is_a_record(tmp_path: Path) -> None:
    async with running(tmp_path, more=MORE) as http:
        line = b"disk,path=/var/log,host=a free=12i,used=98 1700000000"
        status, answer, _ = await http.post(V2, line)
        assert (status, answer) == (204, None)
        (record,) = http.stored("points")
    assert record.key == b"metrics/disk/a/%2Fvar%2Flog"
    assert record.payload == b'{"free":12,"used":98.0}'
    assert record.headers == (("path", "/var/log"), ("host", "a"), (SENT, 1_700_000_000_000_000_000))


async def test_a_bucket_may_say_where_tags_stand(tmp_path: Path) -> None:
    async with running(tmp_path) as http:
        status, _, _ = await http.post("/api/v2/write?bucket=plant/%7Bline%7D/%7Bmeasurement%7D", b"temp,line=a v=1")
        assert status == 204
        status, answer, _ = await http.post("/api/v2/write?bucket=plant/%7Bline%7D", b"temp v=1")
        assert (status, answer["code"], "line" in answer["message"]) == (400, "invalid", True)
        assert [record.key for record in http.stored()] == [b"plant/a/temp"]


async def test_version_1_writes_too(tmp_path: Path) -> None:
    async with running(tmp_path, more=MORE) as http:
        assert (await http.get("/ping"))[0] == 204
        status, answer, _ = await http.post("/query?q=CREATE+DATABASE+%22metrics%22")
        assert (status, answer) == (200, {"results": [{"statement_id": 0}]})
        assert (await http.post("/query?q=SELECT+1"))[0] == 400
        body = gzip.compress(b"m f=1i 1700000000000\nm f=2i 1700000000001")
        status, _, _ = await http.post("/write?db=metrics&precision=ms", body, Content_Encoding="gzip")
        assert status == 204
        assert [dict(record.headers)[SENT] for record in http.stored("points")] == [
            1_700_000_000_000_000_000,
            1_700_000_000_001_000_000,
        ]


async def test_good_lines_are_stored_and_bad_ones_are_named(tmp_path: Path) -> None:
    async with running(tmp_path, more=MORE) as http:
        status, answer, fields = await http.post(V2, b"m f=1i\nbad line\nm f=2i\nm f=\n")
        assert (status, answer["code"]) == (400, "invalid")
        assert answer["message"].startswith("partial write: unable to parse 'bad line'")
        assert answer["message"].endswith("dropped=2")
        assert fields["X-Influxdb-Error"] == answer["error"]
        assert [record.payload for record in http.stored("points")] == [b'{"f":1}', b'{"f":2}']
        for path, body in ((V2, b"bad"), ("/api/v2/write?org=o", b"m f=1i"), (V2[:-1] + "d", b"m f=1i")):
            status, answer, _ = await http.post(path, body)
            assert (status, answer["code"]) == (400, "invalid")
        assert len(http.stored("points")) == 2


async def test_its_client_library_writes(guarded: tuple[Path, str]) -> None:
    influxdb_client = pytest.importorskip("influxdb_client")
    folder, auth = guarded
    async with running(folder, ", anonymous: never", auth) as http:

        def write() -> str:
            with influxdb_client.InfluxDBClient(http.url, "alice:alice", org="o", enable_gzip=True) as client:
                assert client.ping()
                point = influxdb_client.Point("temp").tag("host", "a b").field("v", 21.5).field("n", 3).time(17)
                from influxdb_client.client.write_api import SYNCHRONOUS

                client.write_api(write_options=SYNCHRONOUS).write("plant", record=[point, point.tag("host", "b")])
            with influxdb_client.InfluxDBClient(http.url, "alice:wrong", org="o") as client:
                try:
                    client.write_api(write_options=SYNCHRONOUS).write("plant", record=point)
                except influxdb_client.rest.ApiException as error:
                    return str(error.status)
            return "written"

        assert await asyncio.to_thread(write) == "401"
        status, _, _ = await http.post("/write?db=plant&u=alice&p=alice", b"temp,host=c v=1")
        assert status == 204
        status, _, _ = await http.post("/write?db=secret", b"temp v=1", Authorization=basic("alice"))
        assert status == 403
        assert [record.key for record in http.stored()] == [b"plant/temp/b", b"plant/temp/b", b"plant/temp/c"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("telegraf") is None, reason="needs telegraf")
async def test_telegraf_writes(tmp_path: Path) -> None:
    async with running(tmp_path, more=MORE) as http:
        config = tmp_path / "telegraf.conf"
        config.write_text(
            '[agent]\ninterval = "1s"\nflush_interval = "1s"\nomit_hostname = true\n'
            f'[[outputs.influxdb_v2]]\nurls = ["{http.url}"]\ntoken = ""\norganization = "o"\nbucket = "metrics"\n'
            "[[inputs.mem]]\n"
        )
        process = await asyncio.create_subprocess_exec("telegraf", "--config", str(config), "--once")
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert any(record.key == b"metrics/mem" for record in http.stored("points"))
