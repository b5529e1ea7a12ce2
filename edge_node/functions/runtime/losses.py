"""Losses of what functions know, by damage of the disk: nothing that looks right and is not comes of them."""

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
    """Losses that the outputs tell of before the next row."""

    of: list[Loss]
    forgets: bool = False
    """True where the latest records are lost: how far the functions were is not known, so they go on with the next
    record, and with nothing in their memory. What lies between is named, and can be had by a replay."""


def losses_of(log: SegmentLog, streams: StreamNumbers, remembered: Remembered, now: int) -> Losses:
    """Return what was lost of a derived stream. Where that is its latest records, bring its positions to the end.

    It has written outputs that no record tells of: to read the same rows again would put them out twice.

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
    """Return those that name rows; of losses that fall between two rows, one that names the row before."""
    found = [loss for loss in losses if loss.end > loss.first]
    return found or [loss._replace(first=loss.end - 1) for loss in losses[:1] if loss.end]


async def tell(losses: Losses, chain: Chain, positions: Positions, out: Outputs, name: str) -> int:
    """Have windows be incomplete that lack rows, and name what is lost in the stream of errors. Return how many losses
    there are to tell of: none for functions that remember nothing."""
    if not losses.forgets and not any(True for _ in chain.states()):
        return 0
    # What was due by then came out, and what says so may be among what is lost.
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
