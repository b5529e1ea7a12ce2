"""Bounds on what waits: one client's, and all clients' together."""

from hypothesis import given
from hypothesis import strategies as st

from weft.edge_node.subscriptions.limits import QueueAccount, QueueBudget


def test_either_bound_refuses() -> None:
    budget = QueueBudget(100)
    one, two = QueueAccount(budget, 80), QueueAccount(budget, 80)
    assert one.fits(80)
    assert not one.fits(81)
    one.take(80)
    assert one.is_full()
    assert not two.is_full()
    assert two.fits(20)
    assert not two.fits(21)
    two.take(20)
    assert two.is_full(), "all have taken what there is"
    one.free(80)
    assert two.fits(60)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=50))
def test_the_budget_is_the_sum_of_the_accounts(steps: list[tuple[int, int]]) -> None:
    budget = QueueBudget(1000)
    accounts = [QueueAccount(budget, 400) for _ in range(3)]
    for which, size in steps:
        account = accounts[which]
        if account.fits(size):
            account.take(size)
        else:
            account.free(account.used)
        assert budget.used == sum(each.used for each in accounts) <= budget.bytes_max
        assert account.used <= 400
