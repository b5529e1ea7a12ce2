"""Configurations of edges at a hub: sent on links, confirmed or refused by edges, and rolled out group by group."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.facts.declarations import Declarations, Watched
from weft.cloud_hub.facts.edges import (
    GROUP_OF_EDGES,
    ConfigDocument,
    ConfigKey,
    DesiredConfigs,
    Groups,
    advance,
    is_reached,
    stop,
)
from weft.cloud_hub.facts.fact import CannotDeclare, Decision
from weft.protocols.errors import CodecError
from weft.protocols.lane import NodeName
from weft.protocols.link import CONFIG, CONFIG_REASON_CHARACTERS_MAX, ConfigDesired, ConfigOutcome, ConfigState
from weft.protocols.ranges import U32, U64, Nanoseconds
from weft.storage import hub_keys
from weft.storage.cluster_log import Author, ChangeRefused, ClusterLog, Contended
from weft.storage.object_store import Listed, NotFound, ObjectStore, StoreError, replace

# Words of edges about their configurations, kept in the store: an object for each shard.
#
# Ten thousand edges say something within a minute of a change. A process gathers what its links say for a second, and
# writes one object for each shard that something changed in; while no edge says anything, it neither reads nor
# writes. The cluster log would get an entry for each word, for good.

_logger = logging.getLogger(__name__)
STATES_INTERVAL_S = 1.0
STATES_RETRY_S = 5.0
TRIES_MAX = 5
"""Number of attempts to write an object that other processes also write, before the next interval."""
EDGES_MAX = 65_536
"""Maximum number of edges in one object. Beyond it, the edge with the oldest report is left out."""
OBJECT_BYTES_MAX = 64 << 20
"""Maximum size of an object, enforced in the same way. Readers ignore a larger one."""
WHOLE_LOOKS = 12
"""Interval, in reads of the same edges, of reads of every object: an edge that left an object may hide that another
joined it."""
LOOKED_AT_ONCE = 256
TAKES_NONE = 100
"""Outcome of an edge that accepts no configuration: its release does not know the feature, or its file does not allow
it."""


class EdgeConfigState(msgspec.Struct, frozen=True, array_like=True):
    """The last report of an edge about its configuration."""

    tenant: str
    edge: str
    at: Nanoseconds
    """Moment by the clock of the hub process that received it, nanoseconds since 1970."""
    version: U64
    """Version of the configuration that it reports on."""
    digest: str
    outcome: U32
    """``ConfigOutcome``, or ``TAKES_NONE``."""
    reason: Annotated[str, Meta(max_length=CONFIG_REASON_CHARACTERS_MAX)]
    active_version: U64
    active_digest: str

    @property
    def has_failed(self) -> bool:
        """Return whether the edge refused or reverted the configuration."""
        return self.outcome in (ConfigOutcome.REFUSED, ConfigOutcome.ROLLED_BACK)

    def is_same_report(self, other: EdgeConfigState | None) -> bool:
        """Return whether another report is equal, except for its moment."""
        return other is not None and msgspec.structs.replace(self, at=other.at) == other


class _States(msgspec.Struct, frozen=True):
    edges: Annotated[list[msgspec.Raw], Meta(max_length=EDGES_MAX)]
    """States in their encoded form: to decode all of them at once would take a tenth of a second."""


class _Word(NamedTuple):
    said: EdgeConfigState
    raw: msgspec.Raw


_HEAD_BYTES = 64
"""Room for what is around the states in an object."""
_DECODER = msgspec.msgpack.Decoder(_States)
_WORDS = msgspec.msgpack.Decoder(EdgeConfigState)


class ConfigStates:
    """Writer of the reports that this process receives from edges.

    Args:
        place: shard of an edge.
        now: nanoseconds since 1970.
    """

    def __init__(self, store: ObjectStore, place: Callable[[NodeName], int], now: Callable[[], int]) -> None:
        self._store = store
        self._place = place
        self._now = now
        self._waiting: dict[NodeName, EdgeConfigState] = {}
        self._wake = asyncio.Event()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Write in the background."""
        self._task.start(self._run(), name="config-states")

    async def close(self) -> None:
        """Write what waits, and stop."""
        if await self._task.close():
            try:
                async with asyncio.timeout(STATES_RETRY_S):
                    await self.write()
            except (StoreError, TimeoutError):
                _logger.warning("configuration reports of %d edges were not stored", len(self._waiting))

    def note(self, node: NodeName, state: ConfigState) -> None:
        """Record an edge's report. It is durable after the next write."""
        self._note(
            EdgeConfigState(
                node.tenant,
                node.edge,
                self._now(),
                state.version,
                state.digest,
                state.outcome,
                state.reason,
                state.active_version,
                state.active_digest,
            )
        )

    def note_takes_none(self, node: NodeName) -> None:
        """Record that an edge with a desired configuration accepts none."""
        self._note(EdgeConfigState(node.tenant, node.edge, self._now(), 0, "", TAKES_NONE, "", 0, ""))

    def _note(self, said: EdgeConfigState) -> None:
        self._waiting[NodeName(said.tenant, said.edge)] = said
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(STATES_INTERVAL_S)  # others say something too
            self._wake.clear()
            try:
                await self.write()
            except StoreError as error:
                _logger.warning("configuration reports of edges wait for the store: %s", error)
            except Exception:  # without this task, `weft hub config status` would stand still
                _logger.exception("configuration reports of edges could not be stored")
            if self._waiting:
                self._wake.set()
                await asyncio.sleep(STATES_RETRY_S)

    async def write(self) -> None:
        """Store the waiting reports.

        Raises:
            StoreError: the store did not answer. Reports that were not stored still wait.
        """
        by_shard: dict[int, list[EdgeConfigState]] = {}
        for node, said in self._waiting.items():
            by_shard.setdefault(self._place(node), []).append(said)
        for shard, words in by_shard.items():
            if await self._write(shard, words):
                for said in words:
                    node = NodeName(said.tenant, said.edge)
                    if self._waiting.get(node) is said:
                        del self._waiting[node]

    async def _write(self, shard: int, words: Iterable[EdgeConfigState]) -> bool:
        """Write the object of a shard. Return False if others always forestalled this process."""
        key = hub_keys.config_states_key(shard)
        for _ in range(TRIES_MAX):
            found, etag = await _read(self._store, key)
            if not await _merge(found, words):
                return True
            kept = _newest(sorted(found.values(), key=_at)[-EDGES_MAX:])
            data = msgspec.msgpack.encode(_States(kept))
            if await replace(self._store, key, data, etag) is not None:
                return True
        return False


