"""The hub's configurations at an edge: whose signatures they need, how they are kept, and the trial of one on the
running node: checked, stored, applied, and confirmed or taken back."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import msgspec

from weft.config.load import read_overlay
from weft.config.models import EdgeConfig
from weft.config.signing import (
    PublicKeys,
    SignatureUnreadable,
    SignedText,
    Statement,
    read_public_keys,
    read_signed,
    verifies,
)
from weft.protocols.lane import NodeName, matches
from weft.protocols.link import (
    CONFIG_REASON_CHARACTERS_MAX,
    ConfigDesired,
    ConfigLayer,
    ConfigOutcome,
    ConfigState,
    digest_of,
)
from weft.replication.events import LinkStatus
from weft.storage.filesystem import FileSystem, write_atomically

# Signed configurations: an edge whose file names keys takes from a hub only what one of them signed, for it, and
# once.
#
# A hub can still withhold settings. What it can not do is make some, give an edge those of another, bring back
# earlier ones, leave some out, or lay them in another order.

TARGETS_MAX = 1024
"""Maximum number of targets whose numbers an edge remembers: its own, and groups that it was in."""
_ADVICE = "Sign it with `weft config sign`, and declare the signed file"


class NotTaken(Exception):
    """A configuration that the edge does not take for the sake of its signatures; the message says why."""


class TakenNumber(msgspec.Struct, frozen=True, array_like=True):
    """The newest settings for a target that an edge has confirmed."""

    number: int
    text: str
    """Prefix of the checksum of what was signed: the same number may not come with something else."""


Taken = Mapping[str, TakenNumber]
"""Target -> the newest settings for it."""


class SigningRules(NamedTuple):
    """The demands of an edge's file."""

    node: NodeName
    key_files: tuple[str, ...]
    """PEM files with public keys. They are read for each configuration, so a key can be replaced in its file."""


def rules_of(config: EdgeConfig, link: str | None) -> SigningRules | None:
    """Return what a file demands of the settings of a link's hub; None where it demands no signatures."""
    files = () if link is None else config.links[link].config_signed_by
    return SigningRules(NodeName(config.tenant, config.node), files) if files else None


def check_signatures(
    layers: Sequence[ConfigLayer], in_force: Sequence[ConfigLayer], taken: Taken, rules: SigningRules
) -> None:
    """Check the layers of a configuration. Blocks on the files of keys.

    Args:
        in_force: layers of the confirmed configuration.
        taken: the newest settings that were confirmed before.

    Raises:
        NotTaken: a layer has no signature of a key, or one for another edge; it is an earlier one; or one is missing.
    """
    known = read_public_keys(rules.key_files)
    newest = remembered(in_force, taken, rules, known)
    statements: dict[str, SignedText] = {}
    for layer in layers:
        if layer.name in statements:
            raise NotTaken(f"{layer.name} comes twice")
        statements[layer.name] = _checked(layer, newest, rules, known)
    if len({*newest, *statements}) > TARGETS_MAX:
        raise NotTaken(f"the edge has settings for {TARGETS_MAX} targets, the most that it remembers")
    _check_order(list(statements.values()))
    for name in (layer.name for layer, _ in _verified(in_force, rules, known)):
        if name not in statements and not _may_go(name, in_force, newest, statements):
            raise NotTaken(
                f"{name} is missing, and nothing that is signed withdraws its settings. Sign a file with `{{}}` for it"
                ", or one for the edge with --withdraws"
            )


def remembered(
    layers: Sequence[ConfigLayer], taken: Taken, rules: SigningRules, known: PublicKeys | None = None
) -> Taken:
    """Return the newest settings once a configuration is confirmed. Blocks on the files of keys.

    Args:
        known: the keys, if they were read already.
    """
    found = dict(taken)
    keys = known if known is not None else read_public_keys(rules.key_files) if layers else PublicKeys((), ())
    for layer, signed in _verified(layers, rules, keys):
        before = found.get(layer.name)
        if before is None or before.number < signed.statement.number:
            found[layer.name] = TakenNumber(signed.statement.number, _checksum(signed))
    return found


