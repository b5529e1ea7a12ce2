"""`weft user`: passwords come from people or files, and go nowhere but into a hash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weft.cli import cli
from weft.output import Refused


def user(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["user", *arguments], input=typed, catch_exceptions=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "users")


def test_a_password_is_asked_for_twice_and_not_shown(file: str) -> None:
    result = user("add", "press-7", "--file", file, typed="a secret\na secret\n")
    assert result.output.endswith("added press-7\n")
    assert "a secret" not in result.output + Path(file).read_text()
    assert user("check", "press-7", "--file", file, typed="a secret\n").exit_code == 0
    wrong = user("check", "press-7", "--file", file, typed="another\n")
    assert (wrong.exit_code, "not the password of press-7" in wrong.output) == (1, True)


def test_a_password_may_come_from_a_file(file: str, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("from a file\n")
    user("add", "press-7", "--file", file, "--password-file", str(secret))
    assert user("check", "press-7", "--file", file, "--password-file", "-", typed="from a file").exit_code == 0


def test_there_is_no_way_to_give_a_password_on_the_command_line(file: str) -> None:
    assert user("add", "press-7", "a secret", "--file", file).exit_code == 2
    assert user("add", "press-7", "--password", "a secret", "--file", file).exit_code == 2


def test_users_come_and_go(file: str) -> None:
    for name in ("b", "a"):
        user("add", name, "--file", file, typed="x\nx\n")
    assert json.loads(user("list", "--file", file, "--json").output) == ["b", "a"]
    assert "b has a new password" in user("add", "b", "--file", file, typed="y\ny\n").output
    user("remove", "b", "--file", file)
    assert user("list", "--file", file).output == "a\n"
    with pytest.raises(Refused, match="there is no user 'b'"):
        user("remove", "b", "--file", file)


def test_a_bad_name_is_refused_before_a_password_is_asked_for(file: str) -> None:
    with pytest.raises(Refused, match="no colon"):
        user("add", "a:b", "--file", file)
