"""TLS: PEM files and their checks, certificates, revocation lists, contexts, and bounds on what a peer may send."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Literal, NamedTuple

from weft.config.errors import Finding, KeyPath
from weft.config.machine import too_readable, unreadable, why_unreadable

# PEM files of one end of TLS connections.


class TlsUnusable(OSError):
    """Certificate, key, authorities or revocation lists that cannot be used. The text names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a listener with TLS."""

    certificate: str
    """File of the listener's own certificate, with the chain that clients need after it."""
    key: str
    client_ca: str | None = None
    """File of the authorities of client certificates; None asks clients for none."""
    crl_file: str | None = None
    """File of the authorities' revocation lists; None: no certificate is revoked before it expires."""
    client_certificate_required: bool = True

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the files that are named."""
        named = (self.certificate, self.key, self.client_ca, self.crl_file)
        return tuple(path for path in named if path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsFiles:
    """PEM files of an end that connects."""

    ca_file: str | None = None
    """File of the authorities that servers are trusted by; None: those of the system."""
    certificate: str | None = None
    """File of the client's own certificate, with its chain after it; None: it shows none."""
    key: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the files that are named."""
        return tuple(path for path in (self.ca_file, self.certificate, self.key) if path is not None)


# A bound on the records of a TLS connection that carry no data.
#
# OpenSSL takes any number of them within one read (KeyUpdates of TLS 1.3, at 17 us and 27 bytes each), and asyncio
# and uvloop give it up to 256 KiB at once: a step of 0.1 s, which no budget of decrypted bytes sees.

# Not ``ssl=`` of the loop's server: it bounds neither the number of handshakes nor their rate, and drops the alert.
HANDSHAKE_RECORDS_MAX = 256
"""Maximum number of records of a client's handshake. 100 KiB of certificates, the most that OpenSSL takes, fit in
records of 512 bytes, the smallest that clients ask for."""
AT_ONCE = 32
"""Number of records that OpenSSL gets at once. One at a time costs 5 us for each record, by 32 it is 0.4 us."""
PIECE_BYTES = 16 << 10
WITHOUT_DATA_BURST = 32
"""Records without data that a client may send at once. A client with a good reason sends one in hours."""
WITHOUT_DATA_PER_S = 1.0
_HEADER_BYTES = 5
_TYPES = range(20, 25)
"""Content types of records (RFC 8446, section 5.1)."""


class TooManyRecords(ssl.SSLError):
    """An error that ends a connection whose records carry no data."""


class BoundedRecords(ssl.SSLObject):
    """A server's TLS connection that gives OpenSSL some records at a time, and ends when too many carry no data."""

    incoming: ssl.MemoryBIO
    """Ciphertext that asyncio or uvloop received."""
    taken: ssl.MemoryBIO
    """The part of it that OpenSSL may read."""
    kept: tuple[Callable[[bytes], None], ssl.MemoryBIO] | None = None
    """Keeper of the alert of a handshake that fails, and the buffer that OpenSSL writes it to; None once it is over."""
    _held = b""
    """Ciphertext between the two, less than a piece."""
    _missing = 0
    """Bytes of the current record that OpenSSL did not get yet."""
    _owing = 0
    """Whole records that OpenSSL got, less those whose data was read."""
    _handshake_records = 0
    _allowance = float(WITHOUT_DATA_BURST)
    _allowance_at = 0.0
    _monotonic = staticmethod(time.monotonic)

    def do_handshake(self) -> None:
        """Continue the handshake.

        Raises:
            TooManyRecords: it has too many.
        """
        try:
            self._shake_hands()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            kept, self.kept = self.kept, None
            if kept is not None:
                kept[0](kept[1].read())
            raise
        self.kept = None

    def _shake_hands(self) -> None:
        while True:
            try:
                return super().do_handshake()
            except ssl.SSLWantReadError:
                self._owing = 0  # what follows the handshake's last record is data
                if not self._take():
                    raise
            self._handshake_records += self._owing
            if self._handshake_records > HANDSHAKE_RECORDS_MAX:
                raise TooManyRecords(f"its handshake has more than {HANDSHAKE_RECORDS_MAX} TLS records")

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002
        """Read decrypted data.

        Raises:
            TooManyRecords: too many records had none.
        """
        while True:
            try:
                got = super().read(len, buffer)
            except ssl.SSLWantReadError:
                if self._owing > 0:
                    self._charge(self._owing)
                self._owing = 0
                if not self._take():
                    raise
            else:
                self._owing -= 1
                return got

    def pending(self) -> int:
        """Return the bytes that are here beside ``incoming``: uvloop stops reading when there are none."""
        return super().pending() + self.taken.pending + len(self._held)

    def unwrap(self) -> None:
        """Shut the connection down: read up to the peer's last record."""
        while True:
            try:
                return super().unwrap()
            except ssl.SSLWantReadError:
                if not self._take():
                    raise

    def _take(self) -> bool:
        """Give OpenSSL more. Return whether there was more."""
        data = self._held
        if len(data) < PIECE_BYTES:
            data += self.incoming.read(PIECE_BYTES - len(data))
        size, end = len(data), self._missing
        whole = int(0 < end <= size)
        while whole < AT_ONCE and end + _HEADER_BYTES <= size:
            if data[end] not in _TYPES:
                end = size  # OpenSSL refuses what is no record, whatever follows
                break
            end += _HEADER_BYTES + (data[end + 3] << 8 | data[end + 4])
            whole += end <= size
        given = min(end, size)
        self._missing, self._owing = end - given, self._owing + whole
        self._held = data[given:]
        self.taken.write(data[:given])
        return given > 0

    def _charge(self, records: int) -> None:
        now = self._monotonic()
        refilled = self._allowance + (now - self._allowance_at) * WITHOUT_DATA_PER_S
        self._allowance, self._allowance_at = min(WITHOUT_DATA_BURST, refilled) - records, now
        # By time, not by bytes of data: a connection that is open for months and sends little may change keys.
        if self._allowance < 0:
            raise TooManyRecords("too many of its TLS records carry no data (such as KeyUpdates)")


