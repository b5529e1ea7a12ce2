"""Rollouts: stopped when edges refuse or take back, and taken further when edges confirm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.declared.changes import CannotDeclare, Decision
from weft.cloud_hub.declared.config_changes import ConfigKey, advance, stop
from weft.cloud_hub.declared.desired_configs import GROUP_OF_EDGES, DesiredConfigs, is_reached
from weft.cloud_hub.declared.documents import ConfigDocument
from weft.cloud_hub.declared.groups import Groups
from weft.cloud_hub.desired.states import TAKES_NONE, Concerned, EdgeConfigState
from weft.protocols.errors import CodecError
from weft.protocols.lane import NodeName
from weft.protocols.link.configuration import ConfigOutcome
from weft.storage.cluster_log.log import ChangeRefused, Contended
from weft.storage.object_store import StoreError

_logger = logging.getLogger(__name__)
INTERVAL_S = 5.0
"""Interval of looks while a rollout runs: a GET for each shard with edges of its group, and a listing if the group has
patterns."""
CONFIRMED_SHARE = 0.9
"""Share of the edges that a step has reached, as far as they have said something, that must have confirmed before the
next step. Edges that are offline would stop a rollout for good."""
LOOKED_AT_ONCE = 256
NAMED_MAX = 5

States = Mapping[NodeName, EdgeConfigState]


class RolloutProgress(NamedTuple):
    """The numbers of a group's edges by what they say about its settings."""

    confirmed: int
    on_trial: int
    failed: tuple[EdgeConfigState, ...]
    waiting: int
    """Edges that were reached and have said nothing about it yet."""

    @property
    def may_go_on(self) -> bool:
        """Return whether the next step may follow."""
        reached = self.confirmed + self.on_trial + len(self.failed) + self.waiting
        return self.on_trial == 0 and self.confirmed > 0 and self.confirmed >= CONFIRMED_SHARE * reached


def running(configs: DesiredConfigs) -> dict[ConfigKey, ConfigDocument]:
    """Return the groups whose rollouts run."""
    found: dict[ConfigKey, ConfigDocument] = {}
    for name, document in configs.documents.items():
        tenant, of, group = (*name.split("/", 2), "", "")[:3]
        if of == GROUP_OF_EDGES and document.rollout is not None and document.rollout.state == "running":
            found[tenant, of, group] = document
    return found


async def progress_of(
    key: ConfigKey, document: ConfigDocument, configs: DesiredConfigs, groups: Groups, states: States
) -> RolloutProgress:
    """Return what the edges say that a group's settings have reached."""
    confirmed = on_trial = waiting = 0
    failed: list[EdgeConfigState] = []
    for at, (node, said) in enumerate(states.items()):
        if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
            await asyncio.sleep(0)
        if node.tenant != key[0] or not is_reached(document, node.edge):
            continue
        if said.outcome == TAKES_NONE or key[2] not in groups.of_edge(*node):
            continue
        wanted = configs.of_edge(*node)
        if wanted is None or said.digest != wanted.digest:
            waiting += 1
        elif said.has_failed:
            failed.append(said)
        elif said.outcome == ConfigOutcome.TRIAL:
            on_trial += 1
        else:
            confirmed += 1
    return RolloutProgress(confirmed, on_trial, tuple(failed), waiting)


def judge(key: ConfigKey, document: ConfigDocument, progress: RolloutProgress) -> Decision | None:
    """Return the next change of a running rollout; None to wait."""
    rollout = document.rollout
    if rollout is None or rollout.state != "running":
        return None
    failures = len(progress.failed)
    if failures - rollout.forgiven >= rollout.failures_max:
        named = "; ".join(f"{each.edge}: {each.reason}" for each in progress.failed[:NAMED_MAX])
        return stop(key, rollout.share, f"{failures} edges refused it or took it back: {named}")
    if any(step > rollout.share for step in rollout.steps) and progress.may_go_on:
        return advance(key, rollout.share)
    return None


class Rollouts:
    """The keeper of rollouts: one process of a cluster is meant to, and the cluster log decides if two do.

    Args:
        is_own: whether this process is meant to.
        states: reads what edges say.
        declare: appends a change to the cluster log.
    """

    def __init__(
        self,
        configs: DesiredConfigs,
        groups: Groups,
        is_own: Callable[[], bool],
        states: Callable[[Concerned], Awaitable[States]],
        declare: Callable[[Decision], Awaitable[None]],
    ) -> None:
        self._configs = configs
        self._groups = groups
        self._is_own = is_own
        self._states = states
        self._declare = declare
        self.wake = asyncio.Event()
        """Set when configurations were declared."""
        self._task = BackgroundTask()

    def start(self) -> None:
        """Look in the background while a rollout runs."""
        self._task.start(self._run(), name="rollouts")

    async def close(self) -> None:
        """Stop. Rollouts stay at their shares."""
        await self._task.close()

    async def _run(self) -> None:
        while True:
            if not running(self._configs):
                self.wake.clear()
                await self.wake.wait()
            await asyncio.sleep(INTERVAL_S)
            try:
                if self._is_own():
                    await self.look()
            except (StoreError, CodecError, ChangeRefused, Contended) as error:
                _logger.warning("rollouts wait: %s", error)
            except Exception:  # without this task, a rollout would not stop when edges refuse it
                _logger.exception("a look at the rollouts failed")

    def _concerned(self, found: Iterable[ConfigKey]) -> Concerned:
        """Return the edges of the groups of some rollouts."""
        keys = frozenset((tenant, group) for tenant, _, group in found)
        documents = [(key, self._groups.document(key)) for key in sorted(keys)]
        members = tuple((key, () if document is None else document.edges) for key, document in documents)
        names = frozenset(NodeName(tenant, edge) for (tenant, _), edges in members for edge in edges)
        has_patterns = any("*" in name.edge for name in names)

        def covers(node: NodeName) -> bool:
            return any((node.tenant, group) in keys for group in self._groups.of_edge(*node))

        return Concerned(covers, None if has_patterns else names, members)

    async def look(self) -> None:
        """Take each running rollout one step further, or stop it, if it is time."""
        found = running(self._configs)
        if not found:
            return
        states = await self._states(self._concerned(found))
        for key, document in found.items():
            progress = await progress_of(key, document, self._configs, self._groups, states)
            decision = judge(key, document, progress)
            if decision is not None:
                try:
                    await self._declare(decision)
                except CannotDeclare as error:  # an operator ended it meanwhile
                    _logger.info("rollout of %s: %s", "/".join(key), error)
