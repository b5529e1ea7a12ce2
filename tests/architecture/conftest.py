from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.architecture import house, measures, test_imports


@pytest.fixture(scope="package", autouse=True)
def syntax_trees() -> Iterator[None]:
    """All tests here share what they parse, and other folders' tests need its gigabyte no longer.

    The garbage collector would look through it again and again.
    """
    gc.disable()
    yield
    for cached in (house.tree, house.nodes, house.edges, measures.classes, measures.of_the_tree, test_imports.imports):
        cached.cache_clear()
    gc.enable()
