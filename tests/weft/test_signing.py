"""`weft config keygen`, `sign`, `sign-code` and `verify`: keys and files, and what they refuse."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from tests.support.processes import weft
from weft.config.signing import read_public_keys, read_signed
from weft.output import Failed, Refused
from weft.protocols.link import TEXT_CHARACTERS_MAX

TEXT = "streams: {alarms: {from: 'alarms/#'}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert weft("config", "keygen", tmp_path / "ops").exit_code == 0
    (tmp_path / "presses.yaml").write_text(TEXT)
    return tmp_path


def refusal(folder: Path, *options: object, file: str = "presses.yaml") -> str:
    result = weft("config", "sign", folder / file, "--key", folder / "ops.key", *options)
    assert isinstance(result.exception, Refused), result.output
    return str(result.exception)


def test_a_group_is_signed_and_signed_again(folder: Path) -> None:
    group = ("--for", "acme/presses", "--group", "--edges", "press-*", "--edges", "oven-1", "--withdraws", "old")
    out = folder / "presses.signed.yaml"
    for file in ("presses.yaml", "presses.signed.yaml"):
        more = ("--out", out) if file != "presses.yaml" else ()
        done = weft("config", "sign", folder / file, "--key", folder / "ops.key", *group, "--order", "-3", *more)
        assert done.exit_code == 0, done.exception
    found = read_signed(out.read_text())
    assert found is not None
    assert found.text == f"{TEXT}\n", "a signature that was there is replaced"
    said = found.statement
    assert (said.tenant, said.target, said.edges) == ("acme", "group presses", ("press-*", "oven-1"))
    assert (said.order, said.withdraws) == (-3, ("group old",))
    assert said.number > 1_700_000_000, "seconds since 1970"
    shown = json.loads(weft("config", "verify", out, "--key", folder / "ops.pub", "--json").output)
    assert (shown["signed"], shown["number"], shown["edges"]) == (True, said.number, "press-*, oven-1")
    out.write_text(out.read_text().replace("alarms/#", "#"))
    wrong = weft("config", "verify", out, "--key", folder / "ops.pub").exception
    assert isinstance(wrong, Failed)
    assert "whether the file was changed" in str(wrong)


def test_mistakes_are_named_before_anything_is_signed(folder: Path) -> None:
    assert "name them with --edges" in refusal(folder, "--for", "presses", "--group")
    assert "--edges is for groups" in refusal(folder, "--for", "press-7", "--edges", "press-*")
    assert "--order is for groups" in refusal(folder, "--for", "press-7", "--order", "2")
    assert "'Press 7' is not a valid name" in refusal(folder, "--for", "Press 7")
    assert "'press-7, press-8' is not" in refusal(folder, "--for", "a", "--group", "--edges", "press-7, press-8")
    (folder / "wrong.yaml").write_text("data_dir: /tmp\n")
    assert "data_dir: cannot be set by a hub" in refusal(folder, "--for", "press-7", file="wrong.yaml")
    (folder / "wrong.yaml").write_text("# " + "x" * TEXT_CHARACTERS_MAX + f"\n{TEXT}\n")
    assert f"{TEXT_CHARACTERS_MAX} are possible" in refusal(folder, "--for", "press-7", file="wrong.yaml")
    assert not list(folder.glob("*.signed.yaml"))


def test_a_private_key_is_private_and_of_the_one_algorithm(folder: Path) -> None:
    key = folder / "ops.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    again = weft("config", "keygen", folder / "ops").exception
    assert "exists already" in str(again)
    key.chmod(0o644)
    assert "run chmod 600" in refusal(folder, "--for", "press-7")
    key.chmod(0o600)
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other = ec.generate_private_key(ec.SECP256R1())
    key.write_bytes(other.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    assert "it is not a key of Ed25519" in refusal(folder, "--for", "press-7")
    (folder / "ec.pub").write_bytes(
        other.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    assert "it is not a key of Ed25519" in read_public_keys([str(folder / "ec.pub")]).problems[0]
    closed = ed25519.Ed25519PrivateKey.generate()
    key.write_bytes(closed.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"word")))
    assert "not a private key in PEM without a password" in refusal(folder, "--for", "press-7")


def test_without_the_library_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    assert "Install weft-fabric[signatures]" in refusal(folder, "--for", "press-7")
    known = read_public_keys([str(folder / "ops.pub")])
    assert known.keys == ()
    assert "Install weft-fabric[signatures]" in known.problems[0]
