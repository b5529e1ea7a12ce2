"""Changes of the configurations of edges, and the steps of their rollouts: decisions for ``ClusterLog.append``."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from weft.cloud_hub.declared.changes import CannotDeclare, Decision, check_tenant, known_fact, read_fact
from weft.cloud_hub.declared.desired_configs import EDGE, config_name
from weft.cloud_hub.declared.documents import CONFIG, GROUP, ConfigDocument, RolloutDocument, encode, stream_name
from weft.cloud_hub.declared.groups import check_layers
from weft.config.errors import ConfigError
from weft.config.reading.overlays import check_overlay
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.link.configuration import TEXT_CHARACTERS_MAX
from weft.storage.cluster_log.entry import DOCUMENT_BYTES_MAX
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState

ConfigKey = tuple[str, str, str]
"""(tenant, ``edge`` or ``group``, name)"""


def set_config(key: ConfigKey, text: str, rollout: RolloutDocument | None = None, *, again: bool = False) -> Decision:
    """Declare the settings of an edge or a group.

    Args:
        text: YAML.
        rollout: gives them to a share of the group's edges first.
        again: also if they are the same: edges that refused them, or took them back, try again.

    Raises:
        CannotDeclare: the text has what a hub may not set, or is no YAML; from the decision: the tenant or the group is
            unknown, a rollout goes on, or an edge may be in too many groups with settings.
    """
    if wrong := [each for each in (key[0], key[2]) if not valid_name(each)]:
        raise CannotDeclare(f"{wrong[0]!r} cannot be a name: {NAME_RULE}")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise CannotDeclare(f"the settings have {len(text)} characters; at most {TEXT_CHARACTERS_MAX} are possible")
    if rollout is not None and key[1] == EDGE:
        raise CannotDeclare("a single edge has no share: name a group (--group)")
    try:
        check_overlay(text)
    except ConfigError as error:
        raise CannotDeclare(str(error)) from None
    name = config_name(*key)

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        if key[1] != EDGE:
            known_fact(state, GROUP, stream_name((key[0], key[2])))
        fact = state.facts(CONFIG).get(name)
        before = None if fact is None else read_fact(name, CONFIG, fact.document, ConfigDocument)
        if before is not None and _is_open(before):
            raise CannotDeclare(f"a rollout of {name} goes on: end it first (`weft hub config rollout next|abort`)")
        if before is not None and before.text == text and not again:
            return None
        old = (None, 0) if before is None or rollout is None else (before.text, before.revision)
        if fact is None and key[1] != EDGE:
            check_layers(state, (key[0], key[2]))
        document = ConfigDocument(text, state.n + 1, *old, rollout)
        return _change(name, document, None if fact is None else fact.document)

    return decide


def remove_config(key: ConfigKey) -> Decision:
    """Withdraw the settings of an edge or a group: its edges go back to what is below.

    Raises:
        CannotDeclare: from the decision: there are none.
    """
    name = config_name(*key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, CONFIG, name)
        return Change(CONFIG, name, None)

    return decide


def go_on(key: ConfigKey, share: float, failures: int) -> Decision:
    """Give the new settings to a larger share of the group's edges; to all of them, the rollout is done.

    Args:
        failures: number of edges that refused or took back so far, which do not count any more.

    Raises:
        CannotDeclare: from the decision: there is no rollout, or the share is not larger.
    """

    def next_of(rollout: RolloutDocument) -> RolloutDocument:
        if share < rollout.share or (share == rollout.share and rollout.state == "running"):
            raise CannotDeclare(f"expected a share of more than {rollout.share:.0%}, which the rollout has reached")
        return msgspec.structs.replace(
            rollout, share=share, state="done" if share >= 1.0 else "running", why="",
            forgiven=max(rollout.forgiven, failures),
        )  # fmt: skip

    return _step(key, next_of)


def stop(key: ConfigKey, share: float, why: str) -> Decision:
    """Stop a rollout that runs at a share: no further edge gets the new settings.

    Raises:
        CannotDeclare: from the decision: there is no such rollout.
    """

    def stopped(rollout: RolloutDocument) -> RolloutDocument | None:
        if rollout.share != share or rollout.state != "running":
            return None  # it went on, or stopped, meanwhile
        return msgspec.structs.replace(rollout, state="stopped", why=why[:500])

    return _step(key, stopped)


def advance(key: ConfigKey, share: float) -> Decision:
    """Take the next step of a rollout that goes on by itself, unless it has left this share meanwhile."""

    def advanced(rollout: RolloutDocument) -> RolloutDocument | None:
        if rollout.share != share or rollout.state != "running":
            return None
        following = next((step for step in sorted(rollout.steps) if step > share), None)
        if following is None:
            return None
        return msgspec.structs.replace(rollout, share=following, state="done" if following >= 1.0 else "running")

    return _step(key, advanced)


def abort(key: ConfigKey, why: str) -> Decision:
    """End a rollout: the edges that it reached go back to the settings before it.

    Raises:
        CannotDeclare: from the decision: there is no rollout.
    """
    name = config_name(*key)

    def decide(state: ClusterState) -> Change:
        document, rollout, fact = _rollout(state, name)
        ended = ConfigDocument(
            document.before, max(1, document.before_revision),
            rollout=msgspec.structs.replace(rollout, share=1.0, state="aborted", why=why[:500]),
        )  # fmt: skip
        return _change(name, ended, fact)

    return decide


def _step(key: ConfigKey, change: Callable[[RolloutDocument], RolloutDocument | None]) -> Decision:
    name = config_name(*key)

    def decide(state: ClusterState) -> Change | None:
        document, rollout, fact = _rollout(state, name)
        changed = change(rollout)
        if changed is None or changed == rollout:
            return None
        return _change(name, msgspec.structs.replace(document, rollout=changed), fact)

    return decide


def _rollout(state: ClusterState, name: str) -> tuple[ConfigDocument, RolloutDocument, bytes]:
    known_fact(state, CONFIG, name)
    fact = state.facts(CONFIG)[name].document
    document = read_fact(name, CONFIG, fact, ConfigDocument)
    if document.rollout is None or not _is_open(document):
        raise CannotDeclare(f"there is no rollout of {name} that goes on")
    return document, document.rollout, fact


def _is_open(document: ConfigDocument) -> bool:
    return document.rollout is not None and document.rollout.state in ("running", "stopped")


def _change(name: str, document: ConfigDocument, before: bytes | None) -> Change:
    data = encode(document, before)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise CannotDeclare(
            f"the settings before and those of the rollout have {len(data)} bytes together, more than "
            f"{DOCUMENT_BYTES_MAX >> 10} KiB: shorten them"
        )
    return Change(CONFIG, name, data)
