"""``weft ca``: a certificate authority for a plant that has none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from weft.commands.common import json_option, tenant_option, using
from weft.commands.new_files import check_user, replace, write_new
from weft.config.machine import why_unreadable
from weft.output import Failed, Refused, counted, print_json, print_table
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.filesystem import read_private_file, replace_private_file

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec


# A certificate authority in a folder, for a plant that has none: certificates of hubs, edges and devices, and the
# list of those that are revoked. Needs the library cryptography, which no running node imports for it.

CERTIFICATE_FILE, KEY_FILE, LIST_FILE, REGISTER_FILE = "authority.crt", "authority.key", "authority.crl", "issued.json"
# A folder with a key, and no authority in the hub: its key would be on the machine that most can reach. No passphrase:
# a person types it into the machine that has the file.
DAYS_MAX = 3650
AUTHORITY_DAYS = 3650
DAYS = 397
"""Days for which a certificate counts: some clients refuse those of servers that count for longer."""
LIST_DAYS = 397
"""Days until the list of revoked certificates is to be replaced. After it, every certificate is refused."""
ISSUED_MAX = 100_000
"""Maximum number of certificates of one authority: its register is written as a whole."""
FILE_BYTES_MAX = 64 << 20
NAMES_MAX = 100
"""Maximum number of hosts in one certificate."""
NAME_CHARACTERS_MAX = 64
"""Longest common name (RFC 5280, ub-common-name)."""
_BACKDATED = timedelta(days=1)
"""Time before now from which on a certificate counts: clocks of edges and devices may be behind."""


class AuthorityUnusable(Exception):
    """An authority that cannot do what was asked. The message says what to do."""


class Kind(StrEnum):
    """Holder of a certificate. The words are persisted."""

    HUB = "hub"
    EDGE = "edge"
    DEVICE = "device"


class Issued(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the register."""

    serial: str
    """Hexadecimal digits."""
    kind: Kind
    name: str
    until: datetime
    revoked: datetime | None = None


