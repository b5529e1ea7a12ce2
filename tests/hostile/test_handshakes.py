"""Handshakes that never end, that are none, or that come in floods take nothing from the links of a hub with TLS."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, running_link
from tests.hostile.waits import at_most
from tests.support.certificates import Authority, Pem
from tests.support.processes import Node, memory_bytes
from tests.support.stopwatch import Stopwatch
from weft.commands.running import get_status
from weft.network.tls import ClientTlsFiles

pytestmark = [pytest.mark.processes, pytest.mark.slow]
CONFIG = """\
listen: 127.0.0.1:{port}
store: store
shards: 1
processes: 1
commit_interval: 50ms
tables: null
tls: {{certificate: hub.crt, key: hub.key, half_open: 64, connect_timeout: 2s}}
"""
MOST_S = 0.6
"""Longest wait for an acknowledgement during an attack: a few commits, on a machine with other work."""
ATTACK_S = 4
HALF = "\\x16\\x03\\x01\\x02\\x00\\x01\\x00"
ATTACKS = {
    "half a greeting, a thousand times": f"keep.append(s); s.sendall(b'{HALF}')",
    "no greeting at all": "keep.append(s)",
    "HTTP without TLS": "s.sendall(b'GET /v1/link HTTP/1.1\\r\\n\\r\\n'); s.close()",
    "noise": "s.sendall(bytes(range(256)) * 64); s.close()",
    "whole handshakes and nothing behind them": "context.wrap_socket(s).close()",
}
ATTACKER = """\
import socket, ssl, sys, time
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
keep, end = [], time.monotonic() + {seconds}
while time.monotonic() < end:
    try:
        s = socket.create_connection(("127.0.0.1", {port}), 5)
        {act}
    except OSError:
        pass
    del keep[:-1000]
    time.sleep(0.001)
"""


async def longest_wait(log: EdgeLog, seq: int, seconds: float, hub: int) -> tuple[int, float]:
    """Append a record every 20 ms; the next number, and the longest wait for an acknowledgement."""
    loop, longest = asyncio.get_running_loop(), 0.0
    end, stopwatch = loop.time() + seconds, Stopwatch(hub)
    while loop.time() < end:
        stopwatch.start()
        log.append(*records(seq, [b"a"]))
        seq += 1
        await log.until_released(seq)
        longest = max(longest, stopwatch.seconds())
        await asyncio.sleep(0.02)
    return seq, longest


@pytest.mark.parametrize("act", ATTACKS.values(), ids=[name.replace(" ", "-") for name in ATTACKS])
async def test_a_link_hardly_notices(act: str, tmp_path: Path) -> None:
    port, authority = free_port(), Authority(tmp_path)
    own = authority.sign("hub")
    config = tmp_path / "hub.yaml"
    config.write_text(CONFIG.format(port=port))
    hub = Node("hub", config, popen=subprocess.Popen)  # its memory is measured
    try:
        await attacked(hub, port, authority, own, act)
    finally:
        hub.stop()


async def attacked(hub: Node, port: int, authority: Authority, own: Pem, act: str) -> None:
    trust, log, node = ClientTlsFiles(ca_file=authority.path), EdgeLog(), hub.process.pid
    somewhere: Any = None
    async with running_link(somewhere, log, EDGE, url=f"https://127.0.0.1:{port}", tls=trust) as link:
        seq, usual = await longest_wait(log, 0, 1.0, node)
        before = memory_bytes(node)
        attacker = subprocess.Popen([sys.executable, "-c", ATTACKER.format(seconds=ATTACK_S, port=port, act=act)])
        _, longest = await longest_wait(log, seq, ATTACK_S, node)
        attacker.wait()
        assert memory_bytes(node) - before < 64 << 20
        assert link.connections == 1
        facts = await asyncio.to_thread(get_status, f"127.0.0.1:{port}", "/v1/status", None, own.certificate)
        assert len(facts["links"]) == 1
        print(f"longest wait {usual:.3f} s before, {longest:.3f} s during")
        at_most(MOST_S, longest)
