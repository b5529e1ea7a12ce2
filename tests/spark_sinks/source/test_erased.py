"""Erased rows are gone from every reader as soon as they are gone from the table, while the log still has them."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark_sinks.conftest import SHARDS, STREAM, Hub
from tests.spark_sinks.source.test_through_hub import Serving, read, source
from weft.cloud_hub.tables.erasure import Author, Choice, Eraser
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store
from weft.storage.table.deletions import LOOK_INTERVAL_S, FollowedErasures

Record = tuple[str, int]
"""Edge and number."""


async def erase(root: str, machine: str) -> int:
    store = open_store(root)
    cluster = await open_cluster(store, SHARDS)
    nonce = iter(f"{n:016x}" for n in range(1 << 60, (1 << 60) + 1000)).__next__
    eraser = Eraser(store, cluster, ("default", STREAM), clock=lambda: 0, monotonic=lambda: 0.0, nonce=nonce)
    return (await eraser.erase(Choice([("machine", machine)]), Author("anna", "case 12", 0))).rows


def kept(hub: Hub) -> list[Record]:
    """The records of the machine that is not erased: one of two, in turn."""
    return [(edge, seq) for edge, seq, _ in hub.expected() if seq % 2 == 0]


@pytest.fixture
def emptied(hub: Hub) -> Iterator[Serving]:
    """A hub whose log has each record, and from whose tables a machine's rows were erased."""
    hub.write(3)
    hub.tier()
    hub.write(2)  # behind the table
    with Serving(hub.root) as serving:
        assert asyncio.run(erase(hub.root, "m1")) == 100
        yield serving


def ask(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


@pytest.mark.parametrize("way", ["store", "hub"])
def test_spark_does_not_read_erased_rows(way: str, hub: Hub, emptied: Serving) -> None:
    found = read(source(store=hub.root) if way == "store" else source(hub=emptied.url))
    assert sorted(zip(found["_edge"].to_pylist(), found["_seq"].to_pylist(), strict=True)) == kept(hub)


@pytest.mark.parametrize("limit", [1000, 7])
def test_the_api_s_records_are_without_erased_ones(limit: int, hub: Hub, emptied: Serving) -> None:
    found, offsets = list[Record](), hub.heads()
    for shard, end in offsets.items():
        at = 0
        while at < end:
            answer = ask(f"{emptied.url}/v1/streams/{STREAM}/records?shard={shard}&offset={at}&limit={limit}")
            found += [(each["edge"], each["seq"]) for each in answer["records"]]
            assert answer["next_offset"][shard] > at
            at = answer["next_offset"][shard]
    assert sorted(found) == kept(hub)


def test_a_tail_and_a_trace_are_without_erased_records(hub: Hub, emptied: Serving) -> None:
    stream = f"{emptied.url}/v1/streams/{STREAM}"
    (shard, *_) = [shard for shard, end in hub.heads().items() if end]
    position = ",".join(f"{each}:0" for each in hub.heads())
    seen = list[Record]()
    with urllib.request.urlopen(f"{stream}/tail?position={position}") as events:
        while len(seen) < len(kept(hub)):
            line = events.readline()
            if line.startswith(b"data:"):
                seen += [(each["edge"], each["seq"]) for each in json.loads(line[5:])["records"]]
    assert sorted(seen) == kept(hub)
    standing = [ask(f"{stream}/trace?shard={shard}&offset={offset}")["standing"] for offset in (0, 1)]
    assert sorted(standing) == ["gone", "here"]


def test_a_reader_learns_of_an_erasure_within_seconds(hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    now = 100.0

    async def followed() -> None:
        nonlocal now
        erasures = FollowedErasures(open_store(hub.root), lambda: now)
        assert await erasures.of("default", STREAM) == {}
        assert await erase(hub.root, "m1") == 40
        now += LOOK_INTERVAL_S / 2
        assert await erasures.of("default", STREAM) == {}, "the store is not asked at each read"
        now += LOOK_INTERVAL_S
        found = await erasures.of("default", STREAM)
        assert sum(each.count() for each in found.values()) == 40
        assert await erasures.of("default", "other") == {}

    asyncio.run(followed())
