"""Hub nodes that serve links of virtual connections: the real sequencer, link session and edge link."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, cast

from tests.cloud_hub.fabric import CLUSTER, SequencerNode
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.simulation.network import Connection
from weft.bounds import Refusals
from weft.cloud_hub.facts.tenants import DeclaredQuotas, Quotas
from weft.cloud_hub.links.edge_link import EdgeLink, HubLinkLog
from weft.cloud_hub.quotas import LinkQuota, TenantCounts, Tenants
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.link import PEERS
from weft.replication.flow_control import ReceiverSettings
from weft.replication.liveness import SECOND
from weft.replication.receiver import Receiver
from weft.replication.runner import Beats, LinkSession
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore

RECEIVING = ReceiverSettings(window_bytes=20_000, batch_bytes_max=20_000, ping_interval=8 * SECOND, silence=20 * SECOND)


class OneShard:
    """``Shards`` of a node with one shard."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer

    def place(self, _: object) -> int:
        return 0

    async def get(self, shard: int) -> Sequencer:
        return self._sequencer


class VirtualNode(SequencerNode):
    """A node with its links. Whatever it does ends with it.

    Args:
        peers: whether other clusters may relay to this one.
    """

    def __init__(
        self, inner: ObjectStore, rng: random.Random, cluster: Cluster = CLUSTER, *, peers: bool = False
    ) -> None:
        super().__init__(inner, rng, cluster=cluster)
        self._receiving = replace(RECEIVING, features=(PEERS,) if peers else ())
        self._beats = Beats()
        self._links: dict[asyncio.Task[None], tuple[EdgeLink, Connection]] = {}
        self._log = HubLinkLog(lambda: now_ns() / NS)
        self._refusals = Refusals(lambda: now_ns() / NS)
        self._quotas = DeclaredQuotas()
        self._tenants = Tenants(self._quotas, TenantCounts(None, lambda: now_ns() / NS), self._refusals, now_ns)

    def limit(self, quotas: Quotas) -> None:
        """Bound what the edges may bring from now on."""
        self._quotas._of = {"default": quotas}
        self._tenants.limited()

    def serve(self, connection: Connection) -> None:
        """Take a connection.

        Raises:
            OSError: the node does not run.
        """
        if self.sequencer is None:
            raise ConnectionRefusedError("nothing listens")
        link = EdgeLink(
            cast(Any, OneShard(self.sequencer)),
            None,
            self.wall,
            self._log,
            "10.0.0.1",
            refusals=self._refusals,
            elsewhere=lambda _: self.names,
            quota=LinkQuota(self._tenants),
        )
        task = asyncio.create_task(self._serve(link, connection))
        self._links[task] = link, connection
        task.add_done_callback(self._links.pop)

    async def _serve(self, link: EdgeLink, connection: Connection) -> None:
        receiver = Receiver(self._receiving, self.cluster.cluster_id.hex(), "hub", self.wall, now_ns(), in_turns=True)
        socket = cast(Any, connection.server)
        try:
            handler = cast(Any, link)  # nothing is asked of these edges
            await LinkSession(socket, handler, receiver, RECEIVING, now_ns, beats=self._beats).run()
        finally:
            await socket.close()

    async def kill(self) -> None:
        links = dict(self._links)
        for _, connection in links.values():
            connection.cut(reported=(self.rng.random() < 0.7, True))
        await super().kill()
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)
