"""Messages of Kafka in each served version, whole, cut short and damaged."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

pytest.importorskip("kio", reason="kio is not installed: pip install weft-fabric[kafka]")

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import request as fetch
from kio.schema.fetch.v11 import response as fetched

from tests.cloud_hub.kafka.frames import SEEDS, framed
from weft.cloud_hub.kafka import messages
from weft.cloud_hub.kafka.messages import APIS, FLEXIBLE_BYTES_MAX, NO_TIME, Request, decode, encode
from weft.protocols.errors import Corrupt


@pytest.mark.parametrize(("key", "version", "body"), SEEDS)
def test_a_request_of_any_version_is_seen_in_the_newest(key: int, version: int, body: Any) -> None:
    found = decode(framed(key, version, body)[4:])
    assert (found.key, found.version, found.correlation_id, found.client_id) == (key, version, 7, "test")
    assert type(found.body) is load_request_schema(key, APIS[key].last)


def test_every_served_version_has_a_seed() -> None:
    served = {(key, version) for key, api in APIS.items() for version in range(api.first, api.last + 1)}
    assert {(key, version) for key, version, _ in SEEDS} == served


@pytest.mark.parametrize(("key", "version", "body"), SEEDS)
def test_a_request_that_is_cut_short_or_goes_on_is_refused(key: int, version: int, body: Any) -> None:
    frame = framed(key, version, body)[4:]
    for end in range(len(frame)):
        with pytest.raises(Corrupt):
            decode(frame[:end])
    with pytest.raises(Corrupt):
        decode(frame + b"\0")


def test_damage_is_refused_or_harmless() -> None:
    chance = random.Random(7)
    for _ in range(3000):
        frame = bytearray(framed(*chance.choice(SEEDS))[4:])
        for _ in range(chance.randint(1, 4)):
            frame[chance.randrange(len(frame))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            decode(bytes(frame))
        except Corrupt:
            continue


def test_a_version_that_is_not_served_is_refused_but_for_api_versions() -> None:
    for key, api in APIS.items():
        if key != messages.API_VERSIONS:
            with pytest.raises(Corrupt, match="not served"):
                decode(struct.pack(">hhih", key, api.last + 1, 7, -1))
    with pytest.raises(Corrupt, match="not served"):
        decode(struct.pack(">hhih", 22, 0, 7, -1))
    later = decode(struct.pack(">hhih", messages.API_VERSIONS, 99, 7, -1))
    assert (later.version, later.body) == (0, None)
    answer = messages.api_versions(later)
    assert answer.error_code is ErrorCode.unsupported_version
    assert {each.api_key for each in answer.api_keys} == set(APIS)
    assert struct.unpack_from(">iih", encode(later, answer)) == (len(encode(later, answer)) - 4, 7, 35)


def test_a_long_request_of_a_version_with_tagged_fields_is_refused() -> None:
    frame = struct.pack(">hhihB", messages.API_VERSIONS, 3, 7, -1, 0) + b"\1\1" + bytes(FLEXIBLE_BYTES_MAX)
    with pytest.raises(Corrupt, match=str(FLEXIBLE_BYTES_MAX)):
        decode(frame)


def test_fields_that_an_older_version_lacks_are_left_out() -> None:
    part = fetched.PartitionData(
        partition_index=3,
        error_code=ErrorCode.none,
        high_watermark=9,
        last_stable_offset=9,
        aborted_transactions=None,
        records=b"abc",
    )
    topic = fetched.FetchableTopicResponse(topic="telemetry", partitions=(part,))
    answer = fetched.FetchResponse(throttle_time=NO_TIME, error_code=ErrorCode.none, responses=(topic,))
    frames = {each: encode(Request(messages.FETCH, each, 7, "", None), answer) for each in range(4, 12)}
    assert all(frame.endswith(b"abc") for frame in frames.values())
    # Log start from 5 on, error and session from 7 on, replica from 11 on.
    assert [len(frames[each]) - len(frames[4]) for each in (5, 7, 11)] == [8, 14, 18]
    asked = fetch.FetchTopic(topic="telemetry", partitions=())
    assert messages.converted(asked, fetch.FetchTopic) is asked
