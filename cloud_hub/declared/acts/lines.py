"""Lines of the record of acts, as people and programs get them: one for each entry of the cluster log."""

from __future__ import annotations

import asyncio
from typing import Any

from weft.cloud_hub.api.views import moment
from weft.cloud_hub.declared.acts.acting import ACT, target_of
from weft.cloud_hub.declared.acts.second_person import REQUEST, target_of_request
from weft.storage.cluster_log.entry import Declaration
from weft.storage.cluster_log.log import ClusterLog

READS_AT_ONCE = 16
UNUSABLE = "the entry is damaged or missing"
NumberedEntry = tuple[int, Declaration | None]
"""Number of an entry, and the entry; None if it is damaged or missing."""


async def entries(log: ClusterLog, first: int, end: int) -> list[NumberedEntry]:
    """Return entries [first, end), in their order. One GET for each.

    Raises:
        StoreError: the store did not answer.
        UnsupportedVersion: a later release wrote one of them.
    """
    room = asyncio.Semaphore(READS_AT_ONCE)

    async def one(n: int) -> NumberedEntry:
        async with room:
            return n, await log.entry(n)

    return await asyncio.gather(*map(one, range(first, end)))


async def lines(log: ClusterLog, first: int, end: int) -> list[dict[str, Any]]:
    """Return the lines of entries [first, end). Raises as ``entries``."""
    found: list[dict[str, Any]] = []
    for at in range(first, end, READS_AT_ONCE):  # entries may be long, and their lines are not
        found += [line(*each) for each in await entries(log, at, min(end, at + READS_AT_ONCE))]
    return found


def line(n: int, entry: Declaration | None) -> dict[str, Any]:
    """Return the line of an entry, without the document of a fact: it may be long, and has hashes of secrets.

    Args:
        entry: None if it is damaged or missing.
    """
    if entry is None:
        return {
            "entry": n, "at": None, "by": "", "origin": "", "command": "", "act": "unusable", "kind": "", "name": "",
            "target": "", "reason": UNUSABLE,
        }  # fmt: skip
    words = ("ended", "began") if entry.kind == ACT else ("withdrew", "declared")
    return {
        "entry": n,
        "at": moment(entry.at),
        "by": entry.by,
        "origin": entry.origin,
        "command": entry.command,
        "act": words[entry.document is not None],
        "kind": entry.kind,
        "name": entry.name,
        "target": _target(entry),
        "reason": entry.reason,
    }


def _target(entry: Declaration) -> str:
    if entry.more:
        return ", ".join(each.name for each in entry.facts)
    if entry.document is None:
        return ""
    if entry.kind == ACT:
        return target_of(entry.document)
    return target_of_request(entry.document) if entry.kind == REQUEST else ""
