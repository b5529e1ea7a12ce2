"""Shares of a node's processor time by part, from stacks that py-spy sampled (``--format raw``)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PARTS = (
    ("functions: where and set", ("functions/expressions/", "functions/kinds/where", "functions/kinds/select")),
    ("functions: payloads", ("functions/formats/", "functions/payloads")),
    ("functions: read the log", ("functions/runtime/inputs", "functions/runtime/rows")),
    ("functions: write the step", ("functions/runtime/step", "functions/runtime/state_log")),
    ("functions: kinds", ("functions/kinds/",)),
    ("functions: the rest", ("edge_node/functions/",)),
    ("log: read", ("segment_log/read/",)),
    ("log: commit and sync", ("segment_log/commit/", "storage/filesystem")),
    ("log: append", ("segment_log/",)),
    ("batches", ("protocols/batch", "protocols/columns")),
    ("MQTT: decode", ("protocols/mqtt/",)),
    ("MQTT: receive and acknowledge", ("edge_node/mqtt/", "edge_node/listeners/", "edge_node/sessions/")),
    ("ingest", ("edge_node/ingest/", "edge_node/subscriptions/")),
    ("node: the rest", ("edge_node/", "weft/")),
)
"""Parts, and pieces of the paths of their modules. The innermost frame that belongs to a part counts for it, whichever
comes first here."""
OTHER = "interpreter and event loop"


def part_of(stack: str) -> str:
    """Return the part that a stack was sampled in.

    Functions call log and batches, and so do links: what happens on behalf of functions counts for them.
    """
    for frame in reversed(stack.split(";")):
        for part, places in PARTS:
            if any(place in frame for place in places):
                return part
    return OTHER


def shares(path: Path) -> dict[str, float]:
    """Return part -> share of the samples, the largest first."""
    counts: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        counts[part_of(stack)] += int(count)
    total = sum(counts.values()) or 1
    return {part: count / total for part, count in counts.most_common()}
