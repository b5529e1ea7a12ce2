"""The users file: hashes only, everything else in it stays, and it never shows what is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.edge_node.access import users
from weft.edge_node.access.users import UsersUnusable


def test_a_password_is_kept_as_an_argon2id_hash(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert users.add(str(path), "press-7", b"correct horse")
    assert path.read_text().startswith("press-7:$argon2id$")
    assert "correct" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    hashed = users.read(str(path))["press-7"]
    assert users.verify(hashed, b"correct horse")
    assert not users.verify(hashed, b"wrong horse")


def test_changes_leave_the_rest_of_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "users"
    users.add(str(path), "first", b"1")
    users.add(str(path), "second", b"2")
    path.write_text(f"# the presses\n\n{path.read_text()}")
    os.chmod(path, 0o640)
    assert not users.add(str(path), "first", b"other")
    assert path.read_text().startswith("# the presses\n\nfirst:")
    assert users.verify(users.read(str(path))["first"], b"other")
    users.remove(str(path), "first")
    assert list(users.read(str(path))) == ["second"]
    assert path.read_text().startswith("# the presses\n\nsecond:")
    assert path.stat().st_mode & 0o777 == 0o640


def test_an_unknown_user_cannot_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    users.add(str(path), "first", b"1")
    with pytest.raises(UsersUnusable, match="there is no user 'x'"):
        users.remove(str(path), "x")


@pytest.mark.parametrize("name", ["", " a", "a:b", "#a", "a\n", "x" * 257])
def test_names_that_the_file_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsersUnusable):
        users.add(str(tmp_path / "users"), name, b"password")
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize("password", [b"", b"x" * 1025])
def test_passwords_have_bounds(tmp_path: Path, password: bytes) -> None:
    with pytest.raises(UsersUnusable, match="1 to 1024 bytes"):
        users.add(str(tmp_path / "users"), "a", password)


@pytest.mark.parametrize(
    "line",
    [
        "hunter2",
        "name:hunter2",
        "name:$2b$12$hunter2hunter2hunter2hunter2hunter2hunter2hunter2hun",
        "name:$argon2i$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aHVudGVyMmh1bnRlcjI",
        "name:$argon2id$v=19$m=99999999,t=2,p=1$c2FsdHNhbHQ$aHVudGVyMmh1bnRlcjI",
    ],
)
def test_what_is_no_argon2id_hash_is_refused_without_showing_it(line: str) -> None:
    with pytest.raises(UsersUnusable, match="users:2: expected name:hash") as caught:
        users.parse(f"# users\n{line}\n", "users")
    assert "hunter2" not in str(caught.value)


def test_a_name_comes_once() -> None:
    line = f"a:{users.hasher().hash(b'x')}\n"
    with pytest.raises(UsersUnusable, match="users:2: user 'a' already exists"):
        users.parse(line * 2, "users")
