"""Histories of the whole fabric: ``python -m tests.simulation --seed 7``, or ``--histories 1000`` from a seed on."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.fabric import simulate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--histories", type=int, default=1)
    arguments = parser.parse_args()
    begun, failed = time.monotonic(), 0
    for seed in range(arguments.seed, arguments.seed + arguments.histories):
        try:
            report = simulate(seed)
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
