"""Windows of many devices: what one of them sends takes its own share, and rows that are cut are named."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from tests.functions.restart import SECOND, cuts, row, run, same_after_restarts
from tests.functions.windows.test_sql import sql
from tests.support.examples import given
from tests.support.speed import slowness
from tests.support.steps import STEP_S_MAX, TRIES, worked_s
from weft.functions.chain import Chain, Outputs
from weft.functions.contract import Row
from weft.functions.formats import JsonFormat
from weft.functions.select import COLUMNS_MAX
from weft.functions.window_plan import topic_of

HOUR = 3600 * SECOND
BIG = 1 << 20
ALL = "SELECT key, group_concat(v, ' ') AS vs FROM input GROUP BY key ORDER BY key"


def fair(topics: list[bytes], most: int) -> list[int]:
    """Return the places of the rows that a window keeps, by brute force: rows are alike in size."""
    kept: list[int] = []
    for at, topic in enumerate(topics):
        counts = Counter(topics[each] for each in kept)
        if len(kept) >= most:
            number = max(counts.values())
            largest = min(each for each in counts if counts[each] == number)
            if largest == topic or number - 1 < counts[topic] + 1:
                continue
            kept.remove(max(each for each in kept if topics[each] == largest))
        kept.append(at)
    return kept


@given(data=st.data(), few=10, many=60)
def test_the_topic_with_the_most_rows_gives_way_first(data: st.DataObject) -> None:
    topics = data.draw(st.lists(st.sampled_from([b"a", b"a", b"a", b"b", b"c", b"d"]), min_size=1, max_size=90))
    most = data.draw(st.sampled_from([1, 3, 7, 70]))
    rows = [row(SECOND + at // 9, {"v": 100 + at}, topic, at) for at, topic in enumerate(topics)]
    found = same_after_restarts(sql(ALL, by=("none",), rows_max=most), rows, data.draw(cuts(len(rows))), until=HOUR)
    kept = fair(topics, most)
    assert {each.values["key"]: each.values["vs"] for each in found.emitted} == {
        topic.decode(): " ".join(str(100 + at) for at in kept if topics[at] == topic)
        for topic in {topics[at] for at in kept}
    }
    cut = Counter(topics[at].decode() for at in range(len(topics)) if at not in kept)
    for each in found.emitted:
        assert each.values["count"] == len(kept)
        name, first, last, count = each.source
        assert (name, count) == ("in", len(kept))
        assert first <= min(kept) <= max(kept) <= last  # type: ignore[operator]
        assert each.values["complete"] is not bool(cut)
        assert all(f"{topic} {number}" in each.values["missing"] for topic, number in cut.items())
    sources = sorted(said[1][5] for said in found.out.said)
    assert sources == sorted(set(range(len(topics))) - set(kept))


def test_one_device_leaves_the_window_to_the_others() -> None:
    """12,000 rows of one device, before and after those of the other: its own are cut."""
    flood = [row(1 + at, {"v": 1}, b"plant/m/mallory", at) for at in range(12_000)]
    good = [row(500 * at + 2, {"v": 2.5}, b"plant/a/b", 20_000 + at) for at in range(24)]
    rows = sorted([*flood, *good], key=lambda each: each.time)
    select = "SELECT count(*) AS n, avg(v) AS v FROM input WHERE key = 'plant/a/b'"
    (result,) = run(sql(select, by=("none",)), rows, until=HOUR).emitted
    assert (result.values["n"], result.values["v"]) == (24, 2.5)
    assert result.values["missing"] == "2024 rows beyond rows_max, size_max or memory: plant/m/mallory 2,024"


@pytest.mark.parametrize(("bound", "kept"), [({"bytes_max": BIG}, 5), ({"memory_bytes": BIG}, 5)])
def test_bytes_are_shared_as_rows_are(bound: dict[str, int], kept: int) -> None:
    flood = [row(1 + at, {"v": 1, "x": "y" * 100_000}, b"m", at) for at in range(20)]
    good = [row(100 + at, {"v": 2, "x": "y" * 100_000}, b"a", 100 + at) for at in range(9)]
    (result,) = run(
        sql("SELECT sum(v = 2) AS a, sum(v = 1) AS m FROM input", by=("none",), **bound), [*flood, *good], until=HOUR
    ).emitted
    assert result.values["a"] == kept
    assert kept <= result.values["m"] <= kept + 1


def wide(of: str, number: int, first: int = 0) -> dict[str, int]:
    return {f"{of}{at}": at for at in range(first, first + number)}


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ([(b"m", wide("x", 600)), (b"a", {"v": 1})], [b"a"]),
        (
            [(b"m", wide("x", 400)), (b"m", wide("y", 400)), (b"a", wide("v", 90)), (b"m", {"x1": 1})],
            [b"a", b"m", b"m"],
        ),
        ([*((b"m", wide("x", 1, at)) for at in range(700)), (b"a", wide("v", 9))], [b"a", *[b"m"] * 488]),
    ],
    ids=["a row", "two rows", "many rows"],
)
def test_rows_of_too_many_fields_cost_a_star_themselves_alone(rows: list[tuple[bytes, Any]], left: list[bytes]) -> None:
    given = [row(at, values, topic, at) for at, (topic, values) in enumerate(rows)]
    found = run(sql("SELECT * FROM input", by=("none",)), given, until=HOUR)
    assert sorted(each.values["key"].encode() for each in found.emitted) == left
    assert {each.values["count"] for each in found.emitted} == {len(left)}
    cut = len(rows) - len(left)
    assert len(found.out.rejected()) == cut
    assert all("fields" in reason for reason in found.out.rejected())
    for each in found.emitted:
        assert not each.values["complete"]
        assert each.values["missing"].endswith(f": m {cut}")


def test_a_star_still_has_as_many_fields_as_before() -> None:
    values = wide("x", COLUMNS_MAX - 3)
    (result,) = run(sql("SELECT * FROM input", by=("none",)), [row(1, values)], until=HOUR).emitted
    assert result.values["complete"]
    assert values.items() <= result.values.items()


async def test_what_gives_way_is_told_in_the_place_of_the_row_that_came_in() -> None:
    """However rows are cut into batches, the stream of errors is the same."""
    given = [(b"m", b'{"v": 1}'), (b"m", b'{"v": 2}'), (b"a", b'{"v": 3}'), (b"a", b"{"), (b"m", b'{"v": 4}')]
    rows = [Row(1 + at, topic, payload, {}, (), at, "in") for at, (topic, payload) in enumerate(given)]
    for batches in ([rows], [rows[:3], rows[3:]], [[each] for each in rows]):
        chain, out = Chain([("sql", sql(ALL, by=("none",), rows_max=2)())], JsonFormat(), JsonFormat()), Outputs()
        for batch in batches:
            await chain.process(batch, out)
        assert [each.row.seq for each in out.rejected] == [1, 3, 4]


async def test_the_process_of_selects_says_which_rows_were_cut() -> None:
    function = sql("SELECT key FROM input", by=("none",), results_max=700)()
    star = sql("SELECT * FROM input", by=("none",), results_max=700)()
    rows = [row(at, wide("x", 1, at), b"m", at) for at in range(COLUMNS_MAX + 9)]
    for each, expected in ((function, COLUMNS_MAX + 9), (star, COLUMNS_MAX - 3)):
        out = Outputs()
        await each.process_async(rows, out)
        found = await each.tick_async(60 * SECOND, out)
        await each.close()
        assert len(found) == expected
        assert [each.row.seq for each in out.rejected] == list(range(expected, COLUMNS_MAX + 9))


@pytest.mark.parametrize("time", [0, -1, 1, 200, 70_000, 1 << 33, 1 << 62, -200, -(1 << 40)])
@pytest.mark.parametrize("topic", [b"", b"a", b"a" * 300, b"a" * 70_000])
def test_the_topic_of_a_kept_row_is_read_alone(time: int, topic: bytes) -> None:
    assert topic_of(msgspec.msgpack.encode([time, topic, {"x": 1}, 7, "in"])) == topic


def test_a_full_window_takes_no_step_long() -> None:
    """10,000 topics fill it; then each row of one more makes another give way."""
    rows = [row(1 + at, {"v": 1}, b"t%d" % (at % 5_000), at) for at in range(10_000)]
    more = [row(20_000 + at, {"v": 1}, b"u%d" % at, 20_000 + at) for at in range(1_024)]
    slices: list[list[Row]] = [rows[at : at + 256] for at in range(0, 10_000, 256)]
    slices += [more[at : at + 256] for at in range(0, 1_024, 256)]
    quickest = [float("inf")] * len(slices)
    for _ in range(TRIES):
        function, out = sql(ALL, by=("none",))(), Outputs()
        took = [worked_s(partial(function.process, each, out)) for each in slices]
        assert len(out.rejected) == 1_024
        quickest = list(map(min, quickest, took))
        if max(quickest) < STEP_S_MAX:
            return
    assert max(quickest) < STEP_S_MAX * slowness()