def _checked(layer: ConfigLayer, newest: Taken, rules: SigningRules, known: PublicKeys) -> SignedText:
    try:
        signed = read_signed(layer.text)
    except SignatureUnreadable as error:
        raise NotTaken(f"{layer.name}: {error}") from None
    if signed is None:
        raise NotTaken(f"{layer.name} has no signature, and the edge's file has config_signed_by. {_ADVICE}")
    if signed.key not in {key.id for key in known.keys}:
        raise NotTaken(
            f"{layer.name} is signed by the key {signed.key}, which is none of config_signed_by: {known.named()}"
        )
    if not verifies(known.keys, signed.message, signed.signature):
        raise NotTaken(f"the signature of {layer.name} does not match: it was changed after it was signed. {_ADVICE}")
    if why := _is_for_others(layer.name, signed.statement, rules.node):
        raise NotTaken(f"{layer.name} is signed for {why}. {_ADVICE}")
    before, number = newest.get(layer.name), signed.statement.number
    if before is not None and number < before.number:
        raise NotTaken(
            f"{layer.name} has the number {number}, an earlier one again: the edge has had {before.number}. {_ADVICE}"
        )
    if before is not None and number == before.number and _checksum(signed) != before.text:
        raise NotTaken(f"{layer.name} has the number {number}, which the edge has had with other settings. {_ADVICE}")
    return signed


def _is_for_others(name: str, statement: Statement, node: NodeName) -> str:
    """Return for whom the settings are, unless they are for this node in this place."""
    if statement.tenant != node.tenant:
        return f"the tenant {statement.tenant}, not for {node.tenant}"
    if statement.target != name:
        return f"{statement.target}, not for {name}"
    if statement.target.startswith("edge ") and statement.target != f"edge {node.edge}":
        return f"{statement.target}, not for edge {node.edge}"
    if not any(matches(pattern, node.edge) for pattern in statement.edges):
        return f"the edges {', '.join(statement.edges)}"
    return ""


def _check_order(signed: Sequence[SignedText]) -> None:
    places = [
        (each.statement.target.startswith("edge "), each.statement.order, each.statement.target) for each in signed
    ]
    if places != sorted(places):
        names = ", ".join(f"{each.statement.target} ({each.statement.order})" for each in signed)
        raise NotTaken(f"the hub lays the settings in another order than they are signed for: {names}")


def _may_go(name: str, in_force: Sequence[ConfigLayer], newest: Taken, statements: Mapping[str, SignedText]) -> bool:
    """Return whether the edge may lose the settings of a target: they are empty, or newer ones withdraw them."""
    text = next(layer.text for layer in in_force if layer.name == name)
    if not read_overlay(text).value:
        return True
    newer = (each.statement for each in statements.values() if each.statement.number > newest[name].number)
    return any(name in statement.withdraws for statement in newer)


def _verified(
    layers: Sequence[ConfigLayer], rules: SigningRules, known: PublicKeys
) -> Iterator[tuple[ConfigLayer, SignedText]]:
    """Yield the layers that a key signed for this edge. Others were taken before the file named keys."""
    for layer in layers:
        try:
            signed = read_signed(layer.text)
        except SignatureUnreadable:
            continue
        if signed is None or _is_for_others(layer.name, signed.statement, rules.node):
            continue
        if verifies(known.keys, signed.message, signed.signature):
            yield layer, signed


def _checksum(signed: SignedText) -> str:
    return blake2b(signed.message, digest_size=16).hexdigest()


# The hub's configurations as an edge keeps them: ``<data_dir>/config/hub.json``.
#
# One file holds the confirmed configuration and the one on trial, and is replaced as a whole: at any instant the disk
# has the old word or the new one, never a part.

FILE = ("config", "hub.json")
FILE_BYTES_MAX = 4 << 20
STARTS_MAX = 3
"""Number of starts with a configuration on trial; at the next one it is taken back: the node ended on each of them."""
NOTHING = ConfigDesired(0, "", [])
"""The edge's own file alone."""

logger = logging.getLogger(__name__)


class StoredConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of the hub's configurations."""

    confirmed: ConfigDesired = NOTHING
    trial: ConfigDesired | None = None
    """Configuration that is in force and not confirmed."""
    cluster_id: str = ""
    """Hub cluster that wanted it."""
    starts: int = 0
    """Number of starts of the node with it."""
    down_s: int = 0
    """Seconds for which the link has been down on it without a break, as last noted: a start counts on from there."""
    said: ConfigState | None = None
    """Statement about a configuration that is not in force: refused or taken back."""
    taken: dict[str, TakenNumber] = {}
    """Newest signed settings that were confirmed, by target, also of those that were withdrawn since."""

    @property
    def active(self) -> ConfigDesired:
        """Return the configuration that is in force."""
        return self.confirmed if self.trial is None else self.trial


