from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_node.listeners.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    BadFrame,
    Frames,
    closing,
    frame,
)

BYTES_MAX = 1000


def sent(opcode: int, payload: bytes, mask: bytes = b"\x37\xfa\x21\x3d", *, final: bool = True) -> bytes:
    """A client's frame."""
    unmasked = frame(opcode, payload)
    head = unmasked[: len(unmasked) - len(payload)]
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return bytes([head[0] & (0xFF if final else 0x7F), head[1] | 0x80]) + head[2:] + mask + masked


def received(frames: Frames, *reads: bytes) -> list[tuple[int, bytes]]:
    return [each for data in reads for each in frames.receive(data)]


@pytest.mark.parametrize(
    ("data", "opcode", "payload"),
    [
        ("82 85 37 fa 21 3d 7f 9f 4d 51 58", BINARY, b"Hello"),
        ("89 85 37 fa 21 3d 7f 9f 4d 51 58", PING, b"Hello"),
        ("88 80 00 00 00 00", CLOSE, b""),
    ],
)
def test_the_examples_of_the_standard(data: str, opcode: int, payload: bytes) -> None:
    """RFC 6455 section 5.7, with binary in place of text."""
    assert received(Frames(BYTES_MAX), bytes.fromhex(data)) == [(opcode, payload)]
    assert sent(opcode, payload, bytes.fromhex(data)[2:6]) == bytes.fromhex(data)


@pytest.mark.parametrize(
    ("size", "head"), [(0, "82 00"), (125, "82 7d"), (126, "82 7e 00 7e"), (65_536, "82 7f 00 00 00 00 00 01 00 00")]
)  # fmt: skip
def test_lengths_have_their_shortest_form(size: int, head: str) -> None:
    assert frame(BINARY, bytes(size)) == bytes.fromhex(head) + bytes(size)
    assert received(Frames(1 << 20), sent(BINARY, bytes(size))) == [(BINARY, bytes(size))]


def test_a_closing_frame_says_why() -> None:
    assert closing(1003) == bytes.fromhex("88 02 03 eb")


@given(
    st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=4), max_size=5),
    st.lists(st.integers(1, 40), min_size=1),
    st.binary(min_size=4, max_size=4),
)
def test_messages_come_whole_however_frames_and_reads_cut_them(
    messages: list[list[bytes]], reads: list[int], mask: bytes
) -> None:
    data, expected = b"", []
    for fragments in messages:
        for at, fragment in enumerate(fragments):
            opcode, final = BINARY if at == 0 else CONTINUATION, at == len(fragments) - 1
            data += sent(opcode, fragment, mask, final=final) + sent(PING, b"?", mask)
            expected.append((PING, b"?"))
        expected.insert(len(expected) - 1, (BINARY, b"".join(fragments)))
    frames, got, at, turn = Frames(BYTES_MAX), [], 0, 0
    while at < len(data):
        got += list(frames.receive(data[at : at + reads[turn % len(reads)]]))
        at, turn = at + reads[turn % len(reads)], turn + 1
    assert got == expected


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, b"x"), 1002),
        (sent(TEXT, b"x"), 1003),
        (sent(3, b"x"), 1002),
        (sent(11, b"x"), 1002),
        (sent(BINARY | 0x40, b"x"), 1002),
        (sent(CONTINUATION, b"x"), 1002),
        (sent(BINARY, b"x", final=False) + sent(BINARY, b"x"), 1002),
        (sent(PING, bytes(126)), 1002),
        (sent(PING, b"", final=False), 1002),
        (sent(BINARY, bytes(BYTES_MAX + 1)), 1009),
        (sent(BINARY, bytes(600), final=False) + sent(CONTINUATION, bytes(401)), 1009),
        (bytes.fromhex("82 ff ff ff ff ff ff ff ff ff 00 00 00 00"), 1009),
    ],
)
def test_what_no_client_may_send(data: bytes, code: int) -> None:
    """Also byte by byte, and with what came before it delivered."""
    good = sent(BINARY, b"good")
    for step in (1, len(data) + len(good)):
        got: list[tuple[int, bytes]] = []
        with pytest.raises(BadFrame) as caught:
            receive_into(got, good + data, step)
        assert caught.value.code == code
        assert got == [(BINARY, b"good")]


def receive_into(got: list[tuple[int, bytes]], data: bytes, step: int) -> None:
    """In reads of so many bytes."""
    frames = Frames(BYTES_MAX)
    for at in range(0, len(data), step):
        got.extend(frames.receive(data[at : at + step]))


def test_a_refused_length_is_refused_on_its_head() -> None:
    frames = Frames(BYTES_MAX)
    with pytest.raises(BadFrame):
        received(frames, sent(BINARY, bytes(BYTES_MAX + 1))[:8])
