"""MessagePack: types that are not those of fields, and keys that collide."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from tests.functions.formats.values import same
from tests.support.steps import quickest_s, worked_s
from weft.functions.contract import PayloadError
from weft.functions.formats import PAYLOAD_BYTES_MAX, QUICK_BYTES_MAX, MsgpackFormat

MSGPACK = MsgpackFormat()
PADDING = b"\xda\x20\x00" + b"p" * 8_192
"""A text that makes a payload a long one."""


def both(item: bytes) -> list[bytes]:
    """A payload with an item, short and long."""
    assert len(PADDING) > QUICK_BYTES_MAX
    return [b"\x92\xa0" + item, b"\x92" + PADDING + item]


def test_names_that_are_integers_become_text() -> None:
    for payload in both(b"\x82\x01\xa1a\xff\x81\x05\xc0"):
        assert MSGPACK.decode(payload)["value"][1] == {"1": "a", "-1": {"5": None}}


def test_timestamps_become_seconds() -> None:
    moment = datetime(2026, 11, 21, 10, 0, 0, 250_000, UTC)
    for payload in both(msgspec.msgpack.encode(moment)):
        assert MSGPACK.decode(payload)["value"][1] == moment.timestamp()


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b"\xd4\x05\x01", "extension type 5"),
        (b"\xc7\x00\x05", "extension type 5"),
        (b"\x81\x91\x01\x01", ""),
        (b"\x81\x90\x01", ""),
        (b"\x81\xc4\x01a\x01", ""),
        (b"\x81\xc0\x01", ""),
        (b"\x81\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00\x01", ""),
        (b"\x81\x80\x01", ""),
        (b"\x81\xd6\xff\x00\x00\x00\x01\x01", ""),
        (b"\x82\x01\x01\xa11\x02", "once as a number and once as text"),
        (b"\xc1", "not MessagePack"),
        (b"\xa1\xff", "not MessagePack"),
        (b"\x01\x01", "not MessagePack"),
        (b"\xdd\x7f\xff\xff\xff", "not MessagePack"),
        (b"\xdf\x7f\xff\xff\xff", "not MessagePack"),
        (b"\xc6\x7f\xff\xff\xff", "not MessagePack"),
        (b"\xd7\xff" + b"\xff" * 8, "not MessagePack"),
        (b"\xc7\x0c\xff\0\0\0\0" + b"\x7f" * 8, "not MessagePack"),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else "",
)
def test_items_that_are_refused(item: bytes, reason: str) -> None:
    for payload in both(item):
        with pytest.raises(PayloadError) as caught:
            MSGPACK.decode(payload)
        assert reason in str(caught.value) or len(payload) > QUICK_BYTES_MAX


def test_short_and_long_payloads_are_read_alike() -> None:
    value = {"a": [1, -1, 2.5, "text", b"\x00", None, True, {"b": [], "c": {}}], "d": {"e": [[{"f": 1}]]}}
    item = msgspec.msgpack.encode(value)
    for payload in both(item):
        assert same(MSGPACK.decode(payload)["value"][1], value)


WORD = (1 << 64) - 1


def _mixed(state: int, lane: int) -> int:
    """A step of Python's hash of tuples (xxHash)."""
    state = (state + lane * 14_029_467_366_897_019_727) & WORD
    return (state << 31 | state >> 33) * 11_400_714_785_074_694_791 & WORD


def colliding(count: int) -> list[tuple[int, int]]:
    """Pairs with one hash. The hash mixes the first integer before it adds the second, so that can make up for it."""
    inverse = pow(14_029_467_366_897_019_727, -1, 1 << 64)
    keys: list[tuple[int, int]] = []
    first = 0
    while len(keys) < count:
        first += 1
        second = (5 - _mixed(2_870_177_450_012_600_261, first)) * inverse & WORD
        if second < (1 << 61) - 1:  # an integer that is its own hash
            keys.append((first, second))
    assert len(set(map(hash, keys))) == 1
    return keys


@pytest.mark.parametrize(("count", "reason"), [(250, "type tuple"), (12_000, "not MessagePack")])
def test_keys_that_collide_take_no_time(count: int, reason: str) -> None:
    """In a dictionary, 12,000 of them take seconds."""
    # Without the dictionary that would take as long here.
    payload = b"\xde" + count.to_bytes(2) + b"".join(msgspec.msgpack.encode(key) + b"\0" for key in colliding(count))
    assert (len(payload) > QUICK_BYTES_MAX) == (count > 250)
    assert len(payload) < PAYLOAD_BYTES_MAX

    def refuse() -> None:
        with pytest.raises(PayloadError, match=reason):
            MSGPACK.decode(payload)

    assert quickest_s(lambda: worked_s(refuse), 0.05) <= 0.05


def _at_depth(frames: int, payload: bytes) -> str:
    """Why a payload is refused, with so many more calls on the stack."""
    if frames:
        return _at_depth(frames - 1, payload)
    with pytest.raises(PayloadError) as caught:
        MSGPACK.decode(payload)
    return str(caught.value)


@pytest.mark.parametrize("tail", [b"\x01", b"\xdc\xea\x60" + b"\xa3abc" * 60_000], ids=["short", "long"])
@pytest.mark.parametrize("depth", [40, 520, 700, 900, 1_100])
def test_the_reason_is_the_same_wherever_a_deep_payload_is_decoded(depth: int, tail: bytes) -> None:
    """Reasons are in the stream of errors, which is the same after a restart."""
    payload = b"\x91" * depth + tail
    assert len({_at_depth(frames, payload) for frames in (0, 100, 300, 500)}) == 1
