"""The MQTT broker beside Mosquitto, in the same run: throughput, fan-out, latency, idle connections.

    python -m bench.mqtt [--seconds 5] [--only ingest,qos0] [--rounds 3]

The broker has one core and the load generator (``mqttload.c``) the other, so it takes a machine with two. Weft runs as
``weft edge run`` and keeps every message of the load in its log: QoS 1 is acknowledged after fdatasync. Mosquitto runs
on its own defaults with anonymous clients allowed: it syncs nothing before it acknowledges. Payloads are 100 bytes.
Each case runs in rounds, Weft and Mosquitto turn by turn with a fresh process each; the figure is the median round, so
that a busy neighbour does not decide. What counts is the ratio; absolute figures are of this machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.common import LOAD_CORE, PAYLOAD_BYTES, machine, write_results
from bench.ingest import build, mosquitto, mosquitto_version, pinned, server, weft
from weft.demo.fabric import free_port

Figures = dict[str, Any]
IDLE_CONNECTIONS = 10_000
LATENCY_RATE = 10_000
LATENCY_ALLOWANCE_MS = 5.0
FSYNCS = 400
FSYNC_BYTES = 16 << 10
"""About what one commit writes at the rate of the latency case."""
KEPT, LIVE = "lg", "live"
"""Topic prefixes: of a stream of Weft's log, and of none (`unrouted: live`)."""


@dataclass(frozen=True)
class Case:
    """One comparison. The ratio is Weft's figure by Mosquitto's; ``options`` are ``mqttload``'s."""

    name: str
    title: str
    figure: str
    target: float
    options: dict[str, object]


CASES = (
    Case("ingest", "QoS 1 ingest, Weft synced, 10 x 100", "msgs_s", 3.0, {"q": 1, "c": 10, "w": 100}),
    Case("ingest_100", "QoS 1 ingest, Weft synced, 100 x 20", "msgs_s", 3.0, {"q": 1, "c": 100, "w": 20}),
    Case("ingest_v5", "QoS 1 ingest over MQTT 5, 10 x 100", "msgs_s", 3.0, {"q": 1, "c": 10, "w": 100, "V": 5}),
    Case("qos0", "QoS 0 ingest, 10 x 100", "msgs_s", 1.5, {"q": 0, "c": 10, "w": 100}),
    Case("qos2", "QoS 2 ingest, Weft synced, 10 x 100", "msgs_s", 1.0, {"q": 2, "c": 10, "w": 100}),
    Case("one_to_one", "1 publisher to 1 subscriber, QoS 1", "recv_s", 1.0, {"q": 1, "c": 1, "S": 1, "w": 100}),
    Case("fan_out", "fan-out 1 to 100, QoS 0, kept", "recv_s", 0.7, {"q": 0, "c": 1, "S": 100, "w": 50}),
    Case(
        "fan_out_live", "fan-out 1 to 100, QoS 0, no stream", "recv_s", 0.7,
        {"q": 0, "c": 1, "S": 100, "w": 50, "T": LIVE},
    ),
)  # fmt: skip


def generate(generator: Path, port: int, pid: int, seconds: float, options: dict[str, object]) -> Figures:
    """One run of the load generator on its core."""
    given = {"p": port, "P": pid, "s": PAYLOAD_BYTES, "t": seconds, "W": 1, "T": KEPT, **options}
    command = [str(generator), *(part for key, value in given.items() for part in (f"-{key}", str(value)))]
    before, started = processor_seconds(pid), time.perf_counter()
    done = subprocess.run(pinned(LOAD_CORE, command), stdout=subprocess.PIPE, check=False, text=True)
    if not done.stdout:
        raise SystemExit(f"the load generator failed with status {done.returncode}: {' '.join(command)}")
    figures: Figures = msgspec.json.decode(done.stdout)
    elapsed = time.perf_counter() - started
    figures["other_cores"] = round(max(processor_seconds(pid) - before, 0) / elapsed, 2)
    return figures


