"""AMQP 0-9-1 and 1.0 beside RabbitMQ, in the same run: publishes that are confirmed, and deliveries.

    python -m bench.amqp [--only 10x100,1000x1] [--rounds 3] [--seconds 3] [--directory DIR]

The server has one core and the load generator (``amqpload.c``, ``amqp1load.c``) the other. Weft runs as
``weft edge run`` and confirms after fdatasync: ``weft`` is a stream that takes the topics, ``weft queue`` a durable
queue besides. RabbitMQ (Debian's, one scheduler) has a durable queue of each type, bound to ``amq.topic`` by the same
pattern. Its classic queues confirm what they have written and sync every now and then; its streams confirm what they
have written and do not sync. Each server is a fresh process in each round, each case has a fresh queue.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pika

from bench.common import machine, write_results
from bench.generator import Figures, Generator
from bench.loads import Case, Door, Target, choose, generators, load_before, measure, parser, summary, weft
from bench.mqtt.compare import fsync_ms
from bench.rabbitmq import rabbitmq, version

STREAM, QUEUE, CLASSIC, STREAM_QUEUE = "weft", "weft queue", "RabbitMQ classic", "RabbitMQ stream"
SERVERS = (STREAM, QUEUE, CLASSIC, STREAM_QUEUE)
QUEUE_NAME, PATTERN = "load", "plant.#"
TARGETS = tuple(
    Target(ours, theirs, bound) for ours in (STREAM, QUEUE) for theirs, bound in ((CLASSIC, 3.0), (STREAM_QUEUE, 2.0))
)
DELIVERY = "delivery"
FILL_S = 2
DRAIN_S_MAX = 60
CONSUMERS = 4
CASES: tuple[Case, ...] = (
    Case("10x100", "10 x 100 in flight", "amqpload", {"c": 10, "w": 100}, TARGETS),
    Case("100x10", "100 x 10", "amqpload", {"c": 100, "w": 10}, TARGETS),
    Case("1000x1", "1,000 x 1", "amqpload", {"c": 1000, "w": 1}, TARGETS),
    Case("ids", "10 x 100, a message-id each", "amqpload", {"c": 10, "w": 100, "U": True}, TARGETS),
    Case("rate_2000", "2,000/s over 100", "amqpload", {"c": 100, "r": 2000}),
    Case(DELIVERY, f"delivery to {CONSUMERS}, prefetch 100", "amqpload", {"c": 0, "S": CONSUMERS, "W": 0}),
    Case("amqp1_10x100", "AMQP 1.0, 10 x 100", "amqp1load", {"c": 10, "w": 100}),
    Case("amqp1_1000x1", "AMQP 1.0, 1,000 x 1", "amqp1load", {"c": 1000, "w": 1}),
)


def fresh_queue(port: int, kind: str | None) -> None:
    """Declare a new queue for a case, bound to the topics of the load.

    Args:
        kind: value of ``x-queue-type``; None for a queue of Weft.
    """
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    channel = connection.channel()
    channel.queue_delete(QUEUE_NAME)
    channel.queue_declare(QUEUE_NAME, durable=True, arguments={"x-queue-type": kind} if kind else {})
    channel.queue_bind(QUEUE_NAME, "amq.topic", PATTERN)
    connection.close()


def one_case(server: str, case: Case, door: Door, tools: Mapping[str, Generator], seconds: float) -> Figures | None:
    """Return the figures of one round; None for what a server has not."""
    port, options = door.ports["amqp"], dict(case.options)
    if case.name == DELIVERY and server not in (QUEUE, CLASSIC):
        return None  # streams are read in another way
    if server != STREAM:
        fresh_queue(port, {QUEUE: None, CLASSIC: "classic", STREAM_QUEUE: "stream"}[server])
    if case.program == "amqp1load" and server in (CLASSIC, STREAM_QUEUE):
        options |= {"A": "/topic/", "d": True}
    generator = tools[case.program]
    if case.name == DELIVERY:
        generator.run(port, door.pid, FILL_S, {"W": 0, "c": 10, "w": 100})
        seconds = DRAIN_S_MAX
    return measure(generator, port, door.pid, seconds, options)


def one_round(
    server: str, cases: Sequence[Case], directory: Path, tools: Mapping[str, Generator], seconds: float
) -> dict[str, Figures]:
    """Run all cases on a fresh server."""
    found: dict[str, Figures] = {}

    def run(door: Door) -> None:
        for case in cases:
            figures = one_case(server, case, door, tools, seconds)
            if figures is not None:
                found[case.name] = figures

    if server in (STREAM, QUEUE):
        weft(directory, run)
    else:
        with rabbitmq(directory) as broker:
            run(Door({"amqp": broker.port}, broker.pid))
    return found


def all_rounds(
    rounds: int, servers: Sequence[str], one: Callable[[str], Mapping[str, Figures]]
) -> dict[str, dict[str, list[Figures]]]:
    """Return case -> server -> figures of each round; servers take turns."""
    found: dict[str, dict[str, list[Figures]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for server in servers:
            for name, figures in one(server).items():
                found[name][server].append(figures)
            print(f"round {number + 1} of {rounds}: {server}", flush=True)
    return found


def main() -> None:
    """Run the cases and write the results."""
    command = parser("bench.amqp", __doc__, CASES)
    arguments = command.parse_args()
    try:
        cases = choose(CASES, arguments.only)
    except ValueError as error:
        command.error(str(error))
    started, rival, load = time.monotonic(), version(), load_before()
    if rival is None:
        print("RabbitMQ is not installed (Debian: apt install rabbitmq-server): nothing to compare with")
    servers = SERVERS if rival else (STREAM, QUEUE)
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        directory = arguments.directory or Path(name)
        tools = generators(Path(name), ("amqpload", "amqp1load"))
        fsync = fsync_ms(directory)
        print(f"{machine()['cpu']}; {rival}; one fsync {fsync['p50']:.2f} ms, p99 {fsync['p99']:.2f} ms; load {load}")
        rounds = all_rounds(
            arguments.rounds, servers, lambda server: one_round(server, cases, directory, tools, arguments.seconds)
        )
    results = {
        "rabbitmq": rival,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "fsync_ms": fsync,
        "load_before": load,
        "cases": summary(cases, rounds),
    }
    print(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    if not arguments.only:
        print(f"wrote {write_results('amqp', results)}")


if __name__ == "__main__":
    main()