class ConfigFolder:
    """The file. Blocks on the disk.

    Args:
        data_dir: folder of the node.
    """

    def __init__(self, filesystem: FileSystem, data_dir: str) -> None:
        self._filesystem = filesystem
        self.path = os.path.join(data_dir, *FILE)

    def load(self) -> StoredConfig:
        """Return the stored state. A damaged file counts as none: the node's own file is in force, and the hub sends
        its configuration again."""
        try:
            if self._filesystem.size(self.path) > FILE_BYTES_MAX:
                raise ValueError("it is too long")
            found = msgspec.json.decode(self._filesystem.read(self.path), type=StoredConfig)
            for each in (found.confirmed, found.trial):
                if each is not None and each.digest != digest_of(each.layers):
                    raise ValueError("its checksum does not match")
        except FileNotFoundError:
            return StoredConfig()
        except (OSError, ValueError, RecursionError) as error:
            logger.error("%s cannot be read, the node's own file alone counts: %s", self.path, error)
            return StoredConfig()
        return found

    def save(self, stored: StoredConfig) -> None:
        """Make a state durable.

        Raises:
            OSError: it may be durable or not.
        """
        self._filesystem.make_directory(os.path.dirname(self.path))
        write_atomically(self._filesystem, self.path, msgspec.json.encode(stored))


# A node as the trial of a hub's configuration needs it.


class Unfit(Exception):
    """A configuration that cannot be applied; the message says why."""


class Prepared(NamedTuple):
    """A configuration that was checked."""

    config: Any
    """For ``TrialNode.apply``."""
    restart: list[str]
    """Settings for which the node has to start again."""


class TrialNode(Protocol):
    """The node as the trial of a configuration needs it."""

    async def prepare(self, desired: ConfigDesired) -> Prepared:
        """Lay a configuration over the node's file as it is now, and check the whole.

        Raises:
            Unfit: it is not valid, or has what a hub may not set.
        """
        ...

    def apply(self, prepared: Prepared) -> None:
        """Apply a configuration to the running node, as a whole.

        Raises:
            Unfit: nothing has changed.
        """

    def running(self) -> Prepared:
        """Return the configuration that the node runs with."""
        ...

    def restart(self) -> None:
        """Have the node end, and start again with the stored configuration."""

    @property
    def alone(self) -> asyncio.Lock:
        """Return the lock under which a configuration is read and applied."""
        ...

    @property
    def is_off(self) -> bool:
        """Return whether the node's file allows the hub nothing any more."""
        ...

    @property
    def reads(self) -> int:
        """Return the number of times that the node's file was read again."""
        ...

    @property
    def may_restart(self) -> bool:
        """Return whether the file allows settings that need a restart."""
        ...

    def link(self) -> LinkStatus | None:
        """Return the status of the link that configurations come by; None if there is no such link."""
        ...

    def own_urls(self) -> tuple[str, ...]:
        """Return the URLs of that link in the node's file alone."""
        ...

    def unfit(self, digest: str) -> str:
        """Return why the stored configuration with a digest is not in force; empty if it is."""
        ...

    async def save(self, stored: StoredConfig) -> None:
        """Make a state durable.

        Raises:
            OSError: it may be durable or not.
        """


# The trial of a hub's configuration on a running edge: checked, stored, applied, and confirmed or taken back.
#
# At every step the node has the old configuration or the new one, in memory and on disk, and after a crash it starts
# with one of them: the stored state changes before the running one does, and names both until the new one is
# confirmed. A configuration counts as confirmed once the link that it came by has been up on it for a minute, to the
# same cluster. So no word of a hub can cut an edge off from it for longer than ``DOWN_S_MAX``.

CONFIRM_S = 60.0
"""Time that the link has to be up on a configuration before it counts as confirmed."""
DOWN_S_MAX = 90.0
"""Time that the link may be down on one that is not confirmed, before it is taken back."""
NOTED_S = 15
"""Seconds of a link that is down after which they are stored, for the case that the node ends."""
TRIAL_S_MAX = 600.0
"""Time after which one that is still not confirmed is taken back: its link came and went."""
RETRY_S = 60.0
"""Time after which one that could not be stored is tried again: a full disk is no fault of it."""
TICK_S = 1.0


