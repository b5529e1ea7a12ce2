"""Navigation of the site: its sections, and where the pages of each come from.

A page that lists others, such as `docs/how-to/README.md`, is the source of their order: what it does not link to is
outside the navigation, and the build fails.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_LINK = re.compile(r"\]\(([^)#\s]+)\.md(?:#[^)]*)?\)")


class Section(NamedTuple):
    """A part of the side bar."""

    title: str
    pages: Sequence[str]
    """Paths below the repository, without `.md`."""


SECTIONS = (
    Section(
        "Begin",
        [
            "docs/README",
            "docs/tutorial/plant-engineer",
            "docs/tutorial/data-engineer",
            "docs/tutorial/operator",
            "docs/tutorial/press",
            "docs/tutorial/machine-hours",
            "docs/concepts",
            "docs/how-to/install",
        ],
    ),
    Section("Work with it", ["docs/how-to/README", "docs/functions/README", "docs/downsampling"]),
    Section(
        "Plan",
        ["docs/comparison", "docs/sizing", "docs/upgrades", "docs/benchmarks", "docs/security", "docs/durability"],
    ),
    Section("Look up", ["docs/reference/README", "docs/reference/formats/README"]),
    Section(
        "Understand and change it",
        ["docs/architecture", "docs/decisions/README", "CONTRIBUTING", "examples/demo/data/README"],
    ),
    Section("Project", ["CHANGELOG", "SECURITY", "docs/release"]),
)
CHILDREN = {
    "docs/how-to/README": "docs/how-to",
    "docs/functions/README": "docs/functions",
    "docs/reference/README": "docs/reference",
    "docs/reference/formats/README": "docs/reference/formats",
    "CONTRIBUTING": "docs/change",
}
"""Page -> folder whose pages are below it, in the order in which it links to them."""
LISTED = {"docs/decisions/README": "docs/decisions"}
"""Pages that list a folder whose pages are not in the side bar, which would be twice as long with them."""


class Navigation(NamedTuple):
    """Order of the pages of a site."""

    root: str
    """The page with which the site opens."""
    sections: Sequence[Section]
    children: Mapping[str, str]
    listed: Mapping[str, str]

    def added_to(self, page: str, text: str) -> str:
        """Return what is added to the end of a page: the directives by which Sphinx knows the order."""
        if page == self.root:
            return "".join(_toctree(section.pages, section.title) for section in self.sections)
        if page in self.children:
            taken = {page for section in self.sections for page in section.pages}
            return _toctree([each for each in linked(page, text, self.children[page]) if each not in taken])
        return ""

    def is_listed(self, page: str, texts: Mapping[str, str]) -> bool:
        """Return whether a page has no place in the side bar, and is on the page that lists its folder."""
        return any(
            page != index and posixpath.dirname(page) == folder and page in linked(index, texts[index], folder)
            for index, folder in self.listed.items()
            if index in texts
        )


SITE = Navigation("README", SECTIONS, CHILDREN, LISTED)


def linked(page: str, text: str, folder: str) -> list[str]:
    """Return the pages of a folder that a page links to, in its order, each once."""
    targets = [posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in _LINK.findall(text)]
    return [each for each in dict.fromkeys(targets) if posixpath.dirname(each) == folder and each != page]


def _toctree(pages: Sequence[str], caption: str | None = None) -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", "```{toctree}", *options, "", *(f"/{page}" for page in pages), "```", ""])
