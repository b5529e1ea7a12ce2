"""`weft token`: tokens are shown once and kept as hashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weft.cli import cli
from weft.cloud_hub.api.tokens import TokenFile
from weft.output import Refused


def token(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["token", *arguments], catch_exceptions=False)


def test_a_token_is_shown_once_and_stored_as_a_hash(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    made = token("add", "shop", "--file", path, "--scope", "edge", "--edge", "press-shop-7").output.strip()
    assert len(made) > 40
    assert made not in Path(path).read_text()
    listed = json.loads(token("list", "--file", path, "--json").output)
    assert listed == [{"name": "shop", "scope": "edge", "tenant": "default", "edge": "press-shop-7", "grants": []}]
    assert made not in token("list", "--file", path).output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--scope", "reader", "--tenant", ""), "tenant and edge need"),
        (("--scope", "edge"), "scope 'edge' needs an edge"),
        (("--scope", "reader", "--edge", "a"), "the other scopes must not have one"),
        (("--scope", "reader", "--tenant", "Other Tenant"), "tenant and edge need"),
        (("--scope", "reader", "--grant", "read"), "a token has a scope, or grants"),
        (("--grant", "write:a"), "grants to write need an edge"),
        (("--grant", "operator", "--edge", "a"), "the others must not have one"),
        (("--grant", "read:a", "--edge", "a"), "the others must not have one"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(Refused, match=error):
        token("add", "shop", "--file", str(path), *arguments)
    assert not path.exists()


def test_names_are_unique(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    token("add", "reader", "--file", path, "--scope", "reader")
    with pytest.raises(Refused, match="already"):
        token("add", "reader", "--file", path, "--scope", "reader")


def test_a_revoked_token_opens_nothing_and_the_others_go_on(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    anna, bert = (token("add", name, "--file", path, "--scope", "reader").output.strip() for name in ("anna", "bert"))
    hub = TokenFile(path)
    removed = json.loads(token("remove", "anna", "--file", path, "--json").output)["removed"]
    assert removed == {"name": "anna", "scope": "reader", "tenant": "default", "edge": None, "grants": []}
    assert hub.identify(anna) is None
    assert hub.identify(bert) is not None
    assert [each["name"] for each in json.loads(token("list", "--file", path, "--json").output)] == ["bert"]
    assert token("remove", "bert", "--file", path).output == "removed bert\n"
    assert hub.identify(bert) is None
    assert json.loads(token("list", "--file", path, "--json").output) == []


def test_revoking_what_is_not_there_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(Refused, match="no token 'anna'; there are: none"):
        token("remove", "anna", "--file", str(path))
    assert not path.exists()
    token("add", "bert", "--file", str(path), "--scope", "reader")
    before = path.read_bytes()
    with pytest.raises(Refused, match="no token 'anna'; there are: 'bert'"):
        token("remove", "anna", "--file", str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 200])
def test_a_name_that_no_list_can_show_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="printable characters"):
        token("add", name, "--file", str(tmp_path / "tokens"), "--scope", "reader")


def test_a_file_that_is_no_tokens_file_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    for content in (b"tokens: [1", b"[" * 10_000, b"\xff\xfe", b"tokens: 7"):
        path.write_bytes(content)
        with pytest.raises(Refused, match=str(path)):
            token("remove", "anna", "--file", str(path))
        assert path.read_bytes() == content
