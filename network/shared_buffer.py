"""Reads of TLS connections through one shared buffer.

For a protocol that takes ``bytes``, asyncio and uvloop create an object of 256 KiB for every decrypted read, and shrink
it to the received length; a buffered protocol avoids that. It also makes it cheap to let the C library return large
blocks at once (``MALLOC_MMAP_THRESHOLD_``, set in ``deploy/``), which halves the memory of an idle TLS connection:
uvloop has a block of 256 KiB for each, of which a page or two is used.
"""

from __future__ import annotations

import asyncio

BUFFER_BYTES = 64 << 10
"""Size of four TLS records. Further bytes come with the next round of the loop."""
_buffer = memoryview(bytearray(BUFFER_BYTES))


class SharedBufferProtocol(asyncio.BufferedProtocol):
    """A protocol that passes received bytes to another protocol as ``bytes``. All belong to the event loop's thread."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the event on."""
        self._protocol.connection_made(transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the shared buffer: ``buffer_updated`` follows before anything else happens."""
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the received bytes."""
        self._protocol.data_received(bytes(_buffer[:nbytes]))

    def pause_writing(self) -> None:
        """Pass the event on."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass the event on."""
        self._protocol.resume_writing()

    def eof_received(self) -> bool | None:
        """Pass the event on."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the event on."""
        self._protocol.connection_lost(exc)
