from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.cloud_hub.api.tokens import (
    Scope,
    TokenFile,
    TokenIdentity,
    TokensUnusable,
    create_token,
    hash_token,
    read_tokens,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "tokens.yaml")


def test_a_token_opens_what_it_was_made_for_and_the_file_does_not_hold_it(path: str) -> None:
    edge = create_token(path, "press 7", Scope.EDGE, "acme", "press-7")
    reader = create_token(path, "anna", Scope.READER, "acme")
    tokens = TokenFile(path)
    assert tokens.identify(edge) == TokenIdentity("press 7", hash_token(edge), Scope.EDGE, "acme", "press-7")
    assert tokens.identify(reader) == TokenIdentity("anna", hash_token(reader), Scope.READER, "acme")
    content = Path(path).read_text()
    assert edge not in content
    assert reader not in content
    assert len({edge, reader}) == 2
    assert len(edge) >= 43


@pytest.mark.parametrize("token", [None, "", "x", "x" * 10_000, "é"])
def test_anything_else_opens_nothing(path: str, token: str | None) -> None:
    create_token(path, "anna", Scope.READER)
    assert TokenFile(path).identify(token) is None


def test_a_hash_is_no_token(path: str) -> None:
    token = create_token(path, "anna", Scope.READER)
    assert TokenFile(path).identify(hash_token(token)) is None


def test_tokens_come_and_go_while_the_hub_runs(path: str) -> None:
    first = create_token(path, "first", Scope.READER)
    tokens = TokenFile(path)
    second = create_token(path, "second", Scope.ADMIN)
    assert tokens.identify(second) is not None
    Path(path).write_text("tokens: []\n")
    assert tokens.identify(first) is None
    assert tokens.identify(second) is None


def test_a_damaged_file_leaves_the_last_good_one_in_force(path: str, caplog: pytest.LogCaptureFixture) -> None:
    token = create_token(path, "anna", Scope.READER)
    tokens = TokenFile(path)
    Path(path).write_text("tokens: [{name: half")
    assert tokens.identify(token) is not None
    assert "cannot be used" in caplog.text
    os.remove(path)
    assert tokens.identify(token) is not None
    assert f"{path}: there is no such file" in caplog.text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("tokens: [{name: a, sha256: zz, scope: reader}]", "sha256"),
        ("tokens: [{name: a, sha256: %s, scope: edge}]" % ("ab" * 32), "needs an edge"),
        ("tokens: [{name: a, sha256: %s, scope: reader, edge: b}]" % ("ab" * 32), "needs an edge"),
        ("tokens: [{name: a, sha256: %s, scope: owner}]" % ("ab" * 32), "scope"),
        ("tokens: [{name: a, sha256: %s, scope: reader, tenant: A/B}]" % ("ab" * 32), "tenant"),
        ("tokens: [{name: a, sha256: %s, scope: reader, expires: 1}]" % ("ab" * 32), "expires"),
        ("tokens: 5", "tokens"),
        ("[", "expected"),
    ],
)
def test_a_file_that_is_wrong_says_where(path: str, content: str, told: str) -> None:
    with pytest.raises(TokensUnusable, match=told):
        read_tokens(content.encode(), path)


def test_names_are_unique_and_edges_belong_to_edge_tokens(path: str) -> None:
    create_token(path, "anna", Scope.READER)
    with pytest.raises(TokensUnusable, match="already"):
        create_token(path, "anna", Scope.ADMIN)
    with pytest.raises(TokensUnusable, match="needs an edge"):
        create_token(path, "gate", Scope.EDGE)
    assert len(read_tokens(Path(path).read_bytes(), path)) == 1


def test_an_empty_file_has_no_tokens() -> None:
    assert read_tokens(b"", "tokens.yaml") == []


def test_a_fleet_of_tokens_is_read_and_each_is_found_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    rest = "\n  scope: edge\n  edge: edge-"
    lines = [f"- name: edge-{n}\n  sha256: {hash_token(f'token {n}')}{rest}{n}" for n in range(10_100)]
    path.write_text("\n".join(["tokens:", *lines]))
    path.chmod(0o600)
    tokens = TokenFile(str(path))
    assert tokens.count == 10_100
    found = tokens.identify("token 10099")
    assert found is not None
    assert found.edge == "edge-10099"
    assert tokens.identify("token 10100") is None
