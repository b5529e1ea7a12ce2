"""A backup of a store with a tenant that is set apart, and a store that is restored from it."""

from __future__ import annotations

import random

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.proofs.backup.places import backed_up, busy, quiet, states, view_of
from weft.cloud_hub.splits import Apart
from weft.proofs.backup.backup import restore
from weft.proofs.verify import verify
from weft.storage.chunk_log import first_logs, load_every_shard
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.opening import PlacedStore, bare

ACME = LANE._replace(tenant="acme")


async def names(store: ObjectStore) -> set[str]:
    return {item.key for item in await bare(store).list("")}


async def test_a_restored_store_has_the_tenant_below_its_prefix_again() -> None:
    store, place, target = (PlacedStore(MemoryStore()) for _ in range(3))
    await busy(store)
    shard = await Apart(store, wall_clock=lambda: 0, random_bits=random.Random(1).getrandbits).set("acme")
    cluster = await open_cluster(store, None)
    writer = LogWriter(store, cluster)
    writer.states = [state for _, state in await load_every_shard(first_logs(store, cluster))]
    for n in range(4):
        await writer.append(shard, Run(ACME, 10 * n, 10))
    await writer.snapshot(shard)
    await store.create("deletions/acme/telemetry/00000000000000000000", b"{}")

    await backed_up(store, place)
    assert not [name for name in await names(place) if name.startswith("tenants/")], "a backup has one layout"
    assert [item.key for item in await place.list(f"shard-{shard}/chunk")]
    assert (await verify(place)).findings == []
    await restore(await view_of(place), target, clock=lambda: 1_900_000_000_000_000_000, note=quiet)
    assert await names(target) == await names(store)
    assert await states(target) == await states(store)
    found = await verify(target)
    assert found.findings == []
    assert [(lane.tenant, lane.shard) for lane in found.lanes if lane.tenant == "acme"] == [("acme", shard)]

    again = PlacedStore(bare(target))  # another process reads where the objects are
    assert await states(again) == await states(store)
