"""S3-compatible servers as tests need them: built by Go once, and killed and started again on one port and folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from examples.demo.fabric import free_port
from tests.support import third_party
from tests.support.waiting import PATIENCE_S, wait_until
from weft.storage.object_store import ObjectStore, open_store

START_S_MAX = 30
ACCESS, SECRET = "weft", "weft-secret"
BUCKET = "weft-test"


@dataclass(frozen=True, eq=False)
class Kind:
    """A server that ``go install`` builds."""

    package: third_party.Go
    command: Callable[[str, str, str], list[str]]
    """Arguments that run it, from its binary, address with port, and folder."""
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.package.binary


VERSITYGW = Kind(
    third_party.VERSITYGW,
    lambda binary, address, folder: [
        binary,
        "--port",
        address,
        "--access",
        ACCESS,
        "--secret",
        SECRET,
        "--quiet",
        "posix",
        folder,
    ],
    {},
)
MINIO = Kind(
    third_party.MINIO,
    lambda binary, address, folder: [binary, "server", "--quiet", "--address", address, folder],
    {"MINIO_ROOT_USER": ACCESS, "MINIO_ROOT_PASSWORD": SECRET},
)


def installed(kind: Kind) -> str | None:
    """Return the path of a server that is there: in the PATH, in Go's own folder, or built by an earlier test."""
    return None if kind.package.present() is None else kind.package.program()


def built(kind: Kind) -> str:
    """Return the path of a server, built now if need be, which takes minutes once.

    Raises:
        LookupError: it is not there and cannot be built here; the sentence says why.
    """
    return kind.package.program()


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether something listens on a port of this machine."""
    try:
        socket.create_connection((address, port), 1).close()
    except OSError:
        return False
    return True


class S3Server:
    """A server over a folder, whose sub-folders are its buckets; there is one bucket.

    Args:
        binary: as ``installed`` or ``built`` returns it.
    """

    uri = f"s3://{BUCKET}"

    def __init__(self, kind: Kind, binary: str, folder: Path, address: str = "127.0.0.1") -> None:
        (folder / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self._address = address
        self._command = kind.command(binary, f"{address}:{self.port}", str(folder))
        self._environment = {**os.environ, **kind.environment}
        self._log_path = folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def options(self, port: int | None = None) -> dict[str, str]:
        """Return store options, as ``open_store`` and the environment take them.

        Args:
            port: of what stands in front of the server.
        """
        return {
            "AWS_ENDPOINT_URL": f"http://{self._address}:{port or self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def store(self) -> ObjectStore:
        return open_store(self.uri, self.options())

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
        started = self._process

        def is_there() -> bool:
            assert started.poll() is None, f"{self._command[0]} ended by itself; see {self._log_path}"
            return listens(self.port, self._address)

        wait_until(is_there, START_S_MAX, f"the start of {self._command[0]}; see {self._log_path}")

    def kill(self) -> None:
        """Send SIGKILL. Nothing happens to a server that does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


# --- The way from one hub node to its S3 server, which a test can break for this node alone


ERROR = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%b</Code><Message>%b</Message></Error>'
DENIED = b"403 Forbidden", ERROR % (b"ExpiredToken", b"The provided token has expired.")
FAILED = b"503 Service Unavailable", ERROR % (b"SlowDown", b"Please reduce your request rate.")
SLOW_S = 0.7


class Way(Enum):
    """What becomes of a request."""

    OPEN = "passed on"
    DENIED = "answered with 403, as when the node's credentials have expired"
    SILENT = "never answered, as when a firewall drops what it gets"
    CUT = "connections are closed in the middle of what passes"
    FAILED = "answered with 503, as by a server with too much to do"
    LOST = "carried out, and the connection is closed instead of an answer"
    SLOW = "answered late"


class StorePath:
    """A TCP relay in a thread of its own. Signatures stay right: requests pass unchanged, with the host they name.

    Args:
        port: of the server.
        address: of the server, and of the relay.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._server_port, self._address = port, address
        self.puts = 0
        """Requests that write an object, as far as each begins with a packet of its own."""
        self._way = Way.OPEN
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store-path", daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE_S)

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._serve, self._address, 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def set(self, way: Way) -> None:
        """Let requests go this way from now on; connections that are open are closed."""

        async def change() -> None:
            self._way = way
            for writer in list(self._writers):
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(PATIENCE_S)

    def close(self) -> None:
        """Stop the relay."""

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                match self._way:
                    case Way.DENIED:
                        await self._refuse(reader, writer, *DENIED)
                    case Way.FAILED:
                        await self._refuse(reader, writer, *FAILED)
                    case Way.SILENT:
                        while await reader.read(1 << 16):
                            pass
                    case _:
                        await self._relay(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._address, self._server_port)
        self._writers.add(back)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back, is_answer=False))
                pumps.create_task(self._pump(there, writer, is_answer=True))
        except* OSError:
            pass
        finally:
            self._writers.discard(back)
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        while data := await reader.read(1 << 16):
            self.puts += not is_answer and data.startswith(b"PUT ")
            match self._way:
                case Way.CUT:
                    data = data[: len(data) // 2]
                case Way.LOST if is_answer:
                    break
                case Way.SLOW if is_answer:
                    await asyncio.sleep(SLOW_S)
            writer.write(data)
            await writer.drain()
            if self._way is Way.CUT:
                break
        raise ConnectionResetError

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: bytes, text: bytes
    ) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            await reader.readexactly(length)
            fields = b"HTTP/1.1 %b\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
            writer.write(fields % (status, len(text)) + (b"" if head.startswith(b"HEAD ") else text))
            await writer.drain()
