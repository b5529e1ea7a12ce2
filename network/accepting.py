"""Connections from accepting to their protocol: proxy header, TLS handshake, admission."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import ssl
import stat
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from weft.config.machine import why_not_listening
from weft.config.units import Address, UnixSocket
from weft.network.admission import Admission, Network, NetworkConnection
from weft.network.tls import TlsAlert
from weft.protocols.errors import CodecError

# Listening sockets.

BACKLOG = 1024
"""Number of connections that the kernel may hold before they are accepted: all devices of a plant reconnect at once."""


class CannotListen(OSError):
    """An address that cannot be bound. The text has the reason and the remedy."""


async def listening_sockets(bind: Address | UnixSocket) -> tuple[list[socket.socket], Address | UnixSocket]:
    """Listen at every address of a host name, or at a unix socket.

    Returns:
        The non-blocking sockets, and their address, with the actual port for port 0.

    Raises:
        CannotListen: the address cannot be bound; nothing listens then.
        OSError: no socket can be created.
    """
    if isinstance(bind, UnixSocket):
        return [_listen_unix(bind)], bind
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(bind.to_resolve, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(why_not_listening(error, bind)) from None
    port, sockets = bind.port, []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listening = socket.socket(family, kind, protocol)
            except OSError as error:
                if bind.to_resolve is None and error.errno == errno.EAFNOSUPPORT:
                    continue  # a machine without IPv6
                raise
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            _bind(listening, (address[0], port, *address[2:]), Address(bind.host, port))
            port = listening.getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets, Address(bind.host, port)


def _listen_unix(bind: UnixSocket) -> socket.socket:
    """Listen in place of a socket left by an earlier node. Its group may connect, others may not."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(bind.path).st_mode):
            _refuse_if_alive(bind)
            os.unlink(bind.path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o117)
    try:
        _bind(listening, bind.path, bind)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening


def _bind(listening: socket.socket, address: object, shown: Address | UnixSocket) -> None:
    try:
        listening.bind(address)  # type: ignore[arg-type]
        listening.listen(BACKLOG)
    except OSError as error:
        raise CannotListen(why_not_listening(error, shown)) from None
    listening.setblocking(False)


