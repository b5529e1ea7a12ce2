"""Revocation lists: which certificates they name, and until when they count."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from tests.support.certificates import Authority, Pem
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node import preflight
from weft.edge_node.check.rules import check
from weft.network.tls import CertificateName, TlsUnusable, certificate_name, read_lists, revoked_by


def name_of(pem: Pem) -> CertificateName:
    certificate = x509.load_pem_x509_certificate(Path(pem.certificate).read_bytes())
    return certificate_name(certificate.public_bytes(Encoding.DER))


def test_a_list_names_certificates_of_its_own_authority(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours, theirs = Authority(tmp_path), Authority(tmp_path / "other", "another")
    pems = [ours.sign(f"device-{number}") for number in range(100)]
    path = Path(ours.revoke(*pems[:80]))
    path.write_bytes(path.read_bytes() + Path(theirs.revoke()).read_bytes())
    first, second = read_lists(str(path))
    assert revoked_by([first, second]) == {name_of(pem) for pem in pems[:80]}
    assert not second.revoked
    assert name_of(theirs.sign("device-0")) not in first.revoked
    assert first.next_update is not None
    assert abs(first.next_update - datetime.now(UTC) - timedelta(days=1)) < timedelta(minutes=5)


def test_a_file_without_lists_is_an_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with pytest.raises(TlsUnusable, match="holds no revocation list in PEM"):
        read_lists(authority.path)
    with pytest.raises(TlsUnusable, match="there is no such file"):
        read_lists(str(tmp_path / "missing"))


@given(changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_is_an_error_or_another_list(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int]]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged lists"
    if not folder.exists():
        folder.mkdir()
        authority = Authority(folder)
        authority.revoke(authority.sign("device"))
    whole = bytearray((folder / "revoked.crl").read_bytes())
    for place, value in changes:
        whole[int(place * len(whole))] = value
    damaged = folder / "damaged.crl"
    damaged.write_bytes(bytes(whole))
    with contextlib.suppress(TlsUnusable):
        read_lists(str(damaged))


def test_a_check_says_that_a_list_is_out_of_date(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    text = (
        "node: a\ndata_dir: data\nhttp: null\ndisk: {budget: 16MiB}\nstreams: {t: {from: t}}\n"
        "listeners:\n  mqtts:\n    bind: 127.0.0.1:0\n"
        "    tls: {certificate: node.crt, key: node.key, client_ca: authority.pem, crl_file: revoked.crl}\n"
    )
    config = parse(text, str(tmp_path / "edge.yaml"), EdgeConfig, check).config
    for expired in (False, True):
        authority.revoke(expired=expired)
        said = [finding.message for finding in preflight.look(config, (), datetime.now(UTC)).unfit]
        assert len(said) == expired
        assert all("every certificate of its authority is refused. Fetch the newest one" in each for each in said)
