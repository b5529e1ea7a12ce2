"""A sending process for tests that kill it: rows of some source shards in micro-batches of random sizes, from the first
row on, as after a lost checkpoint. Rows of odd shards come in twos."""

from __future__ import annotations

import random
import sys

from spark_sinks.sinks.stream.link import ProducerSettings
from tests.spark_sinks.sinks.stream.conftest import rows, send


def main(url: str, store: str, stream: str, *numbers: int) -> None:
    count, seed, shards, spread = numbers
    chance, settings = random.Random(seed), ProducerSettings((url,), stream, stream, store, spread=spread)
    first = 0
    print("sending", flush=True)
    while first < count:
        end = min(count, first + chance.randint(200, 3000))
        send(settings, *(rows(shard, range(first, end), each=1 + shard % 2) for shard in range(shards)))
        first = end
        print(end, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:8]))
