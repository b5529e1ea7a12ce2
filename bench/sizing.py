"""A fleet's sizes, from the newest results of the benchmarks: ``./run bench sizing --edges 200 --rate 50``.

Nothing is measured here. Each line names the benchmark that its figure is from; what lies between two measured rates is
taken from the straight line between them, and what lies beyond the last one from its cost of a message.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.report import newest
from weft.config.units import approximate_size, parse_duration

DAY_S = 86_400
TABLE = "five fields"
"""Payload whose table step is reckoned with: five typed columns."""
NEEDED = ("mqtt", "hub", "tables")


@dataclass(frozen=True)
class Fleet:
    """A plan of edges, and of what each of them takes."""

    edges: int
    rate: float
    """Messages/s of one edge."""
    payload_bytes: int
    outage_s: float
    """Longest time without a hub that must not cost a record."""
    streams: int
    """Streams of one edge."""
    batch_s: float
    """Interval at which a stream sends what it has. A busy node sends more rarely, and larger batches."""


class Line(NamedTuple):
    """One size."""

    what: str
    size: str
    source: str


def sizes(fleet: Fleet, results: Mapping[str, Any]) -> list[Line]:
    """Return the sizes of a fleet.

    Args:
        results: name of a benchmark -> its results, for each of ``NEEDED``.
    """
    return [*_of_edge(fleet, results["mqtt"]), *_of_hub(fleet, results["hub"]), *_of_tables(fleet, results)]


def _of_edge(fleet: Fleet, mqtt: Mapping[str, Any]) -> list[Line]:
    at: dict[float, list[Mapping[str, float]]] = {}
    for case in mqtt["cases"]:
        if case["group"] == "rates":
            at.setdefault(float(case["name"].split("_")[1]), []).append(case["weft"])
    worst = {
        name: {rate: max(each[name] for each in cases) for rate, cases in at.items()}
        for name in ("server_cpu", "server_peak_rss_mib", "write_amplification")
    }
    most, cores = max(at), between(worst["server_cpu"], fleet.rate)
    if fleet.rate > most:
        cores = worst["server_cpu"][most] * fleet.rate / most
    written = fleet.rate * fleet.payload_bytes * DAY_S * between(worst["write_amplification"], fleet.rate)
    waiting = fleet.rate * fleet.payload_bytes * fleet.outage_s
    return [
        Line("edge: processor", f"{cores:.2f} of a core", "mqtt, fixed rates"),
        Line("edge: memory", f"{between(worst['server_peak_rss_mib'], fleet.rate):.0f} MiB", "mqtt, fixed rates"),
        Line("edge: disk for the outage", f"{approximate_size(int(waiting))} at least", "payloads, uncompressed"),
        Line("edge: written to the disk in a day", approximate_size(int(written)), "mqtt, fixed rates"),
    ]


def _of_hub(fleet: Fleet, results: Sequence[Mapping[str, Any]]) -> list[Line]:
    by_case = {each["case"]: each for each in results}
    receive, idle, large = by_case["receive"], by_case["idle"], by_case["large"]
    batches = fleet.edges * min(fleet.rate, fleet.streams / fleet.batch_s)
    cores = batches * receive["us_per_batch"] / 1e6 + fleet.edges * idle["hub_cores_used"] / idle["links"]
    base = idle["memory_without_links_mb"]
    busy = base + fleet.edges * (receive["hub_memory_mb"] - base) / receive["links"]
    ratio = large["json"]["stored_mb_per_s"] / large["json"]["payload_mb_per_s"]
    stored = fleet.edges * fleet.rate * fleet.payload_bytes * DAY_S * ratio
    quiet = base + fleet.edges * idle["kb_per_link"] / 1000
    return [
        Line("hub: links and batches", f"{cores:.2f} of a core", f"hub, receive and idle; {batches:,.0f} batches/s"),
        Line("hub: memory", f"{quiet:,.0f} MB; {busy:,.0f} MB if all send all they can", "hub, idle and receive"),
        Line("store: log in a day", f"{approximate_size(int(stored))}", "hub, large batches of JSON"),
    ]


def _of_tables(fleet: Fleet, results: Mapping[str, Any]) -> list[Line]:
    (step,) = (each for each in results["tables"] if each["payload"] == TABLE)
    cores = fleet.edges * fleet.rate / step["records_per_s"]
    return [Line("hub: tables", f"{cores:.2f} of a core", f"tables, {TABLE}")]


def between(points: Mapping[float, float], at: float) -> float:
    """Return the value at a place of the line through some points; beyond the ends, that of the end."""
    places = sorted(points)
    if at <= places[0]:
        return points[places[0]]
    for low, high in itertools.pairwise(places):
        if at <= high:
            return points[low] + (points[high] - points[low]) * (at - low) / (high - low)
    return points[places[-1]]


def found() -> tuple[dict[str, Any], list[str]]:
    """Return the newest results, and when and on what each was measured."""
    results, lines = {}, []
    for name in NEEDED:
        there = newest(name)
        assert there is not None, f"bench/results has no results of {name}: `./run bench {name}` makes them"
        date, facts = there
        results[name] = facts["results"]
        lines.append(f"{name} of {date} on {facts['machine']['cpu']}")
    return results, lines


def main() -> None:
    """Print the sizes of a fleet."""
    parser = argparse.ArgumentParser(description="Sizes of a fleet, from the newest results of the benchmarks.")
    parser.add_argument("--edges", type=int, default=1, help="edge nodes")
    parser.add_argument("--rate", type=float, default=100, help="messages/s of one edge")
    parser.add_argument("--bytes", type=int, default=100, help="bytes of a payload and its topic")
    parser.add_argument("--outage", default="3d", help="longest time without a hub that must cost nothing")
    parser.add_argument("--streams", type=int, default=1, help="streams of one edge")
    parser.add_argument("--batch", default="1s", help="interval at which a stream sends what it has")
    given = parser.parse_args()
    fleet = Fleet(
        given.edges, given.rate, given.bytes, parse_duration(given.outage), given.streams, parse_duration(given.batch)
    )
    results, where = found()
    for line in text(sizes(fleet, results)):
        print(line)
    print(f"\nFrom {', '.join(where)}. Your machine differs: measure there (`./run bench mqtt`).")


def text(lines: Sequence[Line]) -> list[str]:
    """Return the lines in columns."""
    widths = [max(len(each[column]) for each in lines) for column in (0, 1)]
    return [f"{what:{widths[0]}}  {size:{widths[1]}}  {source}" for what, size, source in lines]


if __name__ == "__main__":
    main()
