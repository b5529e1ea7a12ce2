"""Links that ask the nodes of a simulation for canaries, and what an answer has to mean."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

from tests.cloud_hub.fabric import SequencerNode
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import NotFound, ObjectStore

QUESTIONS = 25


class Askers:
    """Links that ask one node after the other, whatever happens to these."""

    def __init__(self, store: ObjectStore, nodes: Sequence[SequencerNode], rng: random.Random) -> None:
        self._store, self._nodes, self._rng = store, nodes, rng
        self._head = -1
        self.answers = 0
        self.wrong: list[str] = []
        """Answers for which no chunk had come since the question; an exception would end in the node's log."""

    async def _look(self) -> int:
        """Return the number of the last chunk in the store, also of one that no node knows of yet."""
        while True:
            try:
                await self._store.get(chunk_key(0, self._head + 1))
            except NotFound:
                return self._head
            self._head += 1

    async def ask(self, node: SequencerNode) -> asyncio.Event:
        """Ask a node that runs; return what its answer sets."""
        answered, head = asyncio.Event(), await self._look()
        if node.sequencer is not None:
            node.sequencer.sessions.canaries.ask(node, partial(self._take, node.sequencer, head, answered))
        return answered

    def _take(self, sequencer: Sequencer, head: int, answered: asyncio.Event, waited_s: float) -> None:
        self.answers += 1
        if sequencer.state.n <= head or waited_s < 0:
            self.wrong.append(f"asked behind chunk {head}, answered at {sequencer.state.n}")
        answered.set()

    async def run(self) -> None:
        """Ask during the storm, and some time after it."""
        for _ in range(QUESTIONS):
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))
            await self.ask(self._rng.choice(self._nodes))

    async def check(self) -> None:
        """Check that each node answers when nothing fails, and that no answer was wrong."""
        events = [await self.ask(node) for node in self._nodes]
        async with asyncio.timeout(30):
            for event in events:
                await event.wait()
        await asyncio.sleep(1.0)  # a look counts to its end: another node may have written during the last commit
        assert self.wrong == []
