"""axe-core: what its rules find on a page of a browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.browser import BrowserPage
from tests.support.third_party import AXE

RULES_MIN = 10
"""Number of rules that pass on any page of ours: fewer, and axe did not look."""
_RUN = """axe.run(document).then((told) => [told.passes.length, told.violations.map((each) => [each.id, each.impact,
    each.nodes.slice(0, 5).map((node) => node.html.slice(0, 300) + " " +
        [...node.any, ...node.all, ...node.none].map((check) => check.message).join("; ").slice(0, 300))])])"""


async def axe_finds(page: BrowserPage) -> list[Any]:
    """Return the violations on the page as it is: rule, impact, and elements."""
    try:
        source = (AXE.obtain() / "node_modules/axe-core/axe.min.js").read_text("utf-8")
    except LookupError as error:
        pytest.skip(str(error))
    await page.js(f"{source};0")
    passed, found = await page.js(_RUN)
    assert passed >= RULES_MIN
    violations: list[Any] = found
    return violations