def _refuse_if_alive(bind: UnixSocket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(bind.path) == 0:
            raise CannotListen(why_not_listening(OSError(errno.EADDRINUSE, ""), bind))


# Reads of TLS connections through one shared buffer.
#
# For a protocol that takes ``bytes``, asyncio and uvloop create an object of 256 KiB for every decrypted read, and
# shrink it to the received length; a buffered protocol avoids that. It also makes it cheap to let the C library
# return large blocks at once (`MALLOC_MMAP_THRESHOLD_`, set in ``deploy/``), which halves the memory of an idle TLS
# connection: uvloop has a block of 256 KiB for each, of which a page or two is used.

BUFFER_BYTES = 64 << 10
"""Size of four TLS records. Further bytes come with the next round of the loop."""
_buffer = memoryview(bytearray(BUFFER_BYTES))


class SharedBufferProtocol(asyncio.BufferedProtocol):
    """A protocol that passes received bytes to another protocol as ``bytes``. All belong to the event loop's thread."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the event on."""
        self._protocol.connection_made(transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the shared buffer: ``buffer_updated`` follows before anything else happens."""
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the received bytes."""
        self._protocol.data_received(bytes(_buffer[:nbytes]))

    def pause_writing(self) -> None:
        """Pass the event on."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass the event on."""
        self._protocol.resume_writing()

    def eof_received(self) -> bool | None:
        """Pass the event on."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the event on."""
        self._protocol.connection_lost(exc)


# The PROXY protocol, which names the client of a proxy (haproxy.org, proxy-protocol.txt): version 1, a line of text
# (section 2.1), and version 2, in binary (section 2.2). Pure: bytes to values.

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
START_BYTES = len(SIGNATURE)
"""Number of bytes that distinguish the versions; the shortest line of version 1 has 15."""
LINE_START = b"PROXY "
LINE_END = b"\r\n"
LINE_BYTES_MAX = 107
"""Longest line of version 1, its end included (section 2.1)."""
PREFIX_BYTES = 16
BODY_BYTES_MAX = 2048
"""Longest part after the first 16 bytes: addresses and extras. The specification considers 536 bytes enough, unix
addresses and TLS details included."""
_LOCAL, _PROXY = 0x20, 0x21
_INET, _INET6 = 0x10, 0x20
_STREAM = 0x01


class BadProxyHeader(CodecError):
    """Bytes that are not a PROXY header. The text states the problem."""


class ProxiedAddress(NamedTuple):
    """The client behind a proxy. ``host`` is empty when it is not an internet address."""

    host: str
    port: int


def source_of_line(line: bytes) -> ProxiedAddress | None:
    """Return the client's address from a line of version 1; None for UNKNOWN, the proxy's own connection.

    Raises:
        BadProxyHeader: the line differs from the specified form, even in a space or a leading zero.
    """
    parts = line.removesuffix(LINE_END).decode("ascii", "replace").split(" ")
    if parts[:2] == ["PROXY", "UNKNOWN"]:
        return None  # the rest of the line is ignored
    family = _FAMILIES.get(parts[1]) if len(parts) == 6 and parts[0] == "PROXY" else None
    if family is None or not line.endswith(LINE_END):
        raise BadProxyHeader(f"expected `PROXY TCP4 SOURCE DESTINATION PORT PORT` or TCP6, got {line[:60]!r}")
    try:
        host, _ = family(parts[2]), family(parts[3])
        port, _ = _port(parts[4]), _port(parts[5])
    except ValueError as error:
        raise BadProxyHeader(f"a line of version 1 with a bad address: {error}") from None
    return ProxiedAddress(str(host), port)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or str(int(text)) != text or int(text) > 65_535:
        raise ValueError(f"{text!r} is not a port")
    return int(text)


def _ipv6(text: str) -> ipaddress.IPv6Address:
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    return ipaddress.IPv6Address(text)


_FAMILIES: dict[str, Callable[[str], ipaddress.IPv4Address | ipaddress.IPv6Address]] = {
    "TCP4": ipaddress.IPv4Address,
    "TCP6": _ipv6,
}


def body_length(prefix: bytes) -> int:
    """Return the number of bytes after the first 16 of a header of version 2.

    Raises:
        BadProxyHeader: the bytes are not the beginning of a header, or it is longer than ``BODY_BYTES_MAX``.
    """
    if len(prefix) != PREFIX_BYTES or not prefix.startswith(SIGNATURE):
        raise BadProxyHeader("expected a PROXY header of version 1 or 2")
    if prefix[12] not in (_LOCAL, _PROXY):
        raise BadProxyHeader(f"expected version 2 and the command LOCAL or PROXY, got {prefix[12]:#04x}")
    (length,) = struct.unpack_from("!H", prefix, 14)
    if length > BODY_BYTES_MAX:
        raise BadProxyHeader(f"a header of {length} bytes, at most {BODY_BYTES_MAX} are read")
    return int(length)


def source(prefix: bytes, body: bytes) -> ProxiedAddress | None:
    """Return the client's address; None for the proxy's own connection (LOCAL), such as a health check.

    Raises:
        BadProxyHeader: the addresses are cut short, or of no stream connection over IPv4 or IPv6.
    """
    if len(body) != body_length(prefix):
        raise BadProxyHeader("the header is cut short")
    if prefix[12] == _LOCAL:
        return None
    family, transport = prefix[13] & 0xF0, prefix[13] & 0x0F
    if family not in (_INET, _INET6) or transport != _STREAM:
        raise BadProxyHeader(f"expected TCP over IPv4 or IPv6, got {prefix[13]:#04x}")
    size = 4 if family == _INET else 16
    if len(body) < 2 * size + 4:
        raise BadProxyHeader("the addresses are cut short")
    (port,) = struct.unpack_from("!H", body, 2 * size)
    return ProxiedAddress(str(ipaddress.ip_address(body[:size])), port)


# Connections through a trusted proxy: read its header, and use the client's address from it.


class ProxiedTransport:
    """A transport whose peer is the client behind the proxy. All other information is the transport's own."""

    __slots__ = ("_peername", "_transport", "write")

    def __init__(self, transport: asyncio.Transport, connection: NetworkConnection) -> None:
        self._transport = transport
        self._peername = (connection.host, int(connection.name.rpartition(":")[2]))
        self.write = transport.write
        """Method of the transport, bound once: connections call it most often."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the transport's information, except for the peer's name."""
        return self._peername if name == "peername" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def read_header(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> ProxiedAddress | None:
    """Read the PROXY header and not a byte more, as a TLS handshake may follow.

    Raises:
        BadProxyHeader: there is no header, or a bad one.
        OSError: the connection broke.
    """
    start = await _read(loop, connection, START_BYTES)
    if start.startswith(LINE_START):
        return source_of_line(await _read_line(loop, connection, start))
    prefix = start + await _read(loop, connection, PREFIX_BYTES - START_BYTES)
    return source(prefix, await _read(loop, connection, body_length(prefix)))


async def _read_line(loop: asyncio.AbstractEventLoop, connection: socket.socket, line: bytes) -> bytes:
    """Read the rest of a line. Proxies send it whole: peek at it first, then read it up to its end."""
    while not line.endswith(LINE_END):
        if len(line) >= LINE_BYTES_MAX:
            raise BadProxyHeader(f"a line of version 1 without an end in {LINE_BYTES_MAX} bytes")
        try:
            ahead = line[-1:] + connection.recv(LINE_BYTES_MAX - len(line), socket.MSG_PEEK)
        except BlockingIOError:
            ahead = b""
        end = ahead.find(LINE_END)
        line += await _read(loop, connection, end + 1 if end >= 0 else max(len(ahead) - 1, 1))
    return line


async def _read(loop: asyncio.AbstractEventLoop, connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = await loop.sock_recv(connection, length - len(data))
        if not more:
            raise BadProxyHeader("the connection ended within the header")
        data += more
    return data


log = logging.getLogger(__name__)

ACCEPTS_MAX = 64
"""Number of connections accepted before other work of the event loop has its turn."""
ACCEPT_PAUSE_S = 1.0
"""Pause in accepting after the process ran out of file descriptors; asyncio waits as long."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

MakeProtocol = Callable[[asyncio.Transport, NetworkConnection], asyncio.Protocol]
"""Function that creates the protocol of a connection whose transport is ready."""


class Acceptor:
    """An acceptor at one address that takes each connection through proxy header and TLS handshake to its protocol.

    Args:
        name: for log lines.
        proxies: networks of proxies, whose connections begin with a PROXY header; None for no proxy.
    """

    def __init__(
        self,
        make_protocol: MakeProtocol,
        admission: Admission,
        *,
        name: str,
        bind: Address | UnixSocket,
        proxies: tuple[Network, ...] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._name = name
        self._proxies = proxies
        self._admission = admission
        self._make_protocol = make_protocol
        self.tls = tls
        """Context for further handshakes; None for plain TCP."""
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self.bound = bind
        """Address, with the actual port where port 0 was asked for."""

    async def start(self) -> None:
        """Bind and listen: connections wait in the kernel until ``accept``.

        Raises:
            OSError: the address cannot be bound.
        """
        self._sockets, self.bound = await listening_sockets(self.bound)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each TCP socket that listens."""
        return [each.getsockname()[:2] for each in self._sockets if each.family != socket.AF_UNIX]

    def accept(self) -> None:
        """Accept connections from now on."""
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def stop(self) -> None:
        """Stop accepting, and abort handshakes under way."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        if self._sockets and isinstance(self.bound, UnixSocket):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.bound.path)
        self._sockets.clear()
        for task in self._handshakes:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._exhausted(error)
                return
            self._begin(sock, address)

    def _begin(self, sock: socket.socket, address: Any) -> None:
        host, name = ("", str(self.bound)) if not isinstance(address, tuple) else (address[0], shown(address))
        proxies = self._proxies
        if proxies is not None and not _is_trusted(host, proxies):
            self._admission.listener_counters.proxy_headers_refused += 1
            self._complain("untrusted", "refused %s at listener %s: it is not a trusted proxy", name)
            sock.close()
            return
        connection = self._admission.arrive(host, name, via_proxy=proxies is not None)
        if connection is None:
            sock.close()
            return
        task = self._loop.create_task(self._set_up(sock, connection))
        connection.transport = _PendingTransport(task)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        # A task that is cancelled before its first step never closes its socket, and leaves a reference cycle that only
        # a full garbage collection would free.
        task.add_done_callback(lambda done: sock.close() if done.cancelled() else None)

    async def _set_up(self, sock: socket.socket, connection: NetworkConnection) -> None:
        """Take a connection to its protocol. At the admission's deadline the task is cancelled."""
        sock.setblocking(False)
        if self.tls is None:
            await self._shake_hands(sock, connection, None)
            return
        with TlsAlert(sock) as alert:
            await self._shake_hands(sock, connection, alert)

    async def _shake_hands(self, sock: socket.socket, connection: NetworkConnection, alert: TlsAlert | None) -> None:
        try:
            if self._proxies is not None and not await self._read_proxy_header(sock, connection):
                raise ConnectionAbortedError
            # The deadline is the admission's; asyncio wants one of its own.
            timeout_s = self._admission.limits.connect_timeout_s if self.tls is not None else None
            await self._loop.connect_accepted_socket(
                lambda: _ProtocolSwitch(self._make_protocol, connection),
                sock,
                ssl=self.tls,
                ssl_handshake_timeout=timeout_s,
            )
        except BadProxyHeader as error:
            self._admission.listener_counters.proxy_headers_refused += 1
            self._complain("no header", "refused %s at listener %s: %s", connection.name, error)
            self._end(sock, connection)
        except OSError as error:  # ssl.SSLError is one
            if self.tls is not None:
                self._admission.listener_counters.handshakes_failed += 1
            why = str(error) or "it closed the connection before the handshake ended"
            self._complain("handshake", "no connection with %s at listener %s: %s", connection.name, why)
            try:
                if alert is not None:
                    await alert.send()
            finally:
                self._end(sock, connection)
        except asyncio.CancelledError:
            self._end(sock, connection)
            raise

    async def _read_proxy_header(self, sock: socket.socket, connection: NetworkConnection) -> bool:
        source = await read_header(self._loop, sock)
        if source is None:  # the proxy's own connection
            return self._admission.set_address(connection, connection.host, connection.name)
        return self._admission.set_address(connection, source.host, shown(source))

    def _end(self, sock: socket.socket, connection: NetworkConnection) -> None:
        self._admission.leave(connection)
        sock.close()

    def _complain(self, what: str, message: str, name: str, *arguments: object) -> None:
        self._admission.complain(f"{self._name} {what}", message, name, self._name, *arguments)

    def _exhausted(self, error: OSError) -> None:
        self._admission.listener_counters.accept_pauses += 1
        if self._pause is not None:
            return
        log.error(
            "listener %s has stopped accepting for now: %s; raise the process's limit of open files, or lower "
            "limits.connections",
            self._name,
            error.strerror,
        )
        for each in self._sockets:
            self._loop.remove_reader(each)
        self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._try_again)

    def _try_again(self) -> None:
        """Accept again as soon as a file can be opened. The test opens one, so that each shortage makes one log
        line."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._try_again)
            return
        self._pause = None
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)


class _PendingTransport:
    """A stand-in for the transport while there is none."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()

    def is_closing(self) -> bool:
        return False


class _ProtocolSwitch(asyncio.Protocol):
    """Switch of a ready transport to its protocol."""

    __slots__ = ("_connection", "_make_protocol")

    def __init__(self, make_protocol: MakeProtocol, connection: NetworkConnection) -> None:
        self._make_protocol = make_protocol
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection, real = self._connection, cast(asyncio.Transport, transport)
        if connection.is_over:  # closed during the handshake
            real.abort()
            return
        peername = real.get_extra_info("peername")
        is_proxied = isinstance(peername, tuple) and shown(peername) != connection.name
        facade = cast(asyncio.Transport, ProxiedTransport(real, connection)) if is_proxied else real
        connection.transport = facade
        protocol = self._make_protocol(facade, connection)
        is_tls = real.get_extra_info("sslcontext") is not None
        real.set_protocol(SharedBufferProtocol(protocol) if is_tls else protocol)
        protocol.connection_made(facade)


def shown(address: tuple[Any, ...]) -> str:
    """Return an internet address for log lines."""
    return str(Address(address[0], address[1]))


def _is_trusted(host: str, proxies: tuple[Network, ...]) -> bool:
    from ipaddress import ip_address

    if not host:
        return True  # a unix socket: its mode says which proxies may connect
    address = ip_address(host.partition("%")[0])
    return any(address in network for network in proxies)
