"""A Spark master that is not there: said at once, and ended in a bounded time."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.support.clocks import Clock
from tests.support.waiting import PATIENCE_S
from weft.commands.spark import MASTER_WAIT_S, addresses, wait_for_master, waiting_lines
from weft.output import Failed


@pytest.mark.parametrize(
    ("master", "known"),
    [
        ("spark://10.0.0.5:7077", [("10.0.0.5", 7077)]),
        ("spark://a:1,b:2", [("a", 1), ("b", 2)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("sc://spark.example.com/;token=x", [("spark.example.com", 15002)]),
        ("k8s://https://10.0.0.1:6443", []),
        ("yarn", []),
        ("spark://host:port", []),
    ],
)
def test_masters_of_a_url(master: str, known: list[tuple[str, int]]) -> None:
    assert addresses(master) == known


def test_a_master_that_is_not_there_is_waited_for_in_words_and_not_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    clock, said = Clock(0.0), list[str]()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    with pytest.raises(Failed) as raised:
        wait_for_master(f"spark://127.0.0.1:{port}", said.append, clock=clock, sleep=sleep)
    where = f"127.0.0.1:{port} (Connection refused)"
    assert said == [f"waiting for the Spark master at {where}, at most 30 s"] * 3, "the first at once, then each 10 s"
    assert clock.now == MASTER_WAIT_S
    assert str(raised.value).startswith(
        f"--master spark://127.0.0.1:{port}: no Spark master at {where}, tried for 30 s."
    )


def test_a_master_that_comes_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    masters: list[socket.socket] = []
    try:
        wait_for_master(
            f"spark://127.0.0.1:{port}",
            lambda _: None,
            sleep=lambda _: masters.append(socket.create_server(("127.0.0.1", port))),
        )
    finally:
        for each in masters:
            each.close()
    assert len(masters) == 1


def test_a_session_that_takes_long_is_told() -> None:
    said, twice = list[str](), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            twice.set()

    with waiting_lines("spark://10.0.0.5:7077", say, every_s=0.01):
        assert twice.wait(PATIENCE_S)
    assert said[0] == "waiting for a Spark session at spark://10.0.0.5:7077, for 0 s now"
