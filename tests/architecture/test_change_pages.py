"""The pages that say how to change Weft fit the code; tests/end_to_end/test_change_pages.py runs what they make.

A page that an unrelated change has made old is skipped, here and there, and the end of the run names it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.change_pages import BLOCK, PAGES, ROOT, follow, of_the_tree

FOLLOWED = ROOT / "tests/end_to_end/test_change_pages.py"


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_every_hunk_of_a_page_fits_its_file(page: Path) -> None:
    text, name = page.read_text(), page.relative_to(ROOT).as_posix()
    named = re.findall(r"^```\w.*$", text, re.M)
    assert len(BLOCK.findall(text)) == len(named), (
        f"{name}: give each block its language and the name of its file: {named}"
    )
    for file, made in follow(name, text, of_the_tree).items():
        if file.endswith(".py"):
            ast.parse(made, f"{name}: {file}")


def test_every_page_is_followed() -> None:
    followed = FOLLOWED.read_text()
    missing = [page.name for page in PAGES.glob("*.md") if f'"{page.name}"' not in followed]
    assert missing == [], f"follow them in {FOLLOWED.relative_to(ROOT)}"


@pytest.mark.parametrize(("tree", "times"), [("a\nb\na\nb\n", 2), ("a\nc\n", 0), (None, 0)])
def test_a_hunk_that_does_not_fit_names_its_page(tree: str | None, times: int) -> None:
    text = "```diff f.py\n a\n-b\n+c\n```\n"
    with pytest.raises(pytest.skip.Exception, match=rf"p\.md is old: a hunk no longer fits f\.py.*{times} times"):
        follow("p.md", text, lambda _: tree)


def test_hunks_of_one_file_come_after_each_other() -> None:
    text = "```diff f.py\n a\n-b\n+c\n```\n```diff f.py\n c\n+d\n```\n```python g.py\ne\n```\n"
    assert follow("p.md", text, lambda file: "a\nb\n" if file == "f.py" else None) == {
        "f.py": "a\nc\nd\n",
        "g.py": "e\n",
    }
    parted = "```diff f.py\n a\n-b\n+c\n@@\n c\n+d\n```\n"
    assert follow("p.md", parted, lambda _: "a\nb\n") == {"f.py": "a\nc\nd\n"}
    with pytest.raises(pytest.skip.Exception, match=r"p\.md is old: g\.py is there already"):
        follow("p.md", text, lambda _: "a\nb\n")
