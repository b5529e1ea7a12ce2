"""Devices and workers for the kill storms of AMQP and HTTP: clients that number what they send, never send a number
twice, and write down what was acknowledged.

`python -m tests.end_to_end.broker_load --amqp P --http P` publishes to `load/<device>/count` by AMQP 0-9-1, AMQP 1.0
and HTTP, and has a queue `jobs` with a publisher and workers. It continues through every lost connection. On SIGTERM
the publishers stop, the workers empty the queue, and the process prints what happened as JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pika
from pika.exceptions import AMQPError

DEVICES = 3
"""Of each protocol."""
BATCH = 3
"""Messages of one POST."""
RETRY_S = 0.05
TIMEOUT_S = 5.0
QUEUE = "jobs"
PREFETCH = 8
SILENCE_S = 1.0
"""Time without a message after which a worker asks whether the queue is empty."""


Connect = Callable[[Any], Iterator[None]]
"""Connects for a ``Sender``, and then sends its payloads at each step, which ends when they are acknowledged."""


class Broken(Exception):
    """The connection has ended; what was not answered stays unanswered."""


class Sender(threading.Thread):
    """Sends 0, 1, 2, ..., each once, and remembers which were acknowledged."""

    def __init__(self, name: str, connect: Connect, count: int, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.sent = 0
        self.acked: list[int] = []
        self.payloads: list[bytes] = []
        self._connect, self._count, self._stopping = connect, count, stop

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                sends = self._connect(self)
                next(sends)
                while not self._stopping.is_set():
                    numbers = list(range(self.sent, self.sent + self._count))
                    self.sent += self._count
                    self.payloads = [b"%d" % number for number in numbers]
                    next(sends)
                    self.acked += numbers
            except (Broken, OSError, AMQPError, http.client.HTTPException, StopIteration):
                self._stopping.wait(RETRY_S)


def open_channel(port: int) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, blocked_connection_timeout=TIMEOUT_S)
    return pika.BlockingConnection(parameters).channel()


def by_amqp(port: int, exchange: str, key: str) -> Connect:
    def connect(sender: Sender) -> Iterator[None]:
        channel = open_channel(port)
        if not exchange:
            channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        yield
        while True:
            channel.basic_publish(exchange, key, sender.payloads[0])  # returns with the confirm
            yield

    return connect


def by_amqp1(port: int, address: str) -> Connect:
    from proton import Message, ProtonException, Timeout
    from proton.utils import BlockingConnection

    def connect(sender: Sender) -> Iterator[None]:
        try:
            connection = BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=TIMEOUT_S, allowed_mechs="ANONYMOUS")
            link = connection.create_sender(address)
            yield
            while True:
                link.send(Message(body=sender.payloads[0], inferred=True))  # returns when it is accepted
                yield
        except (ProtonException, Timeout) as error:
            raise Broken from error

    return connect


def by_http(port: int, path: str) -> Connect:
    def connect(sender: Sender) -> Iterator[None]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        connection.connect()
        yield
        while True:
            connection.request(
                "POST", path, b"[" + b",".join(sender.payloads) + b"]", {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise Broken(answer.status)
            yield

    return connect


class Worker(threading.Thread):
    """Takes jobs and acknowledges them.

    Args:
        commits: acknowledges in transactions, and writes down which were committed.
    """

    def __init__(self, name: str, port: int, stop: threading.Event, *, commits: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.reported: list[tuple[str, int]] = []
        """What happened, in order: (got, again, acknowledged or committed; number)."""
        self._port, self._stopping, self._commits = port, stop, commits

    def run(self) -> None:
        while True:
            try:
                if self._work(open_channel(self._port)):
                    return
            except (OSError, AMQPError):
                threading.Event().wait(RETRY_S)

    def _work(self, channel: Any) -> bool:
        """Work; return whether that is all."""
        channel.queue_declare(QUEUE, durable=True)
        channel.basic_qos(prefetch_count=PREFETCH)
        if self._commits:
            channel.tx_select()
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=SILENCE_S):
            if method is None:
                left = channel.queue_declare(QUEUE, durable=True, passive=True).method.message_count
                if self._stopping.is_set() and not left:
                    channel.cancel()
                    with suppress(AMQPError):
                        channel.connection.close()
                    return True
                continue
            number = int(body)
            self.reported.append(("again" if method.redelivered else "got", number))
            channel.basic_ack(method.delivery_tag)
            self.reported.append(("acknowledged", number))
            if self._commits:
                channel.tx_commit()
                self.reported.append(("committed", number))
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--amqp", type=int, required=True)
    parser.add_argument("--http", type=int, required=True)
    options = parser.parse_args()
    stop, empty = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    senders = []
    for number in range(DEVICES):
        for name, count, connect in (
            (f"amqp-{number}", 1, by_amqp(options.amqp, "amq.topic", f"load.amqp-{number}.count")),
            (f"amqp1-{number}", 1, by_amqp1(options.amqp, f"load/amqp1-{number}/count")),
            (f"http-{number}", BATCH, by_http(options.http, f"/v1/topics/load/http-{number}/count")),
        ):
            senders.append(Sender(name, connect, count, stop))
    jobs = Sender(QUEUE, by_amqp(options.amqp, "", QUEUE), 1, stop)
    workers = [Worker(f"worker-{number}", options.amqp, empty, commits=bool(number % 2)) for number in range(4)]
    for thread in (*senders, jobs, *workers):
        thread.start()
    for sender in (*senders, jobs):
        while sender.is_alive():
            sender.join(0.5)
    empty.set()
    for worker in workers:
        while worker.is_alive():
            worker.join(0.5)
    reported = {
        "sent": {each.name: each.sent for each in (*senders, jobs)},
        "acked": {each.name: each.acked for each in (*senders, jobs)},
        "workers": {each.name: each.reported for each in workers},
    }
    print(json.dumps(reported), flush=True)


if __name__ == "__main__":
    main()
