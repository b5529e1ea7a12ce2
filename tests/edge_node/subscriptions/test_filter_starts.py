"""Where subscriptions began, as long as it matters."""

from tests.edge_node.subscriptions.members import FakeMember, subscription
from weft.edge_node.subscriptions.subscriptions import FilterStarts


def test_a_start_matters_until_the_client_has_read_up_to_it() -> None:
    starts, client = FilterStarts(), FakeMember("c")
    a, b = subscription(client, "a"), subscription(client, "b")
    starts.set("c", a, {1: 10, 2: 5})
    starts.set("c", b, {1: 20})
    assert starts.of("c", "a") == {1: 10, 2: 5}
    starts.passed("c", {1: 10})
    assert dict(starts.all_of("c")) == {a: {2: 5}, b: {1: 20}}
    starts.passed("c", {1: 19, 2: 5})
    assert dict(starts.all_of("c")) == {b: {1: 20}}
    starts.passed("c", {1: 20, 2: 5})
    assert not starts.knows("c")
    assert starts.of("c", "b") == {}


def test_what_was_taken_out_is_forgotten() -> None:
    starts, client = FilterStarts(), FakeMember("c")
    starts.set("c", subscription(client, "a"), {1: 1})
    starts.set("c", subscription(client, "b"), {1: 1})
    starts.drop("c", "a")
    starts.drop("c", "a")
    starts.set("c", subscription(client, "b"), {})
    assert not starts.knows("c")
    starts.set("c", subscription(client, "a"), {1: 1})
    starts.forget("c")
    assert not starts.knows("c")
    starts.passed("c", {1: 9})
