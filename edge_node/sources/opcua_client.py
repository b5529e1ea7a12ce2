"""A session with an OPC UA server: its channel with bounds on what the server sends, its security, its trust."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from asyncua import Client, ua
from asyncua.client.ua_client import UaClient, UASocketProtocol
from asyncua.common.connection import TransportLimits
from asyncua.common.session_interface import AbstractSession
from asyncua.crypto import cert_gen, security_policies, uacrypto
from asyncua.ua import ua_binary
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from weft.config.errors import Finding, KeyPath
from weft.config.machine import too_readable, why_unreadable
from weft.config.sources import OpcuaSecurity, OpcuaSource, OpcuaUser
from weft.edge_node.sources.connection import SourceDown
from weft.edge_node.sources.credentials import CredentialsUnusable, SourceFindings, password_text
from weft.edge_node.sources.writes import ReadBack, Value, WriteRefused, WriteUnconfirmed
from weft.storage.filesystem import replace_private_file

# The library reports each lost connection with a traceback; the source says it in a sentence.
logging.getLogger("asyncua").setLevel(logging.CRITICAL + 1)


class _NoElements:
    """Array of the type Null, whose elements take no bytes: five bytes of a server may announce two billion of them,
    for which the library makes a list.
    """

    @staticmethod
    def unpack_array(_: object, length: int) -> list[None]:
        if length > 0:
            raise ua.UaError(f"an array of {length} elements of the type Null")
        return []

    @staticmethod
    def pack_array(array: Sequence[None]) -> bytes:
        return len(array).to_bytes(4, "little")


ua_binary.Primitives1.Null = _NoElements()

REQUEST_TIMEOUT_S = 10.0
"""Longest time for the answer to a request, except for Publish."""
CHUNK_BYTES_MAX = 65_535
"""Longest chunk, as the client's Hello says (OPC 10000-6, 7.1.2.3)."""
CLOSE_TIMEOUT_S = 1.0
SESSION_TIMEOUT_S_MIN = 60.0
"""Shortest time for which the server keeps a session without a connection, so that a cut of the network costs no
other one."""
CERTIFICATES_MAX = 256
"""Maximum number of certificates in a file of trusted servers."""
CERTIFICATE_DAYS = 3650
_HEAD_BYTES = 8
_REFUSALS = frozenset(
    {
        "BadAttributeIdInvalid",
        "BadDataEncodingInvalid",
        "BadDataEncodingUnsupported",
        "BadIndexRangeInvalid",
        "BadIndexRangeNoData",
        "BadNodeIdInvalid",
        "BadNodeIdUnknown",
        "BadNotWritable",
        "BadOutOfRange",
        "BadSecurityModeInsufficient",
        "BadServiceUnsupported",
        "BadTypeMismatch",
        "BadUserAccessDenied",
        "BadWriteNotSupported",
    }
)
"""Answers to a write after which the value is what it was (OPC 10000-4, 5.11.4.4). All others leave that open: with
`BadTimeout` or `BadCommunicationError` the device behind the server may have the value."""
_MODES = {"sign": ua.MessageSecurityMode.Sign, "sign_and_encrypt": ua.MessageSecurityMode.SignAndEncrypt}
_POLICIES = {
    "Basic256Sha256": security_policies.SecurityPolicyBasic256Sha256,
    "Aes128Sha256RsaOaep": security_policies.SecurityPolicyAes128Sha256RsaOaep,
    "Aes256Sha256RsaPss": security_policies.SecurityPolicyAes256Sha256RsaPss,
}


