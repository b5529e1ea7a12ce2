"""The cluster log in a hub process: followed, and given to those who use its facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from weft.cloud_hub.admin_facts.changes import DeclaredTables
from weft.cloud_hub.admin_facts.credentials import Credentials
from weft.cloud_hub.admin_facts.documents import (
    BACKUP,
    CONFIG,
    GROUP,
    NODE,
    PULL_KIND,
    REGION,
    TABLE,
    TENANT,
    TOKEN,
    BackupDocument,
    NodeDocument,
    PullDocument,
    RegionDocument,
    UnreadableDocument,
    decode,
)
from weft.cloud_hub.admin_facts.edge_configs import DesiredConfigs, Groups
from weft.cloud_hub.admin_facts.tenants import DeclaredQuotas
from weft.cloud_hub.api.views import View, moment
from weft.cloud_hub.settings import HubSettings
from weft.config.metrics.exposition import Sample
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import NodeName
from weft.protocols.link import PULLS_MAX, PullRequest
from weft.storage.cluster import ClusterUnusable
from weft.storage.cluster_log import ClusterLog, ClusterLogFollower, ClusterState, Fact
from weft.storage.object_store import ObjectStore
from weft.storage.table.schemas import QUALITY, SCHEMA, STREAM, DeclaredQuality, ExpectedEdges, Schemas

if TYPE_CHECKING:
    from weft.cloud_hub.api.jwt import Jwts


# The pulls of the cluster log, by edge.


class PullCache:
    """The pulls that a process knows, as of the last ``refresh``."""

    def __init__(self) -> None:
        self._documents: dict[str, PullDocument] = {}
        self._running: dict[NodeName, dict[str, PullDocument]] = {}
        """Edge -> name -> pull that is not over."""
        self._seen: tuple[ClusterState, int] | None = None
        self._facts: dict[str, Fact] = {}
        self._ahead: dict[str, Fact] = {}
        """Facts that this process wrote, until the followed state has them."""
        self.unusable: dict[str, str] = {}
        """Names of facts that cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log, if there is an entry about a pull since the last call.

        Returns:
            Whether there was one.
        """
        last = state.last(PULL_KIND)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return False
        self._seen, self._facts = (state, last), dict(state.facts(PULL_KIND))
        self._ahead = {name: fact for name, fact in self._ahead.items() if fact.version > state.n}
        self._take()
        return True

    def note(self, name: str, state: ClusterState) -> None:
        """Take over a pull that this process has written, before the followed state has it.

        Args:
            state: that of the log after the entry.
        """
        fact, known = state.facts(PULL_KIND).get(name), self._facts.get(name)
        if fact is not None and (known is None or known.version < fact.version):
            self._ahead[name] = fact
            self._take()

    def _take(self) -> None:
        self._documents, self._running, self.unusable = {}, {}, {}
        for name, fact in (self._facts | self._ahead).items():
            try:
                document = decode(fact.document, PullDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            self._documents[name] = document
            if not document.is_over:
                edge = NodeName(name.partition("/")[0], document.edge)
                self._running.setdefault(edge, {})[name] = document

    @property
    def documents(self) -> dict[str, PullDocument]:
        """Return all pulls by the names of their facts, in the order of their last change."""
        return self._documents

    @property
    def edges(self) -> list[NodeName]:
        """Return the edges that are asked for something."""
        return list(self._running)

    def is_running(self, name: str) -> bool:
        """Return whether there is such a pull, and it is not over."""
        document = self._documents.get(name)
        return document is not None and not document.is_over

    def running(self, edge: NodeName) -> dict[str, PullDocument]:
        """Return the pulls that an edge is asked for, by name, the oldest first."""
        found = self._running.get(edge)
        if found is None:
            return {}
        return dict(sorted(found.items(), key=lambda each: (each[1].asked, each[0]))[:PULLS_MAX])


def request_of(name: str, document: PullDocument) -> PullRequest:
    """Return a pull as the edge gets it."""
    return PullRequest(
        name.partition("/")[2], document.stream, document.first, document.end, document.bytes_max
    )  # fmt: skip


UNUSABLE_SHOWN_MAX = 16


class Drained:
    """Names of hub processes and machines that are to give their shards and edges to others."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self.facts: list[Fact] = []
        """The declarations that drain, by name."""
        self.unusable: dict[str, str] = {}
        """Names of nodes whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log. Return whether others are drained than before."""
        before, found = self._names, set[str]()
        self.unusable = {}
        for name, fact in state.facts(NODE).items():
            try:
                if decode(fact.document, NodeDocument).drained:
                    found.add(name)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
        self._names = frozenset(found)
        self.facts = [state.facts(NODE)[name] for name in sorted(found)]
        return self._names != before

    def covers(self, host: str, name: str) -> bool:
        """Return whether a process is drained, itself or with its machine.

        Args:
            host: name of its machine.
            name: its own name.
        """
        return host in self._names or name in self._names


