"""Properties with few examples in the quick tests, and with all of them among the slow ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

FEW = 15
Test = Callable[..., None]


def given(*arguments: Any, few: int = FEW, many: int | None = None, **named: Any) -> Callable[[Test], Test]:
    """Return what Hypothesis's ``given`` does, as two tests: one with a few examples and a slow one with many.

    The few find what breaks all the time, within a second; the many run with all slow tests.

    Args:
        many: number of examples of the slow one; those of the profile without it, so the nightly run has more.
    """

    def decorate(test: Test) -> Test:
        def with_examples(count: int | None) -> Test:
            wrap: Any = hypothesis.given(*arguments, **named)
            found: Test = wrap(test)
            return found if count is None else hypothesis.settings(max_examples=count)(found)

        runs = {"few": with_examples(few), "many": with_examples(many)}

        def run(*, examples: str, **others: Any) -> None:
            runs[examples](**others)

        left = inspect.signature(runs["few"]).parameters.values()
        own = inspect.Parameter("examples", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature([*left, own])  # type: ignore[attr-defined]  # pytest reads it
        run.__name__, run.__qualname__ = test.__name__, test.__qualname__
        run.__doc__, run.__module__ = test.__doc__, test.__module__
        sizes = pytest.mark.parametrize("examples", ["few", pytest.param("many", marks=pytest.mark.slow)])
        sized: Test = sizes(run)
        return sized

    return decorate