async def _merge(found: dict[NodeName, _Word], words: Iterable[EdgeConfigState]) -> bool:
    """Put words in the place of earlier ones. Return whether one of them is new."""
    is_new = False
    for at, each in enumerate(words, 1):
        if at % LOOKED_AT_ONCE == 0:
            await asyncio.sleep(0)
        name = NodeName(each.tenant, each.edge)
        before = found.get(name)
        # An edge that connects again says nothing new: a read, and no write.
        if before is None or not each.is_same_report(before.said):
            found[name], is_new = _Word(each, msgspec.Raw(msgspec.msgpack.encode(each))), True
    return is_new


def _at(word: _Word) -> int:
    return word.said.at


def _newest(words: Sequence[_Word]) -> list[msgspec.Raw]:
    """Return the last words, in their order, as many as an object has room for."""
    room, first = OBJECT_BYTES_MAX - _HEAD_BYTES, len(words)
    while first and (room := room - memoryview(words[first - 1].raw).nbytes) >= 0:
        first -= 1
    return [each.raw for each in words[first:]]


async def _read(store: ObjectStore, key: str) -> tuple[dict[NodeName, _Word], str | None]:
    try:
        found = await store.get(key)
    except NotFound:
        return {}, None
    words: dict[NodeName, _Word] = {}
    try:
        for at, raw in enumerate(_DECODER.decode(found.data).edges, 1):
            if at % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            said = _WORDS.decode(raw)
            words[NodeName(said.tenant, said.edge)] = _Word(said, raw)
    except (msgspec.MsgspecError, ValueError):
        _logger.warning("%s cannot be read and is replaced: its edges report again when they next link", key)
        return {}, found.etag
    return words, found.etag


class Concerned(NamedTuple):
    """The edges whose reports a reader needs."""

    covers: Callable[[NodeName], bool]
    names: frozenset[NodeName] | None = None
    """All of them; None if others may be among them."""
    what: Hashable = None
    """Value that differs where ``covers`` does."""


