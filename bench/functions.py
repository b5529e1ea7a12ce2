"""Edge functions on one core: a filter with a deadband, and windows over 10,000 keys, behind acknowledged QoS 1.

    python -m bench.functions [--seconds 10] [--cases plain,deadband,window] [--rates 25000,50000] [--profile]

The node (``weft edge run``) has one core and the load generator (``mqttload.c``) the other. Devices' messages are
acknowledged after fdatasync; functions read them from the log, and what they make is in the log again. Payloads are the
messages of Raspberry Pis that ship with the demo, as published ("raw") and shortened ("compact").

A closed loop says how much one core takes: a case is over when the functions have seen every message, and the processor
time of all of it counts. Beside it stands how much of the core the node got: on a machine that does other work it is
less than all of it, and so fewer messages than the processor time of each would say. At a fixed rate functions have to
keep up: how far behind they are at the end is shown. The node without functions, and Mosquitto with nothing behind it,
stand beside them for scale.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench import payloads
from bench.brokers import Edge, Served, mosquitto_version, with_broker
from bench.common import write_results
from bench.generator import Generator, build, family
from bench.profiling import NOTHING, seconds_by_part, start_sampling, thread_seconds
from examples.demo.fabric import get_json

CONNECTIONS, WINDOW = 10, 100
RATE_CONNECTIONS = 100
KEYS = 10_000
WARM_UP_S = 1
DRAIN_S_MAX = 180.0
POLL_S = 0.1
DERIVED = "derived"


@dataclass(frozen=True)
class Case:
    """A node with functions, and what is sent to it."""

    title: str
    payloads: str
    """Name of the messages: ``raw``, ``compact`` or ``keyed``."""
    functions: list[dict[str, Any]] = field(default_factory=list)
    seconds_min: float = 0.0
    """Shortest run that has a whole window in it."""

    def edge(self) -> Edge:
        """Return the node's settings."""
        if not self.functions:
            return Edge()
        return Edge(
            {"streams": {"load": {"payload": "json"}, DERIVED: {"from_stream": "load", "functions": self.functions}}}
        )


def _deadband(prefix: str) -> list[dict[str, Any]]:
    """Return the filter with a deadband, of a temperature that the Pis send with six digits."""
    name = f"{prefix}temp"
    condition = "data['temp'] >= 0 and data['humidity'] <= 100" if prefix else "temp >= 0 and humidity <= 100"
    return [{"where": condition}, {"deadband": {"field": name, "delta": 0.2, "max_silence": "60s"}}]


def cases(every: str) -> dict[str, Case]:
    """Return all cases by name.

    Args:
        every: length of the windows.
    """
    emit = {"temp_max": "max(temp)", "temp_mean": "mean(temp)", "n": "count()"}
    window, minute = ({"window": {"every": each, "by": ["sensor"], "emit": emit}} for each in (every, "1m"))
    return {
        "plain": Case("no functions, compact", "compact"),
        "where": Case("where, compact", "compact", _deadband("")[:1]),
        "deadband": Case("where + deadband, compact", "compact", _deadband("")),
        "raw": Case("where + deadband, raw", "raw", _deadband("data.")),
        "window": Case(f"window of {every} by {KEYS:,} keys", "keyed", [window]),
        "minute": Case(f"window of 1m by {KEYS:,} keys", "keyed", [minute], seconds_min=62),
    }


def write_payloads(directory: Path) -> dict[str, Path]:
    """Write the messages, those of one device behind another: a deadband compares neighbours."""
    messages = sorted(payloads.pi_messages(payloads.PAYLOADS), key=lambda each: str(each["device"]))
    compact = [payloads.compact(message) for message in messages]
    keyed = [b'{"sensor":"s-%05d",' % (number % KEYS) + payload[1:] for number, payload in enumerate(compact)]
    raw = [json.dumps(message, separators=(",", ":")).encode() for message in messages]
    made = {"compact": compact, "keyed": keyed, "raw": raw}
    return {name: payloads.write(directory / name, lines) for name, lines in made.items()}