class _Order(NamedTuple):
    desired: ConfigDesired
    cluster_id: str


class _Unstored(NamedTuple):
    """A configuration that the disk did not take, and was not applied."""

    order: _Order
    said: ConfigState
    retry_at: float


def at_start(stored: StoredConfig, save: Callable[[StoredConfig], None]) -> StoredConfig:
    """Return the state with which a node starts. A configuration on trial with which it started some times already,
    and was not confirmed, is taken back: the caller has to store that.

    Args:
        save: makes a state durable, or raises ``OSError``. Blocks.
    """
    if stored.trial is None:
        return stored
    if stored.starts < STARTS_MAX:
        counted = msgspec.structs.replace(stored, starts=stored.starts + 1)
        try:
            save(counted)
            return counted
        except OSError as error:
            # Without a count, a configuration that ends the node would be tried for good.
            reason = f"the number of its starts could not be stored: {error}"
    else:
        reason = f"the node ended {stored.starts} times before the configuration was confirmed"
    return taken_back(stored, reason)


def taken_back(stored: StoredConfig, reason: str) -> StoredConfig:
    """Return the state without its configuration on trial."""
    tried = stored.active
    logger.error("configuration %d of the hub was reverted: %s", tried.version, reason)
    said = _statement(tried, ConfigOutcome.ROLLED_BACK, reason, stored.confirmed)
    return StoredConfig(stored.confirmed, cluster_id=stored.cluster_id, said=said)


def _statement(about: ConfigDesired, outcome: ConfigOutcome, reason: str, active: ConfigDesired) -> ConfigState:
    return ConfigState(
        about.version, about.digest, outcome, reason[:CONFIG_REASON_CHARACTERS_MAX], active.version, active.digest
    )


def statement_of(stored: StoredConfig) -> ConfigState:
    """Return what a node says about the last configuration that it was given."""
    if stored.trial is not None:
        return _statement(stored.trial, ConfigOutcome.TRIAL, "", stored.trial)
    if stored.said is not None:
        return stored.said
    confirmed = stored.confirmed
    outcome = ConfigOutcome.CONFIRMED if confirmed.layers else ConfigOutcome.NONE
    return _statement(confirmed, outcome, "", confirmed)


