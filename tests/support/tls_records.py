"""A TLS 1.3 client that writes records of its own, such as KeyUpdates, which Python's ``ssl`` cannot send."""

from __future__ import annotations

import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

APPLICATION_DATA = 23
HANDSHAKE = 22


class RecordClient:
    """A client without sockets: what it wants to send is in ``out``, what it received goes into ``received``.

    Args:
        keys: file for the secrets of the connection.
    """

    def __init__(self, trust: str, keys: Path, host: str = "localhost") -> None:
        context = ssl.create_default_context(cafile=trust)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(keys)
        self._keys = keys
        self.received, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.received, self.out, server_hostname=host)
        self._secret = b""
        self._number = 0

    def shake_hands(self) -> bool:
        """Continue with the handshake. Return whether it is over."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        lines = (line.split() for line in self._keys.read_text().splitlines())
        self._secret = next(bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0")
        return True

    def data(self, data: bytes) -> bytes:
        """Return a record with data."""
        return self._record(APPLICATION_DATA, data)

    def key_updates(self, number: int, *, answered: bool = False) -> bytes:
        """Return as many records that change the client's key, and nothing else."""
        made = []
        for _ in range(number):
            made.append(self._record(HANDSHAKE, b"\x18\0\0\1" + bytes([answered])))
            self._secret, self._number = self._expand(b"traffic upd", len(self._secret)), 0
        return b"".join(made)

    def _record(self, content_type: int, content: bytes) -> bytes:
        suite = self.tls.cipher()
        assert suite is not None
        assert "AES" in suite[0]
        key, iv = self._expand(b"key", suite[2] // 8), self._expand(b"iv", 12)
        nonce = (int.from_bytes(iv) ^ self._number).to_bytes(12)
        self._number += 1
        header = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(content) + 1 + 16)
        return header + AESGCM(key).encrypt(nonce, content + bytes([content_type]), header)

    def _expand(self, label: bytes, length: int) -> bytes:
        """HKDF-Expand-Label of RFC 8446, section 7.1."""
        kind = hashes.SHA384() if len(self._secret) == 48 else hashes.SHA256()
        info = struct.pack(">HB", length, len(label) + 6) + b"tls13 " + label + b"\0"
        return HKDFExpand(kind, length, info).derive(self._secret)