class Node:
    """A node under test."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._processes = [psutil.Process(pid) for pid in family(served.pid)]

    def functions(self) -> Mapping[str, Any] | None:
        """Return the figures of the derived stream; None without one."""
        status = get_json(f"http://127.0.0.1:{self._served.http}/status", timeout_s=30)
        found: Mapping[str, Any] | None = status.get("functions", {}).get(DERIVED)
        return found

    def processor_s(self) -> float:
        """Return the processor time so far."""
        times = [process.cpu_times() for process in self._processes]
        return sum(each.user + each.system for each in times)

    def drain(self) -> Mapping[str, Any] | None:
        """Wait until the functions have seen everything. Return their figures.

        Raises:
            SystemExit: they have not after ``DRAIN_S_MAX``.
        """
        deadline = time.monotonic() + DRAIN_S_MAX
        while time.monotonic() < deadline:
            found = self.functions()
            if found is None or not found["lag_records"]:
                return found
            if found["trouble"]:
                raise SystemExit(f"the functions cannot continue: {found['trouble']}")
            time.sleep(POLL_S)
        raise SystemExit(f"the functions have not caught up after {DRAIN_S_MAX:g} s")


def closed_loop(generator: Generator, served: Served, seconds: float, profile: Path | None) -> dict[str, Any]:
    """Measure as many messages as one core takes, until the functions have seen all of them."""
    node = Node(served)
    threads = thread_seconds(served.pid)
    before, started = node.processor_s(), time.monotonic()
    profiler = start_sampling(served.pid, seconds, profile) if profile else None
    figures = generator.run(served.port, served.pid, seconds, {"c": CONNECTIONS, "w": WINDOW, "W": WARM_UP_S})
    functions = node.drain()
    used, took = node.processor_s() - before, time.monotonic() - started
    if functions is not None and functions["rows_in"] < figures["acked"]:
        raise SystemExit(f"the functions saw {functions['rows_in']} of {figures['acked']} messages")
    parts = {}
    if profiler is not None and profile is not None:
        now = thread_seconds(served.pid)
        profiler.wait()
        spent = seconds_by_part(
            profile, {thread: used.since(threads.get(thread, NOTHING)) for thread, used in now.items()}
        )
        parts = {part: round(used * 1e6 / figures["acked"], 2) for part, used in spent.items()}
    return {
        "acked_per_s": figures["messages_per_s"],
        "ack_ms_p99": figures["ack_ms"]["p99"],
        "all_in_per_s": round(figures["acked"] / took),
        "all_in_us": round(used * 1e6 / figures["acked"], 2),
        "core": round(used / took, 2),
        "peak_rss_mib": _peak_rss_mib(served.pid),
        "payload_bytes": round(figures["sent_payload_bytes"] / figures["sent"], 1),
        "us_by_part": parts,
    } | _made(functions)


def fixed_rate(generator: Generator, seconds: float, rate: int, served: Served) -> dict[str, Any]:
    """Measure at a fixed rate, and how far behind the functions are when it ends."""
    options: dict[str, object] = {"c": RATE_CONNECTIONS, "r": rate, "W": WARM_UP_S}
    figures = generator.run(served.port, served.pid, seconds, options)
    node = Node(served)
    behind = node.functions()
    node.drain()
    return {
        "rate": rate,
        "acked_per_s": figures["messages_per_s"],
        "ack_ms_p50": figures["ack_ms"]["p50"],
        "ack_ms_p99": figures["ack_ms"]["p99"],
        "server_cpu": figures["server_cpu"],
        "behind_records": behind["lag_records"] if behind else 0,
        "behind_s": round(behind["lag_records"] / rate, 2) if behind else 0.0,
        "peak_rss_mib": _peak_rss_mib(served.pid),
    }


def _made(functions: Mapping[str, Any] | None) -> dict[str, Any]:
    if functions is None:
        return {}
    return {
        "rows_in": functions["rows_in"],
        "rows_out": functions["rows_out"],
        "rejected": functions["rows_rejected"],
        "kept": round(functions["rows_out"] / max(functions["rows_in"], 1), 4),
        "bytes_kept": round(functions["bytes_out"] / max(functions["bytes_in"], 1), 4),
        "state_bytes": functions["state_bytes"],
    }


def _peak_rss_mib(server: int) -> int:
    """Return the highest resident memory of the broker and its children."""
    total = 0
    for pid in family(server):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1])
    return round(total / 1024)


def measure(generators: Mapping[str, Generator], case: Case, seconds: float, rates: list[int]) -> dict[str, Any]:
    """Measure a case: the closed loop, then each rate, each with a fresh node."""
    generator, edge = generators[case.payloads], case.edge()
    directory = generator.program.parent
    long = max(seconds, case.seconds_min)
    closed = with_broker("weft", directory, lambda served: closed_loop(generator, served, long, None), edge=edge)
    fixed = []
    for rate in rates:
        fixed.append(with_broker("weft", directory, partial(fixed_rate, generator, seconds, rate), edge=edge))
    return {"title": case.title, "closed": closed, "rates": fixed}


def breakdown(generators: Mapping[str, Generator], case: Case, seconds: float) -> dict[str, float]:
    """Return the microseconds of a message by part of the node."""
    generator = generators[case.payloads]
    path = generator.program.parent / "stacks"
    closed = with_broker(
        "weft", path.parent, lambda served: closed_loop(generator, served, seconds, path), edge=case.edge()
    )
    assert closed is not None
    found: dict[str, float] = closed["us_by_part"]
    return found


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of a case."""
    closed = found["closed"]
    kept = f"{closed['kept']:>8.1%}" if "kept" in closed else f"{'':>8}"
    yield (
        f"{found['title']:<34}{closed['acked_per_s']:>11,.0f}{closed['all_in_per_s']:>11,.0f}{closed['all_in_us']:>8.2f}"
        f"{closed['core']:>6.0%}{kept}{closed['peak_rss_mib']:>7}"
    )
    for rate in found["rates"]:
        yield (
            f"{'':6}at {rate['rate']:>7,}/s: acked {rate['acked_per_s']:>9,.0f}/s, p99 {rate['ack_ms_p99']:.1f} ms, "
            f"{rate['server_cpu']:.0%} of the core, {rate['behind_records']:,} behind, {rate['peak_rss_mib']} MiB"
        )


