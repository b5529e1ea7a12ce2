"""Processor time of a message on an edge node with a plain and with an encrypted data directory, in turns.

    python -m bench.encryption [--seconds 5] [--turns 5] [--rate 10000]

Two nodes (``weft edge run``) run beside each other, and one of them has load at a time, so that both meet the same
machine. The generator (``mqttload.c``) publishes readings of real sensors at QoS 1 and a fixed rate. The ratio of each
turn is within one run; the median of them is the result.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from bench import payloads
from bench.brokers import STREAM, server
from bench.common import write_results
from bench.generator import Generator, build
from examples.demo.fabric import free_port

EDGE_YAML = """\
node: bench
data_dir: {directory}/data
http: {{bind: "127.0.0.1:{http}"}}
listeners:
  mqtt: {{bind: "127.0.0.1:{port}"}}
disk: {{budget: 4GiB}}
encryption: {encryption}
streams:
  load: {{from: "{stream}"}}
"""
CONNECTIONS = 10


def begin(stack: ExitStack, folder: Path, *, is_sealed: bool) -> tuple[int, int]:
    """Start a node. Return its port and its process id."""
    folder.mkdir()
    port, http = free_port(), free_port()
    key = folder / "key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    encryption = f"{{key_file: {key}}}" if is_sealed else "null"
    config = folder / "edge.yaml"
    config.write_text(EDGE_YAML.format(directory=folder, port=port, http=http, encryption=encryption, stream=STREAM))
    process = stack.enter_context(server([sys.executable, "-m", "weft", "edge", "run", str(config)], port, http))
    return port, process


def microseconds(node: tuple[int, int], generator: Generator, rate: int, seconds: float) -> float:
    """Return the processor time of a message, in microseconds."""
    port, process = node
    before = sum(psutil.Process(process).cpu_times()[:2])
    load = generator.run(port, None, seconds, {"c": CONNECTIONS, "r": rate, "W": 0})
    used = sum(psutil.Process(process).cpu_times()[:2]) - before
    return float(used / load["acked"] * 1e6)


def main() -> None:
    """Run the turns and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for each node in each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rate", type=int, default=10_000, help="messages a second")
    parser.add_argument("--no-results", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    turns: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        generator = build(folder)
        payloads.write(folder / "sensor", payloads.sensor())
        generator = replace(generator, payloads=folder / "sensor")
        nodes = {kind: begin(stack, folder / kind, is_sealed=kind == "sealed") for kind in ("plain", "sealed")}
        for node in nodes.values():  # the first messages find nothing in any cache
            microseconds(node, generator, arguments.rate, 1.0)
        for turn in range(arguments.turns):
            order = list(nodes) if turn % 2 == 0 else list(nodes)[::-1]
            used = {kind: microseconds(nodes[kind], generator, arguments.rate, arguments.seconds) for kind in order}
            turns.append({**used, "ratio": used["sealed"] / used["plain"]})
            print(f"plain {used['plain']:6.1f} us  sealed {used['sealed']:6.1f} us  {turns[-1]['ratio']:.2f}")
    ratio = statistics.median(each["ratio"] for each in turns)
    print(f"an encrypted node uses {ratio:.2f} of the processor time of a plain one for a message")
    if not arguments.no_results:
        write_results("encryption", {"rate": arguments.rate, "turns": turns, "ratio": round(ratio, 3)})


if __name__ == "__main__":
    main()
