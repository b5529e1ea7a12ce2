"""Real reverse proxies for tests, with the configurations of a page, on ports of their own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.support.brokers import answers
from tests.support.certificates import Pem
from tests.support.waiting import PATIENCE_S, wait_until

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
PACKAGES = {"nginx": "nginx-light", "haproxy": "haproxy", "caddyfile": "caddy"}
"""Language of a page's block -> the Debian package of its proxy."""


@contextlib.contextmanager
def proxy(kind: str, text: str, hub_port: int, pem: Pem, folder: Path) -> Iterator[int]:
    """Run a proxy before a hub, and return its port.

    Args:
        kind: language of the block.
        text: the page's configuration, for the hub at port 8090 and the certificate in /etc/ssl.
    """
    program = shutil.which(PACKAGES[kind].partition("-")[0], path=_PATH)
    if program is None:
        pytest.skip(f"{kind}: apt install {PACKAGES[kind]}")
    port, both = free_port(), folder / "both.pem"
    both.write_text(Path(pem.certificate).read_text() + Path(pem.key).read_text())
    places = {
        "/etc/ssl/hub-and-key.pem": str(both),
        "/etc/ssl/hub.pem": pem.certificate,
        "/etc/ssl/hub.key": pem.key,
        "127.0.0.1:8090": f"127.0.0.1:{hub_port}",
        "listen 443": f"listen 127.0.0.1:{port}",
        "bind :443": f"bind 127.0.0.1:{port}",
        "hub.example.com {": f"https://localhost:{port} {{",
    }
    for name, place in places.items():
        text = text.replace(name, place)
    config = folder / f"{kind}.conf"
    config.write_text(_around(kind, text, folder))
    arguments = {
        "nginx": ["-c", str(config), "-p", str(folder), "-e", str(folder / "error")],
        "haproxy": ["-db", "-f", str(config)],
        "caddyfile": ["run", "--adapter", "caddyfile", "--config", str(config)],
    }[kind]
    homes = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log, env={**os.environ, **homes})
    try:
        wait_until(lambda: answers(port), what=f"the start of {kind}")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _around(kind: str, text: str, folder: Path) -> str:
    """What the page leaves to the proxy's own file: no daemon, folders of the test, no port beside the one."""
    match kind:
        case "nginx":
            names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            paths = "".join(f"{name}_temp_path {folder}/{name};\n" for name in names)
            return f"daemon off;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{text}}}\n"
        case "caddyfile":
            return f"{{\nadmin off\nauto_https disable_redirects\n}}\n{text}"
    return text


# --- A small HTTP proxy that connects (RFC 9110 section 9.3.6), for links that go through one


class ConnectProxy:
    """A proxy on a port of this machine; what it was asked for is in ``targets``."""

    def __init__(self, credentials: str | None = None, hosts: dict[str, int] | None = None) -> None:
        """Ask for ``user:password``, if given. ``hosts`` are the ports behind names, as this proxy resolves them."""
        self._wanted = None if credentials is None else f"Basic {base64.b64encode(credentials.encode()).decode()}"
        self.hosts = hosts or {}
        self.targets: list[str] = []
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, target, _ = first.split(" ")
        self.targets.append(target)
        if self._wanted is not None and headers.get("proxy-authorization") != self._wanted:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        host, _, port = target.rpartition(":")
        assert method == "CONNECT"
        there, back = await asyncio.open_connection("127.0.0.1", self.hosts.get(host, int(port)))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._copy(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
        sink.close()


@contextlib.asynccontextmanager
async def connect_proxy(
    credentials: str | None = None, hosts: dict[str, int] | None = None
) -> AsyncIterator[ConnectProxy]:
    """Run a proxy until the block ends."""
    proxy = ConnectProxy(credentials, hosts)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
