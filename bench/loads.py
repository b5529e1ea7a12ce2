"""Parts that the benchmarks of AMQP and HTTP share: load generators, figures of a round, and the comparison."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import payloads
from bench.brokers import Edge, Served, with_broker
from bench.generator import Figures, Generator, compiled
from bench.mqtt.compare import medians, ratio
from examples.demo.fabric import free_port

FOLDER = Path(__file__).parent
WARMUP_S = 1
KEPT = ("messages_per_s", "server_cpu", "server_us_per_message", "generator_cpu", "refused", "other_cores")


@dataclass(frozen=True)
class Target:
    """Smallest ratio of one server's rate to another's. Their processor time for a message to ours stands beside it:
    where other programs use the machine, it says more."""

    ours: str
    theirs: str
    bound: float


@dataclass(frozen=True)
class Case:
    """One comparison. ``options`` are the generator's; ``program`` names it."""

    name: str
    title: str
    program: str
    options: Mapping[str, object]
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Door:
    """A running server: its ports by name, and its process."""

    ports: Mapping[str, int]
    pid: int


def generators(directory: Path, names: Sequence[str]) -> dict[str, Generator]:
    """Compile load generators, and write the telemetry that they send.

    Raises:
        SystemExit: one does not compile.
    """
    lines = payloads.write(directory / "telemetry", payloads.telemetry())
    found = {}
    for name in names:
        program, source = directory / name, FOLDER / f"{name}.c"
        if not compiled(program, source):
            raise SystemExit(
                f"the load generator needs a C compiler: cc -O2 -o {program} {source} says what is missing"
            )
        found[name] = Generator(program, lines, has_tls=False)
    return found


def weft(directory: Path, run: Callable[[Door], None], streams: Mapping[str, object] | None = None) -> None:
    """Call ``run`` with a fresh node that listens for AMQP and HTTP."""
    ports = {"amqp": free_port(), "http": free_port()}
    listeners = {name: {"bind": f"127.0.0.1:{port}"} for name, port in ports.items()}
    edge = Edge({"listeners": listeners, **({"streams": streams} if streams else {})})

    def served(broker: Served) -> None:
        run(Door(ports, broker.pid))

    with_broker("weft", directory, served, edge=edge)


def measure(generator: Generator, port: int, pid: int, seconds: float, options: Mapping[str, object]) -> Figures:
    """Return what is worth keeping of one round."""
    raw = generator.run(port, pid, seconds, {"W": WARMUP_S, **options})
    found: Figures = {name: raw[name] for name in KEPT if name in raw}
    if "received_per_s" in raw:
        found["messages_per_s"] = raw["received_per_s"]
    found |= {f"ack_ms_{name}": raw["ack_ms"][name] for name in ("p50", "p99")}
    found["peak_rss_mib"] = round(raw["server_peak_rss_kib"] / 1024, 1)
    return found


def judged(case: Case, servers: Mapping[str, Figures]) -> list[Figures]:
    """Return each target with its value; ``met`` is None where there was nothing to compare with."""
    found = []
    for target in case.targets:
        ours, theirs = servers.get(target.ours), servers.get(target.theirs)
        value = ratio(ours["messages_per_s"], theirs["messages_per_s"]) if ours and theirs else None
        cpu = "server_us_per_message"
        found.append(
            {
                "ours": target.ours,
                "theirs": target.theirs,
                "bound": target.bound,
                "value": value,
                "cpu": ratio(theirs[cpu], ours[cpu]) if ours and theirs else None,
                "met": ours["messages_per_s"] >= target.bound * theirs["messages_per_s"] if ours and theirs else None,
            }
        )
    return found


def summary(cases: Sequence[Case], rounds: Mapping[str, Mapping[str, Sequence[Figures]]]) -> list[Figures]:
    """Return each case with the medians of its servers, and print it.

    Args:
        rounds: case -> server -> figures of each round.
    """
    found = []
    for case in cases:
        servers = {server: medians(figures) for server, figures in rounds.get(case.name, {}).items()}
        if not servers:
            continue
        targets = judged(case, servers)
        found.append({"name": case.name, "title": case.title, "servers": servers, "targets": targets})
        for server, figures in servers.items():
            print(line(case.title, server, figures))
        for target in targets:
            print(f"    {verdict(target)}")
    return found


def line(title: str, server: str, figures: Figures) -> str:
    """Return one server's figures of a case."""
    return (
        f"{title:34}{server:18}{figures['messages_per_s']:>10,.0f}/s{figures['server_us_per_message']:>9.2f} us"
        f"{figures['server_cpu']:>7.0%} of its core  p50 {figures['ack_ms_p50']:.2f}  p99 {figures['ack_ms_p99']:.2f}"
        f" ms  generator {figures['generator_cpu']:.0%}  others {figures['other_cores']:.2f}"
    )


def verdict(target: Figures) -> str:
    """Return a target with its value and whether it is met."""
    word = {True: "met", False: "NOT MET", None: "not compared"}[target["met"]]
    value, cpu = ("-" if target[name] is None else f"{target[name]:.2f}" for name in ("value", "cpu"))
    return (
        f"{target['ours']} / {target['theirs']}: rate {value}, at least {target['bound']:g}: {word}; by processor "
        f"time {cpu}"
    )


def parser(program: str, description: str | None, cases: Sequence[Case]) -> argparse.ArgumentParser:
    """Return the command line that both benchmarks have."""
    found = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--seconds", type=float, default=3.0, help="measured time of each round, after 1 s of warm-up")
    found.add_argument("--rounds", type=int, default=3, help="rounds of each case; the median counts")
    names = ", ".join(case.name for case in cases)
    found.add_argument("--only", help=f"names of cases ({names}); bench/results is not written then")
    found.add_argument("--directory", type=Path, help="where logs are made; the system's temporary folder by default")
    return found


def choose(cases: Sequence[Case], only: str | None) -> list[Case]:
    """Return the cases that were asked for.

    Raises:
        ValueError: there is no such case.
    """
    names = only.split(",") if only else [case.name for case in cases]
    known = {case.name: case for case in cases}
    for name in names:
        if name not in known:
            raise ValueError(f"no case {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names]


def load_before() -> float:
    """Return the load of the machine, which the benchmark is not part of yet."""
    return round(os.getloadavg()[0], 2)
