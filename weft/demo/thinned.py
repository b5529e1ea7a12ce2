"""Check of the demo's derived stream: readings that stayed at the edges, against the points in the hub's table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from weft.demo.fabric import RAW_STREAM, THINNED_STREAM

Series = tuple[str, bytes]
"""(edge node, topic)."""


class Thinned(NamedTuple):
    """Figures of the derived stream over all edges."""

    readings: int
    """Different readings in the logs of the edges."""
    points: int
    """Rows in the hub's table."""
    raw_bytes: int
    """Payload bytes of the readings."""
    bytes: int
    """Payload bytes of the points."""
    furthest: float
    """Greatest difference between a reading and the point before it, by which it was left out."""
    strangers: int
    """Points that are no reading, or not in the readings' order."""
    origins: tuple[str, ...]
    """Texts of what made the points."""


def compare(
    raw: Mapping[Series, Sequence[bytes]], points: Mapping[Series, Sequence[bytes]], origins: Iterable[str]
) -> Thinned:
    """Compare the readings of each series with its points, both in order."""
    furthest, strangers = 0.0, 0
    for series in raw.keys() | points.keys():
        found = _walk(raw.get(series, ()), points.get(series, ()))
        furthest, strangers = max(furthest, found[0]), strangers + found[1]
    return Thinned(
        readings=sum(len({_number(payload) for payload in payloads}) for payloads in raw.values()),
        points=sum(map(len, points.values())),
        raw_bytes=sum(sum(map(len, payloads)) for payloads in raw.values()),
        bytes=sum(sum(map(len, payloads)) for payloads in points.values()),
        furthest=furthest,
        strangers=strangers,
        origins=tuple(sorted(set(origins))),
    )


def _walk(raw: Sequence[bytes], points: Sequence[bytes]) -> tuple[float, int]:
    """Return the greatest difference of a reading to the last point, and the number of points that no reading is."""
    furthest, at, last = 0.0, 0, None
    for payload in raw:
        if at < len(points) and points[at] == payload:
            at, last = at + 1, _temperature(payload)
        elif last is None:
            furthest = float("inf")
        else:
            furthest = max(furthest, abs(_temperature(payload) - last))
    return furthest, len(points) - at


def _temperature(payload: bytes) -> float:
    return float(json.loads(payload)["data"]["temp"])


def _number(payload: bytes) -> int:
    return int(json.loads(payload)["n"])


def readings_of(edge: str, directory: str) -> dict[Series, list[bytes]]:
    """Return the readings in the log of an edge, which may be running, by topic and in order."""
    from weft.edge_node.inspect.tail import TailRecord, newest_records
    from weft.edge_node.inspect.tail_start import Start
    from weft.edge_node.inspect.view import Durability, LogDirectory

    found: dict[Series, list[bytes]] = defaultdict(list)
    items = newest_records(LogDirectory(directory), RAW_STREAM.__eq__, Start(), Durability(directory))
    for item in items:
        if isinstance(item, TailRecord):
            found[edge, item.record.key].append(item.record.payload)
    return found


def points_of(store: str) -> tuple[dict[Series, list[bytes]], list[str]]:
    """Return the rows of the hub's table by edge and topic, in order, and what made them."""
    from deltalake import DeltaTable

    columns = ["_edge", "_key", "_seq", "payload", "_origin"]
    table = DeltaTable(f"{store}/tables/default/{THINNED_STREAM}").to_pyarrow_table(columns=columns)
    rows: list[dict[str, Any]] = table.sort_by([("_edge", "ascending"), ("_seq", "ascending")]).to_pylist()
    found: dict[Series, list[bytes]] = defaultdict(list)
    for row in rows:
        payload = row["payload"]  # text in a table of JSON
        found[row["_edge"], row["_key"].encode()].append(payload.encode() if isinstance(payload, str) else payload)
    return found, [row["_origin"] or "a device" for row in rows]