# The alert that tells a client why its TLS handshake failed.
#
# OpenSSL puts the alert into the output buffer, and then reports the error. asyncio and uvloop abort the connection
# on that error and drop the buffer, so that a client without a good certificate sees a reset and no reason. The
# context of this module keeps the alert; the acceptor sends it through a second descriptor of the socket, which the
# abort does not close.

LINGER_S = 1.0
"""Longest time that a client may take to read its alert. A good network needs one round trip."""
READ_BYTES = 64 << 10
READS_MAX = 16
"""Maximum number of reads discarded after the alert: 1 MiB."""

_alert: ContextVar[TlsAlert | None] = ContextVar("tls alert", default=None)
"""Alert of the connection whose handshake the current task runs; event loops pass the context on."""


class TlsAlert:
    """The alert for one client whose handshake fails; usually none."""

    __slots__ = ("_connection", "_data", "_socket")

    def __init__(self, connection: socket.socket) -> None:
        self._connection: socket.socket | None = connection
        self._data = b""
        self._socket: socket.socket | None = None

    def __enter__(self) -> TlsAlert:
        """Watch the handshake that the current task begins."""
        _alert.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Release the connection: the transport holds the context, and so this object, as long as it is open."""
        self._connection = None
        if self._socket is not None:
            self._socket.close()

    def keep(self, data: bytes) -> None:
        """Remember an alert. Called while the connection is still open."""
        if data and self._connection is not None:
            with contextlib.suppress(OSError):  # no file descriptor is left: then the client gets a reset
                self._socket = self._connection.dup()
                self._data = data

    async def send(self) -> None:
        """Send the alert, if there is one, and wait until the client has read it, at most ``LINGER_S``."""
        connection, loop = self._socket, asyncio.get_running_loop()
        if connection is None:
            return
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(LINGER_S):
                await loop.sock_sendall(connection, self._data)
                connection.shutdown(socket.SHUT_WR)
                # Closing a socket that holds unread bytes resets it, and the reset may overtake the alert. There are
                # such bytes: in TLS 1.3 a client sends its first packet before it knows if its certificate is good.
                for _ in range(READS_MAX):
                    if not await loop.sock_recv(connection, READ_BYTES):
                        break


class AlertingContext(ssl.SSLContext):
    """A context whose failed handshakes store their alert in the ``TlsAlert`` of the current task.

    Its connections have a bound on records without data.
    """

    sslobject_class = BoundedRecords

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *arguments: Any, **options: Any
    ) -> ssl.SSLObject:
        """Begin a TLS connection."""
        taken = ssl.MemoryBIO()
        made = super().wrap_bio(taken, outgoing, *arguments, **options)
        assert isinstance(made, BoundedRecords)
        made.incoming, made.taken = incoming, taken
        alert = _alert.get()
        if alert is not None:
            made.kept = alert.keep, outgoing
        return made


# Fields of certificates that the standard library does not give for every certificate (RFC 5280 section 4.1).

INTEGER, SEQUENCE, UTC_TIME, GENERALIZED_TIME = 0x02, 0x30, 0x17, 0x18
_BOOLEAN, _BMP_TEXT = 0x01, 0x1E
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_COMMON_NAME, _ALTERNATIVE_NAMES, _BASIC_CONSTRAINTS = b"\x55\x04\x03", b"\x55\x1d\x11", b"\x55\x1d\x13"
"""Object identifiers: 2.5.4.3, 2.5.29.17 and 2.5.29.19."""
_DNS_NAME, _ADDRESS = 0x82, 0x87
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
TIMES = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
"""Format of a time by its tag."""


class CertificateName(NamedTuple):
    """The name of a certificate: the number is unique for its authority."""

    issuer: bytes
    """In DER."""
    serial: bytes


def certificate_name(certificate: bytes) -> CertificateName:
    """Return the name of a certificate in DER, which OpenSSL has verified."""
    (_, serial), _, (_, issuer), *_ = _fields(certificate)
    return CertificateName(issuer, serial)


class CertificateFacts(NamedTuple):
    """Facts that a certificate states."""

    issuer: bytes
    """In DER, as ``subject``."""
    subject: bytes
    end: datetime
    """Time after which it is not valid."""
    common_names: tuple[str, ...]
    hosts: tuple[str, ...]
    """Names and addresses of the host that it is for: those of subjectAltName."""
    is_authority: bool
    """True if it may sign others."""

    @property
    def is_self_issued(self) -> bool:
        """Return whether its issuer is itself."""
        return self.issuer == self.subject


def certificates_in(path: str) -> list[CertificateFacts]:
    """Return the facts of the certificates in a PEM file, one at least. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds none.
    """
    with _naming(path):
        return [_facts(each) for each in _read(path)]


def certificate_end(path: str) -> datetime:
    """Return the time after which the first certificate of a PEM file is not valid. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds none.
    """
    with _naming(path):
        _, _, _, (_, validity), *_ = _fields(_read(path)[0])
        _, end = elements(validity)
        return time_of(*end)


def time_of(tag: int, text: bytes) -> datetime:
    """Return the time of an element. ``KeyError`` or ``ValueError`` for another element."""
    return datetime.strptime(text.decode("ascii"), TIMES[tag]).replace(tzinfo=UTC)


def content(der: bytes) -> bytes:
    """Return the content of ``der``, which is one element. ``ValueError`` or ``IndexError`` for others."""
    ((_, inner),) = elements(der)
    return inner


def elements(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of elements in a row (X.690 section 8.1). ``ValueError`` or ``IndexError`` for others."""
    found, at = [], 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length >= 0x80:
            digits = length & 0x7F
            length, at = int.from_bytes(data[at : at + digits], "big"), at + digits
        if at + length > len(data):
            raise ValueError("an element extends beyond its end")
        found.append((tag, data[at : at + length]))
        at += length
    return found


