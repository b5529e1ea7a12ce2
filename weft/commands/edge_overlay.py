"""An edge's configuration with what its hub lays over it: read, checked, and chosen at each start of the node."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from weft.commands.common import check_code, check_functions, config_argument, json_option, located_edge
from weft.config.errors import ConfigError, Finding
from weft.config.load import addresses_with_credentials, check_overlay, foreign_ports, leaves, load
from weft.config.models import EdgeConfig
from weft.edge_node import preflight
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import configuring_link
from weft.edge_node.links.desired import (
    ConfigFolder,
    NotTaken,
    StoredConfig,
    Taken,
    at_start,
    check_signatures,
    remembered,
    rules_of,
    statement_of,
    taken_back,
)
from weft.edge_node.reconfigure import ConfigUnusable
from weft.output import Refused, print_facts, print_json, print_table
from weft.protocols.link import ConfigOutcome, ConfigState
from weft.storage.segment_log.encryption import disk_of

if TYPE_CHECKING:
    from weft.config.load import Loaded
    from weft.edge_node.preflight import EdgeFindings
    from weft.protocols.link import ConfigDesired


logger = logging.getLogger(__name__)


class HubOverlay:
    """The configurations of a hub over an edge's file (``edge_node.reconfigure.Overlay``).

    Args:
        config_file: the edge's own file.
        local: the same, read and checked.
    """

    def __init__(self, config_file: str, local: Loaded[EdgeConfig], folder: ConfigFolder) -> None:
        self._file = config_file
        self._folder = folder
        self.stored: StoredConfig = StoredConfig()
        """State in force: updated while the node runs."""
        self.is_unsaved = False
        """True while the disk has another state."""
        self._is_loaded = False
        self._taken: Taken = {}
        self._unfit = ("", "")
        self.local = local
        self.reads = 0
        """Number of times that the file was read again."""

    @property
    def link(self) -> str | None:
        """Return the link by which a hub may set something, as of the last reading of the file."""
        return configuring_link(self.local.config)

    @property
    def may_restart(self) -> bool:
        """Return whether settings that need a restart are allowed."""
        return self.link is not None and self.local.config.links[self.link].config_from_hub == "allowed_with_restart"

    @property
    def own_urls(self) -> tuple[str, ...]:
        """Return the URLs of that link in the file, as of its last reading."""
        return () if self.link is None else self.local.config.links[self.link].to

    def save(self, stored: StoredConfig) -> None:
        """Make a state durable. Blocks.

        Raises:
            OSError: it may be durable or not.
        """
        self._folder.save(self._with_numbers(stored))

    def unfit(self, digest: str) -> str:
        """Return why the confirmed configuration with a digest is not in force; empty if it is."""
        return self._unfit[1] if digest and digest == self._unfit[0] else ""

    def begin(self) -> Loaded[EdgeConfig]:
        """Return the configuration of a start. What cannot be used of the hub's is left out, and logged. Blocks."""
        if self.link is None:
            return self.local
        if not self._is_loaded:
            self.stored, self._is_loaded = self._folder.load(), True
            self._taken = self.stored.taken
        found, self._unfit = self.stored, ("", "")
        self.stored = at_start(found, self._save_if_possible)
        if self.stored.trial is None and found.trial is not None:
            self._save_later(self.stored)
        try:
            return self._lay(self.stored.active)
        except ConfigUnusable as error:
            if self.stored.trial is None:
                logger.error("the hub's configuration does not fit this file any more, which counts alone: %s", error)
                self._unfit = self.stored.confirmed.digest, f"it does not fit the edge's file any more: {error}"
                return self.local
            self.stored = taken_back(self.stored, str(error))
        self._save_later(self.stored)
        try:
            return self._lay(self.stored.confirmed)
        except ConfigUnusable as error:
            logger.error("the hub's configuration does not fit this file any more, which counts alone: %s", error)
            self.stored = StoredConfig(said=self.stored.said)
            return self.local

    def failed_start(self, error: Exception) -> bool:
        """Take a configuration on trial back with which the node could not start.

        Returns:
            Whether there was one, so that another start may succeed.
        """
        if self.link is None or self.stored.trial is None:
            return False
        self.stored = taken_back(self.stored, f"the node could not start with it: {error}")
        self._save_later(self.stored)
        return True

    def read_again(self) -> EdgeConfig:
        """Read the file again, with the hub's configuration over it. Blocks.

        Raises:
            ConfigUnusable: the file is not valid, or does not trust who signed the hub's settings that are in force. If
                it is valid alone otherwise, it counts alone.
        """
        try:
            loaded = located_edge(self._file)
            check_functions(loaded)
            check_code(loaded)
        except Refused as error:
            raise ConfigUnusable(str(error)) from None
        before, self.local = self.local, loaded
        if self.link is None:
            self.reads += 1
            return loaded.config
        try:
            self._check_signatures(self.stored.active)
        except NotTaken as error:
            # What is in force may be all that redacts: to lose it takes a restart, which is a decision.
            self.local = before
            raise ConfigUnusable(
                f"the hub's active settings are not valid with this file: {error}. The node keeps the settings that "
                "it has. After a restart, only those of the file apply"
            ) from None
        self.reads += 1
        try:
            config, self._unfit = self._lay(self.stored.active).config, ("", "")
        except ConfigUnusable as error:
            logger.error("the hub's configuration does not fit the file any more, which counts alone: %s", error)
            self._unfit = self.stored.confirmed.digest, f"it does not fit the edge's file any more: {error}"
            return loaded.config
        return config

    def lay(self, desired: ConfigDesired) -> EdgeConfig:
        """Return the file's configuration with the hub's over it, checked as `weft edge check` does. Blocks.

        Raises:
            ConfigUnusable: it is not valid, or has what a hub may not set.
        """
        try:
            # As it is now: without layers, the file alone is what the node would get.
            self.local = located_edge(self._file)
            check_functions(self.local)
            check_code(self.local)
        except Refused as error:
            raise ConfigUnusable(str(error)) from None
        return self._lay(desired).config

    def _lay(self, desired: ConfigDesired) -> Loaded[EdgeConfig]:
        link = self.link
        if link is None:
            raise ConfigUnusable("no link of the edge's file has config_from_hub: allowed")
        try:
            self._check_signatures(desired)
        except NotTaken as error:
            raise ConfigUnusable(str(error)) from None
        if not desired.layers:
            return self.local
        try:
            for layer in desired.layers:
                check_overlay(layer.text)
            loaded = load(self._file, EdgeConfig, check, overlays=[layer.text for layer in desired.layers])
            check_functions(loaded)
            stranger = addresses_with_credentials(self.local.config, loaded.config, link)
            stranger += foreign_ports(self.local.config, loaded.config)
            if stranger:
                raise loaded.refuse(stranger)
            now = datetime.now(UTC)
            new = _not_in(
                preflight.look(loaded.config, loaded.lines, now), preflight.look(self.local.config, loaded.lines, now)
            )
            if new:
                raise loaded.refuse(new)
        except (ConfigError, Refused) as error:
            raise ConfigUnusable(str(error)) from None
        return loaded

    def _save_later(self, stored: StoredConfig) -> None:
        """Store a state. If the disk does not take it, the trial stores it later, or the next start repeats this."""
        try:
            self._save_if_possible(stored)
            self.is_unsaved = False
        except OSError as error:
            self.is_unsaved = True
            logger.warning("the state of the hub's configuration cannot be stored: %s", error)

    def _save_if_possible(self, stored: StoredConfig) -> None:
        from weft.edge_node.inspect.view import is_locked

        # A second process on the folder ends in a moment: it must not count as a start of the node.
        if not is_locked(self.local.config.data_dir):
            self.save(stored)

    def _check_signatures(self, desired: ConfigDesired) -> None:
        """Raise ``NotTaken`` for a configuration that the file's keys did not sign, where it names some."""
        if (rules := rules_of(self.local.config, self.link)) is not None:
            check_signatures(desired.layers, self.stored.confirmed.layers, self._numbers(), rules)

    def _with_numbers(self, stored: StoredConfig) -> StoredConfig:
        """Return a state with the numbers of signed settings that are not to come again once it is durable."""
        taken = self._numbers()
        if (rules := rules_of(self.local.config, self.link)) is not None:
            taken = self._taken = remembered(stored.confirmed.layers, taken, rules)
        return msgspec.structs.replace(stored, taken=dict(taken))

    def _numbers(self) -> Taken:
        if not self._is_loaded:  # the file let no hub set anything when the node started
            self._taken, self._is_loaded = self._folder.load().taken, True
        return self._taken


