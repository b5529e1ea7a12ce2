"""The MQTT broker beside Mosquitto, in the same run.

    python -m bench.mqtt [--only shapes,rate_1000_100] [--rounds 3] [--seconds 3]
                         [--settings commit_interval=5ms] [--slow-sync 10] [--output FILE]

The broker has one core and the load generator (``mqttload.c``) the other, so it takes a machine with two. Weft runs as
``weft edge run``, keeps every message in its log and acknowledges after fdatasync. Mosquitto runs on its defaults
with anonymous clients allowed: it keeps nothing and syncs nothing. Payloads are real telemetry, 43 to 320 bytes
long; each connection has a topic of its own. Brokers take turns, each with a fresh process; every figure is the
median of its rounds. What counts is ratios and processor time per message; other figures are of this machine.

The columns: messages a second (what subscribers received, where there are any), share of the broker's core, its
processor time (user and system) per message, milliseconds to the acknowledgement, bytes of 4 KiB pages that Weft wrote
for each byte of payload, messages in each commit, share of the generator's core, cores that other processes used.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.brokers import Edge, build_slow_sync, certificate, merged, mosquitto_version
from bench.common import machine, write_results
from bench.generator import NO_TLS, Figures, build
from bench.mqtt import idle
from bench.mqtt.cases import CASES, GROUPS, IDLE, choose
from bench.mqtt.compare import Run, compare, fsync_ms
from bench.mqtt.lines import HEAD, busy_machine, idle_lines, line, remarks


def parse_settings(text: str) -> dict[str, Any]:
    """Return the sections that ``commit_interval=5ms,disk.compression=none`` stands for.

    Raises:
        ValueError: a part has no value.
    """
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        path, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"expected NAME=VALUE, got {part!r}")
        section: Any = yaml.safe_load(value)
        for name in reversed(path.strip().split(".")):
            section = {name: section}
        found = merged(found, section)
    return found


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        prog="bench.mqtt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--seconds", type=float, default=3.0, help="measured time of each round, after 1 s of warm-up")
    found.add_argument("--rounds", type=int, default=3, help="rounds of each case; the median counts")
    found.add_argument(
        "--only", help=f"names of cases and groups ({', '.join(GROUPS)}); bench/results is not written then"
    )
    found.add_argument("--directory", type=Path, help="where logs are made; the system's temporary folder by default")
    found.add_argument(
        "--settings", default="", help="the node's settings, such as commit_interval=5ms,disk.compression=none"
    )
    found.add_argument(
        "--slow-sync", type=int, default=0, metavar="MS", help="make each sync of the node this much slower"
    )
    found.add_argument("--output", type=Path, help="a file for the figures, whatever was measured")
    return found


def measure(run: Run, chosen: set[str]) -> Figures:
    """Measure the chosen cases and print each as it ends."""
    results: Figures = {"cases": []}
    if not run.has_tls and any(case.tls and case.name in chosen for case in CASES):
        print(f"left out: the cases over TLS, for {NO_TLS}")
    print(HEAD)
    for case in CASES:
        if case.name not in chosen or (case.tls and not run.has_tls):
            continue
        result = compare(case, run)
        results["cases"].append(result)
        print(*(line(result), *remarks(result, run.rounds)), sep="\n", flush=True)
    if warning := busy_machine(results["cases"]):
        print(warning)
    if IDLE in chosen:
        results["idle"] = idle.measure(run)
        print(*idle_lines(results["idle"]), sep="\n")
    return results


def main() -> None:
    """Run the cases and write the results."""
    command = parser()
    arguments = command.parse_args()
    try:
        chosen = choose(arguments.only.split(",") if arguments.only else GROUPS)
        settings = parse_settings(arguments.settings)
    except ValueError as error:
        command.error(str(error))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        tools = Path(name)
        slow_sync = build_slow_sync(tools) if arguments.slow_sync else None
        directory = arguments.directory or tools
        fsync = fsync_ms(directory, arguments.slow_sync)
        run = Run(
            build(tools),
            directory,
            arguments.seconds,
            arguments.rounds,
            certificate(tools),
            Edge(settings, slow_sync, arguments.slow_sync),
            fsync["p50"],
        )
        print(f"{machine()['cpu']}; {mosquitto_version()}; one fsync {fsync['p50']:.2f} ms, p99 {fsync['p99']:.2f} ms")
        results = {
            "mosquitto": mosquitto_version(),
            "seconds": arguments.seconds,
            "rounds": arguments.rounds,
            "settings": settings,
            "slow_sync_ms": arguments.slow_sync,
            "fsync_ms": fsync,
            **measure(run, chosen),
        }
    print(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    if arguments.output:
        arguments.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    if not (arguments.only or settings or arguments.slow_sync):
        print(f"wrote {write_results('mqtt', results)}")


if __name__ == "__main__":
    main()
