"""A source that subscribes to an external MQTT broker."""

from __future__ import annotations

import asyncio
import random

from weft.config.intake.sources import MqttSource
from weft.edge_node.sources.connection import CONNECT_TIMEOUT_S, NodeParts, SourceConnection, SourceDown
from weft.edge_node.sources.credentials import client_context, read_password, target_of
from weft.edge_node.sources.mqtt_connection import MqttConnection, MqttTerms
from weft.edge_node.sources.runner import Runner
from weft.edge_node.sources.session_file import SessionFile, Subscribed
from weft.edge_node.sources.status import SourceStatus
from weft.protocols.mqtt.packets import Version

VERSIONS = {"v5": Version.V5, "v3.1.1": Version.V311}


class MqttRunner(Runner):
    """The connections of one MQTT source, one after the other, and the session that outlives them."""

    def __init__(  # noqa: PLR0917
        self,
        settings: MqttSource,
        status: SourceStatus,
        node: NodeParts,
        rng: random.Random,
        client_id: str,
        file: SessionFile,
    ) -> None:
        """Use checked settings.

        Args:
            client_id: default where the settings have none.
        """
        super().__init__(settings, status, node, rng)
        self._mqtt = settings
        self._client_id = settings.client_id or client_id
        self._file = file
        share = f"$share/{settings.share}/" if settings.share else ""
        self.filters = tuple(dict.fromkeys(share + each for each in settings.topics))

    async def connect(self, url: str) -> SourceConnection:
        """Connect, and subscribe.

        Raises:
            SourceDown, OSError, TimeoutError, CredentialsUnusable: there is no connection.
        """
        settings, target = self._mqtt, target_of(url)
        password = await asyncio.to_thread(read_password, settings)
        tls = await asyncio.to_thread(client_context, settings) if target.is_tls else None
        terms = MqttTerms(
            self._client_id, VERSIONS[settings.version], settings.username, password, settings.keep_alive_s,
            settings.session_expiry_s, settings.receive_maximum, settings.packet_bytes_max,
        )  # fmt: skip
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await self._loop.create_connection(
                lambda: MqttConnection(self.node, self.status, self.topics, self.memory, terms),
                target.address.host, target.address.port, ssl=tls,
            )  # fmt: skip
        try:
            await self._subscribe(connection, url, has_session=await connection.open())
        except BaseException as error:
            connection.end(str(error))
            raise
        return connection

    async def close(self, connection: SourceConnection) -> None:
        """Stop, acknowledge the messages on disk, and disconnect."""
        assert isinstance(connection, MqttConnection)
        await connection.close()

    async def _subscribe(self, connection: MqttConnection, url: str, *, has_session: bool) -> None:
        """Make the filters of the settings the session's only subscriptions."""
        wanted = Subscribed(self._client_id, url, self._mqtt.qos, self.filters)
        before = await asyncio.to_thread(self._file.read) if has_session else None
        if before is not None and before.client_id != wanted.client_id:
            before = None
        if before == wanted and self._mqtt.version == "v3.1.1":
            return  # after a SUBSCRIBE in 3.1.1 the broker would send every retained message again
        try:
            if before != wanted:
                may_have = tuple(dict.fromkeys([*(before.filters if before is not None else ()), *self.filters]))
                await asyncio.to_thread(self._file.write, Subscribed(self._client_id, url, 0, may_have))
            if before is not None and (gone := [each for each in before.filters if each not in self.filters]):
                await connection.unsubscribe(gone)
            await connection.subscribe(self.filters, self._mqtt.qos)
            if before != wanted:
                await asyncio.to_thread(self._file.write, wanted)
        except OSError as error:
            raise SourceDown(f"the filters of the session cannot be written down: {error}") from None
