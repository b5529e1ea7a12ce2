"""Cut the power of a node with functions thousands of times, and compare what came out with a run without cuts.

    python -m tests.edge_node.functions.runtime.power_cuts --cuts 10000 --seed 1

Every seed is one life of a node: devices publish, time passes, the log commits, and the power goes between any two
writes of the disk. The inputs that survived are then given to a node that never loses its power; every derived stream
must be the same, byte for byte. On the way no record may have a time that a mark had told to be complete.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests.edge_node.functions.runtime.node import SECOND, START, Edge, Large, Minutes, definition
from tests.storage.fakes import FakeFileSystem, eio
from weft.edge_node.functions.contract import Function, Gap, Out, Row, State
from weft.edge_node.functions.runtime import state_log
from weft.storage.segment_log import LogError

INPUTS = ("telemetry", "events")
DERIVED = ("large", "minutes", "seen", "both", "large-minutes")
STEPS = 100
"""Acts of a life."""


class Violation(AssertionError):
    """A promise that did not hold."""


class Seen(Function):
    """Drops what came before, of the last few values."""

    def __init__(self) -> None:
        self.state = State()

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        assert self.state is not None
        new = []
        for row in rows:
            known = self.state.values.setdefault(row.key, [])
            if row.values.get("value") in known:
                continue
            known.append(row.values.get("value"))
            del known[:-8]
            self.state.touch(row.key)
            new.append(row)
        return new

    def gap(self, gap: Gap, out: Out) -> None:
        raise Violation(f"nothing was lost, and the functions were told of {gap}")


def definitions() -> list[Any]:
    return [
        definition("large", ["telemetry"], lambda: [("large", Large(500))]),
        definition("minutes", ["telemetry"], lambda: [("minutes", Minutes(5))]),
        definition("seen", ["events"], lambda: [("seen", Seen())]),
        definition("both", ["telemetry", "events"], lambda: [("large", Large(300)), ("seen", Seen())]),
        definition("large-minutes", ["large"], lambda: [("seen", Seen()), ("minutes", Minutes(7))]),
    ]


class Life:
    """One life, from its seed."""

    def __init__(self, seed: int, copy_bytes: int = 600) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.cuts = 0
        self.disk = FakeFileSystem()
        self.now = START
        self.told: dict[str, int] = {}
        """Derived stream -> the highest mark that the log gave."""
        self.checked: dict[str, int] = {}
        """Derived stream -> number of its first record that was not held against the marks."""

    async def run(self) -> None:
        edge = self._open()
        for _ in range(STEPS):
            try:
                await self._act(edge)
            except (OSError, LogError):
                edge = await self._cut(edge)
        edge.disk.fail = lambda call, path: None
        await edge.pass_time(20)
        self._look(edge)
        outputs = {name: edge.read(name) for name in DERIVED}
        inputs = {name: edge.read(name) for name in INPUTS}
        end = edge.now
        await edge.close()
        await self._compare(inputs, outputs, end)

    # --- inside

    def _open(self) -> Edge:
        edge = Edge(self.disk, *definitions(), now=self.now)
        for name in INPUTS:
            edge.log.stream(name)
        return edge

    async def _act(self, edge: Edge) -> None:
        chance = self.random
        act = chance.random()
        if act < 0.45:
            for _ in range(chance.randint(1, 12)):
                self.now = max(self.now, edge.now) + chance.choice((0, 1, SECOND // 7, SECOND))
                edge.publish(
                    chance.choice(INPUTS), *(chance.randint(0, 1000) for _ in range(chance.randint(1, 5))),
                    key=chance.choice((b"a", b"b", b"c")), time=self.now,
                )  # fmt: skip
        elif act < 0.55:
            edge.commit()
        elif act < 0.7:
            await edge.settle()
        elif act < 0.82:
            await edge.pass_time(chance.randint(1, 9))
            self.now = edge.now
        else:
            self._arm(edge)
        self._look(edge)
        if edge.log.failed:
            raise edge.log.failed

    def _arm(self, edge: Edge) -> None:
        """Have the power go at one of the next calls of the disk."""
        left = self.random.randint(0, 12)

        def fail(call: str, path: str) -> OSError | None:
            nonlocal left
            left -= 1
            return eio() if left < 0 else None

        edge.disk.fail = fail

    async def _cut(self, edge: Edge) -> Edge:
        self.cuts += 1
        self.now = max(self.now, edge.now)
        await edge.lose_power()
        self.disk = edge.disk.power_cut(self.random)
        self.disk.drop_locks()
        return self._open()

    def _look(self, edge: Edge) -> None:
        """Hold new records against the marks of earlier looks, and ask for the marks."""
        for name in DERIVED:
            number = edge.log.stream(name)
            if edge.log.failed:
                return
            for seq, time, _, _ in edge.read(name, self.checked.get(name, 0)):
                if time <= self.told.get(name, 0):
                    raise Violation(f"{name} {seq} has time {time}; {self.told[name]} was told to be complete")
            time, seq = edge.log.mark(number, edge.now)
            if seq <= edge.log.durable_end(number):
                self.told[name] = max(self.told.get(name, 0), time)
                self.checked[name] = seq

    async def _compare(self, inputs: dict[str, Any], outputs: dict[str, Any], end: int) -> None:
        edge = Edge(FakeFileSystem(), *definitions(), now=START)
        rows = [(time, name, seq, key, value) for name, own in inputs.items() for seq, time, key, value in own]
        for time, name, seq, key, value in sorted(rows, key=lambda row: row[:3]):
            if edge.publish(name, value, key=key, time=time) != seq:
                raise Violation(f"{name} {seq} is missing in the log")
            if self.random.random() < 0.1:
                await edge.settle()
        await edge.settle()
        edge.now = end
        await edge.settle()
        for name in DERIVED:
            expected = edge.read(name)
            if outputs[name] != expected:
                pairs = enumerate(zip(outputs[name], expected, strict=False))
                at = next((index for index, (own, other) in pairs if own != other), -1)
                raise Violation(
                    f"{name}: {len(outputs[name])} records, {len(expected)} without cuts; first difference at {at}: "
                    f"{outputs[name][at : at + 1]} instead of {expected[at : at + 1]}"
                )
        await edge.close()


def run_seed(seed: int) -> int:
    """Live one life; return the number of power cuts. Raises Violation."""
    life = Life(seed)
    asyncio.run(life.run())
    return life.cuts


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what failing disks say; states are copied often."""
    logging.disable(logging.CRITICAL)
    try:
        with mock.patch.multiple(state_log, COPY_BYTES_MIN=600, PIECE_BYTES=100):
            yield
    finally:
        logging.disable(logging.NOTSET)


def run_cuts(cuts: int, seed: int = 1, told: Callable[[int, int], None] = lambda seed, cuts: None) -> int:
    """Live life after life until there were that many cuts; return how many lives."""
    done, lives = 0, 0
    with quiet():
        while done < cuts:
            try:
                done += run_seed(seed + lives)
            except Violation as violation:
                raise Violation(f"seed {seed + lives}: {violation}") from None
            lives += 1
            told(seed + lives, done)
    return lives


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    lives = run_cuts(arguments.cuts, arguments.seed)
    print(f"{arguments.cuts} power cuts in {lives} lives: every derived stream as without them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
