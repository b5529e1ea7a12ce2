"""The first comparison of a log with the hubs. A start waits for it before it accepts messages.

A log restored from an older copy reuses numbers that a hub has for other records. The node cannot detect such a start:
its knowledge of hubs was restored with the log. Only the hub can, with the first answer to a link
(docs/decisions/0122).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.config.links import Link
from weft.config.units import approximate_duration
from weft.replication.status import LinkStatus

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.005
TOLD_AFTER_S = 1.0
"""Time after which a log line reports the wait: most hubs answer sooner."""


async def compared(
    links: Mapping[str, Link],
    statuses: Sequence[LinkStatus],
    stopping: asyncio.Event | None = None,
    *,
    clock: Callable[[], float],
) -> None:
    """Wait until the hub of each of these links has reported what it holds of the log, for each no longer than its
    ``hold_at_start``.

    Args:
        links: links that the start waits for.
        statuses: of all links of the node.
        stopping: ends the wait.
        clock: monotonic seconds.
    """
    began, told = clock(), False
    while True:
        waited = clock() - began
        open_ = [
            status.name
            for status in statuses
            if status.name in links
            and links[status.name].hold_at_start_s > 0
            and not (status.is_compared or status.conflict)
        ]
        late = [name for name in open_ if links[name].hold_at_start_s > waited]
        if not late or (stopping is not None and stopping.is_set()):
            break
        if not told and waited >= TOLD_AFTER_S:
            told = True
            longest = max(links[name].hold_at_start_s for name in late)
            logger.info(
                "clients wait until the hub of %s has reported what it holds of this log, at most %s (hold_at_start)",
                _names(late), approximate_duration(longest),
            )  # fmt: skip
        await asyncio.sleep(LOOK_INTERVAL_S)
    if open_ and not late:
        logger.warning(
            "messages are accepted from now on without the hub's report on this log: no answer on %s within "
            "hold_at_start. If the data_dir was restored from an older copy, the hub will refuse messages that are "
            "accepted until it answers",
            _names(open_),
        )  # fmt: skip


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"link {name}" for name in sorted(names))