class DeclaredRegions:
    """Orders to the links to other regions."""

    def __init__(self) -> None:
        self._regions: dict[str, RegionDocument] = {}
        self.unusable: dict[str, str] = {}
        """Names of regions whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log. Of one that cannot be read, the last order remains."""
        found, self.unusable = {}, {}
        for name, fact in state.facts(REGION).items():
            try:
                found[name] = decode(fact.document, RegionDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                if name in self._regions:
                    found[name] = self._regions[name]
        self._regions = found

    def of(self, name: str) -> RegionDocument:
        """Return the orders to the links of one region."""
        return self._regions.get(name, _NO_ORDERS)


_NO_ORDERS = RegionDocument()


class LastBackup(NamedTuple):
    """The complete backup that has the latest moment."""

    place: str
    started: int
    """Moment up to which it has everything, nanoseconds since 1970."""


class Backups:
    """Complete backups of the store, as the commands that made them declared."""

    def __init__(self) -> None:
        self.last: LastBackup | None = None
        self.unusable: dict[str, str] = {}
        """Names of places whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log."""
        self.last, self.unusable = None, {}
        for place, fact in state.facts(BACKUP).items():
            try:
                found = LastBackup(place, decode(fact.document, BackupDocument).started)
            except UnreadableDocument as error:
                self.unusable[place] = str(error)
                continue
            if self.last is None or found.started > self.last.started:
                self.last = found

    def age_s(self, now: int) -> float:
        """Return the age of the last one in seconds; infinity for none.

        Args:
            now: nanoseconds since 1970.
        """
        return math.inf if self.last is None else max(0, now - self.last.started) / 1e9


class Watched(Enum):
    """Changes of declared facts that parts can watch."""

    LOG = "the cluster log has grown"
    QUOTAS = "quotas of tenants are others than before"
    CONFIGS = "other configurations than before may be desired of edges"
    PULLS = "other records than before may be asked of edges"
    DRAINED = "other processes than before are to give their shards to others"


class Declarations:
    """The declared facts that this process knows.

    Args:
        now: nanoseconds since 1970, on a clock that is not this machine's alone.
        doubted: returns by how much this machine's clock is off; None while it is right.
    """

    def __init__(
        self, settings: HubSettings, store: ObjectStore, cluster_id: bytes, *, now: Callable[[], int],
        doubted: Callable[[], str | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.credentials = Credentials(settings.tokens_required, now, doubted, _jwts(settings, now, doubted))
        self.expected_edges = ExpectedEdges()
        self.groups = Groups()
        self.configs = DesiredConfigs(self.groups)
        self.schemas = Schemas()
        self.pulls = PullCache()
        self.tables = DeclaredTables()
        self.quotas = DeclaredQuotas()
        self.quality = DeclaredQuality()
        self.backups = Backups()
        self.regions = DeclaredRegions()
        self._now = now
        self.drained = Drained()
        self._watchers: dict[Watched, list[Callable[[], None]]] = {each: [] for each in Watched}
        log = ClusterLog(store, cluster_id)
        self._follower = ClusterLogFollower(log, self._changed, settings.cluster_log_interval_s)
        self._position = 0

    @property
    def position(self) -> int:
        """Return the number of the last entry that this process acts on."""
        return self._position

    def watch(self, what: Watched, changed: Callable[[], None]) -> None:
        """Call ``changed`` when facts of a kind have changed, after all facts were taken over; also in ``start``, but
        for ``LOG``. It must not fail."""
        self._watchers[what].append(changed)

    async def start(self) -> None:
        """Read the cluster log, and follow it.

        Raises:
            ClusterUnusable: a later release wrote an entry.
            StoreError: the store did not answer.
        """
        try:
            await self._follower.start()
        except UnsupportedVersion as error:
            raise ClusterUnusable(str(error)) from None
        self._refresh()
        if self.credentials.jwts is not None:
            self.credentials.jwts.start()

    async def close(self) -> None:
        """Stop following."""
        if self.credentials.jwts is not None:
            await self.credentials.jwts.close()
        await self._follower.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the figures of the cluster log for Prometheus."""
        follower = self._follower
        yield Sample("weft_hub_cluster_log_entry", follower.state.n)
        yield Sample("weft_hub_cluster_log_age_seconds", follower.age_s)
        yield Sample("weft_hub_token_next_end_seconds", self.credentials.seconds_to_next_end)
        yield Sample("weft_hub_backup_age_seconds", self.backups.age_s(self._now()))
        jwts = self.credentials.jwts
        keys, failing_s, verified = (0, 0.0, 0) if jwts is None else jwts.figures()
        yield Sample("weft_hub_jwt_keys", keys)
        yield Sample("weft_hub_jwt_keys_failing_seconds", failing_s)
        yield Sample("weft_hub_jwt_verified_total", verified)
        unusable = sum(map(len, self._unusable().values()))
        yield Sample("weft_hub_cluster_log_unusable", len(follower.state.skipped) + unusable)

    def view(self) -> View:
        """Return the state of the cluster log in this process for its status page."""
        follower = self._follower
        unusable = self._unusable().items()
        end = self.credentials.next_end
        named = ({"kind": kind, "name": name, "why": why} for kind, of in unusable for name, why in of.items())
        return {
            "entry": follower.state.n,
            "seen_seconds_ago": follower.age_s,
            "trouble": follower.trouble,
            "tokens": self.credentials.declared,
            "next_end": None if end is None else {"token": end.name, "until": moment(end.until)},
            "skipped": [{"entry": each.n, "why": each.why} for each in follower.state.skipped],
            "unusable": list(islice(named, UNUSABLE_SHOWN_MAX)),
        }

    def backup_view(self) -> View | None:
        """Return the last complete backup for the status page; None if none is known."""
        last = self.backups.last
        return None if last is None else {"place": last.place, "up_to": moment(last.started)}

    def jwt_view(self) -> View | None:
        """Return the state of the issuer's keys for the status page; None if no tokens of an issuer are taken."""
        return None if self.credentials.jwts is None else self.credentials.jwts.view()

    def _unusable(self) -> dict[str, dict[str, str]]:
        return {
            TOKEN: self.credentials.unusable, STREAM: self.expected_edges.unusable, NODE: self.drained.unusable,
            GROUP: self.groups.unusable, CONFIG: self.configs.unusable, SCHEMA: self.schemas.unusable,
            PULL_KIND: self.pulls.unusable, TABLE: self.tables.unusable, QUALITY: self.quality.unusable,
            TENANT: self.quotas.unusable, BACKUP: self.backups.unusable, REGION: self.regions.unusable,
        }  # fmt: skip

    def _changed(self) -> None:
        self._refresh()
        self._notify(Watched.LOG)

    def _refresh(self) -> None:
        state = self._follower.state
        self.credentials.refresh(state)
        self.expected_edges.refresh(state)
        self.schemas.refresh(state)
        self.tables.refresh(state)
        self.backups.refresh(state)
        self.regions.refresh(state)
        self.quality.refresh(state)
        changed = {
            Watched.QUOTAS: self.quotas.refresh(state),
            Watched.CONFIGS: self.groups.refresh(state) | self.configs.refresh(state),
            Watched.PULLS: self.pulls.refresh(state),
            Watched.DRAINED: self.drained.refresh(state),
        }
        self._position = state.n
        for what, is_so in changed.items():
            if is_so:
                self._notify(what)

    def _notify(self, what: Watched) -> None:
        for changed in self._watchers[what]:
            changed()


def _jwts(settings: HubSettings, now: Callable[[], int], doubted: Callable[[], str | None]) -> Jwts | None:
    if settings.jwt is None:
        return None
    from weft.cloud_hub.api.jwt import Jwts  # imports cryptography, which few hubs need

    return Jwts(settings.jwt, now, doubted)
