"""The compressed stream of a link: frames to messages and back (docs/reference/formats/link.md, "Stream").

Frames of one connection and direction pass through one streaming zstd context, flushed at each send, so that small
sends compress against earlier ones. Every length and ratio that a peer can choose is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from weft.protocols.errors import Corrupt, Truncated
from weft.protocols.link import (
    CONTROL_BYTES_MAX,
    DATA_BYTES_MIN,
    DATA_HEAD,
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    FRAME_HEADER_BYTES,
    Data,
    Frame,
    FrameType,
    decode_frame,
    encode_frame,
)

FRAMES_MAX = 16_384
"""Maximum number of frames in one message."""
STREAM_WINDOW_LOG_MAX = 17
"""Largest zstd window accepted from a peer: a hub holds one for each link. 2^21 would compress telemetry to 0.284
instead of 0.289 of its size, and take 2.7 MB a link instead of 0.4."""
SMALL_WINDOW_LOG = 10
PENDING_BYTES_MAX = FRAME_BYTES_MAX + (32 << 20)
"""Maximum number of uncompressed bytes that a receiver holds before it decodes frames."""
_JOIN_BYTES_MAX = 64 << 10
"""Bytes of frames that are joined so that the compressor is called once for all."""
_DATA = int(FrameType.DATA)
_FEED_BYTES, _FEED_BYTES_MIN = 256, 64
"""Compressed bytes given to the decompressor at a time: at first, and after a part that expands like a bomb. A 4-byte
block can stand for 128 KiB, so this bounds what one call can allocate (8 MiB, 2 MiB) and take: 9 ms. With 1,024 bytes
ordinary messages are decompressed in half the time, of 2.5 ms for a MiB, and a bomb takes 25 ms."""
_RATIO_MAX = 256
_BLOCK_BYTES = 128 << 10
"""Maximum output of one block, which may all come with its last byte (RFC 8878, section 3.1.1.2.4)."""
_UNPACKED_BYTES = 2 << 20
"""Bytes that are decompressed in a turn, in 3 ms; one call may produce more."""


class FrameEncoder:
    """Encoder of one direction of a connection: frames to compressed bytes, one flush per call.

    Args:
        level: compression level of zstd.
        small: use 30 kB of memory instead of 1 MB, for a direction that carries acknowledgements and no data.
    """

    def __init__(self, level: int = 3, *, small: bool = False) -> None:
        if small:
            parameters = zstandard.ZstdCompressionParameters(
                window_log=SMALL_WINDOW_LOG, chain_log=6, hash_log=6, search_log=1, min_match=4,
                strategy=zstandard.STRATEGY_FAST, compression_level=1,
            )  # fmt: skip
        else:
            # The size makes zstd choose tables that fit the window.
            parameters = zstandard.ZstdCompressionParameters.from_level(
                level, source_size=1 << STREAM_WINDOW_LOG_MAX, window_log=STREAM_WINDOW_LOG_MAX
            )
        self._context = zstandard.ZstdCompressor(compression_params=parameters).compressobj()

    def encode(self, frames: list[Frame]) -> bytes:
        """Encode ``frames`` as one message for the wire; the peer can decode it without waiting for more.

        Raises:
            ValueError: more than ``FRAMES_MAX`` frames, or one that is too long. Nothing was encoded.
        """
        if len(frames) > FRAMES_MAX:
            raise ValueError(f"a message of {len(frames)} frames; the limit is {FRAMES_MAX}")
        encoded = [encode_frame(frame) for frame in frames]
        if sum(map(len, encoded)) <= _JOIN_BYTES_MAX:
            encoded = [b"".join(encoded)]
        packed = [self._context.compress(part) for part in encoded]
        packed.append(self._context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        return b"".join(packed)


class FrameDecoder:
    """Decoder of one direction of a connection: compressed bytes to frames."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << STREAM_WINDOW_LOG_MAX)
        self._context = decompressor.decompressobj()
        self._data_bytes_max, self._pending_bytes_max = FRAME_BYTES_MAX, PENDING_BYTES_MAX
        self.frame_bytes = 0
        """Bytes of the last frame that was not DATA."""
        self._pending = bytearray()
        self._needed = FRAME_HEADER_BYTES
        """Number of pending bytes below which nothing is copied or decoded, so that a slow frame costs linear time."""

    def allow_data(self, bytes_max: int) -> None:
        """Accept DATA frames up to this length, and messages with one of them and the maximum of control frames."""
        self._data_bytes_max, self._pending_bytes_max = bytes_max, bytes_max + 2 * CONTROL_BYTES_MAX

    def clear(self) -> None:
        """Drop the held bytes: no more will be decoded."""
        self._pending.clear()

    @property
    def holds_part(self) -> bool:
        """Return whether the last message ended inside a frame."""
        return bool(self._pending)

    def decode(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now, in order. The batches of DATA frames are views of one copy.

        Raises:
            Corrupt: as ``frames``.
        """
        return list(self.frames(data))

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now, each decoded on demand. Read all of them before the next message.

        Raises:
            Corrupt: not a zstd stream, a frame is invalid, or the message exceeds ``PENDING_BYTES_MAX`` (or the lower
                bound of ``allow_data``), ``FRAMES_MAX`` or twice ``CONTROL_BYTES_MAX`` in control frames. The
                connection cannot continue.
        """
        for _ in self.unpack(data, in_turns=False):
            pass
        yield from self.unpacked()

    def unpacked(self) -> Iterator[Frame]:
        """Yield the frames of a message after ``unpack``. Raises as ``frames``."""
        if len(self._pending) < self._needed or self._lacks_data():
            return
        ready = bytes(self._pending)
        self._pending.clear()
        view, whole = memoryview(ready), len(ready)
        at = count = control_bytes = 0
        data_bytes_max = self._data_bytes_max
        try:
            while True:
                if whole - at > DATA_HEAD.size and count < FRAMES_MAX:
                    number, length, lane = DATA_HEAD.unpack_from(ready, at)
                    end = at + FRAME_HEADER_BYTES + length
                    # Nearly all bytes are in such frames. ``decode_frame`` handles all others, and reports their
                    # errors.
                    if number == _DATA and DATA_BYTES_MIN <= length <= data_bytes_max and end <= whole:
                        count += 1
                        yield Data(lane, view[at + DATA_HEAD.size : end])
                        at = end
                        continue
                    if number == _DATA and length > data_bytes_max:
                        raise Corrupt(f"a DATA frame of {length} bytes; the limit is {data_bytes_max}")
                frame, end = decode_frame(ready, at)
                self.frame_bytes = end - at
                control_bytes += 0 if isinstance(frame, Data) else end - at
                if count == FRAMES_MAX or control_bytes > 2 * CONTROL_BYTES_MAX:
                    raise Corrupt(f"more than {FRAMES_MAX} frames or {2 * CONTROL_BYTES_MAX} control bytes at once")
                count += 1
                yield frame
                at = end
        except Truncated:
            self._keep(view[at:])

    def unpack(self, data: bytes, *, in_turns: bool) -> Iterator[None]:
        """Decompress a message, in turns with a stop after each ``_UNPACKED_BYTES``.

        Raises:
            Corrupt: not a zstd stream, or the message expands beyond the bound.
        """
        try:
            at, feed, stop = 0, _FEED_BYTES, len(self._pending) + _UNPACKED_BYTES
            while at < len(data):
                part = self._context.decompress(data[at : at + feed])
                self._pending += part
                at += feed
                if len(part) > _RATIO_MAX * feed + _BLOCK_BYTES:
                    feed = _FEED_BYTES_MIN
                if len(self._pending) > self._pending_bytes_max:
                    raise Corrupt(f"the link's stream expands past {self._pending_bytes_max} bytes in one message")
                if self._context.eof:
                    raise Corrupt("the link's compressed stream ended before its connection")
                if in_turns and len(self._pending) > stop:
                    stop = len(self._pending) + _UNPACKED_BYTES
                    yield
        except zstandard.ZstdError as error:
            raise Corrupt(f"the link's compressed stream is damaged: {error}") from error

    def _lacks_data(self) -> bool:
        """Return whether only the start of a DATA frame is held. It may have 16 MiB, and is not copied."""
        if len(self._pending) < DATA_HEAD.size:
            return False
        number, length, _ = DATA_HEAD.unpack_from(self._pending)
        needed = FRAME_HEADER_BYTES + length
        if number != _DATA or length > self._data_bytes_max or len(self._pending) >= needed:
            return False
        self._needed = needed
        return True

    def _keep(self, rest: memoryview) -> None:
        """Keep the start of an incomplete frame for the next call."""
        self._pending = bytearray(rest)
        self._needed = FRAME_HEADER_BYTES
        if len(rest) >= FRAME_HEADER_BYTES:
            self._needed += FRAME_HEAD.unpack_from(rest)[1]