def processor_seconds(pid: int) -> float:
    """What processes other than the broker and our own have used, and the hypervisor: how quiet the machine is."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    ours, broker = psutil.Process().cpu_times(), psutil.Process(pid).cpu_times()
    own = ours.user + ours.system + ours.children_user + ours.children_system
    return float(busy - own - broker.user - broker.system)


def with_broker(broker: str, directory: Path, run: Callable[[int, int], Figures]) -> Figures | None:
    """``run`` with the port and the process id of a fresh broker; None when it is not installed."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=directory) as name:
        port = free_port()
        command = weft(Path(name), port) if broker == "weft" else mosquitto(Path(name), port)
        if command is None:
            return None
        with server(command, port) as pid:
            return run(port, pid)


def shorter(figures: Figures) -> Figures:
    """What is worth keeping of the generator's figures."""
    kept = {
        "messages_per_s": figures["msgs_s"],
        "ack_ms_p50": figures["ack_us"]["p50"] / 1000,
        "ack_ms_p99": figures["ack_us"]["p99"] / 1000,
        "server_cpu": figures["srv_cpu"],
        "server_us_per_message": figures["srv_us_msg"],
        "server_rss_mib": round(figures["srv_hwm_kb"] / 1024),
        "generator_cpu": figures["cli_cpu"],
        "other_cores": figures["other_cores"],
        "errors": figures["errs"],
    }
    if "recv_s" in figures:
        kept["received_per_s"] = figures["recv_s"]
        kept["received_share"] = round(figures["recvd_total"] / max(figures["acked_total"] * figures["subs"], 1), 3)
        kept["server_us_per_delivery"] = round(figures["srv_cpu"] * 1e6 / max(figures["recv_s"], 1), 3)
    return kept


