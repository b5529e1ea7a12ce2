"""Which half-open connection makes room for another."""

from __future__ import annotations

from dataclasses import dataclass

from weft.network.admission import HalfOpen


@dataclass(eq=False)
class Guest:
    origin: str


def test_the_address_with_most_makes_room_with_its_oldest() -> None:
    half_open: HalfOpen[Guest] = HalfOpen()
    device, flood = Guest("10.0.0.1"), [Guest("10.0.0.66") for _ in range(5)]
    half_open.add(device)
    for each in flood:
        half_open.add(each)
    for expected in flood[:4]:
        assert half_open.victim() is expected
        assert half_open.discard(expected)
    assert half_open.victim() is device, "with one each, the address that came first"
    assert not half_open.discard(flood[0])
    assert half_open.discard(device)
    assert list(half_open) == flood[4:]
    assert len(half_open) == 1


def test_an_address_that_a_proxy_names_later_counts_from_then_on() -> None:
    half_open: HalfOpen[Guest] = HalfOpen()
    behind_a_proxy = [Guest("10.0.0.2") for _ in range(3)]
    for each in behind_a_proxy:
        half_open.add(each)
    for number, each in enumerate(behind_a_proxy):
        each.origin = f"192.0.2.{number % 2}"
        assert half_open.discard(each)
        half_open.add(each)
    assert half_open.victim() is behind_a_proxy[0]
    assert half_open.discard(behind_a_proxy[0])
    assert len(half_open) == 2
