"""Losses of functions' states by damage of the disk: they must not lead to wrong results that look right."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from weft.edge_node.functions.chain import Chain, Outputs, ReplayOutputs
from weft.edge_node.functions.contract import Gap, Row
from weft.edge_node.functions.runtime.parts import StreamNumbers
from weft.edge_node.functions.runtime.state_log import Loss, Positions, Remembered
from weft.protocols.segment import GapReason
from weft.storage.segment_log import SegmentLog

REASON = GapReason.CORRUPTION.name.lower()


class Losses(NamedTuple):
    """Losses that the outputs report before the next row."""

    of: list[Loss]
    forgets: bool = False
    """True where the latest records are lost: the functions' positions are unknown, so they resume at the next record,
    with empty memory. The records between are reported, and a replay can compute them."""


def losses_of(log: SegmentLog, streams: StreamNumbers, remembered: Remembered, now: int) -> Losses:
    """Return the losses of a derived stream. Where the latest records are lost, move its positions to the end.

    It has written outputs without a record of them: reading the same rows again would emit them twice.

    Args:
        now: ns since 1970.
    """
    known = remembered.positions
    outputs = (streams.own, streams.errors)
    if remembered.may_lack_end and any(log.next_seq(stream) > known.ends.get(stream, 0) for stream in outputs):
        ends = {name: log.durable_end(stream) for name, stream in streams.inputs.items()}
        lost = [Loss(name, known.inputs.get(name, 0), end, known.times.get(name, 0)) for name, end in ends.items()]
        remembered.positions = msgspec.structs.replace(
            known, inputs={**known.inputs, **ends}, hold=max(known.hold, now), last={}
        )
        remembered.states = {}
        return Losses(_named(lost), forgets=True)
    return Losses(_named([loss for name, loss in remembered.losses.items() if name in streams.inputs]))


def _named(losses: list[Loss]) -> list[Loss]:
    """Return the losses that name rows; a loss between two rows names the row before."""
    found = [loss for loss in losses if loss.end > loss.first]
    return found or [loss._replace(first=loss.end - 1) for loss in losses[:1] if loss.end]


async def tell(losses: Losses, chain: Chain, positions: Positions, out: Outputs, name: str) -> int:
    """Mark windows that lack rows as incomplete, and report the losses in the stream of errors. Return the number of
    reported losses: 0 for functions without a memory."""
    if not losses.forgets and not any(True for _ in chain.states()):
        return 0
    # Due rows were emitted by then, and the record of that may be among the lost ones.
    while (due := chain.due()) is not None and due <= positions.tick:
        await chain.tick(due, ReplayOutputs())
    for loss in losses.of:
        chain.gap(Gap(loss.input, loss.first, loss.end, REASON, loss.after), out)
        payload = {"input": loss.input, "first": loss.first, "end": loss.end, "reason": REASON}
        out.reject(Row(positions.hold, name.encode(), msgspec.json.encode(payload), {}), _sentence(loss))
    return len(losses.of)


def _sentence(loss: Loss) -> str:
    return (
        f"the disk lost what the functions knew of {loss.input} {loss.first} to {loss.end - 1}: "
        "these records may be counted in part or not at all"
    )
