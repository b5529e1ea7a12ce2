"""Filters that a source has subscribed to at its broker, in ``<data_dir>/sources/NAME.json``.

The broker's session outlives the node: it keeps filters that a changed configuration no longer has. MQTT cannot query
them, so they are written to the file before each SUBSCRIBE.
"""

from __future__ import annotations

import os

import msgspec

from weft.storage.filesystem import FileSystem, write_atomically

FOLDER = "sources"


class Subscribed(msgspec.Struct, frozen=True):
    """Filters that the session may have."""

    client_id: str
    url: str
    qos: int = 0
    filters: tuple[str, ...] = ()


class SessionFile:
    """The file of one source. Every method blocks on the disk."""

    def __init__(self, filesystem: FileSystem, data_dir: str, name: str) -> None:
        self._filesystem = filesystem
        self._path = os.path.join(data_dir, FOLDER, f"{name}.json")

    def read(self) -> Subscribed | None:
        """Return the content; None without a usable one."""
        try:
            return msgspec.json.decode(self._filesystem.read(self._path), type=Subscribed)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, subscribed: Subscribed) -> None:
        """Write the filters that the session may have from now on.

        Raises:
            OSError: nothing has changed.
        """
        self._filesystem.make_directory(os.path.dirname(self._path))
        write_atomically(self._filesystem, self._path, msgspec.json.encode(subscribed))
