"""A sending process for tests that kill it: rows of two source shards in micro-batches of random sizes, from the first
row on, as after a lost checkpoint."""

from __future__ import annotations

import random
import sys

from spark_sinks.sinks.stream.settings import ProducerSettings
from tests.spark_sinks.sinks.stream.conftest import rows, send


def main(url: str, store: str, stream: str, count: int, seed: int) -> None:
    chance, settings = random.Random(seed), ProducerSettings((url,), stream, stream, store)
    first = 0
    print("sending", flush=True)
    while first < count:
        end = min(count, first + chance.randint(200, 3000))
        send(settings, rows(0, range(first, end)), rows(1, range(first, end), each=2))
        first = end
        print(end, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
