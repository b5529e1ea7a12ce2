"""A bound on the records of a TLS connection that carry no data.

OpenSSL takes any number of them within one read (KeyUpdates of TLS 1.3, at 17 us and 27 bytes each), and asyncio and
uvloop give it up to 256 KiB at once: a step of 0.1 s, which no budget of decrypted bytes sees.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Any

HANDSHAKE_RECORDS_MAX = 256
"""Maximum number of records of a client's handshake. 100 KiB of certificates, the most that OpenSSL takes, fit in
records of 512 bytes, the smallest that clients ask for."""
AT_ONCE = 32
"""Number of records that OpenSSL gets at once."""
PIECE_BYTES = 16 << 10
WITHOUT_DATA_BURST = 32
"""Records without data that a client may send at once. A client with a good reason sends one in hours."""
WITHOUT_DATA_PER_S = 1.0
_HEADER_BYTES = 5
_TYPES = range(20, 25)
"""Content types of records (RFC 8446, section 5.1)."""


class TooManyRecords(ssl.SSLError):
    """An error that ends a connection whose records carry no data."""


class BoundedRecords(ssl.SSLObject):
    """A server's TLS connection that gives OpenSSL some records at a time, and ends when too many carry no data."""

    incoming: ssl.MemoryBIO
    """Ciphertext that asyncio or uvloop received."""
    taken: ssl.MemoryBIO
    """The part of it that OpenSSL may read."""
    kept: tuple[Callable[[bytes], None], ssl.MemoryBIO] | None = None
    """Keeper of the alert of a handshake that fails, and the buffer that OpenSSL writes it to; None once it is over."""
    _held = b""
    """Ciphertext between the two, less than a piece."""
    _missing = 0
    """Bytes of the current record that OpenSSL did not get yet."""
    _owing = 0
    """Whole records that OpenSSL got, less those whose data was read."""
    _handshake_records = 0
    _allowance = float(WITHOUT_DATA_BURST)
    _allowance_at = 0.0
    _monotonic = staticmethod(time.monotonic)

    def do_handshake(self) -> None:
        """Continue the handshake.

        Raises:
            TooManyRecords: it has too many.
        """
        try:
            self._shake_hands()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            kept, self.kept = self.kept, None
            if kept is not None:
                kept[0](kept[1].read())
            raise
        self.kept = None

    def _shake_hands(self) -> None:
        while True:
            try:
                return super().do_handshake()
            except ssl.SSLWantReadError:
                self._owing = 0  # what follows the handshake's last record is data
                if not self._take():
                    raise
            self._handshake_records += self._owing
            if self._handshake_records > HANDSHAKE_RECORDS_MAX:
                raise TooManyRecords(f"its handshake has more than {HANDSHAKE_RECORDS_MAX} TLS records")

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002
        """Read decrypted data.

        Raises:
            TooManyRecords: too many records had none.
        """
        while True:
            try:
                got = super().read(len, buffer)
            except ssl.SSLWantReadError:
                if self._owing > 0:
                    self._charge(self._owing)
                self._owing = 0
                if not self._take():
                    raise
            else:
                self._owing -= 1
                return got

    def pending(self) -> int:
        """Return the bytes that are here beside ``incoming``: uvloop stops reading when there are none."""
        return super().pending() + self.taken.pending + len(self._held)

    def unwrap(self) -> None:
        """Shut the connection down: read up to the peer's last record."""
        while True:
            try:
                return super().unwrap()
            except ssl.SSLWantReadError:
                if not self._take():
                    raise

    def _take(self) -> bool:
        """Give OpenSSL more. Return whether there was more."""
        data = self._held
        if len(data) < PIECE_BYTES:
            data += self.incoming.read(PIECE_BYTES - len(data))
        size, end = len(data), self._missing
        whole = int(0 < end <= size)
        while whole < AT_ONCE and end + _HEADER_BYTES <= size:
            if data[end] not in _TYPES:
                end = size  # OpenSSL refuses what is no record, whatever follows
                break
            end += _HEADER_BYTES + (data[end + 3] << 8 | data[end + 4])
            whole += end <= size
        given = min(end, size)
        self._missing, self._owing = end - given, self._owing + whole
        self._held = data[given:]
        self.taken.write(data[:given])
        return given > 0

    def _charge(self, records: int) -> None:
        now = self._monotonic()
        refilled = self._allowance + (now - self._allowance_at) * WITHOUT_DATA_PER_S
        self._allowance, self._allowance_at = min(WITHOUT_DATA_BURST, refilled) - records, now
        if self._allowance < 0:
            raise TooManyRecords("too many of its TLS records carry no data (such as KeyUpdates)")
