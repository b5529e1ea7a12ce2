"""Requests of Kafka's clients as bytes, and the answers to them."""

from __future__ import annotations

import asyncio
import io
import struct
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("kio", reason="kio is not installed: pip install weft-fabric[kafka]")

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from weft.cloud_hub.kafka import messages
from weft.cloud_hub.kafka.messages import APIS, converted


def _newest(key: int) -> Any:
    return load_payload_module(key, APIS[key].last, EntityType.request)


def fetch(places: dict[tuple[str, int], int], *, wait_s: float = 0.0, bytes_max: int = 1 << 20) -> Any:
    """Return a request for records of partitions from offsets on."""
    of = _newest(messages.FETCH)
    topics = tuple(
        of.FetchTopic(
            topic=topic,
            partitions=(of.FetchPartition(partition=shard, fetch_offset=offset, partition_max_bytes=bytes_max),),
        )
        for (topic, shard), offset in places.items()
    )
    return of.FetchRequest(
        max_wait=timedelta(seconds=wait_s), min_bytes=1, max_bytes=bytes_max, topics=topics, forgotten_topics_data=()
    )


def list_offsets(places: dict[tuple[str, int], int]) -> Any:
    """Return a request for offsets of partitions by times, ms."""
    of = _newest(messages.LIST_OFFSETS)
    topics = tuple(
        of.ListOffsetsTopic(name=topic, partitions=(of.ListOffsetsPartition(partition_index=shard, timestamp=time_ms),))
        for (topic, shard), time_ms in places.items()
    )
    return of.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)


def metadata(*names: str) -> Any:
    """Return a request for topics, or for all."""
    of = _newest(messages.METADATA)
    topics = tuple(of.MetadataRequestTopic(name=name) for name in names) if names else None
    return of.MetadataRequest(
        topics=topics, include_cluster_authorized_operations=False, include_topic_authorized_operations=False
    )


def plain(token: str) -> Any:
    """Return a request that authenticates by a token."""
    return _newest(messages.SASL_AUTHENTICATE).SaslAuthenticateRequest(auth_bytes=b"\0anyone\0" + token.encode())


def _produce() -> Any:
    of = _newest(messages.PRODUCE)
    part = of.PartitionProduceData(index=0, records=b"x")
    return of.ProduceRequest(
        acks=1,
        timeout=timedelta(seconds=1),
        topic_data=(of.TopicProduceData(name="telemetry", partition_data=(part,)),),
    )


def _configs() -> Any:
    of = _newest(messages.DESCRIBE_CONFIGS)
    asked = of.DescribeConfigsResource(resource_type=2, resource_name="telemetry", configuration_keys=None)
    return of.DescribeConfigsRequest(resources=(asked,))


_BODIES = {
    messages.PRODUCE: _produce(),
    messages.FETCH: fetch({("telemetry", 0): 0, ("telemetry", 1): 5}),
    messages.LIST_OFFSETS: list_offsets({("telemetry", 0): -1}),
    messages.METADATA: metadata("telemetry", "other"),
    messages.SASL_HANDSHAKE: _newest(messages.SASL_HANDSHAKE).SaslHandshakeRequest(mechanism="PLAIN"),
    messages.API_VERSIONS: _newest(messages.API_VERSIONS).ApiVersionsRequest(
        client_software_name="test", client_software_version="1"
    ),
    messages.DESCRIBE_CONFIGS: _configs(),
    messages.SASL_AUTHENTICATE: plain("secret"),
    messages.DESCRIBE_CLUSTER: _newest(messages.DESCRIBE_CLUSTER).DescribeClusterRequest(
        include_cluster_authorized_operations=False
    ),
}
SEEDS = [
    (key, version, _BODIES[key]) for key, api in sorted(APIS.items()) for version in range(api.first, api.last + 1)
]
"""A request of each served version: key, version and body in the newest one."""


def framed(key: int, version: int, body: Any) -> bytes:
    """Return the frame of a request, its length included."""
    kind = load_request_schema(key, version)
    header, buffer = kind.__header_schema__, io.BytesIO()
    fields = {"request_api_key": key, "request_api_version": version, "correlation_id": 7, "client_id": "test"}
    entity_writer(header)(buffer, header(**fields))
    entity_writer(kind)(buffer, converted(body, kind))
    return struct.pack(">i", len(buffer.getvalue())) + buffer.getvalue()


class RawClient:
    """A client that sends whatever it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> RawClient:
        """Connect to a hub on this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, body: Any) -> Any:
        """Return the answer to a request in the newest version."""
        key = body.__api_key__
        self.writer.write(framed(key, APIS[key].last, body))
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        frame = await self.reader.readexactly(length)
        kind = load_response_schema(key, APIS[key].last)
        header, size = entity_reader(kind.__header_schema__)(frame, 0)
        assert header.correlation_id == 7
        return entity_reader(kind)(frame, size)[0]

    async def is_closed(self) -> bool:
        """Wait until the hub has closed the connection; whatever it sends before is ignored."""
        try:
            await self.reader.read(-1)
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        """Leave."""
        self.writer.transport.abort()
