"""The lineage of rows over a past, by arrays, is that of a loop over all parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_sinks.pipelines.shipped.features import Lineage, pasts

PARTS = st.builds(
    lambda edge, log, first, more, count: {
        "edge": edge,
        "log": log,
        "first": first,
        "last": first + more,
        "count": count,
    },
    st.sampled_from(["e1", "e2"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 2**62),
    st.integers(0, 9),
    st.integers(1, 9),
)
SOURCES = st.lists(st.one_of(st.none(), st.lists(PARTS, max_size=3)), min_size=1, max_size=30)


def by_a_loop(sources: list[list[dict[str, Any]] | None], places: list[int]) -> list[dict[str, Any]]:
    lanes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place in places:
        for part in sources[place] or ():
            lanes.setdefault((part["edge"], part["log"]), []).append(part)
    return [
        {
            "edge": edge,
            "log": log,
            "first": min(each["first"] for each in parts),
            "last": max(each["last"] for each in parts),
            "count": sum(each["count"] for each in parts),
        }
        for (edge, log), parts in sorted(lanes.items())
    ]


@given(SOURCES, st.data())
def test_the_lineage_of_any_rows_is_that_of_a_loop(sources: list[Any], data: st.DataObject) -> None:
    lineage = Lineage(sources)
    chosen = data.draw(st.sets(st.integers(0, len(sources) - 1), min_size=1))
    low, high = min(chosen), max(chosen)
    for places in (sorted(chosen), list(range(low, high + 1)), []):
        assert lineage.of(np.array(places, np.intp)) == by_a_loop(sources, places)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 20))
def test_the_lineage_of_each_past(times: list[int], span: int) -> None:
    sources: list[list[dict[str, Any]] | None] = [
        [{"edge": "e", "log": "a", "first": at, "last": at, "count": 1}] for at in range(len(times))
    ]
    lineage = Lineage(sources)
    for at, earlier in pasts(np.array(times, np.int64), np.ones(len(times), bool), span):
        used = np.append(earlier, at)
        assert lineage.of(used) == by_a_loop(sources, [*map(int, used)])
