"""The key ring, the sources of its key, and what is sealed under it."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from weft.protocols.errors import Corrupt
from weft.storage.filesystem import OSFileSystem, write_atomically
from weft.storage.segment_log import cipher, encryption
from weft.storage.segment_log.encryption import (
    COPY,
    FILE,
    KeyRing,
    KeySource,
    KeyUnavailable,
    SealedFileSystem,
    make_ring,
)
from weft.storage.segment_log.settings import HEAD

FIRST, SECOND = "11" * 32, "22" * 32
DISK = OSFileSystem()


def key_file(folder: Path, *keys: str) -> KeySource:
    path = folder / "key"
    path.write_text("\n".join(keys))
    path.chmod(0o600)
    return KeySource(key_file=str(path))


def opened(folder: Path, given: KeySource) -> KeyRing:
    return KeyRing(DISK, str(folder), given, given.masters())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a ring under the first key."""
    folder = tmp_path / "data"
    folder.mkdir()
    make_ring(DISK, str(folder), key_file(tmp_path, FIRST), 1)
    return folder


def test_a_rotation_reads_what_was_before_and_needs_the_new_key_alone(data: Path, tmp_path: Path) -> None:
    given = key_file(tmp_path, FIRST)
    ring = opened(data, given)
    old = ring.cipher.seal(b"before", b"")
    assert not ring.rotate(2)
    key_file(tmp_path, SECOND)
    assert ring.rotate(2)
    new = ring.cipher.seal(b"after", b"")
    assert HEAD.unpack_from(old)[0] != HEAD.unpack_from(new)[0]
    again = opened(data, given)
    assert (again.cipher.open(old, b""), again.cipher.open(new, b"")) == (b"before", b"after")
    assert again.lookup_key == ring.lookup_key
    key_file(tmp_path, FIRST)
    with pytest.raises(KeyUnavailable, match="another key"):
        opened(data, given)


def test_a_reader_beside_a_node_that_rotates_finds_the_new_key(data: Path, tmp_path: Path) -> None:
    given = key_file(tmp_path, FIRST)
    ring, reader = opened(data, given), opened(data, given)
    key_file(tmp_path, SECOND)
    assert ring.rotate(2)
    assert reader.cipher.open(ring.cipher.seal(b"after", b""), b"") == b"after"


@pytest.mark.parametrize("damaged", [FILE, COPY])
def test_one_damaged_file_of_the_ring_is_replaced_from_the_other(data: Path, tmp_path: Path, damaged: str) -> None:
    given = key_file(tmp_path, FIRST)
    opened(data, given).repair()
    sound = (data / damaged).read_bytes()
    (data / damaged).write_bytes(sound[:40] + bytes([sound[40] ^ 1]) + sound[41:])
    opened(data, given).repair()
    assert (data / damaged).read_bytes() == sound
    (data / FILE).write_bytes(b"")
    (data / COPY).unlink()
    with pytest.raises(KeyUnavailable, match="cannot be read"):
        opened(data, given)


def test_a_second_ring_never_replaces_the_first(data: Path, tmp_path: Path) -> None:
    before = (data / FILE).read_bytes()
    make_ring(DISK, str(data), key_file(tmp_path, SECOND), 2)
    assert (data / FILE).read_bytes() == before
    assert sorted(path.name for path in data.iterdir()) == [FILE]


def test_no_nonce_comes_twice_under_one_key(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cipher, "CALLS_MAX", 3)
    given = key_file(tmp_path, FIRST)
    seen = set()
    for _ in range(3):
        ring = opened(data, given)
        seen |= {HEAD.unpack_from(ring.cipher.seal(b"x", b"")) for _ in range(10)}
    assert len(seen) == 30
    before = HEAD.unpack_from(ring.cipher.seal(b"x", b""))
    monkeypatch.setattr("os.getpid", lambda: -1)  # a child that was forked
    assert HEAD.unpack_from(ring.cipher.seal(b"x", b""))[1] != before[1]


def test_changed_bytes_and_another_place_are_noticed(data: Path, tmp_path: Path) -> None:
    disk = SealedFileSystem(DISK, opened(data, key_file(tmp_path, FIRST)))
    path = data / "state.json"
    write_atomically(disk, str(path), b"a known word")
    sealed = path.read_bytes()
    assert b"known" not in sealed
    assert disk.read(str(path)) == b"a known word"
    (data / "other.json").write_bytes(sealed)
    path.write_bytes(sealed[:-1] + bytes([sealed[-1] ^ 1]))
    for name in ("state.json", "other.json"):
        with pytest.raises(OSError, match="damaged"):
            disk.read(str(data / name))
    with pytest.raises(Corrupt):
        disk.ring.cipher.open(b"short", b"")


def test_a_key_comes_in_hex_or_base64_from_a_file_a_command_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_TEST_KEY", base64.b64encode(bytes.fromhex(FIRST)).decode())
    wanted = [bytes.fromhex(FIRST)]
    assert KeySource(environment="WEFT_TEST_KEY").masters() == [b"\x11" * 32] == wanted
    assert key_file(tmp_path, FIRST).masters() == wanted
    assert KeySource(command=(sys.executable, "-c", f"print('{FIRST}')")).masters() == wanted


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(3)", "status 3"),
        ("print('ab')", "not 32 bytes"),
        ("print('x' * 100000)", "more than"),
        ("import time; time.sleep(60)", "gave no key"),
        ("", "no key"),
    ],
)
def test_a_command_that_gives_no_key_is_refused_in_time(
    program: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "COMMAND_SECONDS", 0.5 if "sleep" in program else 30.0)
    with pytest.raises(KeyUnavailable, match=message):
        KeySource(command=(sys.executable, "-c", program)).masters()


def test_a_key_file_that_others_may_read_is_refused_and_no_message_has_the_key(tmp_path: Path) -> None:
    given = key_file(tmp_path, FIRST)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(KeyUnavailable, match="other users") as found:
        given.masters()
    assert FIRST not in str(found.value)
    given = key_file(tmp_path, "secret" * 10)
    with pytest.raises(KeyUnavailable, match="not 32 bytes") as found:
        given.masters()
    assert "secret" not in str(found.value).replace(str(tmp_path), "")
    with pytest.raises(KeyUnavailable, match="not set"):
        KeySource(environment="WEFT_NO_SUCH_VARIABLE").masters()
