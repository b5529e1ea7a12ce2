"""Cut the power of a node with functions thousands of times, and compare what came out with a run without cuts.

    python -m tests.edge_node.derived.power_cuts --cuts 10000 --seed 1

Every seed is one life of a node: devices publish, time passes, the log commits, and the power goes between any two
writes of the disk. The inputs that survived are then given to a node that never loses its power; every derived stream
must be the same, byte for byte. On the way no record may have a time that a mark had told to be complete.

A third of the nodes have a log of a few segments: hubs take over the outputs, functions and hubs release what they
have, and the log moves or deletes the rest; when it is full, devices and functions wait. Of the states that functions
released any may be gone after a cut.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

from tests.edge_node.derived.node import SECOND, SETTINGS, START, Edge, Large, Minutes, definition
from tests.storage.fakes import FakeFileSystem, eio
from tests.support.silence import silent_logs
from weft.edge_node.derived import steps
from weft.functions.contract import Function, Gap, Out, Row, State
from weft.protocols.ranges import Range, RangeSet
from weft.storage.segment_log import LogError, LogFull, LogSettings

INPUTS = ("telemetry", "events")
STEPS = 100
"""Acts of a life."""
SMALL = LogSettings(segment_bytes=4096, budget_bytes=10 * 4096, tail_bytes=2048, pending_bytes_max=1 << 20)


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
        self.reported: dict[str, int] = {}
        """Derived stream -> the highest mark that the log gave."""
        self.checked: dict[str, int] = {}
        """Derived stream -> number of its first record that was not held against the marks."""
        self.haste = self.random.choice((0.15, 0.35, 0.5))
        """Share of acts after which the power may go."""
        self.settings = SMALL if self.random.random() < 0.35 else SETTINGS
        self.gone: list[Range] = []
        """Records of states that were let go."""
        self.definitions = self._chosen()
        self.derived = [each.name for each in self.definitions]
        self.taken: dict[str, list[Any]] = {name: [] for name in (*INPUTS, *self.derived)}
        """Stream -> its records, as hubs have them."""

    async def run(self) -> None:
        edge = self._open()
        for _ in range(STEPS):
            try:
                await self._act(edge)
            except (OSError, LogError):
                edge = await self._cut(edge)
        edge.disk.fail = lambda call, path: None
        if self.settings is SMALL:  # its owner gives it more room, as the log says when nothing may go
            await edge.close()
            self.settings, self.now = SETTINGS, max(self.now, edge.now)
            edge = self._open()
        for _ in range(20):
            await edge.pass_time(1)
            self._look(edge)
        outputs = {name: self.taken[name] for name in self.derived}
        inputs = {name: self.taken[name] for name in INPUTS}
        end = edge.now
        await edge.close()
        await self._compare(inputs, outputs, end)

    # --- inside

    def _chosen(self) -> list[Any]:
        """Return some derived streams, with those that they read: a life with all of them takes twice as long."""
        found = definitions()
        chosen = {each.name for each in self.random.sample(found, -(-len(found) // 2))}
        for each in reversed(found):
            if each.name in chosen:
                chosen.update(each.inputs)
        return [each for each in found if each.name in chosen]

    def _open(self) -> Edge:
        edge = Edge(self.disk, *self.definitions, now=self.now, settings=self.settings, gone=self.gone)
        for name in INPUTS:
            edge.log.stream(name)
        return edge

    async def _act(self, edge: Edge) -> None:
        chance = self.random
        if chance.random() < self.haste:
            self._arm(edge)
            return
        act = chance.random()
        if act < 0.55:
            for _ in range(chance.randint(1, 12)):
                self.now = max(self.now, edge.now) + chance.choice((0, 1, SECOND // 7, SECOND))
                stream, key = chance.choice(INPUTS), chance.choice((b"a", b"b", b"c"))
                values = [self._value() for _ in range(chance.randint(1, 5))]
                with contextlib.suppress(LogFull):  # devices send it again
                    edge.publish(stream, *values, key=key, time=self.now)
        elif act < 0.67:
            edge.commit()
        elif act < 0.85:
            await edge.settle()
        else:
            await edge.pass_time(chance.randint(1, 9))
            self.now = edge.now
        self._look(edge)
        if edge.log.failed:
            raise edge.log.failed

    def _value(self) -> Any:
        value = self.random.randint(0, 1000)
        # The more there is in a small log, the more has to go.
        return value if self.settings is SETTINGS else {"value": value, "pad": self.random.randbytes(30).hex()}

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
        self._let_go(edge)
        self.disk = edge.disk.power_cut(self.random)
        self.disk.drop_locks()
        return self._open()

    def _let_go(self, edge: Edge) -> None:
        """Have states that were released be gone at the next start, as a log that needs the room deletes them."""
        lane = edge.log._state.lane(edge.log.streams()["weft-functions"])
        for first, end in lane.released:
            self.gone += [(seq, seq + 1) for seq in range(first, end) if self.random.random() < 0.5]

    def _look(self, edge: Edge) -> None:
        """Hold new records against the marks of earlier looks, and ask for the marks."""
        if edge.log.failed:
            return
        self._take(edge)
        for name in self.derived:
            number = edge.log.stream(name)
            for seq, time, _, _ in self.taken[name][self.checked.get(name, 0) :]:
                if time <= self.reported.get(name, 0):
                    raise Violation(f"{name} {seq} has time {time}; {self.reported[name]} was told to be complete")
            time, seq = edge.log.mark(number, edge.now)
            if seq <= edge.log.durable_end(number):
                self.reported[name] = max(self.reported.get(name, 0), time)
                self.checked[name] = seq

    def _take(self, edge: Edge) -> None:
        """Take over what is durable, as a hub does, and release it."""
        for name, taken in self.taken.items():
            number, at = edge.log.stream(name), len(taken)
            if edge.log.durable_end(number) > at:
                taken.extend(edge.read(name, at))
                if taken[-1][0] != len(taken) - 1:
                    raise Violation(f"{name}: the log has {len(taken)} records up to {taken[-1][0]}")
            if self.settings is SMALL:
                readers = [each.name for each in self.definitions if name in each.inputs]
                end = min([len(taken), *(edge.released.get((reader, name), 0) for reader in readers)])
                if end:
                    edge.log.release(number, RangeSet([(0, end)]))

    async def _compare(self, inputs: dict[str, Any], outputs: dict[str, Any], end: int) -> None:
        edge = Edge(FakeFileSystem(), *self.definitions, now=START)
        rows = [(time, name, seq, key, value) for name, own in inputs.items() for seq, time, key, value in own]
        for time, name, seq, key, value in sorted(rows, key=lambda row: row[:3]):
            if edge.publish(name, value, key=key, time=time) != seq:
                raise Violation(f"{name} {seq} is missing in the log")
            if self.random.random() < 0.1:
                await edge.settle()
        await edge.settle()
        edge.now = end
        await edge.settle()
        for name in self.derived:
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
    with silent_logs(), mock.patch.multiple(steps, COPY_BYTES_MIN=600, PIECE_BYTES=100):
        yield


def run_lives(seeds: Iterable[int]) -> int:
    """Live these lives; return the number of power cuts. Raises Violation."""
    with quiet():
        return sum(map(_run_named, seeds))


def _run_named(seed: int) -> int:
    try:
        return run_seed(seed)
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from None


def run_cuts(cuts: int, seed: int = 1, reported: Callable[[int, int], None] = lambda seed, cuts: None) -> int:
    """Live life after life until there were that many cuts; return how many lives."""
    done, lives = 0, 0
    with quiet():
        while done < cuts:
            done += _run_named(seed + lives)
            lives += 1
            reported(seed + lives, done)
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
