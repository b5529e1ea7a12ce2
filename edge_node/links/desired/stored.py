"""The hub's configurations as an edge keeps them: ``<data_dir>/config/hub.json``.

One file holds the confirmed configuration and the one on trial, and is replaced as a whole: at any instant the disk has
the old word or the new one, never a part.
"""

from __future__ import annotations

import logging
import os

import msgspec

from weft.edge_node.links.desired.signatures import TakenNumber
from weft.protocols.link.configuration import ConfigDesired, ConfigState, digest_of
from weft.storage.filesystem import FileSystem, write_atomically

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
