"""Keeps what a run of the tests took, and prints it as tables, as ``./run costs`` does.

python -m tests.costs keep QUICK.json [SLOW.json]     into known.json
python -m tests.costs table QUICK.json [SLOW.json]    by cause and by file
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.markdown import table
from tests.costs.figures import Cost, Costs
from tests.costs.known import keep

FILES = 25
"""Files in a table: the dearest."""


def by_cause(costs: Costs) -> str:
    """Return a table of a stage's processor time and waits, by cause."""
    total = Cost()
    for cost in costs.files.values():
        total.add(cost)
    scale = 1 / costs.slowness
    rows = [
        ("imports, collection, ends", "", costs.between_s * scale),
        ("tests in their own process", "", total.own_s * scale),
        ("properties (Hypothesis)", "", total.properties_s * scale),
        *(
            (cause, str(total.started.get(cause, "")), seconds * scale)
            for cause, seconds in sorted(total.others_s.items(), key=lambda item: -item[1])
        ),
        ("processes whose parents had ended", "", costs.orphans_s * scale),
    ]
    waits = [("waits, of all workers", "", total.waits_s), ("of which asleep by the clock", "", total.sleeps_s)]
    figures = [[name, count, f"{seconds:,.0f}"] for name, count, seconds in rows]
    figures.append(["**processor time**", "", f"**{costs.processor_s:,.0f}**"])
    figures += [[name, count, f"{seconds:,.0f}"] for name, count, seconds in waits]
    return "\n".join(table(["cause", "started", "seconds"], figures))


def by_file(costs: Costs) -> str:
    """Return a table of the dearest files of a stage."""
    dearest = sorted(costs.files, key=lambda name: -sum(costs.of(name)))[:FILES]
    rows = []
    for name in dearest:
        processor_s, waits_s = costs.of(name)
        rows.append([f"`{name}`", str(costs.files[name].tests), f"{processor_s:.1f}", f"{waits_s:.1f}"])
    return "\n".join(table(["file", "tests", "processor s", "waits s"], rows))


def main() -> None:
    """Read the command line."""
    match sys.argv[1:]:
        case ["keep", *paths] if paths:
            keep(*[*map(read, paths), None][:2])  # type: ignore[arg-type]
        case ["table", *paths] if paths:
            for title, path in zip(("Quick tests", "The rest of `.ci/run`"), paths, strict=False):
                costs = read(path)
                print(f"### {title}: {costs.wall_s / 60:.1f} minutes\n\n{by_cause(costs)}\n\n{by_file(costs)}\n")
        case _:
            sys.exit(__doc__)


def read(path: str) -> Costs:
    """Return the costs that a run wrote."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Costs)


if __name__ == "__main__":
    main()
