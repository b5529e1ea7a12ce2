"""The declared facts in a hub process: it follows the cluster log, and updates the parts that use the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from weft.cloud_hub.facts.edges import DesiredConfigs, Groups
from weft.cloud_hub.facts.fact import BACKUP, CONFIG, GROUP, PULL_KIND, REGION, TABLE, TENANT, TOKEN
from weft.cloud_hub.facts.hub import Backups, DeclaredRegions, Drained
from weft.cloud_hub.facts.pulls import PullCache
from weft.cloud_hub.facts.streams import DeclaredTables
from weft.cloud_hub.facts.tenants import DeclaredQuotas
from weft.cloud_hub.facts.tokens import Credentials
from weft.cloud_hub.part import Part
from weft.cloud_hub.settings import HubSettings
from weft.config.metrics.exposition import Sample
from weft.hub_api.answers import moment_of
from weft.hub_api.status import ClusterLogPosition, EndOfToken, LastBackupOfStore, SkippedEntry, UnusableFact
from weft.protocols.errors import UnsupportedVersion
from weft.storage.cluster import ClusterUnusable
from weft.storage.cluster_log import NODE, ClusterLog, ClusterLogFollower, ClusterState
from weft.storage.object_store import ObjectStore
from weft.storage.table.schemas import QUALITY, SCHEMA, STREAM, DeclaredQuality, ExpectedEdges, Schemas

if TYPE_CHECKING:
    from weft.cloud_hub.auth.jwt import Jwts

ENDS_NS, ENDS_SHOWN_MAX = 30 * 86_400 * 10**9, 100
"""Time before its end from which on a token is named, and the number of those that are."""
UNUSABLE_SHOWN_MAX = 16


class Watched(Enum):
    """Changes of declared facts that parts can watch."""

    LOG = "the cluster log has grown"
    QUOTAS = "quotas of tenants have changed"
    CONFIGS = "desired configurations of edges may have changed"
    PULLS = "records to pull from edges may have changed"
    DRAINED = "the set of drained processes has changed"


class Declarations(Part):
    """The declared facts as this process knows them, some two seconds after they were written.

    Args:
        now: nanoseconds since 1970, by a clock that other nodes agree on.
        doubted: returns the error of this machine's clock; None while it is right.
    """

    def __init__(
        self,
        settings: HubSettings,
        store: ObjectStore,
        cluster_id: bytes,
        *,
        now: Callable[[], int],
        doubted: Callable[[], str | None] = lambda: None,
    ) -> None:
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
        """Return the number of the last entry that this process has applied."""
        return self._position

    def state(self) -> ClusterState:
        """Return the facts as this process last read them."""
        return self._follower.state

    def watch(self, what: Watched, changed: Callable[[], None]) -> None:
        """Call ``changed`` when facts of a kind have changed, after all facts are applied. ``start`` calls it too,
        except for ``LOG``. It must not raise."""
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

    def views(self) -> dict[str, object]:
        """Return the parts of the status about the cluster log, the issuer of tokens and the last backup."""
        jwts, last = self.credentials.jwts, self.backups.last
        return {
            "cluster_log": self._view(),
            "jwt": None if jwts is None else jwts.view(),
            "backup": None if last is None else LastBackupOfStore(last.place, moment_of(last.started)),
        }

    def _view(self) -> ClusterLogPosition:
        follower = self._follower
        end = self.credentials.next_end
        named = (UnusableFact(kind, name, why) for kind, of in self._unusable().items() for name, why in of.items())
        return ClusterLogPosition(
            entry=follower.state.n,
            seen_seconds_ago=follower.age_s,
            trouble=follower.trouble,
            tokens=self.credentials.declared,
            next_end=None if end is None else EndOfToken(end.name, moment_of(end.until)),
            ends=[
                EndOfToken(each.name, moment_of(each.until)) for each in self.credentials.ends(ENDS_NS, ENDS_SHOWN_MAX)
            ],
            skipped=[SkippedEntry(each.n, each.why) for each in follower.state.skipped],
            unusable=list(islice(named, UNUSABLE_SHOWN_MAX)),
        )

    def _unusable(self) -> dict[str, dict[str, str]]:
        return {
            TOKEN: self.credentials.unusable,
            STREAM: self.expected_edges.unusable,
            NODE: self.drained.unusable,
            GROUP: self.groups.unusable,
            CONFIG: self.configs.unusable,
            SCHEMA: self.schemas.unusable,
            PULL_KIND: self.pulls.unusable,
            TABLE: self.tables.unusable,
            QUALITY: self.quality.unusable,
            TENANT: self.quotas.unusable,
            BACKUP: self.backups.unusable,
            REGION: self.regions.unusable,
        }

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
    from weft.cloud_hub.auth.jwt import Jwts  # imports cryptography, which few hubs need

    return Jwts(settings.jwt, now, doubted)