class Frames:
    """Lengths of the chunks that a server sends, seen before anything is kept of them."""

    def __init__(self, message_bytes_max: int) -> None:
        self._max = message_bytes_max
        self._head = bytearray()
        self._left = self._message = 0

    def problem(self, data: bytes) -> str:
        """Look at the next bytes. Return what is wrong with them; empty if nothing is."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            step = min(_HEAD_BYTES - len(self._head), len(data) - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) < _HEAD_BYTES:
                break
            size, is_last = int.from_bytes(self._head[4:], "little"), self._head[3:4] != b"C"
            self._head.clear()
            if not _HEAD_BYTES <= size <= CHUNK_BYTES_MAX:
                return f"the server sent a chunk of {size} bytes; agreed are {CHUNK_BYTES_MAX} at most"
            self._left = size - _HEAD_BYTES
            self._message += size
            if self._message > self._max:
                return f"the server sent a message of more than {self._max} bytes. Raise `message`"
            if is_last:
                self._message = 0
        return ""


class _Protocol(UASocketProtocol):  # type: ignore[misc]  # asyncua's types are incomplete
    """The library's protocol behind ``Frames``. By itself it keeps whatever length a server announces."""

    def __init__(self, timeout_s: float, policy: security_policies.SecurityPolicy, frames: Frames) -> None:
        super().__init__(timeout_s, policy, TransportLimits(CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, 0, 0))
        self.frames = frames
        self.problem = ""

    def data_received(self, data: bytes) -> None:
        if self.problem:
            return
        self.problem = self.frames.problem(data)
        if self.problem and self.transport is not None:
            self.transport.abort()
        else:
            super().data_received(data)


class _Transport(UaClient):  # type: ignore[misc]
    """The library's client with bounded messages."""

    def __init__(self, timeout_s: float, message_bytes_max: int) -> None:
        super().__init__(timeout_s)
        self._message_bytes_max = message_bytes_max
        self.problem = ""
        """Reason for which the node ended the last connection; empty where it did not."""

    def _make_protocol(self) -> UASocketProtocol:
        protocol = _Protocol(self._timeout, self.security_policy, Frames(self._message_bytes_max))
        protocol.pre_request_hook = self.pre_request_hook
        protocol.on_connection_lost = lambda error: self._lost(protocol, error)
        protocol.is_session_closing = self._is_session_closing
        self.protocol = protocol
        return protocol

    def _lost(self, protocol: _Protocol, error: Exception | None) -> None:
        self.problem = protocol.problem
        self._on_transport_lost(error)


