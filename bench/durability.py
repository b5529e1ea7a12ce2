"""Write amplification: bytes that reach the device for each byte of payload, of a whole node under MQTT load.

    python -m bench.durability [--seconds 20] [--only 10000] [--open-gib 10] [--directory DIR]

A node (``weft edge run``) has its data on an ext4 file system of its own, on a loop device, so that the device's own
counter tells what reached it: the log, file system metadata and journal, everything. That needs root; without it only
the node's own count of pages is left. The generator (``mqttload.c``) publishes at QoS 1
at a fixed rate. ``sensor`` payloads are readings of real Raspberry Pi sensors (``examples/demo/data``) as JSON of about
100 bytes; ``random`` ones are 100 bytes that no compression makes shorter. Some cases make each sync as slow as a
memory card's (``slow_sync.c``). At the end a large log is filled and opened.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import payloads
from bench.brokers import STREAM, build_slow_sync, metric, server, slowed
from bench.common import write_results
from bench.generator import Generator, build
from bench.opening import measure_opening
from examples.demo.fabric import free_port

IMAGE_BYTES = 2 << 30
SECTOR_BYTES = 512
"""Unit of /sys/block/*/stat, whatever the device's own sectors are (Documentation/block/stat.rst)."""
SETTLE_S = 1.0
TARGET_RATE = 10_000
MESSAGES_MIN = 200
"""Fewest messages of a case; at low rates the load lasts longer for them. A node writes zeros ahead once in some 130
commits of one record each."""
CARD_SYNC_MS = (5, 10, 20)
"""Memory cards take 5 to 50 ms for a sync."""

BY_LOAD = "null"
"""Value of ``commit_interval`` that sets none: the load decides."""

EDGE_YAML = """\
node: bench
data_dir: {directory}/data
http: {{bind: "127.0.0.1:{http}"}}
listeners:
  mqtt: {{bind: "127.0.0.1:{port}"}}
disk: {{budget: 1GiB, compression: {compression}}}
commit_interval: {commit_interval}
streams:
  load: {{from: "{stream}"}}
"""


@dataclass(frozen=True)
class Case:
    """One measurement."""

    rate: int
    """Messages a second."""
    payloads: str
    compression: bool
    commit_interval: str
    sync_ms: int = 0
    """Milliseconds that each sync of the log takes longer than on this machine's disk."""


def cases() -> list[Case]:
    """Return the cases: rates with variants of commit interval, compression, payload and sync time."""
    found = [Case(1, "sensor", True, interval) for interval in (BY_LOAD, "0s", "1s")]
    for rate in (100, TARGET_RATE):
        found += [Case(rate, "sensor", True, interval) for interval in (BY_LOAD, "0s", "10ms", "100ms", "1s")]
        found += [Case(rate, "sensor", False, "0s"), Case(rate, "random", True, "0s")]
    return [*found, *(Case(TARGET_RATE, "sensor", True, "0s", sync_ms) for sync_ms in CARD_SYNC_MS)]


@contextmanager
def own_file_system(directory: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield a folder on a fresh ext4 file system and its block device; without root the directory itself and None."""
    with ExitStack() as stack:
        image, folder = directory / "image", directory / "mounted"
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        stack.callback(image.unlink)
        # Without lazy initialisation: its writes would be counted later.
        lazy = "lazy_itable_init=0,lazy_journal_init=0"
        made = subprocess.run(["mkfs.ext4", "-q", "-E", lazy, str(image)], capture_output=True, check=False)
        mounted = (
            made.returncode == 0
            and not subprocess.run(
                ["mount", "-o", "loop,noatime", str(image), str(folder)], capture_output=True, check=False
            ).returncode
        )
        if not mounted:
            yield directory, None
            return
        stack.callback(subprocess.run, ["umount", str(folder)], check=True)
        found = subprocess.run(
            ["findmnt", "-n", "-o", "SOURCE", str(folder)], capture_output=True, text=True, check=True
        )
        yield folder, Path(found.stdout.strip()).name


def device_of(folder: Path) -> str:
    """Return the block device that is mounted there, such as ``loop0``."""
    command = ["findmnt", "-n", "-o", "SOURCE", str(folder)]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()).name


def device_bytes(device: str | None) -> int | None:
    """Return the bytes written to a block device since it was created; None without one."""
    if device is None:
        return None
    return int(Path(f"/sys/block/{device}/stat").read_text().split()[6]) * SECTOR_BYTES


def counts(folder: Path, device: str | None, http: int) -> dict[str, int | None]:
    """Sync the file system, then return the bytes written and the commits made until now."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    subprocess.run(["sync", "-f", str(folder)], check=True)
    return {
        "device": device_bytes(device),
        "log": metric(http, "weft_edge_log_device_written_bytes_total"),
        "commits": metric(http, "weft_edge_log_commits_total"),
    }


def node(case: Case, config: Path, tools: Path) -> list[str]:
    """Return the command that runs the edge node."""
    command = [sys.executable, "-m", "weft", "edge", "run", str(config)]
    return slowed(command, tools / "slow_sync.so" if case.sync_ms else None, case.sync_ms)


def measure(case: Case, generator: Generator, directory: Path, seconds: float) -> dict[str, Any]:
    """Measure one case on a fresh file system.

    Args:
        generator: lies in a folder with the payloads and the library that slows syncs.
    """
    tools = generator.program.parent
    with (
        tempfile.TemporaryDirectory(prefix="weft-bench-", dir=directory) as name,
        own_file_system(Path(name)) as (folder, device),
    ):
        port, http = free_port(), free_port()
        config = Path(name) / "edge.yaml"
        config.write_text(
            EDGE_YAML.format(
                directory=folder,
                port=port,
                http=http,
                commit_interval=case.commit_interval,
                stream=STREAM,
                compression="zstd" if case.compression else "none",
            )
        )
        load_of_case = replace(generator, payloads=tools / case.payloads)
        with server(node(case, config, tools), port, http):
            time.sleep(SETTLE_S)
            before = counts(folder, device, http)
            load = run_load(load_of_case, port, case.rate, max(seconds, MESSAGES_MIN / case.rate))
            after = counts(folder, device, http)
    payload_bytes = load["sent_payload_bytes"]
    written = {
        key: None if value is None or (past := before[key]) is None else value - past for key, value in after.items()
    }
    return {
        **asdict(case),
        "messages": load["acked"],
        "payload_bytes": payload_bytes,
        "commits": written.pop("commits"),
        "ack_ms_p99": load["ack_ms"]["p99"],
        "written_bytes": written,
        "amplification": {
            key: None if value is None else round(value / payload_bytes, 3) for key, value in written.items()
        },
    }


def run_load(generator: Generator, port: int, rate: int, seconds: float) -> dict[str, Any]:
    """Publish at a rate; ends a moment after the last acknowledgement."""
    return generator.run(port, None, seconds, {"c": 10 if rate >= 1000 else 1, "r": rate, "W": 0})


def line(result: dict[str, Any]) -> str:
    """Return one case as a line."""
    ratios = "".join(
        f"{'-':>9}" if result["amplification"][key] is None else f"{result['amplification'][key]:>9.2f}"
        for key in ("device", "log")
    )
    compression = "on" if result["compression"] else "off"
    sync = f"{'+' + str(result['sync_ms']) if result['sync_ms'] else '':>5}"
    per_commit = result["messages"] / max(result["commits"], 1)
    return (
        f"{result['rate']:>7}/s  {result['payloads']:7} {compression:4} {result['commit_interval']:>4}{sync}"
        f"{ratios} {per_commit:>9.1f} {result['ack_ms_p99']:>8.2f}"
    )


def main() -> None:
    """Run the cases and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of load in each case, more where few messages come"
    )
    parser.add_argument("--only", type=int, help="only this rate; nothing is written then")
    parser.add_argument(
        "--directory", type=Path, help="where the file systems are made; the temporary folder by default"
    )
    parser.add_argument("--open-gib", type=int, default=10, help="size of the log whose opening is timed; 0 for none")
    arguments = parser.parse_args()
    results = []
    print("     rate  payload zstd wait  sync   device      log msgs/sync   p99 ms   (bytes written / payload bytes)")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        tools = Path(name)
        generator = build(tools)
        build_slow_sync(tools)
        payloads.write(tools / "sensor", payloads.sensor())
        payloads.write(tools / "random", payloads.random_bytes())
        for case in cases():
            if arguments.only in (None, case.rate):
                results.append(measure(case, generator, arguments.directory or tools, arguments.seconds))
                print(line(results[-1]), flush=True)
    if arguments.only is not None:
        return
    opening = measure_opening(arguments.open_gib << 30, arguments.directory) if arguments.open_gib else None
    print(f"opening {arguments.open_gib} GiB: {opening}")
    written = write_results("durability", {"seconds": arguments.seconds, "cases": results, "opening": opening})
    print(f"wrote {written}")


if __name__ == "__main__":
    main()