def main() -> None:
    """Run the cases and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of each run")
    parser.add_argument("--every", default="10s", help="length of the windows")
    parser.add_argument("--cases", default="", help="names of cases, such as plain,deadband; all without it")
    parser.add_argument("--rates", default="25000,50000", help="fixed rates, messages a second")
    parser.add_argument("--profile", action="store_true", help="also sample stacks (pip install py-spy)")
    parser.add_argument("--dry", action="store_true", help="measure, and write no results")
    arguments = parser.parse_args()
    known = cases(arguments.every)
    wanted = [name for name in arguments.cases.split(",") if name] or list(known)
    rates = [int(rate) for rate in arguments.rates.split(",") if rate]
    load = os.getloadavg()[0]
    print(f"load of the machine before: {load:.1f}")
    print(f"{'':34}{'acked/s':>11}{'all in/s':>11}{'us':>8}{'core':>6}{'kept':>8}{'MiB':>7}")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        built = build(Path(name))
        generators = {
            kind: Generator(built.program, path, built.has_tls) for kind, path in write_payloads(Path(name)).items()
        }
        results = []
        for each in wanted:
            results.append({"name": each} | measure(generators, known[each], arguments.seconds, rates))
            print("\n".join(lines(results[-1])), flush=True)
        theirs = with_broker(
            "mosquitto",
            Path(name),
            lambda served: generators["compact"].run(
                served.port, served.pid, arguments.seconds, {"c": CONNECTIONS, "w": WINDOW, "W": WARM_UP_S}
            ),
        )
        if theirs is not None:
            rss_mib = theirs["server_peak_rss_kib"] / 1024
            us, core = theirs["server_us_per_message"], theirs["server_cpu"]
            figures = f"{theirs['messages_per_s']:>11,.0f}{'':>11}{us:>8.2f}{core:>6.0%}{'':>8}"
            print(f"{'Mosquitto, nothing behind it':<34}{figures}{rss_mib:>7.0f}")
        parts: dict[str, dict[str, float]] = {}
        if arguments.profile:
            for each in (each for each in wanted if known[each].functions):
                parts[each] = breakdown(generators, known[each], arguments.seconds)
                print(each, *(f"{part} {us:.2f}" for part, us in parts[each].items()), sep="\n   ", flush=True)
    if arguments.dry:
        return
    path = write_results(
        "functions",
        {
            "qos": 1,
            "seconds": arguments.seconds,
            "every": arguments.every,
            "keys": KEYS,
            "load_before": load,
            "mosquitto": mosquitto_version(),
            "nothing_behind": theirs,
            "cases": results,
            "breakdown": parts,
        },
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
