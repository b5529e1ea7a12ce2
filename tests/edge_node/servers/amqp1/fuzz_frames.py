"""A node in a process of its own that gets broken frames.

Use: ``python -m tests.edge_node.servers.amqp1.fuzz_frames SEED COUNT``.

Proton is C: a fault would end the process, which is what the test that starts this one looks for.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.edge_node.servers.amqp1.harness import AMQP, Message, amqp, in_thread
from tests.support.waiting import PATIENCE_S
from weft.protocols.amqp.typed_values import Symbol
from weft.protocols.amqp1 import described, encode, fields, symbols, ubyte, uint, ulong

AT_ONCE = 16


def frame(body: bytes, channel: int = 0) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\0" + channel.to_bytes(2, "big") + body


def source(address: str | None) -> bytes:
    return described(0x28, fields([encode(address), uint(2), encode(Symbol("never"))]))


def target(address: str | None) -> bytes:
    return described(0x29, fields([encode(address)]))


def attach(name: str, handle: int, address: str, *, receives: bool) -> bytes:
    ends = [source(address), target("x")] if receives else [source("x"), target(address)]
    role = encode(receives)
    return frame(
        described(
            0x12,
            fields([encode(name), uint(handle), role, ubyte(2), ubyte(0), *ends, encode(None), encode(None), uint(0)]),
        )
    )


def transfer(handle: int, number: int, payload: bytes, *, more: bool = False) -> bytes:
    head = [uint(handle), uint(number), encode(b"%d" % number), uint(0), encode(False), encode(more)]
    return frame(described(0x14, fields(head)) + payload)


def flow(handle: int, credit: int) -> bytes:
    values = [uint(0), uint(1000), uint(0), uint(1000), uint(handle), uint(0), uint(credit), encode(None), encode(True)]
    return frame(described(0x13, fields(values)))


MESSAGE = (
    described(0x70, fields([encode(True), ubyte(4), uint(1000)]))
    + described(0x73, fields([encode("id"), encode(b""), encode("plant/1/x")]))
    + described(0x74, encode({"a": 1, "b": [1, 2.5]}))
    + described(0x75, encode(b"payload"))
)
OPEN = [encode(None), encode(None), symbols(["a"]), symbols(["b"]), encode({Symbol("p"): 1})]
MODIFIED = described(0x27, fields([encode(True)]))
FRAMES = [
    frame(described(0x10, fields([encode("fuzz"), encode("host"), uint(65536), uint(100), uint(60000), *OPEN]))),
    frame(described(0x11, fields([encode(None), uint(0), uint(1000), uint(1000), uint(10)]))),
    attach("sends", 0, "plant/1/x", receives=False),
    attach("receives", 1, "stream/telemetry", receives=True),
    attach("subscribes", 2, "plant/#", receives=True),
    flow(1, 10),
    flow(2, 10),
    transfer(0, 0, MESSAGE),
    transfer(0, 1, MESSAGE[:20], more=True),
    transfer(0, 1, MESSAGE[20:]),
    frame(described(0x15, fields([encode(True), uint(0), uint(5), encode(True), described(0x24, fields([]))]))),
    frame(described(0x15, fields([encode(True), uint(0), uint(5), encode(False), MODIFIED]))),
    frame(described(0x16, fields([uint(0), encode(False)]))),
    frame(described(0x17, fields([]))),
    frame(described(0x18, fields([described(0x1D, fields([encode(Symbol("amqp:internal-error")), encode("x")]))]))),
]


def broken(random_: random.Random) -> list[bytes]:
    """Some of the frames, in an order that may make no sense, with some of their bytes changed."""
    found = []
    for each in FRAMES:
        copies = random_.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))
        found += [each] * copies
    if random_.random() < 0.15:
        random_.shuffle(found)
    changed = []
    for each in found:
        body = bytearray(each[8:])
        for _ in range(random_.choice((*(0,) * 14, 1, 1, 3))):
            at = random_.randrange(len(body))
            match random_.randrange(5):
                case 0:
                    body[at] = random_.randrange(256)
                case 1:
                    body[at] = random_.choice(b"\0\x40\x45\x53\xa0\xb0\xc0\xd0\xe0\xf0\xff\x7f\x80")
                case 2:
                    del body[at : at + random_.randrange(1, 6)]
                case 3:
                    body[at:at] = random_.randbytes(random_.randrange(1, 6))
                case 4:
                    body[at : at + 4] = random_.choice((ulong(1 << 63), b"\xff\xff\xff\xff", uint(1 << 31)))
            if not body:
                break
        channel = random_.choice((*(0,) * 60, 1, 65535))
        changed.append((len(body) + 8).to_bytes(4, "big") + b"\x02\0" + channel.to_bytes(2, "big") + bytes(body))
    at = random_.randrange(5, 8)
    return [AMQP + b"".join(changed[:at]), b"".join(changed[at:])]


async def attack(port: int, data: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            # Transfers before there is a window would end the connection, whatever they are.
            for part in data:
                writer.write(part)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.03):
                        await reader.read(1 << 16)
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(1 << 16):
                pass
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()


async def main(seed: int, count: int) -> None:
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        async with amqp(Path(folder)) as node:
            for first in range(seed, seed + count, AT_ONCE):
                attacks = [attack(node.port, broken(random.Random(each))) for each in range(first, first + AT_ONCE)]
                await asyncio.gather(*attacks)
            client = await node.client()
            receiver = await in_thread(client.receiver, "plant/#")
            await in_thread(client.send, "plant/1/x", Message(body="still here"))
            (found,) = await in_thread(client.receive, receiver, 1)
            assert found.body == "still here"
            await client.close()
            stored = len(await node.node.stored())
            assert stored > count // 8, f"only {stored} messages of {count} connections were taken"
            assert not node.node.context.unfinished.used, "bytes of connections that are gone are charged yet"
    print("survived")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
