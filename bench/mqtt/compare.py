"""One case of Weft and Mosquitto, turn by turn: rounds, medians, ratios and whether the targets are met."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.brokers import BROKERS, Certificate, Edge, Served, with_broker
from bench.generator import Figures, Generator
from bench.mqtt.cases import Case, Target

GENERATOR_CPU_MAX = 0.9
"""Share of its core from which on the generator may be the limit."""
FSYNCS = 400
FSYNC_BYTES = 16 << 10
"""About what one commit writes at 10,000 messages a second."""
WARMUP_S = 1
MESSAGES_MIN = 500
"""Fewest messages of a round at a fixed rate, which lasts longer for them; a p99 takes some hundred."""


@dataclass(frozen=True)
class Run:
    """Generator, node and settings that all cases of a run share."""

    generator: Generator
    directory: Path
    seconds: float
    rounds: int
    certificate: Certificate | None
    edge: Edge
    fsync_ms: float

    @property
    def has_tls(self) -> bool:
        """Tell whether cases with TLS can be measured."""
        return self.generator.has_tls and self.certificate is not None


def measure(broker: Served, generator: Generator, seconds: float, options: dict[str, object]) -> Figures:
    """Return what is worth keeping of one round.

    Bytes and commits are of the whole round, the warm-up included, and so are the messages beside them.
    """
    before = broker.written()
    raw = generator.run(broker.port, broker.pid, seconds, options)
    written = {name: value - before[name] for name, value in broker.written().items()}
    kept = {
        "messages_per_s": raw["messages_per_s"],
        "ack_ms_p50": raw["ack_ms"]["p50"],
        "ack_ms_p99": raw["ack_ms"]["p99"],
        "server_cpu": raw["server_cpu"],
        "server_us_per_message": raw["server_us_per_message"],
        "written_bytes_per_message": round(written["bytes"] / max(raw["sent"], 1), 1),
        "write_amplification": round(written["bytes"] / max(raw["sent_payload_bytes"], 1), 3),
        "messages_per_commit": round(raw["sent"] / written["commits"], 1) if written["commits"] else 0.0,
        "payload_bytes_mean": round(raw["sent_payload_bytes"] / max(raw["sent"], 1), 1),
        "server_peak_rss_mib": round(raw["server_peak_rss_kib"] / 1024, 1),
        "generator_cpu": raw["generator_cpu"],
        "late_ms_p99": raw.get("late_ms_p99", 0.0),
        "unacked": raw["unacked"],
        "other_cores": raw["other_cores"],
    }
    if "received_per_s" in raw:
        kept["received_per_s"] = raw["received_per_s"]
        kept["server_us_per_delivery"] = round(raw["server_cpu"] * 1e6 / max(raw["received_per_s"], 1), 3)
    return kept


def medians(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure, and in how many rounds the generator may have been the limit."""
    found: Figures = {name: round(statistics.median(each[name] for each in rounds), 4) for name in rounds[0]}
    found["generator_bound_rounds"] = sum(each["generator_cpu"] > GENERATOR_CPU_MAX for each in rounds)
    return found


def ratio(ours: float, theirs: float) -> float | None:
    """Return ours by theirs; None beside nothing."""
    return round(ours / theirs, 2) if theirs else None


def ratios(case: Case, ours: Figures, theirs: Figures | None) -> Figures:
    """Return Weft's rate and processor time per message by Mosquitto's."""
    if theirs is None:
        return {"rate_ratio": None, "cpu_ratio": None}
    cpu = "server_us_per_message"
    return {"rate_ratio": ratio(ours[case.rate], theirs[case.rate]), "cpu_ratio": ratio(ours[cpu], theirs[cpu])}


def judged(target: Target, found: Figures, fsync_ms: float) -> Figures:
    """Return one target with its value; ``met`` is None where there was nothing to compare with."""
    bound = round(target.bound + (fsync_ms if target.plus_fsync else 0), 3)
    value = found[target.figure]
    met = None if value is None else value >= bound if target.at_least else value <= bound
    return {"figure": target.figure, "at_least": target.at_least, "bound": bound, "value": value, "met": met}


def compare(case: Case, run: Run) -> Figures:
    """Measure one case, the brokers turn by turn with a fresh process each."""
    found: dict[str, list[Figures]] = {broker: [] for broker in BROKERS}
    options = {"W": WARMUP_S, **case.options}
    seconds = max(run.seconds, MESSAGES_MIN / case.fixed_rate) if case.fixed_rate else run.seconds
    for _ in range(run.rounds):
        for broker, rounds in found.items():
            tls = run.certificate if case.tls else None
            figures = with_broker(
                broker,
                run.directory,
                lambda served: measure(served, run.generator, seconds, options),
                tls=tls,
                edge=run.edge,
            )
            if figures is not None:
                rounds.append(figures)
    ours, theirs = (medians(rounds) if rounds else None for rounds in found.values())
    assert ours is not None
    result: Figures = {"name": case.name, "group": case.group, "title": case.title, "options": case.options}
    result |= {"weft": ours, "mosquitto": theirs, **ratios(case, ours, theirs)}
    result["targets"] = [judged(target, {**ours, **result}, run.fsync_ms) for target in case.targets]
    return result


def fsync_ms(directory: Path, slower_ms: int = 0) -> dict[str, Any]:
    """Return median and 99th percentile of appending ``FSYNC_BYTES`` and fdatasync, where the logs are."""
    times = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        for _ in range(FSYNCS):
            started = time.perf_counter()
            os.write(descriptor, os.urandom(FSYNC_BYTES))
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - started) * 1000 + slower_ms)
    return {"p50": round(statistics.median(times), 3), "p99": round(statistics.quantiles(times, n=100)[98], 3)}
