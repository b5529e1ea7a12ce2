"""Changes one expression of the product at a time and looks whether tests notice: ``python -m tests.mutations``.

Needs cosmic-ray (``pip install cosmic-ray``), whose operators make the changes. All that could be made in ROOMS are
counted, a sample is drawn, and each drawn one is made in a copy of the checkout, where the tests that a change of its
file can touch run, the nearest first, until one fails. A mutant that none of them kills meets the slow tests of STAGES,
searches last; a survivor of the quick ones takes long, so a run may end with them, and a later one continues with what
survived. What survives all is a change that no test sees: some change nothing, the others ask for a test.

    python -m tests.mutations run RESULTS.jsonl --sample 120 --seed 1 --workers 2 --until quick
    python -m tests.mutations run RESULTS.jsonl --sample 120 --seed 1 --workers 2
    python -m tests.mutations table RESULTS.jsonl
"""

from __future__ import annotations

import argparse
import concurrent.futures
import difflib
import itertools
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests import changed

ROOT = Path(__file__).parents[2]
ROOMS = ("replication", "storage/segment_log", "cloud_hub/shard", "protocols/shard", "edge_node/queues")
OPERATORS = (
    "core/NumberReplacer",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/AddNot",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ZeroIterationForLoop",
    "core/RemoveDecorator",
    "core/ExceptionReplacer",
    *(
        f"core/ReplaceComparisonOperator_{pair}"
        for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")
    ),
    *(f"core/ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "BitAnd_BitOr")),
    "core/ReplaceUnaryOperator_Delete_Not",
)
"""Those of cosmic-ray whose mutants are not mostly refused by the compiler or by an import."""
QUICK_S = 400.0
"""Known seconds of one worker that the nearest quick tests may take."""
SLOW = {
    "replication": ["tests/replication", "tests/cloud_hub", "tests/end_to_end"],
    "storage/segment_log": ["tests/storage", "tests/durability", "tests/fuzz", "tests/end_to_end"],
    "cloud_hub/shard": ["tests/cloud_hub", "tests/end_to_end", "tests/hostile"],
    "protocols/shard": ["tests/protocols", "tests/cloud_hub", "tests/end_to_end"],
    "edge_node/queues": ["tests/edge_node/queues", "tests/hostile", "tests/end_to_end"],
}
"""Folders whose slow tests a mutant meets that the quick ones leave alive."""
STAGES = {"quick": "not slow", "slow": "slow and not search and not spark", "search": "search and not spark"}
TIMEOUT_S = 1800.0
BLIND = ("tests/spark_sinks/pipelines/test_job.py::test_a_python_without_weft_imports_it_from_the_archive",)
"""Tests that fail in a copy, whose packages are another folder's."""
_BOUND = re.compile(r"_?[A-Z][A-Z0-9_]* = .*")
"""A constant of a module. Whether it is one more or less changes no promise."""


class Mutant(NamedTuple):
    """A change: the ``number``-th place in ``file`` to which ``operator`` can be applied."""

    file: str
    operator: str
    number: int


def mutants() -> list[Mutant]:
    """Return every change that can be made."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            tree = get_ast(path.read_text())
            for name in OPERATORS:
                operator = plugins.get_operator(name)()
                count = sum(len(list(operator.mutation_positions(node))) for node in ast_nodes(tree))
                file = path.relative_to(ROOT).as_posix()
                found += [Mutant(file, name, number) for number in range(count)]
    return found


def mutated(mutant: Mutant) -> str | None:
    """Return the file's text with the change; None where it does not compile or only moves a bound by one."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    text = (ROOT / mutant.file).read_text()
    made: str | None = mutate_code(text, plugins.get_operator(mutant.operator)(), mutant.number)
    if made is None or made == text or _BOUND.fullmatch(_changed_line(text, made)):
        return None
    try:
        compile(made, mutant.file, "exec")
    except SyntaxError:
        return None
    return made


def _changed_line(before: str, after: str) -> str:
    pairs = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
    return next((old for old, new in pairs if old != new), "")


def difference(mutant: Mutant, made: str) -> str:
    """Return the changed lines, with the first one's number."""
    before, after = (ROOT / mutant.file).read_text().splitlines(), made.splitlines()
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    return "\n".join(lines)


class Copy:
    """A copy of the checkout in which mutants are made, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        self.python = folder / ".venv/bin/python"
        venv.create(folder / ".venv", symlinks=True)
        paths = [str(folder), *(path for path in sys.path if path.endswith("site-packages"))]
        for packages in (folder / ".venv/lib").glob("python*/site-packages"):
            (packages / "copy.pth").write_text("\n".join(paths) + "\n")
        command = self.python.with_name("weft")
        command.write_text(f"#!{self.python}\nimport sys\nfrom weft.__main__ import main\n\nsys.exit(main())\n")
        command.chmod(0o755)

    def test(self, mutant: Mutant, made: str, stages: list[str], graph: Any, files: list[str]) -> dict[str, Any]:
        """Return which stage killed it, by which test, after how many seconds, and the stage that it met last."""
        target = self.folder / mutant.file
        before = target.read_text()
        target.write_text(made)
        began = time.monotonic()
        try:
            for stage in stages:
                if stage == "quick":
                    far = changed.distances([mutant.file], graph, files)
                    tests = changed.choose(far, QUICK_S).files
                else:
                    room = next(room for room in ROOMS if mutant.file.startswith(room))
                    tests = SLOW[room]
                killer = self._killer(tests, STAGES[stage])
                if killer is not None:
                    break
            took = round(time.monotonic() - began, 1)
            return {"killed": stage if killer else None, "by": killer, "met": stage, "seconds": took}
        finally:
            target.write_text(before)

    def _killer(self, tests: list[str], expression: str) -> str | None:
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n0",
            "-p",
            "no:cacheprovider",
            "--no-header",
            "--timeout=300",
            *(f"--deselect={name}" for name in BLIND),
            "-m",
            expression,
            *tests,
        ]
        environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "no end"
        if process.returncode in (0, 5):  # passed; no test is left by the expression
            return None
        failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR tests"))]
        if not failed and re.search(r"^\d+ passed", output, re.MULTILINE):
            return None  # what ends a run beside its tests, such as files that a killed process left, is no test's word
        return failed[0].partition(" - ")[0] if failed else output[-300:]


def read(results: Path) -> dict[Mutant, dict[str, Any]]:
    """Return what is known of each mutant: of several lines the last."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {Mutant(*row["mutant"]): row for row in map(json.loads, lines)}


def stages_left(row: dict[str, Any] | None, until: str) -> list[str]:
    """Return the stages that a mutant has yet to meet."""
    names = list(STAGES)
    if row is not None and row["killed"]:
        return []
    return names[names.index(row["met"]) + 1 if row is not None else 0 : names.index(until) + 1]


def run(to: Path, sample: int, seed: int, workers: int, until: str) -> None:
    """Draw a sample, test it, and append a line of JSON for each mutant to ``to``; what is known there is kept."""
    drawn = mutants()
    print(f"{len(drawn)} mutants", file=sys.stderr)
    random.Random(seed).shuffle(drawn)
    known = read(to)
    files = changed.python_files()
    graph = changed.importers(files)
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for number in range(workers):
        copies.put(Copy(folder / str(number)))

    def one(mutant: Mutant, made: str, stages: list[str]) -> None:
        copy = copies.get()
        try:
            answer = copy.test(mutant, made, stages, graph, files)
        finally:
            copies.put(copy)
        with to.open("a") as file:
            file.write(json.dumps({"mutant": mutant, "difference": difference(mutant, made)} | answer) + "\n")

    wanted: list[tuple[Mutant, str]] = []
    for mutant in drawn:
        if len(wanted) < sample and (made := mutated(mutant)) is not None:
            wanted.append((mutant, made))
    left = [(*each, stages) for each in wanted if (stages := stages_left(known.get(each[0]), until))]
    try:
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda each: one(*each), left))
    finally:
        shutil.rmtree(folder)


def table(to: Path) -> str:
    """Return what became of the mutants, by room, and the survivors."""
    rows = read(to).values()
    lines = ["| room | mutants | " + " | ".join(STAGES) + " | survived |", "| --- " * (3 + len(STAGES)) + "|"]
    for room in ROOMS:
        here = Counter(row["killed"] for row in rows if row["mutant"][0].startswith(room))
        counts = [str(here[stage]) for stage in STAGES]
        lines.append(f"| `{room}` | {here.total()} | {' | '.join(counts)} | {here[None]} |")
    for row in rows:
        if row["killed"] is None:
            lines += ["", f"`{row['mutant'][0]}`, {row['mutant'][1]}", "", "```diff", row["difference"], "```"]
    return "\n".join(lines)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("results", type=Path)
    parser.add_argument("--sample", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--until", choices=tuple(STAGES), default="search", help="the last stage that mutants meet")
    given = parser.parse_args()
    if given.what == "table":
        print(table(given.results))
    else:
        run(given.results, given.sample, given.seed, given.workers, given.until)


if __name__ == "__main__":
    main()