class ConfigTrial:
    """The configurations that a hub wants, on one running node. It is the ``ConfigReceiver`` of the node's link.

    Args:
        stored: the state with which the node started.
        now: monotonic seconds.
        put: called with each state in force.
        is_unsaved: whether the disk has another state yet.
    """

    def __init__(
        self,
        stored: StoredConfig,
        node: TrialNode,
        now: Callable[[], float],
        put: Callable[[StoredConfig], None] = lambda stored: None,  # noqa: ARG005
        *,
        is_unsaved: bool = False,
    ) -> None:
        self.stored = stored
        """State in force; the same is on disk, unless ``_is_unsaved``."""
        self._node = node
        self._now = now
        self._on_stored = put
        self._since = now()
        self._up: tuple[int, float] | None = None
        """Number of the connection that is up, and since when it has been."""
        self._down_since = now() - stored.down_s
        self._before: tuple[int, Prepared] | None = None
        """Configuration before the one on trial, if that was applied to this running node, and ``TrialNode.reads``."""
        self._wanted: _Order | None = None
        self._unstored: _Unstored | None = None
        self._wake = asyncio.Event()
        self._tell: Callable[[ConfigState], None] | None = None
        self._is_unsaved = is_unsaved
        self._is_ending = False
        """True once the node was asked to start again."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Continue with a configuration on trial, and take new ones."""
        self._task = asyncio.create_task(self._run(), name="hub-configuration")

    async def close(self) -> None:
        """Stop. A configuration on trial stays on trial."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- the link's side

    def opened(self, cluster_id: str, tell: Callable[[ConfigState], None]) -> ConfigState:
        """Return what the node says at the start of a link."""
        del cluster_id
        self._tell = tell
        return self.statement()

    def closed(self) -> None:
        """Note that the link is gone."""
        self._tell = None

    def desire(self, desired: ConfigDesired, cluster_id: str) -> None:
        """Take a configuration. The newest one counts."""
        self._wanted = _Order(desired, cluster_id)
        self._wake.set()

    def own_urls(self) -> tuple[str, ...]:
        """Return the URLs of the link in the node's file. None while a configuration is on trial: it is to show that
        its own do."""
        return self._node.own_urls() if self.stored.trial is None and self.stored.confirmed.layers else ()

    def statement(self) -> ConfigState:
        """Return what the node says about the last configuration that it was given."""
        stored = self.stored
        if self._unstored is None and stored.trial is None and (why := self._node.unfit(stored.confirmed.digest)):
            if stored.said is not None:  # of the last one that it was given
                return msgspec.structs.replace(stored.said, active_version=0, active_digest="")
            return _statement(stored.confirmed, ConfigOutcome.REFUSED, why, NOTHING)
        return statement_of(stored) if self._unstored is None else self._unstored.said

    # -- steps

    async def _run(self) -> None:
        while True:
            try:
                await self.step()
            except Exception:  # without this task, a configuration on trial would stay in force
                logger.exception("a step of the hub's configuration failed")
            # A hub that sends one configuration after another has each checked, and most of them stored.
            await asyncio.sleep(TICK_S)
            is_busy = self.stored.trial is not None or self._is_unsaved or self._unstored is not None
            try:
                async with asyncio.timeout(0 if is_busy else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def step(self) -> None:
        """Handle a configuration that came, or let time pass."""
        self._wake.clear()
        async with self._node.alone:
            if self._node.is_off or self._is_ending:
                return
            wanted, self._wanted = self._wanted, None
            if wanted is None and self._unstored is not None and self._now() >= self._unstored.retry_at:
                wanted = self._unstored.order
            if wanted is not None:
                self._unstored = None
                await self._take(wanted)
            if self._is_ending:
                # What is on trial is not what runs, so nothing about the link says anything of it.
                return
            if self.stored.trial is not None:
                await self._watch()
            elif self._is_unsaved:
                await self._store(self.stored)

    async def _take(self, wanted: _Order) -> None:
        desired, stored = wanted.desired, self.stored
        if desired.digest == stored.active.digest:
            if stored.trial is None and stored.said is not None:
                await self._store(StoredConfig(stored.confirmed, cluster_id=wanted.cluster_id))
            self._report()
            return
        if stored.trial is not None and desired.digest == stored.confirmed.digest:
            await self._go_back(StoredConfig(stored.confirmed, cluster_id=wanted.cluster_id))
            return
        if stored.said is not None and stored.said.digest == desired.digest and stored.trial is None:
            self._report()
            return
        try:
            if desired.digest != digest_of(desired.layers):
                raise Unfit("its digest does not match its layers")
            prepared = await self._node.prepare(desired)
            if prepared.restart and not self._node.may_restart:
                raise Unfit(
                    f"it needs a restart, for {', '.join(prepared.restart[:20])}, and the edge's file allows none"
                )
        except Unfit as error:
            await self._refuse(desired, str(error))
            return
        except Exception as error:  # without a word, the hub would wait for one
            logger.exception("configuration %d of the hub cannot be looked at", desired.version)
            await self._refuse(desired, f"{type(error).__name__}: {error}")
            return
        await self._try(wanted, prepared)

    async def _try(self, wanted: _Order, prepared: Prepared) -> None:
        before = self.stored
        # A configuration that comes while another is on trial takes its place: both go back to the confirmed one.
        trial = StoredConfig(before.confirmed, wanted.desired, wanted.cluster_id, starts=0 if prepared.restart else 1)
        try:
            await self._node.save(trial)
        except OSError as error:
            self._is_unsaved = True  # the disk may have either
            await self._postpone(wanted, f"it cannot be stored: {error}; the edge tries again")
            return
        if prepared.restart:
            self._put(trial)
            logger.info(
                "configuration %d of the hub needs a restart, for %s",
                wanted.desired.version,
                ", ".join(prepared.restart[:20]),
            )
            self._restart()
            return
        running = self._node.running()
        try:
            self._node.apply(prepared)
        except Unfit as error:
            await self._refuse(wanted.desired, str(error))
            return
        if before.trial is None:
            self._before = self._node.reads, running
        self._put(trial)
        self._since = self._down_since = self._now()
        self._up = None
        logger.info("configuration %d of the hub is on trial", wanted.desired.version)
        self._report()

    async def _refuse(self, desired: ConfigDesired, reason: str) -> None:
        """Note that a configuration was not applied. One on trial stays on trial."""
        logger.error("configuration %d of the hub is refused: %s", desired.version, reason)
        said = _statement(desired, ConfigOutcome.REFUSED, reason, self.stored.active)
        await self._store(msgspec.structs.replace(self.stored, said=said))
        if self._tell is not None:
            self._tell(said)

    async def _postpone(self, wanted: _Order, reason: str) -> None:
        """Refuse a configuration until the disk takes it. The refusal itself is not stored: it would stay in force
        when the disk has room again."""
        logger.error("configuration %d of the hub is refused for now: %s", wanted.desired.version, reason)
        said = _statement(wanted.desired, ConfigOutcome.REFUSED, reason, self.stored.active)
        self._unstored = _Unstored(wanted, said, self._now() + RETRY_S)
        await self._store(self.stored)
        self._report()

    async def _watch(self) -> None:
        """Confirm the configuration on trial, or take it back, when it is time."""
        now, link, stored = self._now(), self._node.link(), self.stored
        is_up = link is not None and link.is_taken and link.cluster_id == stored.cluster_id
        if link is not None and is_up:
            if self._up is None or self._up[0] != link.connections:
                self._up = link.connections, now
            self._down_since = now
            if now - self._up[1] >= CONFIRM_S:
                await self._confirm()
                return
        else:
            self._up = None
        if now - self._down_since >= DOWN_S_MAX:
            why = "there is no such link" if link is None else link.last_error or "it is not connected"
            await self._go_back(taken_back(stored, f"the link was down on it for {DOWN_S_MAX:.0f} s: {why}"))
        elif now - self._since >= TRIAL_S_MAX:
            reason = f"the link was not up on it for {CONFIRM_S:.0f} s at a time within {TRIAL_S_MAX:.0f} s"
            await self._go_back(taken_back(stored, reason))
        elif (down_s := int(now - self._down_since) // NOTED_S * NOTED_S) != stored.down_s:
            # A setting that cuts the link may end the node as well, which must not begin the time again.
            await self._store(msgspec.structs.replace(stored, down_s=down_s))

    async def _confirm(self) -> None:
        stored = self.stored
        confirmed = StoredConfig(stored.trial or NOTHING, cluster_id=stored.cluster_id)
        try:
            await self._node.save(confirmed)
        except OSError as error:
            # It stays on trial until the disk has it; TRIAL_S_MAX ends the attempts.
            logger.warning("configuration %d cannot be stored as confirmed: %s", stored.active.version, error)
            if self._now() - self._since >= TRIAL_S_MAX:
                await self._go_back(taken_back(stored, f"it could not be stored as confirmed: {error}"))
            return
        self._put(confirmed)
        self._before = None
        logger.info("configuration %d of the hub is confirmed", confirmed.confirmed.version)
        self._report()

    async def _go_back(self, back: StoredConfig) -> None:
        """Put the confirmed configuration in force again, in memory in any case, and on disk as soon as it takes it."""
        await self._store(back)
        before, self._before = self._before, None
        try:
            if before is not None and before[0] == self._node.reads:
                prepared = before[1]
            else:
                prepared = await self._node.prepare(back.confirmed)
            if prepared.restart:
                self._restart()
                return
            self._node.apply(prepared)
        except Exception as error:  # whatever it is, what was on trial must not stay in force
            # A start falls back to the node's own file, if that is what is left.
            logger.error("the configuration before cannot be applied to the running node, which restarts: %s", error)
            self._restart()
            return
        self._report()

    def _restart(self) -> None:
        self._is_ending = True
        self._node.restart()

    async def _store(self, stored: StoredConfig) -> None:
        """Put a state in force, and store it now or later."""
        self._put(stored)
        try:
            await self._node.save(stored)
            self._is_unsaved = False
        except OSError as error:
            if not self._is_unsaved:
                logger.warning("the state of the hub's configuration cannot be stored, the node continues: %s", error)
            self._is_unsaved = True

    def _put(self, stored: StoredConfig) -> None:
        self.stored = stored
        self._on_stored(stored)

    def _report(self) -> None:
        if self._tell is not None:
            self._tell(self.statement())
