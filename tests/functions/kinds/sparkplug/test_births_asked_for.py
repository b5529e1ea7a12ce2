"""Numbers of messages, and when an edge node is asked for its births."""

from __future__ import annotations

from typing import Any

import pytest

from tests.functions.kinds.sparkplug.messages import START, Plant, made, number, requests, temperature, told
from tests.functions.restart import SECOND, Chain, run
from weft.functions.contract import Gap, Row

DATA = {"alias": 1, "double_value": 20.0}
LINE1 = b"spBv1.0/plant/NCMD/line1"


def ran(plant: Plant, until_s: float = 1_000, **settings: Any) -> Chain:
    return run(lambda: made(**settings), plant.rows, until=START + round(until_s * SECOND))


def doubtful(chain: Chain) -> list[bool]:
    return [bool(dict(row.headers).get("sparkplug.doubtful")) for row in chain.emitted]


def test_numbers_go_round_without_a_word() -> None:
    plant = Plant()
    plant.born(seq=254)
    for at in range(600):
        plant.say("NDATA line1", DATA, seq=at % 256)
    chain = ran(plant)
    assert requests(chain) == []
    assert len(chain.emitted) == 603
    assert not any(doubtful(chain))


def test_a_lost_message_is_waited_for_and_then_a_birth_is_asked_for() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=2)
    plant.say("NDATA line1", DATA, seq=4, after=0.6)  # 0.9 s
    plant.say("NDATA line1", DATA, seq=5)
    chain = ran(plant)
    # Five seconds later, at the next whole second.
    assert requests(chain) == [(6.0, LINE1)]
    # The rows since then may have names that a lost birth has changed.
    assert doubtful(chain) == [False] * 4 + [True, True]


def test_a_message_that_comes_late_ends_the_wait() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=3)
    plant.say("NDATA line1", DATA, seq=4)
    plant.say("NDATA line1", DATA, seq=2, after=4)
    plant.say("NDATA line1", DATA, seq=5)
    chain = ran(plant)
    assert requests(chain) == []
    assert doubtful(chain) == [False] * 3 + [True, True, False, False]


def test_a_birth_ends_doubt() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=9)
    plant.say("NDATA line1", DATA, seq=10, after=20)
    plant.born()
    plant.say("NDATA line1", DATA, seq=2)
    chain = ran(plant)
    assert requests(chain) == [(6.0, LINE1)]
    assert doubtful(chain) == [False] * 3 + [True, True] + [False] * 4


def test_data_before_a_birth_ask_for_it() -> None:
    plant = Plant()
    plant.say("NDATA line1", DATA, seq=7)
    plant.say("DDATA line2/pump", {"name": "level", "datatype": 10, "double_value": 1}, seq=7)
    chain = ran(plant)
    assert requests(chain) == [(6.0, LINE1), (6.0, b"spBv1.0/plant/NCMD/line2")]
    assert chain.out.rejected() == ["a metric has the alias 1, and the birth that names it is not known"]
    # What says its name and datatype itself needs no birth.
    assert told(chain) == [(b"plant/line2/pump/level", 1.0)]


def test_a_birth_that_comes_in_time_is_not_asked_for() -> None:
    plant = Plant()
    plant.say("NDATA line1", DATA, seq=1)
    plant.born()
    assert requests(ran(plant)) == []
    # Nor that of a device whose birth was overtaken by its data.
    plant.say("DDATA line1/valve", {"alias": 9, "int_value": 1}, seq=3)
    plant.say("DBIRTH line1/valve", {"name": "open", "alias": 9, "datatype": 3, "int_value": 0}, seq=2)
    assert requests(ran(plant)) == []


@pytest.mark.parametrize(
    "said",
    [("NDATA line1", {"alias": 99, "double_value": 1.0}), ("DDATA line1/valve", {"alias": 1, "double_value": 1.0})],
)
def test_an_alias_that_no_birth_has_asks_for_one(said: Any) -> None:
    plant = Plant()
    plant.born()
    plant.say(*said, seq=2)
    chain = ran(plant)
    assert requests(chain) == [(6.0, LINE1)]
    assert len(chain.out.rejected()) == 1


def test_an_edge_node_is_asked_once_a_minute_as_long_as_it_talks_and_does_not_answer() -> None:
    plant = Plant()
    plant.born()
    for at in range(200):
        plant.say("NDATA line1", DATA, seq=(at + 9) % 256, after=1)
    assert [second for second, _ in requests(ran(plant))] == [7.0, 67.0, 127.0, 187.0, 247.0]
    plant = Plant()
    plant.say("NDATA line1", DATA, seq=1)
    assert requests(ran(plant)) == [(6.0, LINE1)]  # and not at all when it says nothing more