def _read(path: str) -> list[bytes]:
    """Return the certificates of a PEM file in DER, one at least."""
    with open(path, encoding="ascii", errors="replace") as file:
        found = [ssl.PEM_cert_to_DER_cert(pem) for pem in _CERTIFICATE.findall(file.read())]
    if not found:
        raise ValueError("no certificate")
    return found


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TlsUnusable(f"{path}: {why_unreadable(error)}") from None
    except (ValueError, IndexError, KeyError):
        raise TlsUnusable(f"{path} holds no certificate in PEM. Name the file of a certificate") from None


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Return the fields of a certificate in DER, from its serial number on."""
    (_, to_be_signed), *_ = elements(content(certificate))
    return [each for each in elements(to_be_signed) if each[0] != _VERSION]


def _facts(certificate: bytes) -> CertificateFacts:
    (_, to_be_signed), *_ = elements(content(certificate))
    is_version_1 = elements(to_be_signed)[0][0] != _VERSION
    _serial, _algorithm, (_, issuer), (_, validity), (_, subject), _key, *more = _fields(certificate)
    _, end = elements(validity)
    extensions = {
        identifier: value
        for tag, wrapped in more
        if tag == _EXTENSIONS
        for _, extension in elements(content(wrapped))
        for identifier, value in [_extension(extension)]
    }
    constraints = extensions.get(_BASIC_CONSTRAINTS)
    return CertificateFacts(
        issuer,
        subject,
        time_of(*end),
        tuple(_common_names(subject)),
        tuple(_hosts(extensions.get(_ALTERNATIVE_NAMES))),
        # Certificates of version 1 have no extension that could say so; OpenSSL takes them, too.
        is_version_1 if constraints is None else _BOOLEAN in dict(elements(content(constraints))),
    )


def _extension(extension: bytes) -> tuple[bytes, bytes]:
    """Return the identifier and the value of an extension."""
    (_, identifier), *_critical, (_, value) = elements(extension)
    return identifier, value


def _common_names(name: bytes) -> Iterator[str]:
    for _, part in elements(name):
        for _, attribute in elements(part):
            (_, identifier), (tag, text) = elements(attribute)
            if identifier == _COMMON_NAME:
                yield text.decode("utf-16-be" if tag == _BMP_TEXT else "utf-8", errors="replace")


def _hosts(names: bytes | None) -> Iterator[str]:
    for tag, name in elements(content(names)) if names is not None else ():
        if tag == _DNS_NAME:
            yield name.decode("ascii", errors="replace")
        elif tag == _ADDRESS and len(name) in (4, 16):
            yield str(ipaddress.ip_address(name))


# Revocation lists (RFC 5280 section 5), as far as OpenSSL leaves them to the node.
#
# OpenSSL checks certificates at handshakes only. It reports neither when a list is out of date, nor which open
# connections must end.

_LIST = re.compile(rb"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.DOTALL)


class RevocationList(NamedTuple):
    """One list of an authority."""

    revoked: frozenset[CertificateName]
    next_update: datetime | None
    """Time from which OpenSSL refuses every certificate of the authority."""


def read_lists(path: str) -> list[RevocationList]:
    """Return the lists in a file. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds none.
    """
    try:
        with open(path, "rb") as file:
            lists = [_parse(base64.b64decode(each)) for each in _LIST.findall(file.read())]
    except OSError as error:
        raise TlsUnusable(f"{path}: {why_unreadable(error)}") from None
    except (ValueError, IndexError, binascii.Error):
        lists = []
    if not lists:
        raise TlsUnusable(f"{path} holds no revocation list in PEM. Name the authorities' PEM file")
    return lists


def revoked_by(lists: Sequence[RevocationList]) -> frozenset[CertificateName]:
    """Return the certificates that any of the lists revokes."""
    return frozenset().union(*(each.revoked for each in lists))


def _parse(der: bytes) -> RevocationList:
    (_, to_be_signed), *_ = elements(content(der))
    fields = elements(to_be_signed)
    if fields[0][0] == INTEGER:  # the version
        del fields[0]
    (_, _algorithm), (_, issuer), (_, _this_update), *rest = fields
    next_update = None
    if rest and rest[0][0] in TIMES:
        next_update = time_of(*rest.pop(0))
    entries = elements(rest[0][1]) if rest and rest[0][0] == SEQUENCE else []
    return RevocationList(frozenset(CertificateName(issuer, elements(each)[0][1]) for _, each in entries), next_update)


# TLS contexts from PEM files.


class TlsInForce(NamedTuple):
    """Content of the files of a listener."""

    context: ssl.SSLContext
    """For further handshakes."""
    revoked: frozenset[CertificateName]
    """Certificates whose open connections end."""
    expires: datetime
    """End of the listener's own certificate."""


