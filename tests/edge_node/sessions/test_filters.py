"""What filters cost."""

from weft.edge_node.sessions.filters import LEVEL_BYTES, cost


def test_a_filter_costs_its_text_and_its_levels() -> None:
    assert cost("a") == 1 + LEVEL_BYTES
    assert cost("a/é/#") == 6 + 3 * LEVEL_BYTES
