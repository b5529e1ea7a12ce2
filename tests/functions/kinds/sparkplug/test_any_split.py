"""How the input is cut into batches, steps and runs changes no byte of what comes out, nor which births are asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from tests.functions.kinds.sparkplug.messages import START, made
from tests.functions.kinds.sparkplug.traffic import traffic
from tests.functions.restart import SECOND, cuts, same_after_restarts
from tests.support.examples import moving
from tests.support.slices import SLICE

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"rows": "message", "certificates": True},
    {"sources_max": 2, "metrics_max": 5, "reorder_s": 0.0, "rebirth_every_s": 2.0},
)


def _is_the_same(data: strategies.DataObject) -> None:
    given = data.draw(traffic())
    chosen = data.draw(strategies.sampled_from(SETTINGS))
    whole = same_after_restarts(
        lambda: made(**chosen), given, data.draw(cuts(len(given))), until=START + 10**5 * SECOND
    )
    # Nothing waits when all is said, and what is remembered has its bounds.
    assert whole.function.due() is None
    assert whole.function.state is not None
    sources = [key for key, _ in whole.function.state.items() if key[:1] != b"\0"]
    assert len(sources) <= chosen.get("sources_max", 6)


@given(data=strategies.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
def test_how_the_input_is_cut_changes_no_byte(data: strategies.DataObject) -> None:
    _is_the_same(data)


@pytest.mark.search
@moving
@given(data=strategies.data())
@settings(
    max_examples=SLICE.amount(ci=100, night=2000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)
def test_how_any_input_is_cut_changes_no_byte(data: strategies.DataObject) -> None:
    _is_the_same(data)
