from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tokens import create_token
from weft.cloud_hub.auth.tokens import TokenIdentity, TokensUnusable, hash_token, read_tokens
from weft.hub_api.rights import Scope

OF_NOTHING = hash_token("").encode()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "tokens.yaml")


def test_a_file_has_the_hashes_of_tokens_and_what_they_open(path: str) -> None:
    edge = create_token(path, "press 7", Scope.EDGE, "acme", "press-7")
    reader = create_token(path, "anna", Scope.READER, "acme")
    assert read_tokens(Path(path).read_bytes(), path) == [
        TokenIdentity("press 7", hash_token(edge), Scope.EDGE, "acme", "press-7"),
        TokenIdentity("anna", hash_token(reader), Scope.READER, "acme"),
    ]
    assert len({edge, reader}) == 2
    assert len(edge) >= 43


@pytest.mark.parametrize(
    ("content", "text"),
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
def test_a_file_that_is_wrong_says_where(path: str, content: str, text: str) -> None:
    with pytest.raises(TokensUnusable, match=text):
        read_tokens(content.encode(), path)


@pytest.mark.parametrize("content", [b"", b"false", b"tokens:\n- name: a\n  scope: reader\n  sha256: " + OF_NOTHING])
def test_a_file_that_declares_no_token_that_opens_something_is_refused(content: bytes) -> None:
    with pytest.raises(TokensUnusable):
        read_tokens(content, "tokens.yaml")


def test_a_fleet_of_tokens_is_read() -> None:
    rest = "\n  scope: edge\n  edge: edge-"
    lines = [f"- name: edge-{n}\n  sha256: {hash_token(f'token {n}')}{rest}{n}" for n in range(10_100)]
    read = read_tokens("\n".join(["tokens:", *lines]).encode(), "tokens")
    assert len(read) == 10_100
    assert (read[-1].sha256, read[-1].edge) == (hash_token("token 10099"), "edge-10099")
