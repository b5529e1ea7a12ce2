"""``WEFT_TEST_SEALED=1``: every log that a test of the segment log writes is encrypted, on any disk that it has."""

from __future__ import annotations

import os
import tempfile

import pytest

from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import segment_bytes, segment_file, state
from weft.storage.segment_log.encryption import KeyRing, KeySource, make_ring

MASTER = bytes(range(32))
SWITCH = "WEFT_TEST_SEALED"


def seal_all_logs() -> None:
    """Encrypt all logs of this process under one ring, if the switch is set."""
    if os.environ.get(SWITCH) == "1":
        seal(pytest.MonkeyPatch())


def seal(patch: pytest.MonkeyPatch) -> None:
    """Encrypt all logs that are written until the patch is undone."""
    ring = made_ring()
    for module in (segment_bytes, segment_file):
        patch.setattr(module, "ring_of", lambda file: ring)
    patch.setattr(state, "is_sealed", lambda disk: True)


def made_ring() -> KeyRing:
    """Return a new ring in memory."""
    disk = OSFileSystem()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("WEFT_TEST_MASTER", MASTER.hex())
        source = KeySource(environment="WEFT_TEST_MASTER")
        make_ring(disk, folder, source, 1)
        return KeyRing(disk, folder, source, source.masters())
