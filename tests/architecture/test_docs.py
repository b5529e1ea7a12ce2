"""What the documentation says is what the code does: generated pages are current, packaged files are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from docs.tools import downsampling
from docs.tools.generate import DECISIONS, PICTURE, REFERENCE, decisions_page, pages
from docs.tools.picture import missing, picture
from docs.tools.prose import broken_code, handwritten_pages, long_lines
from weft.bounds import Refusals
from weft.cloud_hub.auth import jwt
from weft.cloud_hub.http import answers, changes, pairing, tail
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
from weft.hub_api.operations import RECORDS_MAX, SERIES_ROWS_MAX
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
    return answers.ReaderPlaces(Refusals(lambda: 0.0), places, "").of_owner


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
    f"{pairing.ALL_WRONG_BURST:,} at once and {pairing.ALL_WRONG_PER_S:g} a second",
    f"{pairing.WRONG_BURST} at once and one in {1 / pairing.WRONG_PER_S:g} s of an address",
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
    f"{answers.AT_ONCE} of `limits.response` | {answers.AT_ONCE_OF_OWNER} of them of a token, "
    f"{answers.AT_ONCE_OF_TENANT} of a tenant; ",
    f"{answers.WAITING_MAX} requests of a token that wait "
    f"{answers.WAIT_S:g} s, {answers.WAITING_OF_TENANT_MAX} of a tenant; {answers.PIECE_S:g} s for "
    f"{_size(answers.PIECE_BYTES)}, and {_size(answers.LEAST_BYTES_PER_S)} a second",
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
