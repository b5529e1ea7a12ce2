"""Configurations that hubs want for edges: settings of groups and of single edges, declared in the cluster log."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

from weft.cloud_hub.declared.documents import CONFIG, ConfigDocument, UnreadableDocument, decode
from weft.cloud_hub.declared.groups import Groups
from weft.protocols.link.configuration import LAYERS_MAX, ConfigDesired, ConfigLayer, desired_of
from weft.storage.cluster_log.state import ClusterState

EDGE: Literal["edge"] = "edge"
GROUP_OF_EDGES: Literal["group"] = "group"
KNOWN_MAX = 4096
"""Maximum number of combinations of layers that are kept made: fleets have few."""
CROWDED_MAX = 64
"""Maximum number of edges with too many layers that are named. Present releases declare none."""
_OUT_OF = 1 << 64


def config_name(tenant: str, of: str, name: str) -> str:
    """Return the name of the fact about an edge or a group.

    Args:
        of: ``EDGE`` or ``GROUP_OF_EDGES``.
    """
    return f"{tenant}/{of}/{name}"


def point_of(edge: str, revision: int) -> float:
    """Return the edge's place, 0 to 1, in the order in which a rollout reaches edges. Each rollout has another one, so
    that not the same edges are first each time."""
    return int.from_bytes(blake2b(f"{revision}/{edge}".encode(), digest_size=8).digest()) / _OUT_OF


def is_reached(document: ConfigDocument, edge: str) -> bool:
    """Return whether an edge of the group has the new text of a rollout."""
    rollout = document.rollout
    return rollout is None or rollout.share >= 1.0 or point_of(edge, document.revision) < rollout.share


class DesiredConfigs:
    """Configurations by edge, as of the last ``refresh``.

    Args:
        groups: of the same state of the cluster log.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._documents: dict[str, ConfigDocument] = {}
        self._made: dict[tuple[tuple[str, int], ...], ConfigDesired] = {}
        self._seen: tuple[ClusterState, int] | None = None
        self.unusable: dict[str, str] = {}
        """Names of facts that cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log, if there is an entry about a configuration since the last
        call.

        Returns:
            Whether there was one.
        """
        last = state.last(CONFIG)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return False
        self._seen, self._documents, self._made, self.unusable = (state, last), {}, {}, {}
        for name, fact in state.facts(CONFIG).items():
            try:
                self._documents[name] = decode(fact.document, ConfigDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
        return True

    @property
    def documents(self) -> dict[str, ConfigDocument]:
        """Return the declared configurations by the names of their facts."""
        return self._documents

    def of_edge(self, tenant: str, edge: str) -> ConfigDesired | None:
        """Return the configuration that an edge is to have; None if that is unknown.

        A part that cannot be read leaves the edge with what it has: without it, others would be in force.
        """
        if any(name.startswith(f"{tenant}/") for name in self._groups.unusable):
            return None
        names = [config_name(tenant, GROUP_OF_EDGES, group) for group in self._groups.of_edge(tenant, edge)]
        names.append(config_name(tenant, EDGE, edge))
        if any(name in self.unusable for name in names):
            return None
        layers: list[tuple[str, int, str]] = []
        for name in names:
            document = self._documents.get(name)
            if document is None:
                continue
            if is_reached(document, edge):
                text, revision = document.text, document.revision
            else:
                text, revision = document.before, document.before_revision
            if text is not None:
                layers.append((name, revision, text))
        if len(layers) > LAYERS_MAX:
            if len(self.unusable) < CROWDED_MAX:
                why = f"the edge is in groups with {len(layers)} layers of settings, more than {LAYERS_MAX}"
                self.unusable[names[-1]] = why
            return None
        key = tuple((name, revision) for name, revision, _ in layers)
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= KNOWN_MAX:
                self._made.clear()
            made = self._made[key] = desired_of(
                [ConfigLayer(" ".join(name.split("/")[1:]), revision, text) for name, revision, text in layers]
            )
        return made
