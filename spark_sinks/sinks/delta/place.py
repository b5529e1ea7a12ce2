"""The place of a table: its object store, and deltalake's name for the same folder."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field

from spark_sinks.errors import SinkError
from spark_sinks.source.store_options import with_environment
from weft.config.units import WRITTEN, is_bucket
from weft.storage.object_store import ObjectStore, StoreUnfit, open_store
from weft.storage.object_store.protocol import check_key

STORES_OPEN_MAX = 8
"""Maximum number of stores that a process keeps open between batches."""


@dataclass(frozen=True, slots=True)
class Place:
    """A table's folder, sent from the driver to executors."""

    uri: str
    root: str
    """The folder above the table: its object store's root."""
    key: str
    """The table's name below ``root``."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options for the object store; may hold credentials."""

    @property
    def store(self) -> ObjectStore:
        """Return the store; each process opens it once."""
        return _opened(self.root, self.options)

    def location(self) -> tuple[str, dict[str, str]]:
        """Return the URI and the storage options by which deltalake opens the table."""
        return self.store.location(self.key)


def place_of(uri: str | os.PathLike[str], options: dict[str, str]) -> Place:
    """Return the place of a table.

    Args:
        uri: a path, ``file:///path``, ``s3://bucket/path``, ``gs://bucket/path`` or ``az://container/path``.
        options: for the object store; what is missing comes from the environment.

    Raises:
        SinkError: a table cannot be there.
    """
    text = os.fspath(uri).rstrip("/")
    if text.startswith("file://"):
        text = text.removeprefix("file://localhost").removeprefix("file://")
    remote = "://" in text
    if not remote:
        text = os.path.abspath(text)
    root, _, key = text.rpartition("/")
    if remote and not is_bucket(text):
        raise SinkError(f"table {text!r}: expected a path, file:///path, {WRITTEN}")
    if remote and root.endswith(":/"):
        raise SinkError(f"table {text!r}: it names a bucket alone; add a folder for the table")
    try:
        check_key(key)
    except ValueError:
        raise SinkError(
            f"table {text!r}: choose another name for the folder. It has only A-Z a-z 0-9 _ . = @ + ~ - and does not "
            "begin with a dot or a dash"
        ) from None
    given = {name.upper(): value for name, value in options.items()}
    named = with_environment(given, os.environ, text)
    place = Place(text, root or "/", key, tuple(sorted(named.items())))
    try:
        place.location()
    except (ValueError, StoreUnfit) as error:
        raise SinkError(f"table {text!r}: {error}") from error
    return place


@functools.lru_cache(STORES_OPEN_MAX)
def _opened(root: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    return open_store(root, dict(options))
