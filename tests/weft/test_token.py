"""`weft token`: tokens are shown once and kept as hashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weft.cli import cli
from weft.output import Refused


def token(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["token", *arguments], catch_exceptions=False)


def test_a_token_is_shown_once_and_stored_as_a_hash(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    made = token("create", "shop", "--file", path, "--scope", "edge", "--edge", "press-shop-7").output.strip()
    assert len(made) > 40
    assert made not in Path(path).read_text()
    listed = json.loads(token("list", "--file", path, "--json").output)
    assert listed == [{"name": "shop", "scope": "edge", "tenant": "default", "edge": "press-shop-7"}]
    assert made not in token("list", "--file", path).output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--scope", "edge"), "scope 'edge' needs an edge"),
        (("--scope", "reader", "--edge", "a"), "the other scopes must not have one"),
        (("--scope", "reader", "--tenant", "Other Tenant"), "tenant and edge need"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(Refused, match=error):
        token("create", "shop", "--file", str(path), *arguments)
    assert not path.exists()


def test_names_are_unique(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    token("create", "reader", "--file", path, "--scope", "reader")
    with pytest.raises(Refused, match="already"):
        token("create", "reader", "--file", path, "--scope", "reader")
