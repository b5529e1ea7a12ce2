"""Values from an OPC UA server of Eclipse Milo and from Modbus devices, with the node's processor time and memory.

    ./run bench plant [--variables 1000] [--every 0.1] [--devices 100] [--seconds 30]

First comes the memory of a node without a source, and with one of a hundred variables that change once a minute. Then
each variable changes at an interval, and the server sends each change. Each device is polled once a second for ten
registers in one request, ten devices on each connection. Server and node share the machine: where it is too slow for
the server, the figures are those of fewer changes, and the line says how many.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from examples.demo.fabric import free_port, get_json
from tests.support.opcua_server import MiloServer, Options

WARM_S = 5.0
"""Time after the connection that is not counted."""
ON_A_LINE = 10
REGISTERS = 10
CONFIG = """\
node: a
data_dir: {data}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 4GiB}}
listeners: {{}}
streams: {{plant: {{from: "#"}}}}
{sources}
"""


def opcua(port: int) -> str:
    return (
        f'sources:\n  press: {{opcua: {{url: "opc.tcp://127.0.0.1:{port}", publishing: 500ms, sampling: 0s, '
        'nodes: [{browse: {below: "Objects/Press"}}]}}'
    )


def modbus(port: int, devices: int) -> str:
    registers = ", ".join(f"r{at}: {{address: {at}}}" for at in range(REGISTERS))
    lines = ["sources:"]
    for first in range(0, devices, ON_A_LINE):
        units = range(1, min(ON_A_LINE, devices - first) + 1)
        polled = ", ".join(f"d{unit}: {{unit_id: {unit}, registers: {{{registers}}}}}" for unit in units)
        lines.append(f'  line{first}: {{modbus: {{url: "tcp://127.0.0.1:{port}", devices: {{{polled}}}}}}}')
    return "\n".join(lines)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request for registers with their addresses."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            number, _, size, unit = struct.unpack(">HHHB", await reader.readexactly(7))
            function, first, count = struct.unpack(">BHH", await reader.readexactly(size - 1))
            values = struct.pack(f">{count}H", *range(first, first + count))
            body = bytes([unit, function, len(values)]) + values
            writer.write(struct.pack(">HHH", number, 0, len(body)) + body)


async def serve(port: int) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


def measured(what: str, sources: str, seconds: float) -> None:
    """Print the records of a node in some seconds, what they cost it, and its memory.

    The node has an interpreter of its own, not a fork of one that has imported more.
    """
    http = free_port()
    url = f"http://127.0.0.1:{http}/status"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "edge.yaml")
        config.write_text(CONFIG.format(data=f"{folder}/data", http=http, sources=sources))
        command = [sys.executable, "-m", "weft", "edge", "run", str(config)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as node:
            try:
                process = psutil.Process(node.pid)
                while not is_connected(url):
                    time.sleep(0.2)
                time.sleep(WARM_S)
                seen: list[tuple[float, int, float]] = []
                for wait in (seconds, 0.0):
                    found, used = get_json(url)["sources"].values(), process.cpu_times()
                    seen.append((time.monotonic(), sum(each["messages"] for each in found), used.user + used.system))
                    time.sleep(wait)
                (begun, before, used_before), (ended, after, used_after) = seen
                count, used_s, took_s = max(1, after - before), used_after - used_before, ended - begun
                lost = sum((each["gaps"] or 0) + (each["reading"] or {"missed": 0})["missed"] for each in found)
                megabytes = process.memory_info().rss / 2**20
                print(f"{what}: {count / took_s:,.0f} records a second, {used_s / took_s:.0%} of a core,", end=" ")
                print(f"{used_s / count * 1e6:.0f} us each, {megabytes:.0f} MiB, {lost} gaps and misses", flush=True)
            finally:
                node.terminate()


def is_connected(url: str) -> bool:
    with contextlib.suppress(OSError):
        return all(each["state"] == "connected" for each in get_json(url)["sources"].values())
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variables", type=int, default=1000)
    parser.add_argument("--every", type=float, default=0.1, help="seconds between two changes of a variable")
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        asyncio.run(serve(given.serve))
        return
    measured("no source", "", given.seconds)
    for variables, every_s in ((100, 60.0), (given.variables, given.every)):
        options = Options(variables=variables, every_s=every_s)
        with tempfile.TemporaryDirectory() as folder, MiloServer(free_port(), Path(folder, "log"), options) as server:
            measured(f"OPC UA, {variables} variables", opcua(server.port), given.seconds)
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.plant", "--serve", str(port)], stdout=subprocess.PIPE
    ) as devices:
        assert devices.stdout is not None
        devices.stdout.readline()
        try:
            measured(f"Modbus, {given.devices} devices", modbus(port, given.devices), given.seconds)
        finally:
            devices.kill()


if __name__ == "__main__":
    main()
