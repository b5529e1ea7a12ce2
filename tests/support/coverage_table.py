"""A table of what the tests ran, by package and room: ``python -m tests.support.coverage_table coverage.json``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def rooms(files: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Sums of each package, and of each of its folders."""
    sums: dict[str, Counter[str]] = {}
    for name, file in files.items():
        package, *inner = Path(name).parts[:-1] or (name,)
        for key in (package, *([f"{package}/{inner[0]}"] if inner else [])):
            sums.setdefault(key, Counter()).update({key: file["summary"][key] for key in FIGURES})
    return dict(sorted(sums.items()))


FIGURES = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def table(report: Mapping[str, Any]) -> Table:
    """Lines and branches, and the part of both that the tests ran."""
    made = Table("", "lines", "branches", "run")
    for column in made.columns[1:]:
        column.justify = "right"
    every = {**rooms(report["files"]), "all": Counter({key: report["totals"][key] for key in FIGURES})}
    for name, sums in every.items():
        indented = f"  {name.partition('/')[2]}" if "/" in name else name
        made.add_row(indented, f"{sums['num_statements']:,}", f"{sums['num_branches']:,}", f"{share(sums):.1%}")
    return made


def share(sums: Mapping[str, int]) -> float:
    """As coverage.py counts: lines and branches alike. 1 where there is nothing to run."""
    of = sums["num_statements"] + sums["num_branches"]
    return (sums["covered_lines"] + sums["covered_branches"]) / of if of else 1.0


if __name__ == "__main__":
    Console().print(table(json.loads(Path(sys.argv[1]).read_text())))