def _not_in(found: EdgeFindings, known: EdgeFindings) -> Sequence[Finding]:
    before = {*known.needed, *known.unfit}
    return [each for each in (*found.needed, *found.unfit) if each not in before]


def overlay_of(config_file: str, local: Loaded[EdgeConfig]) -> HubOverlay:
    """Return the overlay of an edge. It has nothing, and reads nothing, while the file lets no hub set anything."""
    return HubOverlay(config_file, local, ConfigFolder(disk_of(local.config.data_dir), local.config.data_dir))


# ``weft edge config``: the settings of an edge that its hub has laid over its file.


@click.command("config")
@config_argument
@json_option
def edge_config(config_file: str, *, as_json: bool) -> None:
    """Show what the hub has laid over the settings of CONFIG, from its data_dir. The node need not run.

    Settings are listed with the layer that sets them: a group or the edge, with the version that
    `weft hub config status` shows. All others are those of the file. `outcome` is what the node did with the last
    configuration that it received.

    \b
    weft edge config edge.yaml
    """
    config = located_edge(config_file).config
    link = configuring_link(config)
    stored = ConfigFolder(disk_of(config.data_dir), config.data_dir).load()
    said = statement_of(stored)
    rules = rules_of(config, link)
    try:
        if rules is not None:
            check_signatures(stored.active.layers, stored.confirmed.layers, stored.taken, rules)
        layers = stored.active.layers if link is not None else []
    except NotTaken as error:
        layers, about = [], stored.active
        said = ConfigState(about.version, about.digest, ConfigOutcome.REFUSED, str(error), 0, "")
    settings: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for path, value in leaves(layer.text):
            settings[path] = {"setting": path, "value": value, "from": layer.name, "version": layer.version}
    facts = {
        "link": link,
        "right": "never" if link is None else config.links[link].config_from_hub,
        "version": said.active_version if link is not None else 0,
        "outcome": ConfigOutcome(said.outcome).name.lower().replace("_", " "),
        "about_version": said.version,
        "reason": said.reason,
    }
    if as_json:
        print_json({**facts, "settings": list(settings.values())})
        return
    if link is None:
        click.echo(f"{config_file} allows no hub to change settings: only its own apply")
        return
    print_facts(
        {
            "hub": f"link {link} ({facts['right']})",
            "in force": f"version {said.active_version}" if said.active_version else "the file alone",
            "last one": f"version {said.version}: {facts['outcome']}" if said.version else "none",
            **({"reason": said.reason} if said.reason else {}),
        }
    )
    if settings:
        rows = [
            (each["setting"], each["value"], f"{each['from']}, version {each['version']}") for each in settings.values()
        ]
        print_table(("setting", "value", "from"), rows)
