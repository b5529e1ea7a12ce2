"""Histories of the whole fabric: ``python -m tests.simulation --seed 7``, or ``--histories 1000`` from a seed on.

``--regions`` makes histories of hub clusters that relay to each other, ``--pairs`` of pairs of edge nodes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tests.simulation.fabric import simulate
from tests.simulation.pairs import simulate_pairs
from tests.simulation.regions import simulate_regions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--histories", type=int, default=1)
    parser.add_argument("--regions", action="store_true", help="several hub clusters that relay to each other")
    parser.add_argument("--pairs", action="store_true", help="two edge nodes, each the other's second disk")
    arguments = parser.parse_args()
    history: Callable[[int], object] = simulate_regions if arguments.regions else simulate
    if arguments.pairs:
        history = simulate_pairs
    begun, failed = time.monotonic(), 0
    for seed in range(arguments.seed, arguments.seed + arguments.histories):
        try:
            report = history(seed)
        except (Exception, BaseExceptionGroup) as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            if arguments.histories == 1:
                raise
        else:
            if arguments.histories == 1:
                print(f"seed {seed}: every promise was kept; {report}")
    rate = arguments.histories / (time.monotonic() - begun)
    print(f"{arguments.histories} histories, {failed} failed, {rate:.1f} a second")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
