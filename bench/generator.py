"""The load generator: compiling ``mqttload.c`` and running it on its core."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench import payloads
from bench.common import LOAD_CORE, pinned

Figures = dict[str, Any]
SOURCE = Path(__file__).parent / "mqttload.c"
TLS = ("-DWITH_TLS", "-lssl", "-lcrypto")
NO_TLS = "the load generator could not be compiled with OpenSSL (Debian: apt install libssl-dev openssl)"


@dataclass(frozen=True)
class Generator:
    """A compiled ``mqttload`` and the payloads that it sends."""

    program: Path
    payloads: Path
    has_tls: bool

    def run(self, port: int, server: int | None, seconds: float, options: dict[str, object]) -> Figures:
        """Run the generator on its core and return its figures.

        Args:
            server: process id of the broker, whose processor time and writes are measured with those of its children.
            options: of ``mqttload``, by their letters; a value of True stands for an option without one.

        Raises:
            SystemExit: the generator or its connections failed.
        """
        given = {"p": port, "f": self.payloads, "t": seconds, **options}
        if server is not None:
            given["P"] = ",".join(map(str, family(server)))
        command = [str(self.program), *_arguments(given)]
        before, started = others_seconds(server), time.perf_counter()
        done = subprocess.run(pinned(LOAD_CORE, command), stdout=subprocess.PIPE, check=False, text=True)
        if done.returncode:
            raise SystemExit(f"the load generator failed with status {done.returncode}: {' '.join(command)}")
        figures: Figures = msgspec.json.decode(done.stdout)
        used = others_seconds(server) - before
        figures["other_cores"] = round(max(used, 0) / (time.perf_counter() - started), 2)
        return figures


def _arguments(options: dict[str, object]) -> list[str]:
    found: list[str] = []
    for letter, value in options.items():
        found += [f"-{letter}"] if value is True else [f"-{letter}", str(value)]
    return found


def family(server: int) -> list[int]:
    """Return the process ids of a broker and its children."""
    return [server, *(child.pid for child in psutil.Process(server).children(recursive=True))]


def others_seconds(server: int | None) -> float:
    """Return the processor time of everything but the broker, this process and the generator; steal included."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    own = psutil.Process().cpu_times()
    ours = own.user + own.system + own.children_user + own.children_system
    for pid in family(server) if server is not None else ():
        broker = psutil.Process(pid).cpu_times()
        ours += broker.user + broker.system
    return float(busy - ours)


def compiled(program: Path, source: Path = SOURCE, extras: Sequence[str] = ()) -> bool:
    """Compile a load generator; return whether it could be."""
    command = ["cc", "-O2", "-o", str(program), str(source), *extras]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(directory: Path) -> Generator:
    """Compile the load generator, with TLS where OpenSSL's headers are, and write the telemetry that it sends.

    Raises:
        SystemExit: it does not compile.
    """
    program = directory / "mqttload"
    has_tls = compiled(program, extras=TLS)
    if not has_tls and not compiled(program):
        raise SystemExit(f"the load generator needs a C compiler: cc -O2 -o {program} {SOURCE} says what is missing")
    return Generator(program, payloads.write(directory / "telemetry", payloads.telemetry()), has_tls)
