"""Cut the power of a simulated machine a million times and look what its log still knows.

    python -m tests.storage.segment_log.power_cuts --cuts 1000000 --processes 2 --seed 1
    python -m tests.storage.segment_log.power_cuts --replay SEED [--keep 3,7,9] [--shrink]

Every seed is one workload with some hundreds of cuts. A failure names its seed; ``--shrink`` leaves out the steps that
it does not need.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple

from tests.storage.segment_log.power_cuts_workload import PowerCuts, Violation
from tests.support.silence import silent_logs

SEEDS_AT_A_TIME = 4
FAILURES_MAX = 5


class Outcome(NamedTuple):
    """What some seeds came to."""

    seeds: int
    cuts: int
    failures: list[str]


def run_seeds(first: int, end: int) -> Outcome:
    """All cuts of these seeds."""
    cuts, failures = 0, []
    for seed in range(first, end):
        power_cuts = PowerCuts(seed)
        try:
            with silent_logs():
                power_cuts.run()
        except Violation as violation:
            failures.append(f"seed {seed}: {violation}")
        cuts += power_cuts.cuts
    return Outcome(end - first, cuts, failures)


def run_cuts(cuts: int, *, processes: int = 1, seed: int = 1) -> Iterator[Outcome]:
    """Seed after seed until there were that many cuts: the sums so far, after each few seeds."""
    sums = Outcome(0, 0, [])
    for outcome in _outcomes(seed, processes):
        sums = Outcome(sums.seeds + outcome.seeds, sums.cuts + outcome.cuts, sums.failures + outcome.failures)
        yield sums
        if sums.cuts >= cuts or len(sums.failures) >= FAILURES_MAX:
            return


def _outcomes(seed: int, processes: int) -> Iterator[Outcome]:
    if processes == 1:
        while True:
            yield run_seeds(seed, seed + SEEDS_AT_A_TIME)
            seed += SEEDS_AT_A_TIME
    with ProcessPoolExecutor(processes) as pool:
        waiting: deque[Future[Outcome]] = deque()
        try:
            while True:
                while len(waiting) < 2 * processes:
                    waiting.append(pool.submit(run_seeds, seed, seed + SEEDS_AT_A_TIME))
                    seed += SEEDS_AT_A_TIME
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def replay(seed: int, keep: list[int] | None = None) -> str | None:
    """What goes wrong with a seed, or None."""
    try:
        with silent_logs():
            PowerCuts(seed, keep=keep).run()
    except Violation as violation:
        return str(violation)
    return None


def shrink(seed: int, keep: list[int] | None = None) -> list[int]:
    """The steps that the failure needs: left out are those without which the seed still fails."""
    kept = [step.number for step in PowerCuts(seed, keep=keep).steps]
    size = len(kept) // 2
    while size:
        at = 0
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if replay(seed, shorter):
                kept = shorter
            else:
                at += size
        size //= 2
    return kept


def main() -> int:
    """Run, or run one seed again; the exit status says whether a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1, help="the first of the seeds")
    parser.add_argument("--replay", type=int, metavar="SEED", help="only this one")
    parser.add_argument("--keep", help="with --replay: only these steps, such as 3,7,9")
    parser.add_argument("--shrink", action="store_true", help="with --replay: find the steps that the failure needs")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        keep = [int(number) for number in arguments.keep.split(",")] if arguments.keep else None
        if arguments.shrink and replay(arguments.replay, keep):
            keep = shrink(arguments.replay, keep)
        failure = replay(arguments.replay, keep)
        print(failure or f"seed {arguments.replay}: every promise was kept")
        return 1 if failure else 0
    started = time.monotonic()
    reported = 0
    for outcome in run_cuts(arguments.cuts, processes=arguments.processes, seed=arguments.seed):
        rate = outcome.cuts / (time.monotonic() - started)
        line = f"{outcome.cuts:,} power cuts, {outcome.seeds:,} workloads, {rate:,.0f} cuts/s, "
        print(f"\r{line}{len(outcome.failures)} failures", end="", flush=True)
        for failure in outcome.failures[reported:]:
            print(f"\n{failure}", flush=True)
        reported = len(outcome.failures)
    print()
    return 1 if reported else 0


if __name__ == "__main__":
    sys.exit(main())
