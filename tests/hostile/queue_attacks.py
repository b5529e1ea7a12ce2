"""Attackers of queues: clients of AMQP in a process of their own, so that they share no interpreter lock with the
well-behaved client. They prepare, say so, and continue when a line comes on their input."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from tests.edge_node.servers.amqp.harness import RawClient
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import ReplyCode
from weft.protocols.amqp.methods import Method, commands, write_method, write_table

Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue
CHUNK: Final = 256
"""Methods that are sent before their answers are read."""


class Attacker:
    """Mallory, until a time comes."""

    def __init__(self, port: int, seconds: float) -> None:
        self.port = port
        self.seconds = seconds
        self.until = float("inf")

    async def connect(self, channels: int = 1) -> RawClient:
        return await RawClient.connect(self.port, user=b"mallory", password=b"mallory", channels=channels)

    async def begin(self) -> None:
        """Say that everything is prepared, and wait for the word."""
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        self.until = time.monotonic() + self.seconds

    @property
    def continues(self) -> bool:
        return time.monotonic() < self.until

    async def all(self, client: RawClient, methods: Iterator[Method] | list[Method]) -> None:
        """Send methods that are answered, and read their answers."""
        refused = await self._refused(client, iter(methods))
        assert refused is None, refused.reply_text

    async def as_many_as_may_be(self, client: RawClient, methods: Iterator[Method]) -> None:
        """Send methods until one is refused: the attack has its whole share. The channel is open again then."""
        refused = await self._refused(client, methods)
        assert refused is not None, "the bound is not filled"
        assert refused.reply_code == ReplyCode.PRECONDITION_FAILED, refused.reply_text
        client.send(commands.Channel.CloseOk(), commands.Channel.Open(), channel=1)
        await client.expect(commands.Channel.OpenOk, 1)

    async def _refused(self, client: RawClient, methods: Iterator[Method]) -> commands.Channel.Close | None:
        """Send methods and read their answers, up to a refusal."""
        while part := list(itertools.islice(methods, CHUNK)):
            client.send(*part, channel=1)
            for _ in part:
                answer = await client.expect(Method, 1)
                if isinstance(answer, commands.Channel.Close):
                    return answer
        return None

    async def flood(self, client: RawClient, *data: bytes) -> None:
        """Send the same again and again; what comes back is thrown away."""
        reading = asyncio.create_task(self.throw_away(client))
        many = itertools.cycle(data)
        while self.continues:
            client.send(next(many))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + self.until - time.monotonic()):
                    await client.writer.drain()
        reading.cancel()

    async def throw_away(self, client: RawClient) -> None:
        while await client.reader.read(1 << 16):
            pass

    async def take(self, client: RawClient, count: int) -> None:
        """Wait for deliveries of empty messages."""
        for _ in range(2 * count):
            assert await client.frame() is not None

    async def fill(self, client: RawClient, keys: list[str], count: int) -> None:
        """Publish empty messages by turns, and wait until they are stored."""
        row = b"".join(publish(key) for key in keys) * (CHUNK // len(keys))
        for _ in range(count // CHUNK):
            client.send(row)
            await client.ask(Queue.Declare(queue=keys[0], passive=True), Queue.DeclareOk, 1)


def publish(key: str, exchange: str = "", properties: bytes = b"\0\0", body: bytes = b"") -> bytes:
    method = write_method(Basic.Publish(exchange=exchange, routing_key=key), 1)
    return method + write_content(1, properties, body, 1 << 17)


def declare(name: str, **arguments: Any) -> Method:
    return Queue.Declare(
        queue=name, durable=True, arguments={key.replace("_", "-"): value for key, value in arguments.items()}
    )


def exchange(name: str, kind: str) -> Method:
    return Exchange.Declare(exchange=name, exchange_type=kind, durable=True)


# --- the attacks


async def wide_fanout(attacker: Attacker) -> None:
    """A thousand queues are bound to one exchange, and twenty connections publish to it."""
    client = await attacker.connect()
    await attacker.all(client, [exchange("public.all", "fanout")])
    names = [f"public.{number}" for number in range(1_000)]
    await attacker.all(client, (declare(name) for name in names))
    await attacker.all(client, (Queue.Bind(queue=name, exchange="public.all") for name in names))
    clients = [await attacker.connect() for _ in range(20)]
    await attacker.begin()
    await asyncio.gather(*(attacker.flood(each, publish("public.x", "public.all") * 400) for each in clients))


async def recover(attacker: Attacker) -> None:
    """One consumer has 20,000 messages, and gives them back again and again."""
    client = await attacker.connect()
    await attacker.all(client, [declare("public.a")])
    await attacker.fill(client, ["public.a"], 20_000)
    await client.ask(Basic.Consume(queue="public.a"), Basic.ConsumeOk, 1)
    await attacker.take(client, 20_000 // CHUNK * CHUNK)
    await attacker.begin()
    await attacker.flood(client, write_method(Basic.Recover(True), 1))


async def ends(attacker: Attacker) -> None:
    """Connections end that have 10,000 messages each, and three hundred exclusive queues."""
    client = await attacker.connect()
    await attacker.all(client, [declare("public.a")])
    await attacker.fill(client, ["public.a"], 10_000)
    await attacker.begin()
    while attacker.continues:
        other = await attacker.connect()
        await attacker.all(other, (Queue.Declare(exclusive=True) for _ in range(300)))
        other.send(Basic.Consume(queue="public.a"), channel=1)
        reading = asyncio.create_task(attacker.throw_away(other))
        await asyncio.sleep(0.4)  # it is given what there is
        reading.cancel()
        other.writer.transport.abort()


async def purge(attacker: Attacker) -> None:
    """Two queues have 25,000 messages by turns, so that no two follow each other; they are purged and deleted."""
    client = await attacker.connect()
    await attacker.all(client, [declare("public.a"), declare("public.b")])
    await attacker.fill(client, ["public.a", "public.b"], 50_000)
    await attacker.begin()
    await attacker.all(client, [Queue.Purge(queue="public.a"), Queue.Delete(queue="public.b")])
    await asyncio.sleep(attacker.seconds)  # what is measured continues


async def expire(attacker: Attacker) -> None:
    """Messages expire together, and go round in a circle of dead letters."""
    client = await attacker.connect()
    there = {"x_dead_letter_exchange": "", "x_message_ttl": 2_500}
    await attacker.all(client, [declare("public.a", x_dead_letter_routing_key="public.b", **there)])
    await attacker.all(client, [declare("public.b", x_dead_letter_routing_key="public.a", **there)])
    await attacker.fill(client, ["public.a"], 20_000)
    await attacker.begin()
    await asyncio.sleep(attacker.seconds + 3)  # what is measured continues


async def declarations(attacker: Attacker) -> None:
    """Queues are declared, bound and deleted without end."""
    clients = [await attacker.connect() for _ in range(20)]
    await attacker.begin()
    await asyncio.gather(
        *(
            attacker.flood(
                each,
                b"".join(
                    write_method(declare(f"public.{at}"), 1)
                    + write_method(Queue.Bind(queue=f"public.{at}", exchange="amq.topic", routing_key="public.#"), 1)
                    + write_method(Queue.Delete(queue=f"public.{at}"), 1)
                    for at in range(100 * number, 100 * number + 100)
                ),
            )
            for number, each in enumerate(clients)
        )
    )


async def headers(attacker: Attacker) -> None:
    """Four thousand bindings by headers, and messages that nearly match them."""
    client = await attacker.connect()
    await attacker.all(client, [exchange("public", "headers"), declare("public.a")])
    await attacker.all(
        client,
        (
            Queue.Bind(
                queue="public.a", exchange="public", arguments={"kind": "press", "number": number, "x-match": "all"}
            )
            for number in range(4_000)
        ),
    )
    table = write_table({"kind": "press", "number": -1})
    await attacker.begin()
    await attacker.flood(client, publish("public.x", "public", b"\x20\0" + table) * 50)


async def patterns(attacker: Attacker) -> None:
    """Many patterns that continue matching word by word, and a key that is new with each message."""
    client = await attacker.connect()
    await attacker.all(client, [declare("public.a"), exchange("public", "topic")])
    await attacker.as_many_as_may_be(
        client,
        (
            Queue.Bind(queue="public.a", exchange="public", routing_key=".".join(["public", *words, "#", "z"]))
            for words in itertools.islice(itertools.product("a*", repeat=12), 1_500)
        ),
    )
    tail = ".".join("b" * 90)
    await attacker.begin()
    keys = [f"public.{'.'.join('a' * 12)}.{tail}.{number}" for number in range(2_000)]
    await attacker.flood(client, *(publish(key, "public") for key in keys))


async def exchanges(attacker: Attacker) -> None:
    """Forty exchanges, each bound to every other, and a key that is new with each message."""
    client = await attacker.connect()
    names = [f"public.e{number}" for number in range(40)]
    await attacker.all(client, (exchange(name, "fanout") for name in names))
    await attacker.all(
        client, (Exchange.Bind(destination=to, source=source) for source, to in itertools.permutations(names, 2))
    )
    await attacker.begin()
    await attacker.flood(client, *(publish(f"public.{number}", "public.e0") for number in range(2_000)))


async def consumers(attacker: Attacker) -> None:
    """Fifteen hundred consumers of one queue have what they may, and one continues giving back."""
    client = await attacker.connect()
    await attacker.all(client, [declare("public.a"), Basic.Qos(prefetch_count=1)])
    await attacker.fill(client, ["public.a"], 2_048)
    for _ in range(1_500):
        client.send(Basic.Consume(queue="public.a", nowait=True), channel=1)
    await attacker.take(client, 1_500)
    await attacker.begin()
    await attacker.flood(client, write_method(Basic.Nack(0, True, True), 1))


ATTACKS: dict[str, Callable[[Attacker], Coroutine[Any, Any, None]]] = {
    each.__name__: each
    for each in (wide_fanout, recover, ends, purge, expire, declarations, headers, patterns, exchanges, consumers)
}


if __name__ == "__main__":
    asyncio.run(ATTACKS[sys.argv[1]](Attacker(int(sys.argv[2]), float(sys.argv[3]))))