class Session:
    """A client of one server, whose session outlives its connections. Event loop's thread only."""

    def __init__(self, url: str, settings: OpcuaSource, name: str, password: bytes | None) -> None:
        """Connect nothing yet.

        Args:
            name: of the session, for who looks at the server's diagnostics.

        Raises:
            CredentialsUnusable: the password is not text.
        """
        self.url = url
        self._settings = settings
        self._password = password_text(settings, password)
        self.client = client = Client(url, timeout=REQUEST_TIMEOUT_S)
        client.name = client.description = name
        client.application_uri, client.product_uri = f"urn:{name}", "urn:weft"
        client.session_timeout = int(max(SESSION_TIMEOUT_S_MIN, settings.lifetime_s) * 1000)
        self.transport = _Transport(REQUEST_TIMEOUT_S, settings.message_bytes_max)
        self.transport.pre_request_hook = client.uaclient.pre_request_hook
        client.uaclient = self.transport
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the reason once the present connection has ended."""
        self._renewing: asyncio.Task[None] | None = None

    @property
    def services(self) -> AbstractSession:
        """Return the services of the session."""
        return self.transport.session

    async def open(self, now_ns: int) -> bool:
        """Connect, and resume the earlier session where the server has it. Return whether it had.

        Args:
            now_ns: time since 1970, for the validity of certificates.

        Raises:
            SourceDown, OSError, TimeoutError, CredentialsUnusable: there is no connection.
        """
        try:
            return await self._open(datetime.fromtimestamp(now_ns / 1e9, UTC))
        except ua.UaError as error:
            self.disconnect()
            raise SourceDown(self.transport.problem or failure_text(error)) from None
        except (ConnectionError, TimeoutError):
            self.disconnect()
            if self.transport.problem:
                raise SourceDown(self.transport.problem) from None
            raise
        except BaseException:
            self.disconnect()
            raise

    async def _open(self, now: datetime) -> bool:
        client, transport = self.client, self.transport
        transport.problem = ""
        self.lost = asyncio.get_running_loop().create_future()
        had_session = transport.session.has_session
        if self._settings.security is not None and not had_session:
            await self._secure(self._settings.security, now)
        await client.connect_socket()
        protocol = transport.protocol
        assert protocol is not None
        inner, lost = protocol.on_connection_lost, self.lost

        def gone(error: Exception | None) -> None:
            if inner is not None:
                inner(error)
            if not lost.done():
                lost.set_result(transport.problem or _lost_text(error))

        protocol.on_connection_lost = gone
        await client.send_hello()
        await client.open_secure_channel()
        self._renewing = asyncio.create_task(self._renew(), name=f"secure channel to {self.url}")
        user = self._settings.username
        if had_session:
            transport.session.rebind_authentication_token()
            with contextlib.suppress(ua.UaError):
                await client.activate_session(user, self._password, client.user_certificate)
                return True
            transport.session.reset_authentication_token()
        await client.create_session()
        await client.activate_session(user, self._password, client.user_certificate)
        return False

    async def _secure(self, security: OpcuaSecurity, now: datetime) -> None:
        """Set up security with a server whose certificate is trusted."""
        offered = await certificate_of(self.client, security)
        trusted = await asyncio.to_thread(trusted_in, security.trusted)
        if problem := why_untrusted(offered, trusted, now, urlsplit(self.url).hostname or ""):
            message = f"the server's certificate {fingerprint(offered)} is not trusted: {problem}"
            raise SourceDown(f"{message}. Look at it and accept it with `weft edge trust CONFIG SOURCE`")
        (own, *_), _ = await asyncio.to_thread(own_certificate, security, "security")
        if (user := self._settings.user) is not None:
            (first, *chain), key = await asyncio.to_thread(own_certificate, user, "user")
            self.client.user_certificate, self.client.user_certificate_chain = first, chain
            self.client.user_private_key = key
        self.client.application_uri = application_uri(own) or self.client.application_uri
        await self.client.set_security(
            _POLICIES[security.policy],
            uacrypto.CertProperties(security.certificate, extension="pem"),
            uacrypto.CertProperties(security.key, extension="pem"),
            server_certificate=uacrypto.CertProperties(
                offered.public_bytes(serialization.Encoding.DER), extension="der"
            ),
            mode=_MODES[security.mode],
        )

    async def _renew(self) -> None:
        """Renew the channel's keys after three quarters of their lifetime (OPC 10000-4, 5.6.2)."""
        try:
            while True:
                await asyncio.sleep(self.client.secure_channel_timeout * 0.75 / 1000)
                await self.client.open_secure_channel(renew=True)
                self.transport.revolve_security_token()
        except (ua.UaError, OSError, TimeoutError) as error:
            if not self.lost.done():
                self.lost.set_result(f"the secure channel could not be renewed: {failure_text(error)}")

    def disconnect(self) -> None:
        """Drop the connection. The session, and its subscription, stay at the server."""
        if self._renewing is not None:
            self._renewing.cancel()
        self.transport.disconnect_socket()

    async def write(self, node: ua.NodeId, kind: str, value: Value) -> ReadBack:
        """Write a variable, and read it back.

        Args:
            value: as ``exact`` returns it.

        Raises:
            WriteRefused, WriteUnconfirmed: as they say.
            UaError, OSError, TimeoutError: there was no answer.
        """
        # Without status and times, which many servers do not let clients write (OPC 10000-4, 5.11.4).
        wanted = ua.WriteValue()
        wanted.NodeId, wanted.AttributeId = node, ua.AttributeIds.Value
        wanted.Value = ua.DataValue(ua.Variant(value, ua.VariantType[kind]), StatusCode=None)
        try:
            (status,) = await self.services.write(ua.WriteParameters([wanted]))
        except ua.UaStatusCodeError as error:
            status = ua.StatusCode(error.code)
        if status.name in _REFUSALS:
            raise WriteRefused(failure_text(ua.UaStatusCodeError(status.value)))
        if status.value:
            raise WriteUnconfirmed(failure_text(ua.UaStatusCodeError(status.value)))
        (found,) = await self.services.read_attributes([node], ua.AttributeIds.Value)
        if found.StatusCode is not None and not found.StatusCode.is_good():
            raise WriteUnconfirmed(f"reading back: {failure_text(ua.UaStatusCodeError(found.StatusCode.value))}")
        read = found.Value.Value if found.Value is not None else None
        return ReadBack(read if isinstance(read, bool | int | float | str) else None, read == value)

    async def close(self, *, with_subscriptions: bool = False) -> None:
        """Close the session, within a second; then disconnect.

        Args:
            with_subscriptions: have the server forget its subscriptions, too; otherwise their lifetime ends them.
        """
        with contextlib.suppress(ua.UaError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.transport.close_session(with_subscriptions)
        self.disconnect()


def failure_text(error: BaseException) -> str:
    """Return what to say of an error of the server or the library."""
    if isinstance(error, ua.UaStatusCodeError):
        status = ua.StatusCode(error.code)
        hint = _HINTS.get(status.name, "")
        return f"the server answers {status.name}: {status.doc.rstrip('.')}{hint and '. ' + hint}"
    if isinstance(error, TimeoutError):
        return f"the server did not answer within {REQUEST_TIMEOUT_S:g} s"
    if isinstance(error, ua.UaError) and str(error).startswith("No matching endpoints"):
        return "the server offers no endpoint with this security. Compare `security` with the server's settings"
    return str(error) or type(error).__name__


_HINTS = {
    "BadIdentityTokenInvalid": "Check the user, and whether the server takes users with a certificate",
    "BadIdentityTokenRejected": "Check the user and the password, or the user's certificate",
    "BadUserAccessDenied": "Check the user, the password or certificate, and the user's rights at the server",
    "BadCertificateUntrusted": "Have the server trust the node's certificate",
    "BadSecurityChecksFailed": "Have the server trust the node's certificate",
    "BadCertificateUriInvalid": "The certificate needs the application's URI in its subjectAltName",
}


def _lost_text(error: Exception | None) -> str:
    return f"the connection was lost: {error}" if error else "the server closed the connection"


# Certificates: the server's, the node's own, and those that are trusted.


async def certificate_of(client: Client, security: OpcuaSecurity) -> x509.Certificate:
    """Return the certificate of the server's endpoint with this security, over a channel without any.

    Raises:
        SourceDown: there is no such endpoint.
        UaError, OSError, TimeoutError: the server did not say.
    """
    endpoints = await client.connect_and_get_server_endpoints()
    uri, mode = _POLICIES[security.policy].URI, _MODES[security.mode]
    found = next((each for each in endpoints if each.SecurityPolicyUri == uri and each.SecurityMode == mode), None)
    if found is None or not found.ServerCertificate:
        offered = sorted({each.SecurityPolicyUri.rpartition("#")[2] for each in endpoints})
        raise SourceDown(
            f"the server has no endpoint with {security.policy} and `{security.mode}`; it offers "
            f"{', '.join(offered) or 'none'}. Change `security`"
        )
    data = bytes(found.ServerCertificate)
    try:
        return x509.load_der_x509_certificate(data[: int.from_bytes(data[2:4], "big") + 4])
    except ValueError as error:
        raise SourceDown(f"the server's certificate cannot be read: {error}") from None


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 fingerprint, in pairs of hexadecimal digits."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def trusted_in(file: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM file; none without the file. Blocks.

    Raises:
        CredentialsUnusable: it cannot be read.
    """
    try:
        with open(file, "rb") as opened:
            found = x509.load_pem_x509_certificates(opened.read(CERTIFICATES_MAX << 14))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CredentialsUnusable("security.trusted", f"{file}: {why_unreadable(error)}") from None
    except ValueError as error:
        message = f"{file}: expected certificates in PEM ({error}). Write it with `weft edge trust`"
        raise CredentialsUnusable("security.trusted", message) from None
    return found[:CERTIFICATES_MAX]


def why_untrusted(offered: x509.Certificate, trusted: list[x509.Certificate], now: datetime, host: str) -> str:
    """Return why a server's certificate is not trusted; empty if it is, or is signed by one that is.

    One that is listed itself says which server it is. What an authority has signed may be that of any of its machines,
    so the host of the URL must be among its names (OPC 10000-4, 6.1.3). The application URI is not compared: before
    there is security, the server itself says what it should be.
    """
    if not offered.not_valid_before_utc <= now <= offered.not_valid_after_utc:
        start, end = offered.not_valid_before_utc, offered.not_valid_after_utc
        return f"it is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}"
    if offered in trusted:
        return ""
    problem = "`trusted` has neither it nor its authority"
    for each in trusted:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature):
            offered.verify_directly_issued_by(each)
            if not _is_authority(each):
                problem = "what signed it is in `trusted`, but is not the certificate of an authority"
            elif not each.not_valid_before_utc <= now <= each.not_valid_after_utc:
                start, end = each.not_valid_before_utc, each.not_valid_after_utc
                problem = f"its authority in `trusted` is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}"
            elif host.lower() not in (names := _hosts(offered)):
                known = ", ".join(names) or "none"
                problem = f"{host} in the URL is not among the hosts that it names: {known}. Use one of them"
            else:
                return ""
    return problem


def _hosts(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses of a certificate."""
    with contextlib.suppress(x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = names.get_values_for_type(x509.IPAddress)
        return [*(each.lower() for each in names.get_values_for_type(x509.DNSName)), *map(str, addresses)]
    return []


def _is_authority(certificate: x509.Certificate) -> bool:
    """Return whether a certificate may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return False


def own_certificate(files: OpcuaSecurity | OpcuaUser, section: str) -> tuple[list[x509.Certificate], rsa.RSAPrivateKey]:
    """Return a certificate of the node, or of its user, with its chain behind it, and its key. Blocks.

    Raises:
        CredentialsUnusable: one of the files cannot be read, or they do not belong together.
    """
    setting, file = "certificate", files.certificate
    try:
        found = x509.load_pem_x509_certificates(_content(file))
        setting, file = "key", files.key
        key = serialization.load_pem_private_key(_content(file), None)
    except OSError as error:
        raise CredentialsUnusable(f"{section}.{setting}", f"{file}: {why_unreadable(error)}") from None
    except (ValueError, TypeError) as error:
        message = f"{file}: expected a {setting} in PEM, not encrypted ({error})"
        raise CredentialsUnusable(f"{section}.{setting}", message) from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise CredentialsUnusable(f"{section}.key", f"{file}: expected an RSA key, which the security policies are for")
    if key.public_key() != found[0].public_key():
        raise CredentialsUnusable(f"{section}.key", f"{file} is not the key of {files.certificate}. Name its own key")
    return found, key


def _content(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(1 << 20)


def application_uri(certificate: x509.Certificate) -> str:
    """Return the URI of a certificate, which a server compares with what the client says; empty without one."""
    with contextlib.suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return next(iter(names.get_values_for_type(x509.UniformResourceIdentifier)), "")
    return ""


async def make_certificate(security: OpcuaSecurity, name: str, host: str) -> bool:
    """Make the node's own certificate and key where neither file exists. Return whether they were made.

    Raises:
        OSError: a file cannot be written.
    """
    if os.path.exists(security.certificate) or os.path.exists(security.key):
        return False
    key = await asyncio.to_thread(cert_gen.generate_private_key)
    names = [x509.UniformResourceIdentifier(f"urn:{name}"), x509.DNSName(host)]
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    made = cert_gen.generate_self_signed_app_certificate(key, name, {}, names, uses, CERTIFICATE_DAYS)
    replace_private_file(security.key, cert_gen.dump_private_key_as_pem(key))
    replace_private_file(security.certificate, made.public_bytes(serialization.Encoding.PEM))
    return True


def trust(security: OpcuaSecurity, certificate: x509.Certificate) -> None:
    """Add a certificate to the file of trusted ones. Blocks.

    Raises:
        CredentialsUnusable, OSError: the file cannot be read or written.
    """
    kept = [*trusted_in(security.trusted), certificate]
    pem = b"".join(each.public_bytes(serialization.Encoding.PEM) for each in kept)
    replace_private_file(security.trusted, pem)


def look_at_security(path: KeyPath, settings: OpcuaSource, found: SourceFindings) -> None:
    """Read the files of the security of a source, and add what is wrong with them. Blocks."""
    security = settings.security
    if security is None:
        if settings.username is not None:
            message = "is missing: the password may cross the network in clear text. Set it where the server offers it"
            found.doubtful.append(Finding((*path, "security"), message))
        return
    shown: dict[str, OpcuaSecurity | OpcuaUser | None] = {"security": security, "user": settings.user}
    for section, files in shown.items():
        if files is None:
            continue
        try:
            own_certificate(files, section)
        except CredentialsUnusable as error:
            found.unfit.append(Finding((*path, *error.setting.split(".")), str(error)))
        if problem := too_readable(files.key):
            found.doubtful.append(Finding((*path, section, "key"), problem))
    try:
        if not trusted_in(security.trusted):
            message = f"{security.trusted} has no certificate. Run `weft edge trust CONFIG {path[1]}`"
            found.unfit.append(Finding((*path, "security", "trusted"), message))
    except CredentialsUnusable as error:
        found.unfit.append(Finding((*path, *error.setting.split(".")), str(error)))