class StatesReader:
    """Repeated reads of the reports of some edges, each from as few objects as possible.

    Args:
        places: the shards in whose objects an edge's reports may be.
    """

    def __init__(self, store: ObjectStore, places: Callable[[NodeName], Iterable[int]]) -> None:
        self._store = store
        self._places = places
        self._without: dict[str, int] = {}
        """Size of each object without a report of these edges: their first report makes it longer."""
        self._what: Hashable = None
        self._looks = 0

    async def read(self, concerned: Concerned) -> dict[NodeName, EdgeConfigState]:
        """Return the last report of each of the edges.

        Raises:
            StoreError: the store did not answer.
        """
        self._looks += 1
        if concerned.what != self._what or self._looks % WHOLE_LOOKS == 0:
            self._without.clear()
            self._what = concerned.what
        if concerned.names is None:
            listed = await self._store.list(f"{hub_keys.CONFIG_STATES}/")
        else:
            shards = {shard for name in concerned.names for shard in self._places(name)}
            listed = [Listed(hub_keys.config_states_key(shard), 0) for shard in sorted(shards)]
        states: dict[NodeName, EdgeConfigState] = {}
        for key, size in listed:
            if size > OBJECT_BYTES_MAX or self._without.get(key) == size > 0:
                continue
            if await self._take(states, key, concerned.covers):
                self._without.pop(key, None)
            else:
                self._without[key] = size
        return states

    async def _take(self, states: dict[NodeName, EdgeConfigState], key: str, covers: Callable[[NodeName], bool]) -> int:
        """Add the words in an object; return how many. After a split of a shard, an edge is in two objects: the later
        word counts."""
        count = 0
        for at, (name, (said, _)) in enumerate((await _read(self._store, key))[0].items(), 1):
            if at % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if covers(name):
                count += 1
                if name not in states or states[name].at <= said.at:
                    states[name] = said
        return count


async def read_states(store: ObjectStore) -> dict[NodeName, EdgeConfigState]:
    """Return the last report of every edge.

    Raises:
        StoreError: the store did not answer.
    """
    return await StatesReader(store, lambda _: ()).read(Concerned(lambda _: True))


# Rollouts: stopped when edges refuse or take back, and taken further when edges confirm.

INTERVAL_S = 5.0
"""Interval of looks while a rollout runs. A look costs a GET for each shard with edges of the group, and a listing if
the group has patterns."""
CONFIRMED_SHARE = 0.9
"""Share of the edges reached by a step and heard from that must have confirmed before the next step. Edges that are
offline do not count, since they would stop a rollout forever."""
NAMED_MAX = 5

States = Mapping[NodeName, EdgeConfigState]


class RolloutProgress(NamedTuple):
    """The numbers of a group's edges by their reports on its settings."""

    confirmed: int
    on_trial: int
    failed: tuple[EdgeConfigState, ...]
    waiting: int
    """Number of edges that the rollout has reached and that have not reported yet."""

    @property
    def may_continue(self) -> bool:
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
    """Return the progress of a group's settings by the reports of its edges."""
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
        return stop(key, rollout.share, f"{failures} edges refused or reverted it: {named}")
    if any(step > rollout.share for step in rollout.steps) and progress.may_continue:
        return advance(key, rollout.share)
    return None


class Rollouts:
    """Driver of rollouts. One process of a cluster is responsible; if two act, the cluster log decides.

    Args:
        is_own: whether this process is responsible.
        states: reads the reports of edges.
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
        """Stop. Rollouts keep their shares."""
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
        """Advance each running rollout by one step, or stop it, if its edges' reports require it."""
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


# Desired configurations on the links of one hub process: sent when an edge has another one, and only then.

WORDS_MAX = 20.0
"""Burst of an edge's configuration reports; the rate is one a second. Each is looked up in all groups, and becomes part
of an object in the store."""


class ConfiguredLink(Protocol):
    """A link of an edge (``cloud_hub.links.edge_link.EdgeLink``)."""

    config: LinkConfig | None
    """State of the edge's configuration; None if the edge accepts none."""

    def configure(self, desired: ConfigDesired) -> None:
        """Send the edge its desired configuration."""