class Pem(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes
    until: datetime


class Authority:
    """The authority in a folder.

    Args:
        folder: has its certificate, its key, its register and its list. One process at a time (``opened``).

    Raises:
        AuthorityUnusable: there is none, or its files do not belong together.
    """

    def __init__(self, folder: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self._folder = folder
        self.certificate = self._read(CERTIFICATE_FILE)
        try:
            self._certificate = x509.load_pem_x509_certificate(self.certificate)
            key = serialization.load_pem_private_key(self._read(KEY_FILE, is_secret=True), None)
            self.issued = msgspec.json.decode(self._read(REGISTER_FILE), type=list[Issued])
        except (ValueError, TypeError) as error:
            raise AuthorityUnusable(f"{folder} has a damaged authority: {error}. Restore its files") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise AuthorityUnusable(f"{folder}: {KEY_FILE} is not the key of {CERTIFICATE_FILE}. Restore both")
        self._key = key

    @property
    def until(self) -> datetime:
        """Return the time after which nothing that it signed counts."""
        return self._certificate.not_valid_after_utc

    @property
    def revocations(self) -> bytes:
        """Return the list of revoked certificates in force, in PEM."""
        return self._read(LIST_FILE)

    def issue(self, kind: Kind, name: str, hosts: Sequence[str], days: int, now: datetime) -> Pem:
        """Sign a certificate for a new key, and note it in the register before it is returned. Blocks.

        Args:
            name: its common name.
            hosts: names and addresses by which others call its holder, if that is a server.
            days: it ends with the authority at the latest.

        Raises:
            AuthorityUnusable: the register is full, the authority ends within a day, or a name cannot be in one.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        until = min(now + timedelta(days=days), self.until)
        if until < now + timedelta(days=1):
            raise AuthorityUnusable(
                f"the authority expires on {self.until:%Y-%m-%d}: create another with `weft ca init`"
            )
        if len(self.issued) >= ISSUED_MAX:
            raise AuthorityUnusable(f"the authority has issued {ISSUED_MAX} certificates, its limit. Make another one")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name_of(name), self._certificate.subject, key, now, until)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(_alternatives(hosts))), critical=False)
        uses = [] if kind is Kind.HUB else [ExtendedKeyUsageOID.CLIENT_AUTH]
        uses += [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
        certificate = (
            builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
        )
        signed = self._sign(certificate)
        self.issued.append(Issued(f"{signed.serial_number:x}", kind, name, until))
        self._keep_register()
        return Pem(_pem(signed), _key_pem(key), until)

    def revoke(self, wanted: str, now: datetime, list_days: int) -> list[Issued]:
        """Revoke every certificate of a serial number or a name that still counts, and replace the list. Blocks.

        Returns:
            Those that were revoked now.

        Raises:
            AuthorityUnusable: none counts.
        """
        found = [
            each
            for each in self.issued
            if wanted in (each.serial, each.name) and each.revoked is None and each.until > now
        ]
        if not found:
            raise AuthorityUnusable(f"no certificate of {wanted!r} is in force. `weft ca list` has all of them")
        self.issued = [msgspec.structs.replace(each, revoked=now) if each in found else each for each in self.issued]
        self._keep_register()
        self.renew_list(now, list_days)
        return found

    def renew_list(self, now: datetime, days: int) -> datetime:
        """Sign the list of revoked certificates again. Blocks.

        Returns:
            The time by which the next one has to be with those that check certificates.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        until = min(now + timedelta(days=days), self.until)
        builder = x509.CertificateRevocationListBuilder(self._certificate.subject, now - _BACKDATED, until)
        for each in self.issued:
            if each.revoked is not None and each.until > now:
                revoked = x509.RevokedCertificateBuilder(int(each.serial, 16), each.revoked).build()
                builder = builder.add_revoked_certificate(revoked)
        number = x509.CRLNumber(int(now.timestamp() * 1000))  # it grows with each list
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            builder.add_extension(number, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        replace_private_file(os.path.join(self._folder, LIST_FILE), signed.public_bytes(serialization.Encoding.PEM))
        return until

    def _sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())

    def _keep_register(self) -> None:
        _write_register(self._folder, self.issued)

    def _read(self, name: str, *, is_secret: bool = False) -> bytes:
        path = os.path.join(self._folder, name)
        try:
            if is_secret:
                return read_private_file(path, FILE_BYTES_MAX)
            with open(path, "rb") as file:
                return file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            raise AuthorityUnusable(f"{path} is missing. `weft ca init {self._folder}` makes an authority") from None
        except OSError as error:
            is_open_to_others = error.errno == errno.EPERM  # the words of ``read_private_file``
            why = error.strerror if is_open_to_others else why_unreadable(error)
            raise AuthorityUnusable(f"{path}: {why}") from None


def create(folder: str, name: str, days: int, now: datetime) -> None:
    """Make an authority in a folder, which is created for its owner alone if it is missing. Blocks.

    Raises:
        AuthorityUnusable: one is there, or the name cannot be in a certificate.
        OSError: the folder cannot be written.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    os.makedirs(folder, mode=0o700, exist_ok=True)
    for each in (KEY_FILE, CERTIFICATE_FILE, REGISTER_FILE, LIST_FILE):
        if os.path.lexists(os.path.join(folder, each)):
            raise AuthorityUnusable(f"{os.path.join(folder, each)} already exists. Choose another folder")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name_of(name)
    certificate = (
        _builder(subject, subject, key, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    # The certificate is last: an authority that is there is whole.
    replace_private_file(os.path.join(folder, KEY_FILE), _key_pem(key))
    _write_register(folder, [])
    replace_private_file(os.path.join(folder, CERTIFICATE_FILE), _pem(certificate))
    Authority(folder).renew_list(now, LIST_DAYS)


@contextlib.contextmanager
def opened(folder: str) -> Iterator[Authority]:
    """Return the authority of a folder, which no other process changes meanwhile.

    Raises:
        AuthorityUnusable: there is none, or another process has it.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        advice = "`weft ca init` makes an authority"
        raise AuthorityUnusable(f"{folder}: {why_unreadable(error)}. {advice}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AuthorityUnusable(f"another command uses the authority in {folder}. Try again after it") from None
        yield Authority(folder)
    finally:
        os.close(descriptor)


def _write_register(folder: str, issued: Sequence[Issued]) -> None:
    replace_private_file(os.path.join(folder, REGISTER_FILE), msgspec.json.encode(issued) + b"\n")


def _name_of(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise AuthorityUnusable(
            f"expected a certificate name of 1 to {NAME_CHARACTERS_MAX} characters, got {name[:80]!r}"
        )
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternatives(hosts: Sequence[str]) -> Iterator[x509.GeneralName]:
    from cryptography import x509

    if len(hosts) > NAMES_MAX:
        raise AuthorityUnusable(f"a certificate has at most {NAMES_MAX} hosts, got {len(hosts)}")
    for host in dict.fromkeys(hosts):
        try:
            yield x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            if not host or len(host) > 253 or not host.isascii() or set(host) & set("/:@ \t\n"):
                message = f"expected a host's name or address, such as hub.example.com, got {host[:80]!r}"
                raise AuthorityUnusable(message) from None
            yield x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), now - _BACKDATED, until)
        # Python 3.13 and others refuse certificates whose keys have no identifier.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def now_utc(seconds: float) -> datetime:
    """Return a time as certificates have it: whole seconds, in UTC.

    Args:
        seconds: since 1970.
    """
    return datetime.fromtimestamp(int(seconds), UTC)


folder_argument = click.argument("folder", type=click.Path(file_okay=False, readable=False))
_days = click.IntRange(1, DAYS_MAX)
days_option = click.option("--days", type=_days, default=DAYS, show_default=True, help="Days for which it counts.")
to_option = click.option(
    "--to", default=".", show_default=True, type=click.Path(file_okay=False), help="Folder for the files."
)
replace_option = click.option("--replace", "replaces", is_flag=True, help="Replace existing files: a renewal.")
list_days_option = click.option(
    "--list-days",
    type=_days,
    default=LIST_DAYS,
    show_default=True,
    help="Days until the list of revoked certificates has to be renewed.",
)
host_help = "Name or address by which others call it; repeatable."


@contextlib.contextmanager
def _told(folder: str) -> Iterator[None]:
    """Turn errors of an authority into sentences."""
    try:
        with using(folder):
            yield
    except AuthorityUnusable as error:
        raise Failed(str(error)) from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        message = 'certificates need the library cryptography: pip install "weft-fabric[encryption]"'
        raise Failed(message) from None


@click.command()
@folder_argument
@click.option("--name", default="Weft authority", show_default=True, help="Name of the authority, for people.")
@click.option("--days", type=_days, default=AUTHORITY_DAYS, show_default=True, help="Days for which it counts.")
def init(folder: str, *, name: str, days: int) -> None:
    """Create an authority in FOLDER, which must be new or have none. Only the owner can read its files."""
    with _told(folder):
        create(folder, name, days, now_utc(time.time()))
    click.echo(
        f"created authority {name!r} in {folder}. Keep its key secret: with it, anyone can create edges and hubs"
    )
    click.echo(f"Next:\n  weft ca hub {folder} --host HOST --to hub")


@click.command()
@folder_argument
@click.option("--host", "hosts", multiple=True, required=True, help=host_help)
@to_option
@days_option
@replace_option
@json_option
def hub(folder: str, *, hosts: Sequence[str], to: str, days: int, replaces: bool, as_json: bool) -> None:
    """Issue the certificate of a hub, for the names by which edges and readers call it.

    Files: hub.crt and hub.key, the authority's certificate, and its list of revoked certificates (`tls.crl_file`).
    """
    issued = issue(folder, Kind.HUB, hosts[0], hosts, to, days=days, replaces=replaces)
    _print(issued, as_json=as_json)


@click.command()
@folder_argument
@click.argument("edge")
@tenant_option("Tenant of the edge.")
@click.option("--host", "hosts", multiple=True, help=f"{host_help} For its listeners with TLS.")
@to_option
@days_option
@replace_option
@json_option
def edge(
    folder: str, edge: str, *, tenant: str, hosts: Sequence[str], to: str, days: int, replaces: bool, as_json: bool
) -> None:
    """Issue the certificate of EDGE, by which a hub with `tls.client_ca` knows it without a token.

    With --host, the listeners of the edge may show the same certificate to devices.
    """
    for each in (tenant, edge):
        if not valid_name(each):
            raise Refused(f"{each!r} is not a valid name: {NAME_RULE}")
    name = edge if tenant == "default" else f"{tenant}/{edge}"
    _print(issue(folder, Kind.EDGE, name, hosts, to, days=days, replaces=replaces, file=edge), as_json=as_json)


@click.command()
@folder_argument
@click.argument("user")
@to_option
@days_option
@replace_option
@json_option
def device(folder: str, user: str, *, to: str, days: int, replaces: bool, as_json: bool) -> None:
    """Issue the certificate of a device, which logs in at edges as USER (`listeners.<name>.tls.client_ca`)."""
    check_user(user)
    _print(issue(folder, Kind.DEVICE, user, (), to, days=days, replaces=replaces), as_json=as_json)


@click.command()
@folder_argument
@click.argument("name")
@list_days_option
def revoke(folder: str, name: str, *, list_days: int) -> None:
    """Revoke the certificates of NAME, or the one of a serial number, and sign the list of revoked ones again.

    Then copy the list to each hub and edge that has one (`crl_file`). They read it again by themselves, and end the
    connections of revoked certificates.
    """
    with _told(folder), opened(folder) as authority:
        revoked = authority.revoke(name, now_utc(time.time()), list_days)
    click.echo(f"revoked {counted(len(revoked), 'certificate')} of {name}")
    click.echo(f"Next: copy {os.path.join(folder, LIST_FILE)} to the `crl_file` of each hub and edge that has one")


@click.command("renew-list")
@folder_argument
@list_days_option
def renew_list(folder: str, *, list_days: int) -> None:
    """Sign the list of revoked certificates again. After its end, every certificate of the authority is refused."""
    with _told(folder), opened(folder) as authority:
        until = authority.renew_list(now_utc(time.time()), list_days)
    click.echo(f"{os.path.join(folder, LIST_FILE)} counts until {until:%Y-%m-%d}. Copy it to each `crl_file` before")


@click.command("list")
@folder_argument
@json_option
def list_certificates(folder: str, *, as_json: bool) -> None:
    """Show every certificate that the authority has issued, the newest last."""
    with _told(folder), opened(folder) as authority:
        issued, ends = list(authority.issued), authority.until
    if as_json:
        print_json({"authority_until": ends.isoformat(), "issued": [_facts(each) for each in issued]})
        return
    rows = [(each.name, each.kind, f"{each.until:%Y-%m-%d}", _state(each), each.serial) for each in issued]
    print_table(("name", "kind", "until", "state", "serial"), rows)


def issue(
    folder: str,
    kind: Kind,
    name: str,
    hosts: Sequence[str],
    to: str,
    *,
    days: int,
    replaces: bool,
    file: str | None = None,
) -> dict[str, Any]:
    """Issue a certificate and write it, with its key and the authority's own certificate, into a folder.

    Args:
        name: its common name.
        file: begin of the files' names; a hub's are called hub.

    Returns:
        What was written, and the day on which it ends.
    """
    stem = "hub" if kind is Kind.HUB else re.sub(r"[^A-Za-z0-9._-]+", "-", file or name).lstrip(".-") or "device"
    place: Callable[[str], str] = lambda each: os.path.normpath(os.path.join(to, each))  # noqa: E731
    with _told(folder), opened(folder) as authority:
        own = {place(f"{stem}.key"), place(f"{stem}.crt")}
        shared = _shared(authority, kind, place)
        if not replaces:
            _check_free(own, shared)
        with using(to):
            os.makedirs(to, mode=0o700, exist_ok=True)
        pem = authority.issue(kind, name, hosts, days, now_utc(time.time()))
    mine = {place(f"{stem}.key"): pem.key, place(f"{stem}.crt"): pem.certificate}
    new = {path: data for path, data in shared.items() if not os.path.lexists(path)}
    write = replace if replaces else write_new
    write({**mine, **(shared if replaces else new)})
    return {"written": [*mine, *shared], "name": name, "until": pem.until.isoformat()}


def _shared(authority: Authority, kind: Kind, place: Callable[[str], str]) -> dict[str, bytes]:
    found = {place(CERTIFICATE_FILE): authority.certificate}
    if kind is Kind.HUB:
        found[place(LIST_FILE)] = authority.revocations
    return found


def _check_free(own: set[str], shared: dict[str, bytes]) -> None:
    """Refuse files that are there, before a certificate is issued. Those of the same authority may be."""
    for path in sorted(own):
        if os.path.lexists(path):
            raise Refused(f"{path} already exists. Choose another folder with --to, or renew it with --replace")
    for path, data in shared.items():
        if os.path.lexists(path) and path.endswith(CERTIFICATE_FILE):
            with using(path), open(path, "rb") as file:
                if file.read(len(data) + 1) != data:
                    raise Refused(f"{path} was issued by another authority. Choose another folder with --to")


def _print(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for path in facts["written"]:
        click.echo(f"wrote {path}")
    click.echo(f"the certificate of {facts['name']} counts until {facts['until'][:10]}")


def _state(issued: Issued) -> str:
    if issued.revoked is not None:
        return f"revoked {issued.revoked:%Y-%m-%d}"
    return "ended" if issued.until <= now_utc(time.time()) else "counts"


def _facts(issued: Issued) -> dict[str, Any]:
    revoked = None if issued.revoked is None else issued.revoked.isoformat()
    until = issued.until.isoformat()
    return {"name": issued.name, "kind": issued.kind, "until": until, "revoked": revoked, "serial": issued.serial}
