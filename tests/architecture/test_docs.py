"""What the documentation says is what the code does: generated pages are current, packaged files are there."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from docs.tools import downsampling
from docs.tools.generate import DECISIONS, PICTURE, REFERENCE, decisions_page, pages
from docs.tools.picture import missing, picture
from docs.tools.prose import broken_code, findings, handwritten_pages, long_lines, mended, texts, wrapped
from tests.support.change_pages import BLOCK, follow, of_the_tree
from tests.support.change_pages import PAGES as CHANGE_PAGES_PAGES
from tests.support.change_pages import ROOT as CHANGE_PAGES_ROOT
from weft.bounds import Refusals
from weft.cloud_hub.auth import jwt
from weft.cloud_hub.http import changes, exchange, process, tail
from weft.cloud_hub.reads import series
from weft.config.metrics.edge import EDGE_METRICS
from weft.config.metrics.hub import HUB_METRICS
from weft.config.models import EdgeConfig, HubConfig
from weft.config.schema import settings
from weft.edge_node.access import authentication
from weft.edge_node.servers.clients import context
from weft.edge_node.servers.http.settings import HttpSettings
from weft.edge_node.servers.listeners import websocket_connection
from weft.edge_node.subscriptions import limits
from weft.hub_api.records import RECORDS_MAX, SERIES_ROWS_MAX
from weft.network import http_server, tls
from weft.protocols import batch, topics
from weft.replication.runner import serve
from weft.storage import cluster_log

ROOT = Path(__file__).parents[2]
RELEASED = r"(?:weft[-_](?:edge|hub|fabric)[-_:]|^(?:version|appVersion): \"?)(\d+\.\d+\.\d+)"
"""A release in the name of a file or an image, and in a chart."""


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "alerts.md", "cli.md", "openapi.json"])
def test_generated_pages_are_current(name: str) -> None:
    assert (REFERENCE / name).read_text() == pages()[name], "run: ./run fix"


def test_the_picture_of_the_architecture_is_current_and_whole() -> None:
    assert missing() == []
    assert PICTURE.read_text() == picture(), "run: ./run fix"
    assert f"]({PICTURE.name})" in (ROOT / "docs/architecture.md").read_text()


@pytest.mark.slow
def test_the_page_of_real_data_is_current_and_every_bound_on_it_holds() -> None:
    pytest.importorskip("matplotlib")
    made = downsampling.pages()
    assert {name for name, text in made.items() if (ROOT / "docs" / name).read_text() != text} == set(), (
        "run: ./run fix"
    )
    assert made["downsampling.md"].count("| yes |") == 16
    assert "**no**" not in made["downsampling.md"]


def test_every_invariant_names_tests_that_are_there() -> None:
    rows = re.findall(r"^\| (I\d+) \|.*$", text := (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    assert rows == [f"I{number}" for number in range(1, 13)]
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) >= len(rows)
    for file, name in named:
        source = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^\s*((async )?def {name}\(|{name} = )", source, re.MULTILINE), f"{file}::{name}"


@pytest.mark.parametrize(("heading", "model"), [("### Of an edge node", EdgeConfig), ("### Of a hub", HubConfig)])
def test_every_share_on_the_page_of_security_is_a_setting_with_that_default(
    heading: str, model: type[msgspec.Struct]
) -> None:
    """And every bound that one user, address, edge, token or tenant has is on the page."""
    table = (ROOT / "docs/security.md").read_text().partition(f"{heading}\n")[2].partition("\n#")[0]
    defaults = {setting.path: setting.default for setting in settings(model)}
    named = re.findall(r"`((?:limits|state|disk|streams)\.[\w.<>]+)`(?: \(([^)]+)\))?", table)
    assert len(named) > 5
    for name, default in named:
        assert name in defaults
        said = default.replace(",", "").replace(" ", "").replace("min", "m")
        assert said in ("", defaults[name]), name
    shares = {path for path in defaults if re.match(r"limits\..*per_(user|address|edge|token|tenant)", path)}
    assert shares <= {name for name, _ in named}


def _of_owner(places: int) -> int:
    return exchange.ReaderPlaces(Refusals(lambda: 0.0), places, "").of_owner


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count % (1 << 20) == 0 else f"{count >> 10} KiB"


SHARES_OF_AN_EDGE = (
    f"{tls.WITHOUT_DATA_BURST} at once and one a second of a connection; {tls.HANDSHAKE_RECORDS_MAX} of a handshake",
    f"a wait of up to {authentication.BACK_OFF_MAX_S:g} s",
    f"rounds of {context.READS_S_MAX * 1e3:g} ms | turns of {context.TURN_S_MAX * 1e3:g} ms",
    f"more than {limits.COMMON_LEVELS} levels",
    f"and {HttpSettings().records_max:,} messages",
    f"turns of {websocket_connection.FRAMES_AT_ONCE} frames; {_size(websocket_connection.WAITING_BYTES_MAX)} that wait",
    f"{_size(websocket_connection.WAITING_BYTES_OF_ONE_MAX)} of one address",
    f"each for {http_server.IDLE_S_MAX:g} s without a request",
)
SHARES_OF_A_HUB = (
    f"{cluster_log.KINDS_MAX} kinds of {cluster_log.FACTS_PER_KIND_MAX:,} facts",
    f"{_size(cluster_log.DOCUMENTS_BYTES_MAX)} of documents | {_size(cluster_log.DOCUMENT_BYTES_MAX)} of a document",
    f"{jwt.CHECKED_MAX:,} checked ones; {jwt.KEYS_MAX} keys of {_size(jwt.KEY_SET_BYTES_MAX)}",
    f"{jwt.WAITING_MAX:,} requests wait {jwt.WAIT_S:g} s",
    f"(1,024), each for {http_server.IDLE_S_MAX:g} s",
    f"{http_server.AT_ONCE} begin in a turn of the loop",
    f"({', '.join(map(str, sorted(http_server.REFUSALS)))}) ends its connection",
    f"{process.ALL_WRONG_BURST:,} at once and {process.ALL_WRONG_PER_S:g} a second",
    f"{process.WRONG_BURST} at once and one in {1 / process.WRONG_PER_S:g} s of an address",
    f"{_size(batch.EXPANDED_BYTES_MAX)} and {batch.COUNT_MAX:,} records as rows, keys of {batch.KEY_BYTES_MAX:,} bytes",
    f"of {serve.FRAMES_AT_ONCE} frames of a WebSocket",
    f"{topics.PATTERN_LEVELS_MAX} levels of a lane",
    f"{RECORDS_MAX:,} records | the reader asks for the rest",
    f"{series.RECORDS_READ_MAX:,} records or {_size(series.RECORD_BYTES_READ_MAX)} of payload read, "
    f"{series.VALUES_MAX:,} values, {SERIES_ROWS_MAX:,} rows",
    f"{tail.TAILS_MAX:,} in a process, half of them of one tenant | {_of_owner(tail.TAILS_MAX)} of a token; "
    f"{tail.RECORDS_AT_ONCE} records or {_size(tail.BYTES_AT_ONCE)} at once",
    f"{tail.SEARCH_S:g} s in a second for a token, {tail.SEARCH_OF_TENANT * tail.SEARCH_S:g} s for a tenant; "
    f"{tail.SEARCH_AT_ONCE_S:g} s and {tail.SEARCH_OF_TENANT * tail.SEARCH_AT_ONCE_S:g} s at once",
    f"{changes.LISTENERS_MAX} in a process, half of them of one tenant | {_of_owner(changes.LISTENERS_MAX)} of a token",
    f"{exchange.AT_ONCE} of `limits.response` | {exchange.AT_ONCE_OF_OWNER} of them of a token, "
    f"{exchange.AT_ONCE_OF_TENANT} of a tenant; ",
    f"{exchange.WAITING_MAX} requests of a token that wait "
    f"{exchange.WAIT_S:g} s, {exchange.WAITING_OF_TENANT_MAX} of a tenant; {exchange.PIECE_S:g} s for "
    f"{_size(exchange.PIECE_BYTES)}, and {_size(exchange.LEAST_BYTES_PER_S)} a second",
)


@pytest.mark.parametrize("said", [*SHARES_OF_AN_EDGE, *SHARES_OF_A_HUB])
def test_the_shares_that_are_no_settings_are_those_of_the_code(said: str) -> None:
    heading = "### Of an edge node\n" if said in SHARES_OF_AN_EDGE else "### Of a hub\n"
    table = (ROOT / "docs/security.md").read_text().partition(heading)[2].partition("\n#")[0]
    assert said in table, "docs/security.md says another number than the code has"


def test_what_names_a_release_names_that_of_pyproject() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.yaml")]
    named = {
        (str(path.relative_to(ROOT)), found)
        for path in files
        if "decisions" not in path.parts
        for found in re.findall(RELEASED, path.read_text(), re.MULTILINE)
    }
    assert {"deploy/helm/weft-hub/Chart.yaml", "docs/how-to/install-by-package.md"} <= {path for path, _ in named}
    assert sorted(each for each in named if each[1] != version) == []
    (first, *_) = re.findall(r"^## (\d\S*?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == version


def test_metric_names_follow_the_conventions() -> None:
    names = [metric.name for metric in (*EDGE_METRICS, *HUB_METRICS)]
    assert len(names) == len(set(names))
    for metric in (*EDGE_METRICS, *HUB_METRICS):
        assert metric.name.startswith(("weft_edge_", "weft_hub_"))
        assert metric.name.endswith("_total") == (metric.kind == "counter")


@pytest.mark.parametrize("page", sorted((ROOT / "docs/decisions").glob("0*.md")), ids=lambda page: page.name[:4])
def test_decisions_have_one_layout(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert lines[0].startswith(f"# {page.name[:4]}: ")
    assert re.fullmatch(r"Status: (accepted|replaced by \[\d{4}\]\(.*\))\.", lines[2])
    assert re.fullmatch(r"Date: 20\d\d-\d\d-\d\d", lines[3]), "the day of the decision stands below the status"
    heads = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert "Decision" in heads
    order = ["Context", "Decision", "Considered", "Consequences"]
    known = [head for head in heads if head in order]
    assert known == sorted(known, key=order.index)


def test_the_list_of_decisions_is_current_and_in_order() -> None:
    listed = (DECISIONS / "README.md").read_text()
    assert listed == decisions_page(), "run: ./run fix"
    numbers = re.findall(r"^\| (\d{4}) \| 20\d\d-\d\d-\d\d \|", listed, re.MULTILINE)
    assert numbers == sorted(set(numbers))
    titles = [line for page in DECISIONS.glob("0*.md") for line in re.findall(r"(?m)^##? \d{4}: ", page.read_text())]
    assert len(numbers) == len(titles), "a decision lacks its date, two lines below its title"


def test_pages_wrap() -> None:
    pages = {page: page.read_text() for page in handwritten_pages()}
    found = {page.name: lines for page, text in pages.items() if (lines := [*long_lines(text)])}
    broken = {page.name: codes for page, text in pages.items() if (codes := broken_code(text))}
    assert (found, broken) == ({}, {}), "run: ./run fix"
    assert [*long_lines(f"{'a ' * 70}\n| {'a ' * 70}\n```\n{'a ' * 70}\n```")] == ["a " * 70]
    assert broken_code("It is `./run\ntest`, and\n- `run\n- `a b`\n") == ["./run\ntest"]


def test_every_package_is_marked_as_typed() -> None:
    packages = [
        path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("tests", "bench", "examples")
    ]
    assert [package.name for package in packages if not (package / "py.typed").exists()] == []


# --- What README and docs point at exists: relative links, and paths in backticks


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


# --- The pages that say how to change Weft fit the code; tests/end_to_end/test_change_pages.py runs what they make
#
# A page that an unrelated change has made old is skipped, here and there, and the end of the run names it.


FOLLOWED = CHANGE_PAGES_ROOT / "tests/end_to_end/test_change_pages.py"


@pytest.mark.parametrize("page", sorted(CHANGE_PAGES_PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_every_hunk_of_a_page_fits_its_file(page: Path) -> None:
    text, name = page.read_text(), page.relative_to(CHANGE_PAGES_ROOT).as_posix()
    named = re.findall(r"^```\w.*$", text, re.M)
    assert len(BLOCK.findall(text)) == len(named), (
        f"{name}: give each block its language and the name of its file: {named}"
    )
    for file, made in follow(name, text, of_the_tree).items():
        if file.endswith(".py"):
            ast.parse(made, f"{name}: {file}")


def test_every_page_is_followed() -> None:
    followed = FOLLOWED.read_text()
    missing = [page.name for page in CHANGE_PAGES_PAGES.glob("*.md") if f'"{page.name}"' not in followed]
    assert missing == [], f"follow them in {FOLLOWED.relative_to(CHANGE_PAGES_ROOT)}"


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


# --- The prose check finds what it is for, and nothing else


LONG = "one two three four five six seven eight nine ten " * 3


def found(source: str) -> list[str]:
    return [finding for text in texts(source) for finding in findings(text)]


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('def length():\n    """Bytes of the batch."""', "imperative verb"),
        ('def length():\n    """The bytes of the batch."""', "imperative verb"),
        ('def length():\n    """Length of the batch."""', "imperative verb"),
        ('def is_open():\n    """Whether the door is open."""', "imperative verb"),
        ('def end():\n    """``seq`` of the end."""', "imperative verb"),
        ('class Door:\n    """What lets clients in."""', "noun phrase"),
        ('LIMIT = 1\n"""How many there may be."""', "noun phrase"),
        ('class Door:\n    limit: int\n    """as the settings say."""', "noun phrase"),
        ("x = 1  # nobody knows why", "name the actor"),
        ('"""Rules of the door. Should this fail, close it."""', "name the actor"),
        ('raise ValueError(f"the client is told {reason}")', "name the actor"),
        ('"""Rules of the door. Others go on without it."""', "say it plainly"),
        ('raise ValueError(f"{name} is no mapping")', "write 'is not'"),
        ('raise ValueError(f"it has {value}, which is no {kind}")', "write 'is not'"),
        ('raise ValueError("the claims are no object")', "write 'are not'"),
        ('raise ValueError(f"a header has 64 bytes, {count} are there")', "the field's own word"),
        ('raise ValueError(f"{name} has no meaning here. Take it out")', "the field's own word"),
        ('raise ValueError("the edge takes its settings back")', "the field's own word"),
        ('raise ValueError(f"rows came meanwhile: {count}")', "the field's own word"),
        ('raise ValueError("erase it? There is no way back")', "the field's own word"),
        ('raise ValueError("the status says why")', "the field's own word"),
        (f'raise ValueError("{LONG}")', "a sentence of 30 words"),
        (f'raise ValueError(f"{{name}}: {LONG}")', "a sentence of 31 words"),
        (f'@click.command()\ndef run():\n    """Run the node.\n\n    {LONG}\n    """', "a sentence of 30 words"),
    ],
)
def test_what_readers_stumble_over_is_found(source: str, rule: str) -> None:
    (finding,) = found(source)
    assert rule in finding


@pytest.mark.parametrize(
    "source",
    [
        'def length():\n    """Return the bytes of the batch."""',
        'def process():\n    """Process a batch."""',
        'def feed():\n    """Feed the machine."""',
        'class Door:\n    """Doorkeeper of the node; whatever it admits is counted."""',
        'LIMIT = 1\n"""64 KiB, the least that a client can use."""',
        'raise ValueError("there is no room: what is no longer needed is not a reason, and there was no more")',
        "x = 1  # which is no fault of the hub, once it is there",
        'user = "an account called `nobody`"  # such as "nobody"',
        f'def run():\n    """Run the node.\n\n    {LONG}\n    """',
        f'@click.command()\ndef run():\n    """Run the node.\n\n    \\b\n    {LONG}\n    """',
        f'raise ValueError("First: {LONG[:60]}. Then: {LONG[:60]}")',
        'raise ValueError("set `one two three four five six seven eight nine ten` ' + LONG[:90] + '")',
    ],
)
def test_plain_sentences_pass(source: str) -> None:
    assert found(source) == []


WORDS = "word " * 22 + "word"


@pytest.mark.parametrize(
    ("page", "made"),
    [
        (f"{WORDS} so that\nit is.\n", f"{WORDS} so\nthat it is.\n"),
        (f"1. {WORDS} a `b\n   c`.\n- d\n", f"1. {WORDS} a\n   `b c`.\n- d\n"),
        ("As `./run\nfix` does.\n", "As `./run fix` does.\n"),
        (f"{WORDS} a - b and on\n", f"{WORDS} a - b\nand on\n"),
        (f"{WORDS} and 4. is\n", f"{WORDS}\nand 4. is\n"),
        (f"  {WORDS} the second part  \nof it\n", f"  {WORDS} the\n  second part\nof it\n"),
        (f"short\nlines\n\n| {WORDS} {WORDS} |\n```sh\n{WORDS} {WORDS}\n```\n# {WORDS} is long\n", ""),
    ],
)
def test_a_page_is_wrapped_where_it_has_to_be(page: str, made: str) -> None:
    assert wrapped(page) == (made or page)
    assert wrapped(wrapped(page)) == wrapped(page)
    if made:
        assert [*long_lines(made)] == broken_code(made) == []


MODULE = f'''"""{WORDS} and further on.

    python -m {WORDS} {WORDS}
