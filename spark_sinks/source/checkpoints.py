"""Positions of a query in its checkpoint.

In Spark's checkpoint they are ``{"0": 1200, "1": 0, "chunks": {"0": [17, 3735928559, 1700000001000000000]}}``: for each
shard the offset of the next record, and for shards with earlier records the chunk with the last of them: its number,
the checksum of its footer, and the time at which the hub made it (ns since 1970). Spark treats positions with another
text as new data, so a position that does not move keeps its text, with or without a chunk. A query that was moved from
another region also has there what it read before (``elsewhere``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from spark_sinks.errors import ReadError
from spark_sinks.source.elsewhere import ReadElsewhere
from spark_sinks.source.history import KeptPosition, WentBack, Witness
from spark_sinks.source.positions import CHUNKS, READ, Offsets, from_json, of_checkpoint, to_json
from spark_sinks.source.stream_log import StreamLog
from spark_sinks.source.tables import TableSnapshot

Places = dict[int, KeptPosition]
"""Shard -> position."""
_NUMBERS = 3
CLOCKS_NS = 300 * 1_000_000_000
"""Largest difference between the clocks of two nodes of a hub, in ns."""


def decode(value: Any) -> Places:
    """Return positions from a checkpoint. Checkpoints of earlier releases have no chunks.

    Raises:
        ReadError: the value has another form.
    """
    try:
        offsets = from_json({shard: each for shard, each in value.items() if shard != READ})
        chunks = {int(shard): _witness(pair) for shard, pair in value.get(CHUNKS, {}).items()}
        if chunks.keys() - offsets.keys():
            raise ValueError("a chunk has no offset")
    except (ValueError, AttributeError):
        raise ReadError(
            f"checkpoint: expected offsets by shard, got {str(value)[:200]}. It is of another query, or of a later "
            "release"
        ) from None
    return {shard: KeptPosition(offset, chunks.get(shard)) for shard, offset in offsets.items()}


def encode(places: Mapping[int, KeptPosition], elsewhere: ReadElsewhere | None = None) -> dict[str, Any]:
    """Return the form for the checkpoint: equal positions have equal texts.

    Args:
        elsewhere: what the query has read in another region; None for nothing.
    """
    found: dict[str, Any] = dict(to_json(offsets_of(places)))
    chunks = {str(shard): list(chunk) for shard, chunk in sorted(chunks_of(places).items())}
    found |= {CHUNKS: chunks} if chunks else {}
    return found if elsewhere is None else found | elsewhere.to_json()


def chunks_of(places: Mapping[int, KeptPosition]) -> dict[int, tuple[int, int, int]]:
    """Return number, checksum and time of the known chunks."""
    known = {shard: kept.witness for shard, kept in places.items() if kept.witness is not None}
    return {shard: (each.n, each.footer_crc, each.created or 0) for shard, each in known.items()}


def offsets_of(places: Mapping[int, KeptPosition]) -> Offsets:
    """Return only the offsets."""
    return {shard: kept.end for shard, kept in places.items()}


def _witness(pair: Any) -> Witness:
    if not isinstance(pair, list) or len(pair) != _NUMBERS or not all(type(n) is int and n >= 0 for n in pair):
        raise ValueError("no chunk")
    return Witness(*pair)


class Bookmarks:
    """The positions of one run of a query, compared with the log that it reads.

    A position from a checkpoint is compared once, before the first read from it: one GET for each shard. Positions that
    this run made need no comparison while it follows the log without a break: each added chunk names the one before.
    """

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        self._known: Places = {}
        """The highest positions known to be of this log."""
        self._loads = log.loads

    async def compared(self, given: Any) -> Places:
        """Return positions of Spark's checkpoint for every shard of the log; a shard that was added later begins at 0.

        Raises:
            ReadError: they are not positions; otherwise as ``compare``.
        """
        return await self.compare(decode(given))

    async def compare(self, places: Mapping[int, KeptPosition]) -> Places:
        """Return positions for every shard of the log, after checking that they are of this log.

        Raises:
            ReadError: they are of another store.
            WentBack: they are of this store before it was restored to an earlier state.
        """
        whole = of_checkpoint(offsets_of(places), self._log.heads)
        found = {shard: places.get(shard, KeptPosition(offset, None)) for shard, offset in whole.items()}
        if self._loads != self._log.loads:
            self._loads, self._known = self._log.loads, {}
        new = {shard: kept for shard, kept in found.items() if self._is_new(shard, kept)}
        stream = self._log.options.stream
        try:
            # Without a chunk, the log's end is all that can be compared, and it was.
            deleted = await self._log.history.check(
                {(stream, shard): kept for shard, kept in new.items() if kept.witness is not None}
            )
            if deleted:
                table = await self._log.table()
                await asyncio.to_thread(check_rows, table, {shard: kept for (_, shard), kept in deleted.items()})
        except WentBack as error:
            raise WentBack(
                f"checkpoint: it goes up to {error}. The hub's store was restored to an earlier state, and gives these "
                "offsets to other records. Move the checkpoint away, and what the query has written; the query makes "
                "both again from the log"
            ) from None
        self._known |= new
        return found

    def _is_new(self, shard: int, kept: KeptPosition) -> bool:
        return shard not in self._known or kept.end > self._known[shard].end

    async def moved(self, ends: Offsets, start: Mapping[int, KeptPosition]) -> Places:
        """Return positions at the ends of a micro-batch, as ``moved``. They need no comparison later, as this run made
        them."""
        places = await moved(self._log, ends, start)
        self._known |= places
        return places


def check_rows(table: TableSnapshot | None, places: Mapping[int, KeptPosition]) -> None:
    """Check the table's rows from deleted chunks: no row can be later than its chunk.

    Raises:
        WentBack: a row is later, so its offset was used again after a restore.
    """
    for shard, (end, witness) in places.items():
        if table is None or witness is None or witness.created is None:
            continue
        received = table.received(shard, end - 1)
        if received is not None and received > witness.created + CLOCKS_NS:
            raise WentBack(f"offset {end} of shard {shard}, and the record before it came later")


async def moved(log: StreamLog, ends: Offsets, start: Mapping[int, KeptPosition]) -> Places:
    """Return positions at the ends of a micro-batch, with their chunks.

    This costs nothing if a running query has seen the chunks arrive; otherwise some GETs for each shard that moved.

    Args:
        start: positions at its start. A position that does not move is kept unchanged.

    Raises:
        ReadError: the store does not answer.
    """
    moving = {shard: end for shard, end in ends.items() if shard not in start or end != start[shard].end}
    found = await log.witnesses({shard: end for shard, end in moving.items() if end > 0})
    places = {shard: KeptPosition(end, found.get(shard)) for shard, end in moving.items()}
    return places | {shard: start[shard] for shard in ends.keys() - moving.keys()}
