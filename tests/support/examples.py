"""Properties with few examples in the quick tests, and a search with many of them, other ones for each commit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

from tests.support.slices import SLICE

FEW = 15
NIGHT = 10
"""At night a search that says how many examples it takes has so many times as many."""
Test = Callable[..., None]


def moving(test: Test) -> Test:
    """Have a property take the examples of this run's slice. A decorator, for searches that say their own settings."""
    return hypothesis.seed(SLICE.seed)(test)


def given(*arguments: Any, few: int = FEW, many: int | None = None, **named: Any) -> Callable[[Test], Test]:
    """Return what Hypothesis's ``given`` does, as two tests: one with a few examples and a search with many.

    The few find what breaks all the time, within a second.

    Args:
        many: number of examples of the search in CI; those of the profile without it.
    """

    def decorate(test: Test) -> Test:
        def with_examples(count: int | None) -> Test:
            wrap: Any = hypothesis.given(*arguments, **named)
            found: Test = wrap(test)
            return found if count is None else hypothesis.settings(max_examples=count)(found)

        count = None if many is None else SLICE.amount(many, NIGHT * many)
        runs = {"few": with_examples(few), "many": moving(with_examples(count))}

        def run(*, examples: str, **others: Any) -> None:
            runs[examples](**others)

        left = inspect.signature(runs["few"]).parameters.values()
        own = inspect.Parameter("examples", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature([*left, own])  # type: ignore[attr-defined]  # pytest reads it
        run.__name__, run.__qualname__ = test.__name__, test.__qualname__
        run.__doc__, run.__module__ = test.__doc__, test.__module__
        sizes = pytest.mark.parametrize("examples", ["few", pytest.param("many", marks=pytest.mark.search)])
        sized: Test = sizes(run)
        return sized

    return decorate