"""

A = "{WORDS} {WORDS}"
# {WORDS} and so
# on.


def f(a):
    """Whether it is {WORDS}.

    Args:
        a: {WORDS}, and further on
            as this.
        b: short.

    Raises:
        Gone: {WORDS}, and further on
    """
    # noqa: {WORDS} {WORDS}


def g():
    """{WORDS} Yes it is.

    - {WORDS} and further
    """
'''
MENDED = {
    f"{WORDS} and further on.\n\n": f"{WORDS}\nand further on.\n\n",
    f"# {WORDS} and so\n# on.": f"# {WORDS} and\n# so on.",
    f"Whether it is {WORDS}.": f"Return whether it is {WORDS[:89]}\n    word word word word word.",
    f"a: {WORDS}, and further on\n            as": f"a: {WORDS[:109]}\n            word, and further on as",
    f"Gone: {WORDS},": f"Gone: {WORDS[:104]}\n            word word,",
    f"{WORDS} Yes": f"{WORDS[:109]}\n    word Yes",
    f"- {WORDS} and": f"- {WORDS}\n      and",
}


def test_a_module_is_mended_in_what_needs_no_author() -> None:
    made = MODULE
    for old, new in MENDED.items():
        assert made.count(old) == 1
        made = made.replace(old, new)
    assert mended(MODULE).splitlines() == made.splitlines()
    assert mended(made) == made
    assert mended('def test():\n    """Whether it is."""\n', is_test=True).count("Whether") == 1
