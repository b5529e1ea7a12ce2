"""The demo's check of its derived stream: it must see what is wrong."""

from __future__ import annotations

import json
import math

import pytest

from weft.demo.report import Series, Thinned, compare

SERIES: Series = ("press-shop", b"series/machine-7/temperature")
VALUES = [20.0, 20.5, 22.5, 21.0, 25.0, 24.0]


def reading(number: int, temperature: float) -> bytes:
    return json.dumps({"n": number, "data": {"temp": temperature}}).encode()


RAW = [reading(number, temperature) for number, temperature in enumerate(VALUES)]


def found(*points: bytes) -> Thinned:
    return compare({SERIES: RAW}, {SERIES: list(points)}, ["temperature@1"] * len(points))


def test_points_within_the_bound() -> None:
    thinned = found(RAW[0], RAW[2], RAW[4])
    assert (thinned.readings, thinned.points, thinned.furthest, thinned.strangers) == (6, 3, 1.5, 0)
    assert thinned.bytes == sum(len(RAW[at]) for at in (0, 2, 4))
    assert thinned.raw_bytes == sum(map(len, RAW))
    assert thinned.origins == ("temperature@1",)


@pytest.mark.parametrize(
    ("points", "furthest", "strangers"),
    [
        ([RAW[0], RAW[4]], 2.5, 0),
        ([RAW[2], RAW[4]], math.inf, 0),
        ([RAW[0], RAW[4], RAW[2]], 2.5, 1),
        ([RAW[0], RAW[2], RAW[2], RAW[4]], 2.5, 2),
        ([RAW[0], RAW[2], RAW[4], reading(9, 1.0)], 1.5, 1),
        ([], math.inf, 0),
    ],
    ids=["a point is lost", "the first is lost", "out of order", "doubled", "of nothing", "none"],
)
def test_what_is_wrong_is_seen(points: list[bytes], furthest: float, strangers: int) -> None:
    thinned = found(*points)
    assert (thinned.furthest, thinned.strangers) == (furthest, strangers)


def test_a_reading_that_a_device_sent_again_counts_once() -> None:
    thinned = compare({SERIES: [*RAW[:3], *RAW[1:]]}, {SERIES: [RAW[0], RAW[2], RAW[4]]}, [])
    assert (thinned.readings, thinned.strangers) == (6, 0)


def test_points_of_an_edge_without_readings_are_seen() -> None:
    assert compare({}, {SERIES: RAW[:1]}, []).strangers == 1
