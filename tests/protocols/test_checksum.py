"""The checksum of everything at rest."""

from __future__ import annotations

from weft.protocols.checksum import crc32c


def test_it_is_castagnoli_and_goes_on_behind_earlier_bytes() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"456789"), crc32c(b"123")) == 0xE3069283
