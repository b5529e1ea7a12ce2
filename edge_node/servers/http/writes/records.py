"""Messages of one request among the records of a turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from weft.edge_node.ingest.record import Gathering, Records
from weft.edge_node.ingest.routes import COPY_COST, Misfits, Route
from weft.edge_node.servers.http.exchange import Exchange
from weft.edge_node.servers.http.idempotency import joined
from weft.protocols.batch import HeaderPairs
from weft.protocols.fields import packed_headers

CHECKED_SLICE_BYTES = 16 << 10
"""Bytes whose payloads are checked before others may have their turn, as ``check_cost`` counts them."""
CHECKED_SLICE_MESSAGES = 8
"""Messages of a request that are checked in one step without a look at ``check_cost``."""
MISFIT_COST = 16
"""Cost of a byte of a message that does not fit: the reasons are worded at some ten times the time of the check."""


class NewRecord(NamedTuple):
    """One message of a request."""

    key: bytes
    payload: bytes
    headers: HeaderPairs = ()
    number: int = 0
    """Position in the request, from 1 on, where earlier messages may have been left out; 0 where none can be."""
    misfits: Misfits | None = None
    """Findings of the checks of its route; None where there are none, or they were not asked."""

    def packed(self) -> NewRecord:
        """Return the record with headers encoded for the log, which appends all records of a request in one step."""
        headers = self.headers
        return self._replace(headers=packed_headers(headers)) if headers and type(headers) is tuple else self


class Pieces(NamedTuple):
    """Records of one request among those of a turn: a stretch of each run."""

    stretches: dict[Records, tuple[int, int]]
    """Run -> index of the request's first record there, and their number."""

    def seqs(self, stream: int) -> list[tuple[int, int]]:
        """Return (first seq, count) of the records in a stream, ascending; empty when the stream has none."""
        found: list[tuple[int, int]] = []
        for run, (first, count) in self.stretches.items():
            seqs = (run.by_stream.get(stream) or ())[first : first + count]
            if type(seqs) is range and seqs:
                found.append((seqs.start, count))
            else:
                found += [(seq, 1) for seq in seqs if seq is not None]
        return joined(sorted(found))


def check_cost(size: int, misfits: Misfits | None) -> int:
    """Return the cost of the check of a payload, in bytes of payloads that fit. A reason for each of many fields costs
    more than a short payload itself."""
    return MISFIT_COST * size + sum(2 * check.cost for check, _ in misfits) if misfits else size


def cost_of(record: NewRecord, route: Route) -> int:
    """Return the cost of storing a record, in units of ``Route.cost``: a dead letter costs as much as a copy in a
    queue."""
    cost = route.cost - route.check_cost  # it was checked in earlier steps
    return cost + COPY_COST if record.misfits else cost


def gather(gathered: Gathering, exchange: Exchange, records: Sequence[NewRecord], routed: Sequence[Route]) -> Pieces:
    """Add the messages of a request, each with its route."""
    stretches: dict[Records, tuple[int, int]] = {}
    for (route, is_single), stretch in groupby(zip(records, routed, strict=True), _way):
        some = [record for record, _ in stretch]
        if is_single:
            for each in some:
                run = gathered.add(route, each.key, each.payload, exchange, 0, each.headers, each.misfits)
                if run is not None:
                    first, count = stretches.get(run) or (len(run.keys) - 1, 0)
                    stretches[run] = (first, count + 1)
            continue
        run = gathered.groups[route.destination]
        at = len(run.keys)
        keys, payloads, headers, *_ = zip(*some, strict=True)
        run.extend(keys, payloads, headers, exchange)
        if route.noted:
            gathered.note_fitting(route, run, at)
        first, count = stretches.get(run) or (at, 0)
        stretches[run] = (first, count + len(run.keys) - at)
    return Pieces(stretches)


def _way(pair: tuple[NewRecord, Route]) -> tuple[Route, bool]:
    """Return a record's route, and whether it may be a dead letter."""
    record, route = pair
    return route, route.checks is not None and record.misfits != ()


def gather_one(gathered: Gathering, exchange: Exchange, record: NewRecord, route: Route) -> tuple[Records | None, int]:
    """Add a message. Return its run and its place there; no run for a dead letter."""
    run = gathered.add(route, record.key, record.payload, exchange, 0, record.headers, record.misfits)
    return run, 0 if run is None else len(run.keys) - 1
