"""Builder of the documentation site: ``python -m docs.tools.site.build [FOLDER]``, which ``./run docs`` calls.

The pages stay Markdown as GitHub shows it. FOLDER (``site``) gets a folder for this release and a list of the releases
that it holds (``versions.json``), from which pages make their selector; folders of other releases stay. A broken link,
a page outside the navigation, or anything that a reader's browser would load from another host fails the build.
"""

from __future__ import annotations

import io
import json
import posixpath
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from docs.tools.site.navigation import SITE, Navigation

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
_PAGES = ("*.md", "docs/**/*.md", "examples/demo/data/README.md")
_NO_LEXER = ("haproxy", "hex")
"""Languages of code blocks that are shown without colours."""
# What a browser loads by itself; links that a reader follows may lead anywhere.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel\s*=\s*["']?(?:stylesheet|preload|icon|preconnect|dns-prefetch))"""
    r"""[^>]*\bhref\s*=\s*["']?((?:https?:)?//[^"'\s>]+)""",
    re.IGNORECASE,
)
_LOADED_BY_STYLE = re.compile(r"""(?:@import\s+|url\()\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


def build(root: Path, to: Path, version: str, navigation: Navigation = SITE) -> list[str]:
    """Build the site of the pages below a folder. Return what is wrong with it; then nothing is left of it."""
    home = to / version
    shutil.rmtree(home, ignore_errors=True)
    problems = _make(root, home, version, navigation)
    problems += [f"{page}: loads {host} from another host" for page, host in foreign(home)]
    if problems:
        shutil.rmtree(home, ignore_errors=True)
        return problems
    (home / "index.html").write_text(_framed("forward.html", page=f"{navigation.root}.html"))
    releases = sorted((page.parent.name for page in to.glob("*/index.html")), key=_newest)
    listed = json.dumps(releases)
    (to / "versions.json").write_text(f"{listed}\n")
    # A page that is read from a folder may load a script, and no JSON.
    (to / "versions.js").write_text(f"window.weftReleases = {listed};\n")
    items = "\n".join(f'<li><a href="{each}/index.html">Weft {each}</a></li>' for each in map(escape, releases))
    (to / "index.html").write_text(_framed("releases.html", items=items))
    return []


def _make(root: Path, home: Path, version: str, navigation: Navigation) -> list[str]:
    pages = {
        path.relative_to(root).with_suffix("").as_posix(): path for pattern in _PAGES for path in root.glob(pattern)
    }
    texts = {page: pages[page].read_text() for page in navigation.listed if page in pages}
    settings = {
        "project": "Weft",
        "version": version,
        "release": version,
        "root_doc": navigation.root,
        "extensions": ["myst_parser"],
        "source_suffix": {".md": "markdown"},
        "include_patterns": [f"{page}.md" for page in pages],
        "myst_heading_anchors": 6,
        "html_theme": "furo",
        "html_title": f"Weft {version}",
        "html_static_path": [str(HERE / "static")],
        "html_css_files": ["site.css"],
        "html_search_scorer": str(HERE / "scorer.js"),
        "html_show_sphinx": False,
        "html_show_copyright": False,
        "html_copy_source": False,
        "html_permalinks_icon": "#",
        "templates_path": [str(HERE / "templates")],
        "html_sidebars": {
            "**": [
                "sidebar/brand.html",
                "sidebar/search.html",
                "sidebar/scroll-start.html",
                "sidebar/navigation.html",
                "releases.html",
                "sidebar/scroll-end.html",
            ]
        },
    }
    warnings = io.StringIO()
    # Nothing that Sphinx registers stays in this process, so that it can build another site.
    with tempfile.TemporaryDirectory() as parsed, patch_docutils(), docutils_namespace():
        # Every page is parsed each time: Sphinx says what is wrong with a page only while it reads it.
        app = Sphinx(str(root), None, str(home), parsed, "html", confoverrides=settings, status=None, warning=warnings)
        for name in _NO_LEXER:
            app.add_lexer(name, TextLexer)

        def add(_: Sphinx, page: str, source: list[str]) -> None:
            head = "---\norphan: true\n---\n" if navigation.is_listed(page, texts) else ""
            source[0] = head + source[0] + navigation.added_to(page, source[0])

        app.connect("source-read", add)
        app.connect("html-page-context", _one_side_bar(navigation), priority=100)  # before the theme's
        app.build()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", warnings.getvalue())
    return [line.removeprefix(f"{root}/") for line in plain.splitlines() if line.strip()]


def _one_side_bar(navigation: Navigation) -> Callable[[Sphinx, str, str, dict[str, Any], object], None]:
    """Return a handler that has the side bar made once for all pages of a folder that have no place in it.

    It is the same for each of them. Making it again for every decision would take a third of the build.
    """
    made: dict[str, str] = {}

    def share(_: Sphinx, page: str, __: str, context: dict[str, Any], ___: object) -> None:
        folder, make = posixpath.dirname(page), context.get("toctree")
        if make is None or page in navigation.listed or folder not in navigation.listed.values():
            return

        def shared(**options: Any) -> str:
            if folder not in made:
                made[folder] = str(make(**options))
            return made[folder]

        context["toctree"] = shared

    return share


def foreign(home: Path) -> list[tuple[str, str]]:
    """Return page and address of everything that pages and styles would load from other hosts."""
    found = []
    for kind, pattern in (("*.html", _LOADED), ("*.css", _LOADED_BY_STYLE)):
        for path in sorted(home.rglob(kind)):
            found += [
                (path.relative_to(home).as_posix(), next(filter(None, match.groups())))
                for match in pattern.finditer(path.read_text())
            ]
    return found


def _newest(version: str) -> tuple[list[int], str]:
    """Return the key by which the newest release comes first."""
    return [-int(part) for part in re.findall(r"\d+", version)], version


def _framed(name: str, **texts: str) -> str:
    return Template((HERE / "frame" / name).read_text()).substitute(texts)


def main() -> int:
    """Build the site of this state. Return the exit status: 1 when something is wrong with it."""
    to = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    problems = build(ROOT, to.resolve(), version)
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201
    if not problems:
        print(f"The site is in {to / version}; {to / 'index.html'} lists its releases.")  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