def read_tls(files: TlsFiles) -> TlsInForce:
    """Read the files. Blocks.

    Raises:
        TlsUnusable: as ``server_context`` does.
    """
    revoked = frozenset[CertificateName]() if files.crl_file is None else revoked_by(read_lists(files.crl_file))
    return TlsInForce(server_context(files), revoked, certificate_end(files.certificate))


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later.

    Raises:
        TlsUnusable: a file cannot be read, is not PEM, the key is encrypted, or does not belong to the certificate.
    """
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # In TLS 1.2 a client could ask for handshake after handshake on one connection, past every bound on them.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _check_readable(files.paths)
    _load_pair(context, files.certificate, files.key)
    if files.client_ca is not None:
        _load_authorities(context, files.client_ca)
        if files.crl_file is not None:
            _check_revocation(context, files.crl_file)
        context.verify_mode = ssl.CERT_REQUIRED if files.client_certificate_required else ssl.CERT_OPTIONAL
    return context


def client_context(files: ClientTlsFiles) -> ssl.SSLContext:
    """Return a context for connections to servers by TLS 1.2 and later, which verifies name and authority. Blocks.

    Raises:
        TlsUnusable: a file cannot be read, is not PEM, the key is encrypted, or does not belong to the certificate.
    """
    _check_readable(files.paths)
    if files.ca_file is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, files.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(("http/1.1",))
    if files.certificate is not None and files.key is not None:
        _load_pair(context, files.certificate, files.key)
    return context


def own_context(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts the server of one certificate, under any name: one of this machine. Blocks.

    Raises:
        TlsUnusable: it cannot be read, or holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _check_readable([certificate])
    _load_authorities(context, certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _check_readable(paths: Iterable[str]) -> None:
    for path in paths:
        if problem := unreadable(path):
            raise TlsUnusable(f"{path}: {problem}")


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise TlsUnusable(_why(error, certificate, key)) from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError:
        raise TlsUnusable(f"{path} holds no certificate in PEM. Name the authorities' PEM file") from None


def _check_revocation(context: ssl.SSLContext, path: str) -> None:
    """Refuse certificates that the lists in a file revoke.

    Only the client's own certificate is looked up: few authorities publish lists of the intermediate ones. A session
    that a client resumes is not verified again, but a later context does not accept its ticket.
    """
    read_lists(path)  # OpenSSL would accept a file without one
    context.load_verify_locations(path)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def common_name(peer_certificate: dict[str, Any] | None) -> str | None:
    """Return the common name of a client's certificate, which the handshake has verified; None without exactly one."""
    subject = (peer_certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 and names[0] else None


_UNKNOWN_AUTHORITY = {7, 18, 19, 20, 21}  # 7: another authority of the same name
_OTHER_NAME = {62, 64}
_CLOCKS = {9: "It is not valid yet: set this machine's clock", 10: "Have it renewed, or set this machine's clock"}
"""Result of a verification (X509_V_ERR of OpenSSL) -> what to do."""


def why_distrusted(error: Exception, *, authority: str, name: str) -> str:
    """Return why a client refuses the certificate of a hub, and what to do.

    Args:
        error: of the handshake, an ``ssl.SSLCertVerificationError`` or one that wraps it.
        authority, name: where the client's user names the authorities that it trusts, and the hub.
    """
    why, code = getattr(error, "verify_message", "") or str(error), getattr(error, "verify_code", 0)
    if code in _UNKNOWN_AUTHORITY:
        advice = f"Name the certificate of its authority in {authority}"
    elif code in _OTHER_NAME:
        advice = f"Write a name of the certificate in {name}"
    else:
        advice = _CLOCKS.get(code, f"Look at the certificate, at {name}, and at {authority}")
    return f"the hub's certificate is refused ({why}). {advice}"


def _refuse_password() -> str:
    raise ValueError


def _why(error: Exception, certificate: str, key: str) -> str:
    """Return the reason why certificate and key cannot be used together, and what to do."""
    if not isinstance(error, ssl.SSLError):
        return f"{key} is encrypted, and the node cannot ask for the password. Decrypt the key (`openssl pkey`)"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{key} is not the key of {certificate}: they do not belong together. Name a matching pair"
    return (
        f"{certificate} is not a certificate in PEM, or {key} is not a key. "
        "Name the certificate with its chain, and its key"
    )


# Checks of PEM files before they are used: what keeps them from use, what others refuse, what ends soon.

EXPIRES_SOON = timedelta(days=14)
"""Time before the expiry of a certificate from which on a check warns."""


class Effect(Enum):
    """Effect of a finding on the end whose files they are."""

    UNUSABLE = auto()
    """It cannot use the files."""
    REFUSED = auto()
    """It runs, and others refuse it, or it refuses them."""
    DOUBTFUL = auto()
    """It works, perhaps not as intended or not for long."""


class TlsFinding(NamedTuple):
    """A finding about PEM files."""

    effect: Effect
    finding: Finding


def server_findings(path: KeyPath, files: TlsFiles, now: datetime, refuse: str) -> Iterator[TlsFinding]:
    """Yield the findings about the files of a listener. Blocks.

    Args:
        path: the section of the files.
        refuse: who refuses a certificate that is not valid: ``clients refuse``.
    """
    try:
        server_context(files)
    except TlsUnusable as error:
        yield TlsFinding(Effect.UNUSABLE, Finding(path, str(error)))
        return
    if files.client_ca is not None:
        yield from _of_authorities((*path, "client_ca"), files.client_ca, "client")
    for each in () if files.crl_file is None else read_lists(files.crl_file):
        if each.next_update is not None and each.next_update < now:
            message = (
                f"a list in {files.crl_file} was to be replaced by {each.next_update:%Y-%m-%d}: every certificate of "
                "its authority is refused. Fetch the newest one"
            )
            yield TlsFinding(Effect.REFUSED, Finding((*path, "crl_file"), message))
    yield from _of_certificate(path, files.certificate, files.key, now, refuse, is_client=False)


def client_findings(path: KeyPath, files: ClientTlsFiles, now: datetime, refuse: str) -> Iterator[TlsFinding]:
    """Yield the findings about the files of an end that connects. Blocks.

    Args:
        path: the section of the files.
        refuse: who refuses a certificate that is not valid: ``the hub refuses``.
    """
    try:
        client_context(files)
    except TlsUnusable as error:
        key = "ca_file" if files.ca_file is not None and str(error).startswith(files.ca_file) else "certificate"
        yield TlsFinding(Effect.UNUSABLE, Finding((*path, key), str(error)))
        return
    if files.ca_file is not None:
        end = certificate_end(files.ca_file)
        if end < now:
            message = f"the first authority in {files.ca_file} has expired on {end:%Y-%m-%d}. Fetch its new certificate"
            yield TlsFinding(Effect.REFUSED, Finding((*path, "ca_file"), message))
        yield from _of_authorities((*path, "ca_file"), files.ca_file, "server")
    if files.certificate is not None and files.key is not None:
        yield from _of_certificate(path, files.certificate, files.key, now, refuse, is_client=True)


def _of_certificate(
    path: KeyPath, certificate: str, key: str, now: datetime, refuse: str, *, is_client: bool
) -> Iterator[TlsFinding]:
    at, end = (*path, "certificate"), certificate_end(certificate)
    if end < now:
        message = f"{refuse} {certificate}: it has expired on {end:%Y-%m-%d}. Renew it"
        yield TlsFinding(Effect.REFUSED, Finding(at, message))
    elif why := refusal(certificate, key, is_client=is_client):
        yield TlsFinding(Effect.REFUSED, Finding(at, f"{refuse} {certificate}: {why}. Renew it"))
    elif end - now < EXPIRES_SOON:
        message = f"{certificate} expires on {end:%Y-%m-%d}. Renew it before"
        yield TlsFinding(Effect.DOUBTFUL, Finding(at, message))
    if problem := too_readable(key):
        yield TlsFinding(Effect.DOUBTFUL, Finding((*path, "key"), problem))


def _of_authorities(path: KeyPath, file: str, others: Literal["client", "server"]) -> Iterator[TlsFinding]:
    """Yield what is wrong with a file that OpenSSL takes as the authorities of others."""
    try:
        found = certificates_in(file)
    except TlsUnusable:  # it has one that OpenSSL reads and this does not
        return
    roots = [each for each in found if each.is_self_issued]
    if not roots and not any(each.is_authority for each in found):
        message = (
            f"no {others} is ever accepted by {file}: it holds no authority, but {_named(found[0])} that one has "
            "signed. Name the authority's own certificate"
        )
        yield TlsFinding(Effect.REFUSED, Finding(path, message))
    elif not roots:
        message = (
            f"no {others} is ever accepted by {file}: the authority in it was signed by another, which is missing. Add "
            "that one's certificate"
        )
        yield TlsFinding(Effect.REFUSED, Finding(path, message))
    elif others == "client" and not any(  # a server that signs its own certificate is often trusted by that one
        each.is_authority for each in found
    ):
        message = (
            f"{file} holds no authority, but {_named(found[0])}: no {others} is accepted but with that very "
            "certificate. Name an authority"
        )
        yield TlsFinding(Effect.DOUBTFUL, Finding(path, message))


def _named(certificate: CertificateFacts) -> str:
    names = certificate.common_names or certificate.hosts
    return f"the certificate of {names[0]!r}" if names else "a certificate"


def valid_until(certificates: Iterable[str]) -> dict[str, str]:
    """Return the last day of each certificate that can be read, by its file. Blocks."""
    found = {}
    for path in certificates:
        with contextlib.suppress(TlsUnusable):
            found[path] = f"{certificate_end(path):%Y-%m-%d}"
    return found


def refusal(certificate: str, key: str, *, is_client: bool = False, host: str | None = None) -> str | None:
    """Return why the other end refuses a usable certificate now, found by a handshake in memory; None if it does not.

    Args:
        is_client: whether the certificate is shown to a server.
        host: name or address under which a client calls the server; None: any will do.
    """
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = host is not None
    if is_client:
        client.verify_mode = ssl.CERT_NONE
    server.load_cert_chain(certificate, key)
    if is_client:
        client.load_cert_chain(certificate, key)
    verifier = server if is_client else client
    verifier.verify_mode = ssl.CERT_REQUIRED
    verifier.load_verify_locations(certificate)
    # The certificate itself is the anchor: only the other end knows the authorities that it trusts.
    verifier.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        _handshake(server, client, host)
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)
    except ssl.SSLError as error:
        return (error.reason or str(error)).replace("_", " ").lower()
    return None


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> None:
    """Shake hands in memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in list(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
