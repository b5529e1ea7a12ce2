"""`weft ca`: certificates that `weft hub check`, `weft edge check` and OpenSSL accept, and their revocation."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import weft
from weft.network.tls import TlsFiles, certificates_in, read_tls, refusal
from weft.protocols.lane import NodeName, node_in_certificate


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    done("ca", "init", tmp_path / "ca", "--name", "Plant A")
    return tmp_path / "ca"


def done(*arguments: object) -> str:
    result = weft(*arguments)
    assert result.exception is None, result.exception
    return str(result.output)


def refused(*arguments: object) -> str:
    result = weft(*arguments)
    assert result.exception is not None
    return str(result.exception)


def listed(authority: Path) -> list[dict[str, Any]]:
    issued: list[dict[str, Any]] = json.loads(done("ca", "list", authority, "--json"))["issued"]
    return issued


def test_keys_are_for_their_owner_alone(authority: Path, tmp_path: Path) -> None:
    done("ca", "hub", authority, "--host", "hub.test", "--to", tmp_path / "hub")
    done("ca", "edge", authority, "press-7", "--to", tmp_path / "edge")
    for key in tmp_path.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
    assert stat.S_IMODE(authority.stat().st_mode) == 0o700
    assert sorted(path.name for path in (tmp_path / "edge").iterdir()) == [
        "authority.crt",
        "press-7.crt",
        "press-7.key",
    ]


@pytest.mark.parametrize(
    ("arguments", "file", "name"),
    [
        (("edge", "press-7"), "press-7", NodeName("default", "press-7")),
        (("edge", "press-7", "--tenant", "acme"), "press-7", NodeName("acme", "press-7")),
    ],
)
def test_a_hub_knows_an_edge_by_its_certificate(
    authority: Path, tmp_path: Path, arguments: tuple[str, ...], file: str, name: NodeName
) -> None:
    command, edge, *more = arguments
    done("ca", command, authority, edge, *more, "--to", tmp_path)
    certificate = str(tmp_path / f"{file}.crt")
    (common_name,) = certificates_in(certificate)[0].common_names
    assert node_in_certificate(common_name) == name
    assert refusal(certificate, str(tmp_path / f"{file}.key"), is_client=True) is None


def test_a_hub_is_called_by_each_of_its_names_and_no_other(authority: Path, tmp_path: Path) -> None:
    done("ca", "hub", authority, "--host", "hub.test", "--host", "10.0.0.5", "--to", tmp_path)
    pem = str(tmp_path / "hub.crt"), str(tmp_path / "hub.key")
    assert refusal(*pem, host="hub.test") is None
    assert refusal(*pem, host="10.0.0.5") is None
    assert "hub.other" in str(refusal(*pem, host="hub.other"))


def test_an_edge_s_certificate_serves_its_listeners_where_it_has_hosts(authority: Path, tmp_path: Path) -> None:
    done("ca", "edge", authority, "press-7", "--host", "press-7.lan", "--to", tmp_path)
    assert refusal(str(tmp_path / "press-7.crt"), str(tmp_path / "press-7.key"), host="press-7.lan") is None
    done("ca", "device", authority, "sensor 1", "--to", tmp_path)
    assert refusal(str(tmp_path / "sensor-1.crt"), str(tmp_path / "sensor-1.key"), host="press-7.lan") is not None


def test_a_revoked_certificate_is_on_the_list_and_others_are_not(authority: Path, tmp_path: Path) -> None:
    done("ca", "hub", authority, "--host", "hub.test", "--to", tmp_path)
    for edge in ("press-7", "press-8"):
        done("ca", "edge", authority, edge, "--to", tmp_path)
    done("ca", "revoke", authority, "press-7")
    files = TlsFiles(
        certificate=str(tmp_path / "hub.crt"),
        key=str(tmp_path / "hub.key"),
        client_ca=str(tmp_path / "authority.crt"),
        crl_file=str(authority / "authority.crl"),
    )
    serials = {int.from_bytes(each.serial, "big") for each in read_tls(files).revoked}
    known = {each["name"]: int(each["serial"], 16) for each in listed(authority)}
    assert serials == {known["press-7"]}
    assert "no certificate of 'press-7' is in force" in refused("ca", "revoke", authority, "press-7")


def test_nothing_is_overwritten_but_by_a_renewal(authority: Path, tmp_path: Path) -> None:
    done("ca", "edge", authority, "press-7", "--to", tmp_path)
    before = (tmp_path / "press-7.crt").read_bytes()
    assert "already exists" in refused("ca", "edge", authority, "press-7", "--to", tmp_path)
    assert len(listed(authority)) == 1
    assert (tmp_path / "press-7.crt").read_bytes() == before
    done("ca", "edge", authority, "press-7", "--to", tmp_path, "--replace")
    assert (tmp_path / "press-7.crt").read_bytes() != before
    assert "already exists" in refused("ca", "init", authority)


def test_an_authority_elsewhere_is_not_mixed_in(authority: Path, tmp_path: Path) -> None:
    done("ca", "init", tmp_path / "other")
    done("ca", "edge", authority, "press-7", "--to", tmp_path / "edges")
    assert "issued by another authority" in refused(
        "ca", "edge", tmp_path / "other", "press-8", "--to", tmp_path / "edges"
    )


def test_a_certificate_ends_with_its_authority_at_the_latest(tmp_path: Path) -> None:
    done("ca", "init", tmp_path / "ca", "--days", "10")
    answer = json.loads(done("ca", "edge", tmp_path / "ca", "press-7", "--to", tmp_path, "--json"))
    assert answer["until"] == json.loads(done("ca", "list", tmp_path / "ca", "--json"))["authority_until"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("hub", "{ca}", "--host", "https://hub"), "expected a host's name or address"),
        (("edge", "{ca}", "Press 7"), "is not a valid name"),
        (("device", "{ca}", "a:b"), "a name has no colon"),
        (("device", "{ca}", "x" * 65), "of 1 to 64 characters"),
        (("edge", "{missing}", "press-7"), "`weft ca init` makes an authority"),
    ],
)
def test_a_mistake_says_what_to_do(authority: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    places = {"ca": authority, "missing": tmp_path / "none"}
    given = [each.format(**places) for each in arguments]
    assert sentence in refused("ca", *given, "--to", tmp_path / "out")
    assert listed(authority) == []


def test_a_key_that_others_may_read_is_refused(authority: Path) -> None:
    (authority / "authority.key").chmod(0o644)
    assert "chmod 600" in refused("ca", "list", authority)
