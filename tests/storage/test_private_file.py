from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.storage.filesystem import replace_private_file

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
SERVICE = 54_321


def facts(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_uid, stat.st_gid, stat.st_mode & 0o777


@pytest.fixture(autouse=True)
def generous_mask() -> None:
    os.umask(0o022)


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    replace_private_file(str(tmp_path / "users"), b"x")
    assert facts(tmp_path / "users") == (os.geteuid(), os.getegid(), 0o600)
    assert (tmp_path / "users").read_bytes() == b"x"


def test_a_known_file_keeps_its_mode_and_no_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_bytes(b"old")
    path.chmod(0o640)
    (tmp_path / "users.new").write_bytes(b"of a crash")
    replace_private_file(str(path), b"new")
    assert (path.read_bytes(), facts(path)[2]) == (b"new", 0o640)
    assert os.listdir(tmp_path) == ["users"]


@as_root
@pytest.mark.parametrize(("folder_owner", "mode"), [(SERVICE, 0o600), (0, 0o640)])
def test_what_root_makes_is_the_service_s(tmp_path: Path, folder_owner: int, mode: int) -> None:
    os.chown(tmp_path, folder_owner, SERVICE)
    replace_private_file(str(tmp_path / "tokens"), b"x")
    assert facts(tmp_path / "tokens") == (folder_owner, SERVICE, mode)


@as_root
def test_what_root_changes_stays_the_service_s(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(b"old")
    os.chown(path, SERVICE, SERVICE)
    path.chmod(0o600)
    replace_private_file(str(path), b"new")
    assert facts(path) == (SERVICE, SERVICE, 0o600)


@as_root
def test_root_does_not_write_through_a_link_of_the_folder_s_owner(tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.write_bytes(b"precious")
    (tmp_path / "tokens.new").symlink_to(target)
    replace_private_file(str(tmp_path / "tokens"), b"x")
    assert target.read_bytes() == b"precious"
