"""The site of the documentation: whole, without a broken link, and read without another host."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("furo")

from docs.tools.site.build import ROOT, build
from docs.tools.site.navigation import Navigation, Section
from tests.support.browser import browser_page, needs_browser
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:'myst_parser")]
SMALL = Navigation(
    "README",
    [Section("Begin", ["docs/README"]), Section("Changes", ["docs/decisions/README"])],
    {"docs/README": "docs"},
    {"docs/decisions/README": "docs/decisions"},
)
PAGES = {
    "README.md": "# Home\n\n- [Documentation](docs/README.md)\n",
    "docs/README.md": "# Documentation\n\n[one](one.md#a-heading-of-its-own), [the data](data.json)\n",
    "docs/data.json": "{}\n",
    "docs/one.md": "# One\n\n## A heading of its own\n\n- a list\n  - within a list\n\n```hex\n00 01\n```\n",
    "docs/decisions/README.md": "# Decisions\n\n- [first](0001-first.md)\n",
    "docs/decisions/0001-first.md": "# 0001: First\n",
}


def written(folder: Path, **changed: str) -> Path:
    for name, text in {**PAGES, **{name.replace("__", "/") + ".md": text for name, text in changed.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_documentation_is_a_whole_site(tmp_path: Path) -> None:
    assert build(ROOT, tmp_path, "0.1.0") == []
    home = tmp_path / "0.1.0"
    made = {page.relative_to(home).with_suffix("").as_posix() for page in home.rglob("*.html")}
    assert {page.relative_to(ROOT).with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md")} <= made
    assert {"index", "README", "search", "CHANGELOG"} <= made
    assert "completeness" in (home / "searchindex.js").read_text()
    front = (home / "README.html").read_text()
    assert 'href="docs/how-to/first-edge-node.html"' in front.partition('<div class="main">')[0]


def test_pages_are_as_github_shows_them_and_each_release_has_a_folder(tmp_path: Path) -> None:
    root, to = written(tmp_path / "pages"), tmp_path / "site"
    for version in ("0.9.0", "0.10.0"):
        assert build(root, to, version, SMALL) == []
    assert re.findall(r'href="([^"]+)"', (to / "index.html").read_text()) == ["0.10.0/index.html", "0.9.0/index.html"]
    one = (to / "0.9.0/docs/one.html").read_text()
    assert re.search(r"<ul[^>]*>\s*<li><p>a list</p>\s*<ul>\s*<li><p>within a list", one)
    assert 'url=README.html"' in (to / "0.9.0/index.html").read_text()
    documentation = (to / "0.9.0/docs/README.html").read_text()
    assert 'href="one.html#a-heading-of-its-own"' in documentation
    (data,) = re.findall(r'href="([^"]+/data\.json)"', documentation)
    assert (to / "0.9.0/docs" / data).read_text() == "{}\n"


@needs_browser
def test_a_page_leads_to_other_releases_and_an_old_one_says_so(tmp_path: Path) -> None:
    """From a folder, as in a plant. The old release was built before the newer ones, and lists them all the same."""
    root, to = written(tmp_path / "pages"), tmp_path / "site"
    for version in ("0.9.0", "0.10.0", "0.11.0rc1"):
        assert build(root, to, version, SMALL) == []
    assert json.loads((to / "versions.json").read_text()) == ["0.11.0rc1", "0.10.0", "0.9.0"]

    async def look() -> None:
        banner = "document.getElementById('weft-old-release')"
        select = "document.getElementById('weft-release')"
        async with browser_page(tmp_path / "browser") as page:
            await page.open((to / "0.9.0/docs/one.html").as_uri())
            said = await page.until(f"{banner}.innerText")
            assert said == "This page is about Weft 0.9.0. The newest release is Weft 0.10.0."
            assert await page.js(f"[...{select}.options].map(each => each.value)") == ["0.11.0rc1", "0.10.0", "0.9.0"]
            assert await page.js(f"{select}.value") == "0.9.0"
            change = f"{select}.value = '0.10.0'; {select}.dispatchEvent(new Event('change'))"
            await page.js(f"void setTimeout(() => {{ {change} }})")
            newer = (to / "0.10.0/README.html").as_uri()
            async with asyncio.timeout(PATIENCE_S):
                while newer not in page.requested:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await page.open(newer)  # again: a script that runs while the page changes is lost
            assert await page.until(f"document.readyState == 'complete' && {select}.value") == "0.10.0"
            assert await page.js(banner) is None
            assert page.errors == []

    asyncio.run(look())


@pytest.mark.parametrize(
    ("page", "text", "problem"),
    [
        ("docs__one", "# One\n\n## A heading of its own\n\n[gone](two.md)\n", "docs/one.md:5: WARNING: "),
        ("docs__one", "# One\n", "docs/README.md:3: WARNING: "),
        ("docs__two", "# Two\n", "docs/two.md: WARNING: document isn't included in any toctree"),
        ("docs__decisions__0002-second", "# 0002\n", "docs/decisions/0002-second.md: WARNING: document isn't included"),
        ("docs__decisions__README", "# Decisions\n\n![x](https://example.org/x.svg)\n", "https://example.org/x.svg"),
        ("README", "# Home\n\n<script src='//example.org/x.js'></script>\n", "README.html: loads //example.org/x.js"),
    ],
)
def test_a_site_with_a_fault_is_not_made(tmp_path: Path, page: str, text: str, problem: str) -> None:
    problems = build(written(tmp_path / "pages", **{page: text}), tmp_path / "site", "0.1.0", SMALL)
    assert any(problem in each for each in problems), problems
    assert not (tmp_path / "site/0.1.0").exists()
