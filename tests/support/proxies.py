"""Real reverse proxies for tests, with the configurations of a page, on ports of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
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
