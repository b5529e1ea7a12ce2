"""The page on writing a function, followed to the letter in a copy of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/write-a-function.md"
_BLOCK = re.compile(
    r"<!-- (file|append|command|answer):? ?(\S*) -->\n(?:<!-- not followed: [^\n]* -->\n)?```\w+\n(.*?)```", re.DOTALL
)
PROGRAMS = {"weft": [sys.executable, "-m", "weft"], "python": [sys.executable]}
COPIED = ("functions", "config", "weft", "tests/functions", "tests/support")


@pytest.mark.slow
def test_who_follows_the_page_has_a_function(tmp_path: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("bounds", "edge_node", "protocols", "replication", "storage"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tests/__init__.py").touch()
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # who reads has none
    # With CI set, Hypothesis has no deadline for an example, which a busy machine would miss.
    environment = {**ours, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    printed, followed = "", []
    for kind, name, body in _BLOCK.findall(PAGE.read_text()):
        followed.append(kind)
        if kind == "file":
            (tmp_path / name).write_text(body)
        elif kind == "append":
            with (tmp_path / name).open("a") as file:
                file.write(f"\n{body}")
        elif kind == "command":
            program, *arguments = body.split()
            done = subprocess.run(
                [*PROGRAMS[program], *arguments],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            printed = done.stdout
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            assert printed == body
    assert followed == ["file", "append", "append", "file", "file", "command", "answer", "file", "command"]
    assert "1 passed" in printed


def test_the_operator_has_twenty_lines() -> None:
    code = next(body for kind, name, body in _BLOCK.findall(PAGE.read_text()) if name.endswith("/rise.py"))
    own = [line for line in code.splitlines() if line and '"""' not in line and "import" not in line]
    assert len(own) <= 20
