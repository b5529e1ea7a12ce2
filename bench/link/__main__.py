"""The link: from a device to the hub's disk, and what a connection costs a network.

``python -m bench.link [--only CASE] [--seconds N] [--edges N]``. All ends are real processes, on loopback: `weft edge
run`, `weft hub run` on a folder, and two Mosquittos with a bridge, each pair with TLS where bytes are counted. Results
go to bench/results.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.common import write_results
from bench.link import bad_line, latency, traffic


def _latency(arguments: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=arguments.directory) as folder:
        return latency.measure(
            Path(folder), arguments.seconds, arguments.edges, arguments.hub_settings, kind=arguments.store
        )


def _line(arguments: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=arguments.directory) as folder:
        return bad_line.measure(Path(folder), ("fresh_first", "strict"), *arguments.line_options.split())


CASES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "latency": _latency,
    "traffic": lambda arguments: traffic.traffic(arguments.seconds, arguments.payloads.split(",")),
    "idle": lambda _: traffic.idle(),
    "line": _line,
}


def main() -> None:
    """Run the cases that the command line names."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="bench.link", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(CASES), action="append", help="a case; may be given several times")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time, after some seconds of warm-up")
    parser.add_argument("--edges", type=int, default=latency.EDGES, help="edge nodes of the case `latency`")
    parser.add_argument("--store", choices=["folder", "s3"], default="folder", help="store of its hub")
    parser.add_argument("--hub-settings", default="", help="further lines of its hub's configuration")
    parser.add_argument("--payloads", default=",".join(traffic.PAYLOADS), help="kinds of the case `traffic`")
    parser.add_argument("--line-options", default="", help="options of bench.link.bad_line for the case `line`")
    parser.add_argument("--directory", help="where logs and stores are made; a temporary directory by default")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.only or CASES:
        results[name] = CASES[name](arguments)
        print(f"{name}: {results[name]}", flush=True)
    if arguments.only is None:
        print(write_results("link", results))


if __name__ == "__main__":
    main()