def test_births_that_do_not_help_are_asked_for_no_more_often() -> None:
    plant = Plant()
    for _ in range(12):
        plant.born()
        plant.say("NDATA line1", DATA, seq=100, after=1)
        plant.at += 8
    assert [second for second, _ in requests(ran(plant, rebirth_every_s=30))] == [7.0, 43.0, 73.0, 108.0]


def test_numbers_that_go_back_ask_for_a_birth() -> None:
    """The edge node was started again, and its birth was lost."""
    plant = Plant()
    plant.born()
    for at in range(2, 60):
        plant.say("NDATA line1", DATA, seq=at, after=0.01)
    plant.say("NDATA line1", DATA, seq=1)
    chain = ran(plant)
    assert len(requests(chain)) == 1
    assert doubtful(chain)[-1]


def test_more_than_can_be_waited_for() -> None:
    plant = Plant()
    plant.born()
    for at in (60, 100, 160, 161):
        plant.say("NDATA line1", DATA, seq=at)
    chain = ran(plant)
    assert len(requests(chain)) == 1
    plant.born()
    assert [len(requests(ran(plant))), doubtful(ran(plant))[-1]] == [0, False]


def test_after_a_gap_in_the_log_no_alias_is_trusted() -> None:
    plant = Plant()
    plant.born()
    inputs: list[Row | Gap] = [*plant.rows, Gap("in", 2, 5, "expired", plant.rows[-1].time)]
    plant.say("NDATA line1", DATA, seq=2)
    plant.say("NDATA line1", temperature(), seq=3)
    plant.say("NDATA line1", number(0), seq=4)
    after = plant.rows[2:]
    chain = run(made, [*inputs, *after], until=START + 100 * SECOND)
    assert len(chain.out.rejected()) == 1
    assert requests(chain) == [(6.0, LINE1)]
    # An edge node that says nothing is not asked.
    assert requests(run(made, inputs, until=START + 100 * SECOND)) == []


@pytest.mark.parametrize("refused", [b"\xff", b"\x12\x02\x10\x01", b"\x18\xac\x02"])
def test_after_a_birth_that_is_not_understood_no_alias_is_trusted(refused: bytes) -> None:
    """It may have given them other names."""
    plant = Plant()
    plant.born()
    plant.publish("spBv1.0/plant/NBIRTH/line1", refused)
    plant.say("NDATA line1", DATA, seq=1)
    plant.say("DDATA line1/pump", {"alias": 2, "int_value": 1}, seq=2)
    chain = ran(plant)
    assert len(told(chain)) == 3
    assert len(chain.out.rejected()) == 3
    assert requests(chain) == [(6.0, LINE1)]


def test_a_death_is_the_end_of_the_matter() -> None:
    plant = Plant()
    plant.born(bd_seq=3)
    plant.say("NDATA line1", DATA, seq=50)
    plant.say("NDEATH line1", number(3))
    chain = ran(plant)
    assert requests(chain) == []
    assert chain.function.state is not None
    assert dict(chain.function.state.items()) == {}


def test_nothing_is_remembered_of_who_never_said_a_birth() -> None:
    plant = Plant()
    for at in range(50):
        plant.say(f"DDATA stranger{at}/x", DATA, seq=0)
    plant.say("DBIRTH stranger1/x", temperature(), seq=1)
    chain = ran(plant)
    assert len(requests(chain)) == 50
    assert chain.function.state is not None
    assert dict(chain.function.state.items()) == {}
    assert chain.function.due() is None


def test_who_only_listens_asks_nobody() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=9)
    assert requests(ran(plant, rebirth=False)) == []
    assert requests(ran(plant, reorder_s=0)) == [(1.0, LINE1)]


def test_births_are_kept_for_later_subscribers() -> None:
    plant = Plant()
    plant.born()
    plant.say("NDATA line1", DATA, seq=2)
    chain = ran(plant, certificates=True)
    said = [each for each in chain.out.said if each[0] == "alert"]
    assert [each[1] for each in said] == [
        b"$sparkplug/certificates/spBv1.0/plant/NBIRTH/line1",
        b"$sparkplug/certificates/spBv1.0/plant/DBIRTH/line1/pump",
    ]
    assert [(each[2], each[5]) for each in said] == [(row.payload, True) for row in plant.rows[:2]]