class LinkConfig:
    """The state of a linked edge's configuration, as far as the hub knows it."""

    def __init__(self, node: NodeName) -> None:
        self.node = node
        self.has = ""
        """Digest in the edge's last report."""
        self.sent: str | None = None
        """Digest that the hub last sent on this link. It is never sent twice: an edge that answers with other digests
        would make the hub send endlessly."""
        self.words = WORDS_MAX
        """Number of reports that the edge may send now."""
        self.heard_at = asyncio.get_running_loop().time()

    def may_report(self) -> bool:
        """Count a report of the edge. Return whether it is within the burst and the rate of a link."""
        now = asyncio.get_running_loop().time()
        self.words = min(WORDS_MAX, self.words + now - self.heard_at) - 1
        self.heard_at = now
        if self.words < 0:
            self.words = 0.0
            return False
        return True


class LinkConfigs:
    """The configurations of linked edges.

    Args:
        links: the open links of this process.
    """

    def __init__(
        self, desired: DesiredConfigs, states: ConfigStates, links: Callable[[], Iterable[ConfiguredLink]]
    ) -> None:
        self._desired = desired
        self._states = states
        self._links = links

    def greeted(self, link: ConfiguredLink, node: NodeName, features: Iterable[str]) -> None:
        """Record an edge that accepts no configuration although one is desired."""
        if CONFIG in features:
            link.config = LinkConfig(node)
            return
        wanted = self._desired.of_edge(*node)
        if wanted is not None and wanted.layers:
            self._states.note_takes_none(node)

    def take(self, link: ConfiguredLink, state: ConfigState) -> None:
        """Handle an edge's report."""
        if link.config is None or not link.config.may_report():
            return
        before, link.config.has = link.config.has, state.digest
        wanted = self._desired.of_edge(*link.config.node)
        # Of edges without a configuration, now and before, nothing is kept.
        if before or state.digest or state.active_digest or (wanted is not None and wanted.layers):
            self._states.note(link.config.node, state)
        self._send_desired(link, link.config, wanted)

    def _send_desired(self, link: ConfiguredLink, config: LinkConfig, wanted: ConfigDesired | None) -> None:
        if wanted is None or wanted.digest in (config.has, config.sent):
            return
        config.sent = wanted.digest
        link.configure(wanted)

    async def changed(self) -> None:
        """Send linked edges the changed configurations."""
        for at, link in enumerate(list(self._links())):
            if link.config is not None:
                config = link.config
                wanted = self._desired.of_edge(*config.node)
                if wanted is not None and config.sent not in (None, wanted.digest):
                    # The hub sent another one, which the edge may not have answered yet.
                    config.sent = wanted.digest
                    link.configure(wanted)
                else:
                    self._send_desired(link, config, wanted)
            if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)


# Configurations of edges in one hub process, put together.

BY = "weft hub"


class FleetConfigs:
    """Configurations of a fleet: sends them to linked edges, stores the edges' reports, and advances rollouts.

    Args:
        places: shard of an edge, and those that it was split from.
        is_own: whether this process owns a shard.
        now: nanoseconds since 1970.
        links: the open links of this process.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: bytes,
        declared: Declarations,
        *,
        places: Callable[[NodeName], Sequence[int]],
        is_own: Callable[[int], bool],
        now: Callable[[], int],
        links: Callable[[], Iterable[ConfiguredLink]],
    ) -> None:
        self._log = ClusterLog(store, cluster_id)
        self._declared = declared
        self._now = now
        self._states = ConfigStates(store, lambda node: places(node)[0], now)
        self.links = LinkConfigs(declared.configs, self._states, links)
        self._rollouts = Rollouts(
            declared.configs, declared.groups, lambda: is_own(0), StatesReader(store, places).read, self._declare
        )
        self._changed = asyncio.Event()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Begin."""
        self._declared.watch(Watched.CONFIGS, self._note_change)
        self._states.start()
        self._rollouts.start()
        self._rollouts.wake.set()
        self._task.start(self._send_desired(), name="tell-configurations")

    async def close(self) -> None:
        """Stop, after the last reports are stored."""
        await self._task.close()
        await self._rollouts.close()
        await self._states.close()

    def _note_change(self) -> None:
        self._changed.set()
        self._rollouts.wake.set()

    async def _send_desired(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.links.changed()
            except Exception:  # without this task, linked edges would get changes only at their next link
                _logger.exception("the configurations of linked edges could not be sent")

    async def _declare(self, decision: Decision) -> None:
        author = Author(self._now(), f"{BY}@{platform.node()}", "a rollout's own step")
        await self._log.append(decision, author)
