"""InfluxDB's interface: its client library writes, points become records, errors are those of InfluxDB."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.http.harness import running
from tests.edge_node.servers.http.test_access import basic, guarded
from tests.support.waiting import PATIENCE_S
from weft.edge_node.servers.http.influx import BadLine, Point, lines_of, parse_line
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


# --- InfluxDB's line protocol, by the rules and examples of its reference


def fields(line: bytes) -> Any:
    return json.loads(parse_line(line).fields)


def test_a_line_has_measurement_tags_fields_and_time() -> None:
    line = b'cpu,host=a,core=0 usage=98.5,idle=1i,up=t,note="a, b",big=18446744073709551615u 1465839830100400200'
    assert parse_line(line) == Point(
        "cpu",
        [("host", "a"), ("core", "0")],
        b'{"usage":98.5,"idle":1,"up":true,"note":"a, b","big":18446744073709551615}',
        1465839830100400200,
    )
    assert parse_line(b"m f=1i") == Point("m", [], b'{"f":1}', None)


def test_floats_stay_floats_and_keep_their_digits() -> None:
    line = b"m a=98,b=98.50,c=1e3,d=-1.,e=.5,f=+2,g=007,h=-0"
    assert parse_line(line).fields == b'{"a":98.0,"b":98.50,"c":1e3,"d":-1.0,"e":0.5,"f":2.0,"g":7.0,"h":-0.0}'


def test_what_means_something_is_escaped() -> None:
    point = parse_line(rb'my\ m\,x,tag\ k=v\=1\,2,path=C:\temp f\=x="say \"hi\" \\ \n",g=1i 5')
    assert (point.measurement, point.tags, point.time) == ("my m,x", [("tag k", "v=1,2"), ("path", r"C:\temp")], 5)
    assert json.loads(point.fields) == {"f=x": r'say "hi" \ \n', "g": 1}


def test_lines_are_found_in_a_body() -> None:
    body = b'# comment\nm f=1i\r\n\n  m f=2i  \nm f="two\nlines",g=1i 7\nm f="#" 8\n'
    assert list(lines_of(body)) == [b"m f=1i", b"m f=2i", b'm f="two\nlines",g=1i 7', b'm f="#" 8']
    assert list(lines_of(b'm f="open\nm f=1i')) == [b'm f="open\nm f=1i']
    assert list(lines_of(b"")) == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"m",
        b"m ",
        b",a=b f=1",
        b"m,a f=1",
        b"m,a= f=1",
        b"m,=b f=1",
        b"m,a=b=c f=1",
        b"m,a=b",
        b"m,a=1,a=2 f=1",
        b"m f",
        b"m f=",
        b"m =1",
        b"m f=1x",
        b"m f=1i2",
        b"m f=nan",
        b"m f=inf",
        b"m f=1e999",
        b"m f=1,",
        b"m f=--1",
        b"m f=9223372036854775808i",
        b"m f=-1u",
        b"m f=18446744073709551616u",
        b'm f="open',
        b'm f="a"b',
        b"m f=tru",
        b"m f=1 x",
        b"m f=1 1 1",
        b"m f=1 99999999999999999999",
        b"m f=1 1.5",
        b"m\xff f=1",
        b'm f="\xff"',
        b"m f=0x10",
        b"m f=1_000",
        b"m f=" + b"1" * 401,
        b"m " + b"x" * 70_000 + b"=1",
    ],
    ids=lambda line: line[:20].decode("latin-1"),
)
def test_a_line_that_is_no_point_is_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        parse_line(line)


def test_hostile_lines_take_no_time() -> None:
    for line in (b"m" + b"\\" * 60_000 + b" f=1", b"m,a=" + b"\\ " * 30_000 + b" f=1", b'm f="' + b"\\" * 60_000):
        try:
            parse_line(line)
        except BadLine:
            pass
    body = b'm f="\n' * 100_000
    assert sum(1 for _ in lines_of(body)) < 100_001
