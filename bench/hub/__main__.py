"""The hub under a fleet: links over loopback, many streams each, batches of ten records.

``python -m bench.hub [--only CASE] [--links N] [--streams N] [--seconds N] [--directory PATH]``. The hub is a real
`weft hub run` over a directory store, one process on core 0; the links come from this process, on core 1, and speak the
real protocol over real WebSockets, with real telemetry, each batch with its lane's mark. A batch counts when its
acknowledgement is back: committed, fsynced, and covered by the hub's state. Afterwards the log is folded from its start
and must hold every one of them. Results go to bench/results.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.common import write_results
from bench.hub.cases import CASES, Options
from bench.hub.script import Fleet
from bench.hub.server import room_for_links

MEMORY = Path("/dev/shm")
"""A folder without a disk: on one that others use, the disk is what is measured."""


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def main() -> None:
    """Run the cases that the command line names."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(CASES), action="append", help="a case; may be given several times")
    parser.add_argument("--links", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--batches", type=int, default=5, help="batches of one message, each of another stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--directory",
        default=str(MEMORY) if MEMORY.is_dir() else None,
        help="where the store is made; by default in memory where the system has such a folder",
    )
    arguments = parser.parse_args()
    room_for_links()
    fleet = Fleet(arguments.links, arguments.streams, arguments.batches)
    options = Options(fleet, arguments.seconds, arguments.directory)
    results = []
    for name in arguments.only or CASES:
        found = CASES[name](options)
        results.append({"case": name, **fleet.__dict__, "records_per_batch": 10, "seconds": options.seconds, **found})
        print(f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {_shown(value)}" for key, value in found.items()))
    if arguments.only is None:
        print(write_results("hub", results))


if __name__ == "__main__":
    main()
