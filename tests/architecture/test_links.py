"""What README and docs point at exists: relative links, and paths in backticks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]+)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(
    r"(?:\./)?[A-Za-z_.][\w.-]*(?:/[\w.-]+)*(?:/|\.(?:md|py|yaml|toml|txt))|[A-Za-z_.][\w.-]*(?:/[\w.-]+)+"
)
_MADE = re.compile(r"(?:tables|edge|hub|dist|site)(?:/|\.yaml)|\.venv.*")
"""What a person or an installation makes."""
_MEDIA_TYPE = re.compile(r"(?:application|multipart|text)/.*")
ids = [str(page.relative_to(ROOT)) for page in PAGES]


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in _LINK.findall(prose(page)) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_paths_that_are_named_exist(page: Path) -> None:
    named = [
        code
        for code in _CODE.findall(prose(page))
        if _PATH.fullmatch(code) and not (_MADE.fullmatch(code) or _MEDIA_TYPE.fullmatch(code))
    ]
    bases = (ROOT, ROOT / "docs", page.parent)
    assert [path for path in named if not any((base / path).exists() for base in bases)] == []


def test_every_page_is_reachable_from_the_readme() -> None:
    """By links and by the folders that are named."""
    found, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page in found:
            continue
        if page.is_dir():
            todo += page.rglob("*.md")
        elif page.suffix == ".md":
            found.add(page)
            todo += [page.parent / target for target in _LINK.findall(prose(page)) if "://" not in target]
    assert [page for page in PAGES if page not in found and page.name != "CHANGELOG.md"] == []


def headings(page: Path) -> set[str]:
    """The names by which headings of a page are linked to: lower case, words joined by hyphens."""
    found = re.findall(r"^#+ +(.+?)\s*$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_into_a_page_lead_to_a_heading(page: Path) -> None:
    named = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", prose(page))
    linked = [((page.parent / path) if path else page, anchor) for path, anchor in named]
    pages = [(target, anchor) for target, anchor in linked if target.suffix == ".md"]
    assert [f"{target}#{anchor}" for target, anchor in pages if anchor not in headings(target)] == []


def test_every_how_to_page_is_in_their_index() -> None:
    folder = ROOT / "docs" / "how-to"
    index = (folder / "README.md").read_text()
    pages = [path.name for path in folder.glob("*.md") if path.name != "README.md"]
    assert [name for name in sorted(pages) if f"]({name})" not in index] == []
