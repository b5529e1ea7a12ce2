"""The quick tests that a change can touch, the nearest first. ``./run test --changed`` makes them between commits.

A test file is near when few imports lie between it and what was changed: its own change is distance 0, the tests in
the folder that mirrors the changed module's and those that import the module are distance 1. A change at the bottom of
the house reaches nearly every test, so the list ends where its known costs pass ``SECONDS``; what is left out is said.

With ``--near`` it prints what continuous integration counts as near (tests/rotation.py).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.architecture.house import PACKAGES
from tests.durations import expected_s

ROOT = Path(__file__).parents[1]
FOLDERS = (*PACKAGES, "tests", "bench", "docs", "examples")
SECONDS = 150.0
"""Time of the workers, by what the files are thought to take: a minute or two on two cores."""
PAGES = "tests/architecture"
"""Where the tests of pages and of how the project is written are."""

_IMPORT = re.compile(r"^[ \t]*(?:from +([\w.]+) +import +(\([^)]*\)|[^\n]+)|import +([^\n]+))", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*|\\\n")


class Chosen(NamedTuple):
    """Test files to run, and how many that the change can touch are left out."""

    files: list[str]
    seconds: float
    left_out: list[str]


def python_files() -> list[str]:
    """Return every Python file of the project, as paths below its root."""
    return sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def changed_files(base: str) -> list[str]:
    """Return the files that differ from a revision, with those that git does not know yet and does not ignore."""
    commands = (["git", "diff", "--name-only", base], ["git", "ls-files", "--others", "--exclude-standard"])
    answers = [subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=False) for each in commands]
    for answer in answers:
        if answer.returncode:
            sys.exit(f"run: --changed asks git what has changed, which answers: {answer.stderr.strip()}")
    return sorted({line for answer in answers for line in answer.stdout.splitlines()})


def near(changed: Iterable[str], graph: Mapping[str, set[str]], files: Iterable[str]) -> list[str]:
    """Return the tests that changed themselves, or are of a changed module's folder, or import it; and what changed.

    What tests share is near to so many of them that it counts as near to none: the turns of slow tests are for that.
    """
    tests = {file for file in files if is_test(file)}
    found = set(changed)
    for file in changed:
        if not file.startswith("tests/") and "." in file and not file.endswith(".md"):
            found.update(_mirrored(file, tests), graph.get(file, set()) & tests)
    return sorted(found)


def importers(files: Iterable[str]) -> Mapping[str, set[str]]:
    """Return who imports each file: file -> files. A conftest counts as imported by every test below its folder."""
    known = {_module(file): file for file in files}
    found: dict[str, set[str]] = defaultdict(set)
    for file in known.values():
        for name in _imports(file):
            parts = name.removeprefix("weft.").split(".") if name.removeprefix("weft.") else []
            for end in range(len(parts), 0, -1):  # the packages above a module run with it
                if target := known.get(".".join(parts[:end])):
                    found[target].add(file)
        if is_test(file):
            above = Path(file).parent
            for folder in (above, *above.parents):
                if (conftest := f"{folder.as_posix()}/conftest.py") in known.values():
                    found[conftest].add(file)
    return found


def is_test(file: str) -> bool:
    """Tell whether pytest collects the file."""
    return file.startswith("tests/") and file.rpartition("/")[2].startswith("test_") and file.endswith(".py")


def distances(changed: Iterable[str], graph: Mapping[str, set[str]], files: Iterable[str]) -> dict[str, int]:
    """Return how far each file is from what was changed; files that the change cannot touch are left out.

    So are tests that are gone.
    """
    tests = {file for file in files if is_test(file)}
    changed = [file for file in changed if file in tests or not is_test(file)]
    far = dict.fromkeys(changed, 0)
    for file in changed:
        for near in _mirrored(file, tests):
            far.setdefault(near, 1)
    todo = sorted(far, key=far.__getitem__)
    for file in todo:
        for user in sorted(graph.get(file, ())):
            if user not in far or far[user] > far[file] + 1:
                far[user] = far[file] + 1
                todo.append(user)
    return far


def choose(far: Mapping[str, int], seconds: float = SECONDS) -> Chosen:
    """Return the nearest test files whose known costs fit into ``seconds``; the changed ones run whatever they cost."""
    files, left_out, total = [], [], 0.0
    for file in sorted(filter(is_test, far), key=lambda name: (far[name], expected_s(name, slow=False), name)):
        cost = expected_s(file, slow=False)
        if far[file] == 0 or total + cost <= seconds:
            files.append(file)
            total += cost
        else:
            left_out.append(file)
    return Chosen(files, total, left_out)


def _mirrored(file: str, tests: Iterable[str]) -> Iterator[str]:
    """Yield the tests of a changed file's own folder, and for what is not Python those that name the file."""
    folder, _, name = file.rpartition("/")
    if file.endswith(".py"):
        yield from (test for test in tests if test.rpartition("/")[0] == f"tests/{folder}")
        return
    for test in tests:
        if (file.endswith(".md") and test.startswith(PAGES)) or name in (ROOT / test).read_text():
            yield test


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(file: str) -> Iterator[str]:
    """Yield what a file imports, anywhere in it; a line of a docstring that reads like it counts, too."""
    for package, listed, modules in _IMPORT.findall((ROOT / file).read_text()):
        parts = _COMMENT.sub("", listed or modules).strip("()\n ").split(",")
        names = [part.split()[0] for part in parts if part.strip()]
        yield from (f"{package}.{name}" for name in names) if package else names


def main() -> None:
    """Print the test files, one a line; what is left out goes to standard error."""
    parser = argparse.ArgumentParser(prog="./run test --changed")
    parser.add_argument("base", nargs="?", default="HEAD", help="the revision to compare with")
    parser.add_argument("--near", action="store_true", help="print what is near, slow tests too")
    arguments = parser.parse_args()
    files = python_files()
    changed = changed_files(arguments.base)
    if arguments.near:
        print("\n".join(near(filter(os.path.exists, changed), importers(files), files)))
        return
    chosen = choose(distances(changed, importers(files), files))
    text = f"{len(changed)} changed files: {len(chosen.files)} test files, about {chosen.seconds:.0f} s of two workers"
    if chosen.left_out:
        text += f"; {len(chosen.left_out)} farther ones are left to ./run test"
    print(text, file=sys.stderr)
    print("\n".join(chosen.files))


if __name__ == "__main__":
    main()
