from __future__ import annotations

import io

from rich.console import Console

from tests.support.coverage_table import table


def summary(lines: int, covered: int, branches: int = 0, taken: int = 0) -> dict[str, dict[str, int]]:
    figures = {"num_statements": lines, "covered_lines": covered, "num_branches": branches, "covered_branches": taken}
    return {"summary": figures, "totals": figures}


def test_files_are_summed_by_package_and_room() -> None:
    files = {
        "edge_node/node.py": summary(100, 50),
        "edge_node/servers/clients/broker.py": summary(90, 60, 10, 5),
        "edge_node/sessions/journal.py": summary(100, 100),
        "config/load.py": summary(0, 0),
    }
    console = Console(width=60, file=io.StringIO(), record=True)
    console.print(table({"files": files, "totals": summary(290, 210, 10, 5)["totals"]}))
    rows = [line.replace("│", "").split() for line in console.export_text().splitlines() if "%" in line]
    assert rows == [
        ["config", "0", "0", "100.0%"],
        ["edge_node", "290", "10", "71.7%"],
        ["servers", "90", "10", "65.0%"],
        ["sessions", "100", "0", "100.0%"],
        ["all", "290", "10", "71.7%"],
    ]
