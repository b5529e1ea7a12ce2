"""Functions of another version, which are prepared while the present ones work."""

from __future__ import annotations

import asyncio

from weft.edge_node.functions.chain import Chain
from weft.edge_node.functions.runtime.parts import Version

TURNS = 3
"""Turns of the loop after which most functions are ready, since they wait for nothing. Functions that load a model or a
file may take a minute, and the rows of the stream do not wait for them."""


class NextVersion:
    """The functions of a version in preparation. Belongs to the event loop's thread."""

    def __init__(self, version: Version, wake: asyncio.Event) -> None:
        """Begin to create them.

        Args:
            wake: set when they are ready, or have failed.
        """
        self.version = version
        self._making = asyncio.get_running_loop().create_task(self._made())
        self._making.add_done_callback(lambda _: wake.set())

    async def chain(self) -> Chain | None:
        """Return the functions, without any state; None while they are not ready.

        Raises:
            Exception: they cannot be created.
        """
        for _ in range(TURNS):
            if not self._making.done():
                await asyncio.sleep(0)
        return self._making.result() if self._making.done() else None

    async def drop(self) -> None:
        """Stop the preparation."""
        self._making.cancel()
        (made,) = await asyncio.gather(self._making, return_exceptions=True)
        if isinstance(made, Chain):
            await made.close()

    async def _made(self) -> Chain:
        chain = self.version.make_chain()
        try:
            await chain.prepare()
        except BaseException:
            await chain.close()  # a function before the failed one may have started a process
            raise
        return chain
