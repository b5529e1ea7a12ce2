"""Keys of a hub's objects by the way in which a backup keeps them.

Chunks, snapshots and the states of lanes that left never change, and keep their keys. The files of a table are below
the table's life, since the same key may come again in another one. Everything else, of this release or of a later one,
is kept by its content.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator

from weft.storage import hub_keys
from weft.storage.object_store import Listed, ObjectStore, StoreUnfit
from weft.storage.object_store.probe import PREFIX as PROBES
from weft.storage.object_store.protocol import PART_SUFFIX

PAGE = 1000
"""Number of objects that are listed at a time."""
AFTER_ALL = "~"
"""Name after all others of a folder: no name of an object begins with it."""
PASSING = (
    hub_keys.NODES, hub_keys.LINKED, hub_keys.KEEPERS, hub_keys.LATEST, hub_keys.REGIONS, hub_keys.REQUESTS,
    hub_keys.PIPELINES, PROBES,
)  # fmt: skip
"""Folders of which a backup keeps nothing: those of running nodes and pipelines, positions of other regions in the log,
which are of its history alone, tables that a hub makes again from others, and options of acts that wait for approval:
they may name a person, and an approval that was used must not come back."""
_SHARD = re.compile(r"shard-\d+")
_OF_LOG = ("chunk", "snapshot", "ended")
LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"
_VERSION = re.compile(rf"{LOG_FOLDER}/(\d{{20}})\.")


def table_home(tenant: str, stream: str, life: str) -> str:
    """Return the folder of a table in a backup."""
    return f"{hub_keys.table_key(tenant, stream)}/{life}"


def version_of(name: str) -> int:
    """Return the version that a file of a table's log belongs to; -1 for files of data."""
    found = _VERSION.match(name)
    return int(found[1]) if found else -1


def is_of_table(name: str, version: int) -> bool:
    """Return whether a backup of a table's version keeps a file, named from the table's folder."""
    return name != LAST_CHECKPOINT and not name.endswith(PART_SUFFIX) and version_of(name) <= version


async def listed(store: ObjectStore, prefix: str, after: str | None = None) -> AsyncIterator[Listed]:
    """Yield the objects below a folder, a page in memory at a time."""
    while page := await store.list(prefix, after=after, limit=PAGE):
        for item in page:
            yield item
        after = page[-1].key


async def tables(store: ObjectStore, top: str = "tables") -> AsyncIterator[tuple[str, str]]:
    """Yield tenant and stream of each folder of a table, without a listing of its files."""
    after: str | None = None
    while page := await store.list(top, after=after, limit=1):
        parts = page[0].key.split("/")
        after = page[0].key
        if len(parts) > 3:
            yield parts[1], parts[2]
            after = f"{'/'.join(parts[:3])}/{AFTER_ALL}"


async def others(store: ObjectStore) -> AsyncIterator[Listed]:
    """Yield the objects that are kept by their content. Folders of others are passed over without a listing."""
    after: str | None = None
    while page := await store.list("", after=after, limit=PAGE):
        for item in page:
            past = _past(item.key)
            after = past or item.key
            if past is not None:
                break
            yield item


def _past(key: str) -> str | None:
    """Return a key after the folder of an object that is kept in another way, or not at all; None for one that is kept
    by its content."""
    top, _, rest = key.partition("/")
    if key == hub_keys.CLUSTER or key.endswith(PART_SUFFIX):
        return key
    if top in PASSING or top == "tables":
        return f"{top}/{AFTER_ALL}"
    if _SHARD.fullmatch(top):
        folder = rest.partition("/")[0]
        if folder in _OF_LOG:
            return f"{top}/{folder}/{AFTER_ALL}"
        if rest == "manifest":
            return key
    return None


def is_inside(target: ObjectStore, store: ObjectStore) -> bool:
    """Return whether a place is a folder of a store, of which each run would copy it again."""
    try:
        (inner, here), (outer, there) = target.location("a"), store.location("a")
    except StoreUnfit:
        return False  # in memory
    if "://" not in inner and "://" not in outer:
        inner, outer = os.path.realpath(inner), os.path.realpath(outer)
    root = outer.removesuffix("a")
    return here == there and inner.startswith(root) and inner != outer
