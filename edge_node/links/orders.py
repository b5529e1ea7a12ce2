"""Policies of links: from the configuration, and what must outlive the process.

``<data_dir>/links/orders`` keeps which links an operator has paused, and the bytes that each link with a budget used
in its last months. It is replaced at each order, and after each 5,000th of a budget.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from zoneinfo import ZoneInfo

import msgspec

from weft.config.links import Link, LinkPolicy
from weft.replication.liveness import SECOND
from weft.replication.policy.budget import BudgetRule
from weft.replication.policy.rules import Order, PolicyRules
from weft.replication.policy.schedule import StreamWindows
from weft.replication.runner.control import LinkControl
from weft.storage.filesystem import FileSystem, write_atomically

logger = logging.getLogger(__name__)

FILE = "orders"
FILE_BYTES_MAX = 1 << 20
LINKS_MAX = 256
"""Links that are kept, the last changed ones: those of removed links stay for one that comes back."""


class _Kept(msgspec.Struct):
    paused: bool = False
    months: dict[str, int] = {}
    """First day of a budget's month -> its bytes."""


class Orders:
    """The orders to a node's links. Made before the links start, it blocks on the disk.

    Args:
        wall_clock: ns since 1970, as right as the node knows.
    """

    def __init__(self, filesystem: FileSystem, path: str, wall_clock: Callable[[], int]) -> None:
        self._filesystem = filesystem
        self._path = path
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._kept = self._read()
        self._controls: dict[str, LinkControl] = {}

    def control(self, name: str, link: Link) -> LinkControl:
        """Return the control of a link, with the link's present policy."""
        rules = rules_of(link)
        control = self._controls.get(name)
        if control is None:
            kept = self._kept.get(name, _Kept())
            control = self._controls[name] = LinkControl(
                rules, wall_clock=self._wall_clock, is_paused=kept.paused, counts=kept.months,
                save=functools.partial(self._save, name),
            )  # fmt: skip
        else:
            control.adopt(rules)
        return control

    async def save(self, names: Iterable[str]) -> None:
        """Store the counts of links that end. An error is logged."""
        for name in names:
            control = self._controls.get(name)
            if control is not None and control.policy.rules.budget is not None:
                try:
                    await control.save()
                except OSError as error:
                    logger.warning("the bytes that link %s used are not saved: %s", name, error)

    def _save(self, name: str, is_paused: bool, months: Mapping[str, int]) -> None:
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = _Kept(is_paused, dict(months))
            for other in list(self._kept)[:-LINKS_MAX]:
                del self._kept[other]
            self._filesystem.make_directory(os.path.dirname(self._path))
            write_atomically(self._filesystem, self._path, msgspec.json.encode(self._kept))

    def _read(self) -> dict[str, _Kept]:
        try:
            if self._filesystem.size(self._path) <= FILE_BYTES_MAX:
                return msgspec.json.decode(self._filesystem.read(self._path), type=dict[str, _Kept])
            reason = f"longer than {FILE_BYTES_MAX} bytes"
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            reason = str(error)
        logger.error(
            "%s cannot be read (%s): no link is paused now, and budgets count from 0. Pause links again with "
            "`weft link pause`", self._path, reason,
        )  # fmt: skip
        return {}


def rules_of(link: Link) -> PolicyRules:
    """Return the policy of a link's settings."""
    budget = link.budget
    return PolicyRules(
        order=Order(link.order),
        history_share=link.history_share,
        priorities=tuple(link.priorities.items()),
        rate=link.rate or 0,
        every=int(link.every_s * SECOND),
        schedule=tuple(
            StreamWindows.of(entry.streams, entry.between, entry.days, entry.zone) for entry in link.schedule
        ),
        budget=None if budget is None else BudgetRule(budget.size_bytes, budget.day, ZoneInfo(budget.zone)),
    )  # fmt: skip


def without_policy(link: Link) -> Link:
    """Return a link with the default policy: two links that are equal so differ in nothing that needs a connection."""
    defaults = LinkPolicy()
    return msgspec.structs.replace(link, **{name: getattr(defaults, name) for name in LinkPolicy.__struct_fields__})
