"""InfluxDB's line protocol, by the rules and examples of its reference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weft.edge_node.servers.http.influx import BadLine, Point, lines_of, parse_line


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
