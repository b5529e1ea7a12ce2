"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""Usage of an authority's key."""


@dataclass(frozen=True)
class Pem:
    """Where a certificate and its key are."""

    certificate: str
    key: str


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
        )
        self.path = str(directory / f"{name}.pem")
        self._write(self.path, certificate.sign(self._key, hashes.SHA256()))

    def sign(self, common_name: str, file: str | None = None, *, expired: bool = False, unit: str | None = None) -> Pem:
        """A certificate of that common name and organisational unit, good for servers of this machine and for
        clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = {NameOID.COMMON_NAME: common_name, NameOID.ORGANIZATIONAL_UNIT_NAME: unit}
        name = x509.Name([x509.NameAttribute(kind, text) for kind, text in names.items() if text])
        here = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
        hosts = [x509.DNSName(each) for each in ("localhost", "hub.test")]
        certificate = (
            self._builder(name, key, days=-1 if expired else 1)
            .add_extension(x509.SubjectAlternativeName([*here, *hosts]), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        stem = self._directory / (file or common_name)
        self._write(f"{stem}.crt", certificate)
        (stem.parent / f"{stem.name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Pem(f"{stem}.crt", f"{stem}.key")

    def revoke(self, *certificates: Pem, expired: bool = False) -> str:
        """A file with the authority's list of revoked certificates."""
        now = datetime.datetime.now(datetime.UTC)
        revocations = x509.CertificateRevocationListBuilder().issuer_name(self._name).last_update(now - 2 * _DAY)
        for each in certificates:
            number = x509.load_pem_x509_certificate(Path(each.certificate).read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now - _DAY).build()
            revocations = revocations.add_revoked_certificate(revoked)
        signed = revocations.next_update(now - _DAY if expired else now + _DAY).sign(self._key, hashes.SHA256())
        path = self._directory / "revoked.crl"
        new = path.with_suffix(".new")
        new.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return str(new.rename(path))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + days * _DAY)
            # Python 3.13 verifies strictly, by RFC 5280: 4.2.1.1 and 4.2.1.2 ask for both.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    @staticmethod
    def _write(path: str, certificate: x509.Certificate) -> None:
        Path(path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


# --- A TLS 1.3 client that writes records of its own, such as KeyUpdates, which Python's ``ssl`` cannot send


APPLICATION_DATA = 23
HANDSHAKE = 22


class RecordClient:
    """A client without sockets: what it wants to send is in ``out``, what it received goes into ``received``.

    Args:
        keys: file for the secrets of the connection.
    """

    def __init__(self, trust: str, keys: Path, host: str = "localhost") -> None:
        context = ssl.create_default_context(cafile=trust)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(keys)
        self._keys = keys
        self.received, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.received, self.out, server_hostname=host)
        self._secret = b""
        self._number = 0

    def shake_hands(self) -> bool:
        """Continue with the handshake. Return whether it is over."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        lines = (line.split() for line in self._keys.read_text().splitlines())
        self._secret = next(bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0")
        return True

    def data(self, data: bytes) -> bytes:
        """Return a record with data."""
        return self._record(APPLICATION_DATA, data)

    def key_updates(self, number: int, *, answered: bool = False) -> bytes:
        """Return as many records that change the client's key, and nothing else."""
        made = []
        for _ in range(number):
            made.append(self._record(HANDSHAKE, b"\x18\0\0\1" + bytes([answered])))
            self._secret, self._number = self._expand(b"traffic upd", len(self._secret)), 0
        return b"".join(made)

    def _record(self, content_type: int, content: bytes) -> bytes:
        suite = self.tls.cipher()
        assert suite is not None
        assert "AES" in suite[0]
        key, iv = self._expand(b"key", suite[2] // 8), self._expand(b"iv", 12)
        nonce = (int.from_bytes(iv) ^ self._number).to_bytes(12)
        self._number += 1
        header = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(content) + 1 + 16)
        return header + AESGCM(key).encrypt(nonce, content + bytes([content_type]), header)

    def _expand(self, label: bytes, length: int) -> bytes:
        """HKDF-Expand-Label of RFC 8446, section 7.1."""
        kind = hashes.SHA384() if len(self._secret) == 48 else hashes.SHA256()
        info = struct.pack(">HB", length, len(label) + 6) + b"tls13 " + label + b"\0"
        return HKDFExpand(kind, length, info).derive(self._secret)
