"""Desired configurations on the links of one hub process: told when an edge has another one, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from weft.cloud_hub.declared.desired_configs import DesiredConfigs
from weft.cloud_hub.desired.states import ConfigStates
from weft.protocols.lane import NodeName
from weft.protocols.link import CONFIG
from weft.protocols.link.configuration import ConfigDesired, ConfigState

WORDS_MAX = 20.0
"""Words of an edge about its configuration that are heard at once, and after them one a second: each is looked up in
all groups, and becomes part of an object in the store."""
LOOKED_AT_ONCE = 256
"""Number of links that are looked at without a pause."""


class ConfiguredLink(Protocol):
    """A link of an edge (``cloud_hub.links.edge_link.EdgeLink``)."""

    config: LinkConfig | None
    """State of the edge's configuration; None if it takes none."""

    def configure(self, desired: ConfigDesired) -> None:
        """Tell the edge which configuration it is to have."""


class LinkConfig:
    """The state of a linked edge's configuration, as far as the hub knows it."""

    def __init__(self, node: NodeName) -> None:
        self.node = node
        self.has = ""
        """Digest that the edge's last word is about."""
        self.told: str | None = None
        """Digest that the hub sent last on this link. It sends none twice: an edge that answers with other digests
        would have it send without end."""
        self.words = WORDS_MAX
        """Words that the edge may say now."""
        self.heard_at = asyncio.get_running_loop().time()

    def may_say(self) -> bool:
        """Count a word of the edge; return whether it is one of those that a link may say: some, and one a second."""
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
        """Note an edge that takes no configuration though it is to have one."""
        if CONFIG in features:
            link.config = LinkConfig(node)
            return
        wanted = self._desired.of_edge(*node)
        if wanted is not None and wanted.layers:
            self._states.note_takes_none(node)

    def said(self, link: ConfiguredLink, state: ConfigState) -> None:
        """Handle the word of an edge."""
        if link.config is None or not link.config.may_say():
            return
        before, link.config.has = link.config.has, state.digest
        wanted = self._desired.of_edge(*link.config.node)
        # Of edges without a configuration, now and before, nothing is kept.
        if before or state.digest or state.active_digest or (wanted is not None and wanted.layers):
            self._states.note(link.config.node, state)
        self._tell(link, link.config, wanted)

    def _tell(self, link: ConfiguredLink, config: LinkConfig, wanted: ConfigDesired | None) -> None:
        if wanted is None or wanted.digest in (config.has, config.told):
            return
        config.told = wanted.digest
        link.configure(wanted)

    async def changed(self) -> None:
        """Tell linked edges what was declared since."""
        for at, link in enumerate(list(self._links())):
            if link.config is not None:
                config = link.config
                wanted = self._desired.of_edge(*config.node)
                if wanted is not None and config.told not in (None, wanted.digest):
                    # The hub sent another one, which the edge may not have answered yet.
                    config.told = wanted.digest
                    link.configure(wanted)
                else:
                    self._tell(link, config, wanted)
            if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
