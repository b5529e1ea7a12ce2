"""Rows whose key an earlier row has: the keys of the last rows of each shard, in memory, and what further rows repeat.

A row is repeated if a row with its key is among the ``within`` offsets before it in its shard, or among the last
``within`` rows of another shard when it became a row. Which of two rows in different shards counts as the repeated one
is the second to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.storage.table.quality.keys import Hashes

Marks = np.ndarray[Any, np.dtype[np.bool_]]


class KeyRun(NamedTuple):
    """Keys of consecutive rows of a shard; 0 stands for a row without one."""

    shard: int
    first: int
    """Offset of the first row."""
    end: int
    """Offset after the last one. It is further on than the rows where an operator skipped records."""
    keys: Hashes


Tails = Mapping[int, KeyRun]
"""Shard -> its last rows."""


def empty(shard: int, end: int = 0) -> KeyRun:
    """Return a run without rows."""
    return KeyRun(shard, end, end, np.zeros(0, np.uint64))


def repeated(tails: Tails, runs: Sequence[KeyRun], within: int) -> tuple[list[Marks], dict[int, KeyRun]]:
    """Return which rows of runs are repeated, and the last rows of each shard with them.

    Args:
        tails: the rows before them.
        runs: one of each shard, in the order in which they become rows.
    """
    after, marks = dict(tails), []
    for run in runs:
        tail = after.get(run.shard, empty(run.shard, run.first))
        keys = np.concatenate([tail.keys, run.keys])
        offsets = np.concatenate([np.arange(len(part.keys)) + part.first for part in (tail, run)])
        order = np.argsort(keys, kind="stable")
        is_near = (keys[order][1:] == keys[order][:-1]) & (np.diff(offsets[order]) <= within)
        is_repeated = np.zeros(len(keys), np.bool_)
        is_repeated[order[1:]] = is_near
        found = is_repeated[len(tail.keys) :]
        others = [each.keys for shard, each in after.items() if shard != run.shard and len(each.keys)]
        if others:
            found |= np.isin(run.keys, np.concatenate(others))
        found &= run.keys != 0
        marks.append(found)
        # Rows before records that an operator skipped are forgotten: those behind them may be far away.
        is_next = tail.first + len(tail.keys) == run.first
        last = (keys if is_next else run.keys)[-within:].copy()  # a view would keep all of them in memory
        after[run.shard] = KeyRun(run.shard, run.first + len(run.keys) - len(last), run.end, last)
    return marks, after