def median_round(rounds: list[Figures], figure: str) -> Figures:
    """The round in the middle."""
    return sorted(rounds, key=lambda figures: float(figures[figure]))[len(rounds) // 2]


def compare(case: Case, generator: Path, directory: Path, seconds: float, rounds: int) -> Figures:
    """One case, turn by turn."""
    found: dict[str, list[Figures]] = {"weft": [], "mosquitto": []}
    for _ in range(rounds):
        for broker, results in found.items():
            figures = with_broker(
                broker, directory, lambda port, pid: generate(generator, port, pid, seconds, case.options)
            )
            if figures is not None:
                results.append(figures)
    result: Figures = {"name": case.name, "title": case.title, "options": case.options, "target": case.target}
    for broker, results in found.items():
        result[broker] = shorter(median_round(results, case.figure)) if results else None
    if found["mosquitto"]:
        ours, theirs = (median_round(results, case.figure)[case.figure] for results in found.values())
        result["ratio"] = round(ours / max(theirs, 1), 2)
        cpu = [result[broker]["server_us_per_message"] for broker in found]
        result["cpu_ratio"] = round(cpu[1] / cpu[0], 2) if cpu[0] else None
        result["met"] = result["ratio"] >= case.target
    return result


def fsync_ms(directory: Path) -> tuple[float, float]:
    """Median and 99th percentile of appending ``FSYNC_BYTES`` and fdatasync, where the logs are."""
    times = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        for _ in range(FSYNCS):
            started = time.perf_counter()
            os.write(descriptor, os.urandom(FSYNC_BYTES))
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def latency(generator: Path, directory: Path, seconds: float, rounds: int) -> Figures:
    """Ack latency at an open-loop rate, beside what one fsync takes."""
    sync, sync_p99 = fsync_ms(directory)
    options: dict[str, object] = {"q": 1, "c": 10, "r": LATENCY_RATE}
    turns: dict[str, list[Figures]] = {"weft": [], "mosquitto": []}
    for _ in range(rounds):
        for broker, results in turns.items():
            figures = with_broker(broker, directory, lambda port, pid: generate(generator, port, pid, seconds, options))
            if figures is not None:
                results.append(shorter(figures))
    found = {broker: median_round(results, "ack_ms_p99") if results else None for broker, results in turns.items()}
    ours = found["weft"]
    assert ours is not None
    return {
        "rate": LATENCY_RATE,
        "fsync_ms": round(sync, 3),
        "fsync_ms_p99": round(sync_p99, 3),
        **found,
        "target_ms": round(sync + LATENCY_ALLOWANCE_MS, 3),
        "met": ours["ack_ms_p99"] <= sync + LATENCY_ALLOWANCE_MS,
    }


def idle(generator: Path, directory: Path) -> Figures:
    """Memory of idle connections, and how fast they were accepted."""

    def run(port: int, pid: int) -> Figures:
        # a first client, so that what is made once is there
        generate(generator, port, pid, 0.5, {"q": 1, "c": 1, "w": 1})
        before = psutil.Process(pid).memory_info().rss
        figures = generate(generator, port, pid, 2, {"q": 1, "c": IDLE_CONNECTIONS, "r": 0.001})
        return {
            "connections": IDLE_CONNECTIONS,
            "bytes_each": round((figures["srv_rss_kb"] * 1024 - before) / IDLE_CONNECTIONS),
            "connections_per_s": round(IDLE_CONNECTIONS / figures["connect_s"]),
            "errors": figures["errs"],
        }

    ours = with_broker("weft", directory, run)
    assert ours is not None
    met = ours["bytes_each"] < 8192 and ours["connections_per_s"] >= 1000
    return {"weft": ours, "mosquitto": with_broker("mosquitto", directory, run), "met": met}


def line(result: Figures) -> str:
    """One case as a line of the table."""
    theirs = result["mosquitto"]
    if theirs is None:
        return f"{result['title']:40} {result['weft']}"
    key = "received_per_s" if "received_per_s" in theirs else "messages_per_s"
    return (
        f"{result['title']:40}{result['weft'][key]:>12,.0f}{theirs[key]:>12,.0f}{result['ratio']:>8.2f}"
        f"{result['target']:>7.1f}{'  yes' if result['met'] else '   no'}"
        f"{result['weft']['server_us_per_message']:>9.2f}{theirs['server_us_per_message']:>9.2f}{result['weft']['other_cores']:>7.2f}"
    )


def show_latency(result: Figures) -> None:
    """The latency case in a sentence."""
    print(
        f"ack at {result['rate']:,}/s QoS 1: p99 {result['weft']['ack_ms_p99']:.2f} ms; one fsync "
        f"{result['fsync_ms']:.2f} ms (p99 {result['fsync_ms_p99']:.2f}); target {result['target_ms']:.2f} ms: "
        f"{'met' if result['met'] else 'not met'}; Mosquitto, unsynced: "
        f"{result['mosquitto']['ack_ms_p99'] if result['mosquitto'] else 'not installed'}; "
        f"other processes used {result['weft']['other_cores']} cores"
    )


def show_idle(result: Figures) -> None:
    """The idle case in a sentence for each broker."""
    for broker in ("weft", "mosquitto"):
        if figures := result[broker]:
            print(
                f"{broker}: {figures['connections']:,} idle connections, {figures['bytes_each']:,} bytes each, "
                f"{figures['connections_per_s']:,} accepted per second"
            )
    print(f"targets: under 8,192 bytes, at least 1,000 per second: {'met' if result['met'] else 'not met'}")


def main() -> None:
    """Run the cases and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of each round, after 1 s of warm-up")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case; the median counts")
    names = [case.name for case in CASES] + ["latency", "idle"]
    parser.add_argument("--only", help=f"some of {','.join(names)}; nothing is written then")
    parser.add_argument("--directory", type=Path, help="where logs are made; the system's temporary folder by default")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else names
    if unknown := set(chosen) - set(names):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    results: Figures = {
        "mosquitto": mosquitto_version(),
        "payload_bytes": PAYLOAD_BYTES,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "cases": [],
    }
    print(f"{machine()['cpu']}; {results['mosquitto']}; FlashMQ is not packaged in Debian and not measured here")
    print(
        f"{'':40}{'Weft /s':>12}{'Mosquitto /s':>12}{'ratio':>8}{'target':>7}  met"
        f"{'us/msg':>9}{'us/msg':>9}{'others':>7}"
    )
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        generator = build(Path(name))
        directory = arguments.directory or Path(name)
        for case in CASES:
            if case.name in chosen:
                result = compare(case, generator, directory, arguments.seconds, arguments.rounds)
                results["cases"].append(result)
                print(line(result), flush=True)
        if "latency" in chosen:
            results["latency"] = latency(generator, directory, arguments.seconds, arguments.rounds)
            show_latency(results["latency"])
        if "idle" in chosen:
            results["idle"] = idle(generator, directory)
            show_idle(results["idle"])
    if not arguments.only:
        print(f"wrote {write_results('mqtt', results)}")


if __name__ == "__main__":
    main()
