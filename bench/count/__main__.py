"""Instructions of the hot paths, counted and compared: noise of the machine moves them far less than it moves times.

``./run bench count [NAME...] [--take REASON]``. Each path works over a load that is the same in every run, in a process
of its own under Valgrind, which counts every instruction of it, of libraries too, and nothing of the kernel. A path's
figure is that of the least of its rounds: timers, collections of garbage and the order in which two ends take turns
only add to a round. What is red is ``MORE`` above the figure in ``figures.json``; ``--take`` writes the figures of this
run there, with a reason.

A path that is red is counted again, by itself and up to twice, and the least figure stands: other work on the machine
only adds, while a slower path stays slower.

Figures are of one version of Python, one C library and one kind of processor. On others they are shown, and compared
with nothing. It needs Valgrind, a C compiler and some four minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FIGURES = Path(__file__).with_name("figures.json")
MORE = 0.10
"""Growth above which a figure is red."""
ROUNDS_BEFORE, ROUNDS = 3, 7
"""Rounds that are not counted, in which caches fill, and rounds that are."""
TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)
AGAIN = 2
"""Further counts of a path that is red."""
CANNOT = 3
"""Exit status where this machine cannot count."""


class Counter(NamedTuple):
    """The counter of this process. Without Valgrind its calls do nothing."""

    library: Any

    def rounds(self) -> Iterator[int]:
        """Yield the numbers of the rounds, and count each of the later ones."""
        for number in range(ROUNDS_BEFORE + ROUNDS):
            if number == ROUNDS_BEFORE:
                self.library.start_counting()
            yield number
            if number >= ROUNDS_BEFORE:
                self.library.end_round()
        self.library.stop_counting()


def machine() -> dict[str, str]:
    """Return what the figures depend on besides the code."""
    return {"python": platform.python_version(), "processor": platform.machine(), "libc": " ".join(platform.libc_ver())}


def missing() -> str | None:
    """Return what this machine lacks to count; None if it has everything."""
    compiler, header = shutil.which("cc"), Path("/usr/include/valgrind/callgrind.h")
    if shutil.which("valgrind") is None or not header.exists():
        return "Valgrind is not installed (Debian: apt install valgrind)"
    return None if compiler else "there is no C compiler (Debian: apt install gcc)"


def work(library: str, out: Path, names: list[str]) -> None:
    """Run the paths under Valgrind, each in a fork of this process, whose modules are loaded once."""
    from bench.count.paths import paths

    counter = Counter(ctypes.CDLL(library))
    for name, path in paths().items():
        if names and name not in names:
            continue
        child = os.fork()
        if not child:
            with tempfile.TemporaryDirectory(prefix="weft-count-") as folder:
                path.run(Path(folder), counter.rounds())
            (out / f"unit.{os.getpid()}").write_text(json.dumps([name, path.unit, path.units]))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"bench.count: {name} failed")


def count(names: list[str]) -> dict[str, tuple[str, float]]:
    """Return path -> unit, and instructions for one.

    Raises:
        subprocess.CalledProcessError: a path failed; it has said why.
    """
    with tempfile.TemporaryDirectory(prefix="weft-count-") as folder:
        library, out = f"{folder}/counter.so", Path(folder)
        source = str(Path(__file__).with_name("counter.c"))
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out.%p"]
        command = [*valgrind, sys.executable, "-m", "bench.count", "--under", library, folder, *names]
        # Sets of strings have the same order in every run.
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "0"}, check=True)
        found = {}
        for file in sorted(out.glob("unit.*"), key=lambda each: each.stat().st_mtime_ns):
            name, unit, units = json.loads(file.read_text())
            rounds = [int(TOTAL.findall((out / f"out{file.suffix}.{n}").read_text())[0]) for n in range(1, ROUNDS + 1)]
            found[name] = unit, min(rounds) / units
        return found


def known() -> dict[str, float] | None:
    """Return the figures to compare with; None if they are of another machine."""
    kept = json.loads(FIGURES.read_text())
    return kept["instructions"] if kept["machine"] == machine() else None


def take(found: dict[str, tuple[str, float]], reason: str) -> None:
    """Write figures, and why they are other ones."""
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"instructions": {}, "reasons": []}
    before = kept["instructions"] if kept.get("machine") == machine() else {}
    said = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "reason": reason}
    figures = before | {name: round(each) for name, (_, each) in found.items()}
    written = {"machine": machine(), "instructions": figures, "reasons": [*kept["reasons"], said]}
    FIGURES.write_text(json.dumps(written, indent=2) + "\n")


def lines(found: dict[str, tuple[str, float]], before: dict[str, float]) -> Iterator[tuple[str, bool]]:
    """Yield a line for each path, and whether it is red."""
    for name, (unit, figure) in found.items():
        line = f"{name:28}{figure:12,.0f} instructions a {unit}"
        if name not in before:
            yield f"{line}, new", False
            continue
        growth = figure / before[name] - 1
        yield f"{line}, {growth:+.1%}", growth > MORE


def count_again(found: dict[str, tuple[str, float]], before: dict[str, float]) -> dict[str, tuple[str, float]]:
    """Return the figures, those above their bound replaced by the least of ``AGAIN`` further counts at most."""
    for _ in range(AGAIN):
        red = [name for name, (_, is_red) in zip(found, lines(found, before), strict=True) if is_red]
        if not red:
            break
        print(f"counted again, since they were red: {', '.join(red)}", flush=True)
        found = found | {name: min(found[name], again) for name, again in count(red).items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run bench count", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="paths; all if none is named")
    parser.add_argument("--take", metavar="REASON", help="keep these figures, and record REASON for the change")
    parser.add_argument("--under", nargs=2, metavar=("LIBRARY", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.under:
        work(arguments.under[0], Path(arguments.under[1]), arguments.names)
        return
    if lacking := missing():
        print(f"bench.count: not counted here: {lacking}")
        sys.exit(CANNOT)
    started = time.monotonic()
    found = count(arguments.names)
    before = known() if FIGURES.exists() else {}
    if before is None:
        taken_on = json.loads(FIGURES.read_text())["machine"]
        print(f"The figures to compare with are of {taken_on}, and this machine is {machine()}.")
    if not arguments.take:
        found = count_again(found, before or {})
    red = []
    for line, is_red in lines(found, before or {}):
        print(f"{line}{'  RED' if is_red else ''}")
        red += [line] if is_red else []
    print(f"took {time.monotonic() - started:.0f} s")
    if arguments.take:
        take(found, arguments.take)
    elif red:
        sys.exit(
            f"bench.count: {len(red)} paths take {MORE:.0%} more instructions than before, or more. Find out why;"
            " if it has to be so: ./run bench count --take REASON"
        )


if __name__ == "__main__":
    main()
