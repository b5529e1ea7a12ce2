"""Writers of the cluster log for tests, and what they leave in a store."""

from __future__ import annotations

import random
from collections.abc import Callable

from weft.storage.cluster_log import Author, Change, ClusterLog, ClusterState
from weft.storage.object_store import ObjectStore

CLUSTER = bytes(range(16))
MARA = Author(1_000, "mara@ops-1", "a test")


def log_of(store: ObjectStore, seed: int = 0) -> ClusterLog:
    return ClusterLog(store, CLUSTER, random.Random(seed).getrandbits)


def declares(name: str, document: bytes | None = b"{}", kind: str = "token") -> Callable[[ClusterState], Change]:
    return lambda _: Change(kind, name, document)


async def declare(store: ObjectStore, *names: str) -> None:
    log = log_of(store)
    for name in names:
        await log.append(declares(name), MARA)


def counts(state: ClusterState) -> Change:
    """Add one to the number that a fact holds: right only if no other writer comes between."""
    fact = state.facts("count").get("all")
    return Change("count", "all", str(int(fact.document) + 1 if fact is not None else 1).encode())
