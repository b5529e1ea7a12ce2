"""Right passwords are remembered over restarts, and the file does not tell them."""

from __future__ import annotations

import json
import os
import stat
from base64 import b64encode
from hashlib import blake2b
from pathlib import Path

import pytest

from weft.edge_node.access import users
from weft.edge_node.access.authentication import FILE_NAME, SAVE_INTERVAL_S, PasswordCache

HASHED = users.hasher().hash(b"secret-of-press-7")


async def remembering(folder: Path) -> PasswordCache:
    known = PasswordCache(str(folder), lambda: 0.0)
    known.add("press-7", HASHED, b"secret-of-press-7")
    await known.save(at_end=True)
    return PasswordCache(str(folder), lambda: 0.0)


async def test_a_right_password_is_known_after_a_restart(tmp_path: Path) -> None:
    known = await remembering(tmp_path)
    assert known.knows("press-7", HASHED, b"secret-of-press-7")
    assert not known.knows("press-8", HASHED, b"secret-of-press-7")
    assert not known.knows("press-7", HASHED, b"secret-of-press-8")
    assert not known.knows("press-7", users.hasher().hash(b"secret-of-press-7"), b"secret-of-press-7"), "a new hash"


async def test_the_file_is_for_the_node_alone_and_holds_no_password(tmp_path: Path) -> None:
    await remembering(tmp_path)
    path = tmp_path / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert b"secret" not in content
    assert b"argon2" not in content
    assert b"press" not in content


@pytest.mark.parametrize("damage", [b"", b"{", b'{"key":"AA=="}', b'{"key":5}'])
async def test_a_file_that_cannot_be_used_is_begun_anew(tmp_path: Path, damage: bytes) -> None:
    await remembering(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert not PasswordCache(str(tmp_path), lambda: 0.0).knows("press-7", HASHED, b"secret-of-press-7")
    assert (await remembering(tmp_path)).knows("press-7", HASHED, b"secret-of-press-7")


async def test_a_copied_hash_is_nothing_without_its_key(tmp_path: Path) -> None:
    await remembering(tmp_path)
    copied = (tmp_path / FILE_NAME).read_text()
    key = copied.split('"')[3]
    (tmp_path / FILE_NAME).write_text(copied.replace(key, "A" * 43 + "="))
    assert not PasswordCache(str(tmp_path), lambda: 0.0).knows("press-7", HASHED, b"secret-of-press-7")


async def test_many_devices_cost_few_writes(tmp_path: Path) -> None:
    now, inodes = 0.0, set()
    known = PasswordCache(str(tmp_path), lambda: now)
    for number in range(100):
        known.add(f"press-{number}", HASHED, b"x")
        await known.save()
        inodes.add(os.stat(tmp_path / FILE_NAME).st_ino)
    assert len(inodes) == 1
    now += SAVE_INTERVAL_S
    await known.save()
    known = PasswordCache(str(tmp_path), lambda: now)
    assert all(known.knows(f"press-{number}", HASHED, b"x") for number in range(100))


async def test_without_a_folder_nothing_outlives_the_process(tmp_path: Path) -> None:
    known = PasswordCache(None, lambda: 0.0)
    known.add("press-7", HASHED, b"x")
    await known.save(at_end=True)
    assert known.knows("press-7", HASHED, b"x")
    assert not PasswordCache(None, lambda: 0.0).knows("press-7", HASHED, b"x")


def test_the_file_is_as_its_page_says(tmp_path: Path) -> None:
    entry = blake2b(b"press-7\0argon2 hash\0secret", key=bytes(range(32)), digest_size=24).digest()
    content = {"key": b64encode(bytes(range(32))).decode(), "passwords": [b64encode(entry).decode()]}
    (tmp_path / FILE_NAME).write_text(json.dumps(content))
    assert PasswordCache(str(tmp_path), lambda: 0.0).knows("press-7", "argon2 hash", b"secret")
