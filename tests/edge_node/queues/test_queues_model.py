"""Whatever clients, power and disk do: nothing confirmed is lost, what was acknowledged comes back flagged if it does,
and a queue keeps its order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.edge_node.queues.room import Room, Taker
from tests.storage.fakes import FakeFileSystem, eio
from weft.edge_node.queues import contents, ready
from weft.edge_node.queues.ready import Outcome
from weft.storage.segment_log import LogFailed, LogSettings

LOG = LogSettings(segment_bytes=4096, budget_bytes=256 * 4096, tail_bytes=1500, pending_bytes_max=1 << 20)
QUEUES = ("a", "b")
KEYS = {"both": QUEUES, "only.a": ("a",), "only.b": ("b",)}


class Model:
    """What one queue may have."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        """Every message that may be there, in order of receipt."""
        self.confirmed: set[int] = set()
        self.settled: set[int] = set()
        """Acknowledged, and known to the log for certain."""
        self.acknowledged: set[int] = set()
        """Acknowledged, whether the log knows it or not."""
        self.delivered: set[int] = set()
        self.newest = -1
        """Last message that was delivered for the first time since the last start."""
        self.returned: set[int] = set()
        """Went back since then, so it may come again at any time."""
        self.unsure: set[int] = set()
        """Acknowledged, and a power cut has perhaps taken that back."""


class QueuesMachine(RuleBasedStateMachine):
    @initialize(memory=st.sampled_from([0, 1 << 20]), early=st.booleans())
    def start(self, memory: int, early: bool) -> None:
        """Begin with empty queues.

        Args:
            memory: bytes for messages that come next.
            early: marks of deliveries run ahead from the first on, and by more once readers wait for them.
        """
        self.loop = asyncio.new_event_loop()
        self.memory, contents.LOADED_BYTES_MAX = contents.LOADED_BYTES_MAX, memory
        self.marks = ready.EXACT, ready._STEPS, ready._STEPS_MAX
        if early:
            ready.EXACT, ready._STEPS, ready._STEPS_MAX = 0, 1, 3
        self.number = 0
        self.models = {name: Model() for name in QUEUES}
        self.run(self.make())

    async def make(self) -> None:
        self.room = Room(settings=LOG)
        for name in QUEUES:
            self.room.queues.declarations.declare_queue(self.room.client, name, durable=True)
            for key, names in KEYS.items():
                if name in names:
                    self.room.queues.declarations.bind(self.room.client, name, "amq.topic", key)
        await self.room.settle_down()
        self.takers: dict[str, list[Taker]] = {name: [] for name in QUEUES}

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(work)
        self.look()

    def look(self) -> None:
        """Check and note what came since the last look."""
        for payload in self.room.confirmed():
            for model in self.models.values():
                if int(payload) in model.sent:
                    model.confirmed.add(int(payload))
        for name, delivery, message in self.room.given:
            model, number = self.models[name], int(message.payload)
            assert number in model.sent
            assert number not in model.settled, "acknowledged, durably"
            if number in model.acknowledged or number in model.delivered:
                assert delivery.redelivered, f"{number} came before"
            if number not in model.returned:
                assert number > model.newest, f"{number} came after {model.newest}"
                model.newest = number
            model.delivered.add(number)
            model.returned.discard(number)
            model.acknowledged.discard(number)
            model.unsure.discard(number)
        self.room.given.clear()

    @rule(key=st.sampled_from(sorted(KEYS)), count=st.integers(1, 5), mqtt=st.booleans())
    def publish(self, key: str, count: int, mqtt: bool) -> None:
        for _ in range(count):
            self.number += 1
            for name in KEYS[key]:
                self.models[name].sent.append(self.number)
            if mqtt:
                self.room.publish_mqtt(key.replace(".", "/").encode(), b"%d" % self.number)
            else:
                self.room.publish(b"%d" % self.number, exchange="amq.topic", key=key)

    @rule(name=st.sampled_from(QUEUES), prefetch=st.integers(0, 4))
    def consume(self, name: str, prefetch: int) -> None:
        async def consume() -> None:
            self.takers[name].append(self.room.consume(name, prefetch))

        self.run(consume())

    @rule(name=st.sampled_from(QUEUES), outcome=st.sampled_from(Outcome), count=st.integers(1, 4), last=st.booleans())
    def settle(self, name: str, outcome: Outcome, count: int, last: bool) -> None:
        async def settle() -> None:
            self.look()  # the loop has done something before this
            taken = [taker for taker in self.takers[name] if taker.unsettled]
            if not taken:
                return
            taker, model = taken[0], self.models[name]
            if last:
                taker.unsettled.reverse()
            numbers = {int(taker.seen[delivery.seq]) for delivery in taker.unsettled[:count]}
            if outcome in {Outcome.ACCEPT, Outcome.REJECT}:
                model.acknowledged |= numbers
            else:
                model.returned |= numbers
            taker.settle(outcome, count)

        self.run(settle())

    @rule(name=st.sampled_from(QUEUES))
    def cancel(self, name: str) -> None:
        if self.takers[name]:

            async def cancel() -> None:
                self.look()  # as above
                taker = self.takers[name].pop()
                self.models[name].returned |= {int(taker.seen[each.seq]) for each in taker.unsettled}
                self.room.queues.consumptions.cancel(taker.consumption)
                self.room.queues.settling.settle(taker.unsettled, Outcome.REQUEUE)

            self.run(cancel())

    @rule()
    def turn(self) -> None:
        async def turn() -> None:
            self.room.batch.store()
            await asyncio.sleep(0)

        self.run(turn())

    @rule()
    def commit(self) -> None:
        async def settle_down() -> None:
            await self.room.settle_down()

        self.run(settle_down())
        for model in self.models.values():
            model.settled |= model.acknowledged - model.unsure

    @rule()
    def copy(self) -> None:
        async def copy() -> None:
            self.room.batch.store()
            self.room.queues.writer.copy()

        self.run(copy())

    def cut(self) -> None:
        """Note what a power cut means, to be called right before it: the loop may have delivered something."""
        self.look()
        self.started()
        for model in self.models.values():
            model.unsure |= model.acknowledged - model.settled

    def started(self) -> None:
        """Note what a new start of the node means."""
        self.takers = {name: [] for name in QUEUES}
        for model in self.models.values():
            model.newest = -1
            model.returned.clear()

    @rule(seed=st.integers(0, 1 << 32))
    def power_cut(self, seed: int) -> None:
        async def cut() -> None:
            self.cut()
            self.room.power_cut(seed)

        self.run(cut())

    @rule(call=st.sampled_from(["write_at", "sync"]), seed=st.integers(0, 1 << 32))
    def power_cut_during_a_commit(self, call: str, seed: int) -> None:
        disk, left = self.room.disk, list[FakeFileSystem]()

        def fail(name: str, path: str) -> OSError | None:
            if name == call and not left:
                left.append(disk.power_cut(random.Random(seed)))
            return eio() if left else None

        async def cut() -> None:
            self.room.batch.store()
            await asyncio.sleep(0)
            disk.fail = fail
            try:
                self.room.log.committer.run_once()
            except (OSError, LogFailed):
                pass
            self.cut()
            self.room.disk = left[0] if left else disk.power_cut(random.Random(seed))
            self.room.wheel.close()
            self.room.start()

        self.run(cut())

    @rule()
    def restart(self) -> None:
        async def restart() -> None:
            self.room.queues.disconnects.begin(self.room.client)
            await self.room.restart()

        async def gone() -> None:
            await self.room.settle_down()

        self.run(gone())
        self.run(restart())
        self.started()
        for model in self.models.values():
            model.settled |= model.acknowledged - model.unsure

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            return

        async def gone() -> None:
            await self.room.settle_down()
            self.room.queues.disconnects.begin(self.room.client)

        async def drain() -> None:
            for name, model in self.models.items():
                taker = self.room.consume(name)
                while True:
                    await self.room.settle_down()
                    if not self.room.queue(name).count:
                        break
                found = [int(payload) for payload in taker.payloads]
                assert found == sorted(found), "in order of receipt"
                lost = model.confirmed - model.acknowledged - set(found)
                assert not lost, f"confirmed, and not there any more: {lost}"
                self.takers[name] = []
            self.room.wheel.close()

        self.run(gone())
        self.started()
        self.run(drain())
        contents.LOADED_BYTES_MAX = self.memory
        ready.EXACT, ready._STEPS, ready._STEPS_MAX = self.marks
        self.loop.close()


TestQueues = QueuesMachine.TestCase
TestQueues.settings = settings(
    max_examples=max(settings().max_examples // 5, 1),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
