"""Giving a log to another name."""

from __future__ import annotations

from weft.protocols.lane import NodeName
from weft.protocols.segment import Owner
from weft.storage.segment_log.commit.committer import Committer
from weft.storage.segment_log.errors import LogFull
from weft.storage.segment_log.state.log_state import LogState


def rename(state: LogState, committer: Committer, owner: NodeName, *, from_now_on: bool) -> None:
    """Give the log to another name, durably when this returns. For the writer thread.

    Args:
        from_now_on: what it holds stays known under the former name; else what that name began with goes along.

    Raises:
        LogFull: there is no room on the disk. Nothing was changed.
        LogFailed: a write failed; which name counts shows when it is opened the next time.
    """
    while committer.run_once():
        pass
    no_room = LogFull(f"the disk of {state.directory} has no room to note the new name: make space on it")
    if not state.queue.idle:
        # A power cut would take these records back, and their numbers must not be out of every name's reach then.
        raise state.failed or no_room
    former = state.owner
    begins = former.begins if former is not None else []
    if from_now_on:
        begins = [(stream, lane.durable_end) for stream, lane in state.lanes.items() if lane.durable_end]
    state.owner = Owner(*owner, begins)
    if not committer.state_owner():
        state.owner = former
        raise state.failed or no_room
