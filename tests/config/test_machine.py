"""Why a file or folder cannot be used: whose it is, and as whom to run the command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.config.machine import run_as, user, why_denied


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is some other user than the one whose files it meets."""
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)


@pytest.mark.usefixtures("another")
def test_the_owner_of_a_file_is_named_with_the_way_to_be_that_user(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    owner = file.stat().st_uid
    said = why_denied(str(file), "read")
    assert said.startswith(f"user number 4000000 may not read it: it belongs to user {user(owner)} (mode 600). ")
    assert run_as(owner) in said
    assert said.endswith(f"or change the owner, group or mode of {file}")


@pytest.mark.usefixtures("another")
def test_a_file_that_is_not_there_is_its_folders_matter(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    said = why_denied(str(tmp_path / "no" / "tokens"), "write to")
    assert f"may not write to it: {tmp_path} belongs to user {user(tmp_path.stat().st_uid)} (mode 700)" in said


def test_a_file_of_the_users_own_needs_another_mode(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(0o000)
    said = why_denied(str(file), "read")
    assert said.endswith(f"(mode 000). Change its mode: `chmod u+rwX {file}`")


def test_advice_can_be_typed_for_every_user() -> None:
    assert run_as(0) == "Put `sudo` before the command"
    assert run_as(4_000_000) == "Put `sudo -u '#4000000'` before the command"
    assert run_as(65_534) == "Put `sudo -u nobody` before the command"
