"""Requests made from the document of the API, right and wrong ones, against a real hub with data of two tenants."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.hub_api.answers import ALLOWED, FOREIGN
from tests.support.slices import SLICE
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.hub_api.operations import OF_NAME
from weft.hub_api.rights import Scope
from weft.protocols.chunk_index import GapRange
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import open_store

EXAMPLES = SLICE.amount(15, 150)
"""Generated requests of each operation, beside those of the bounds."""
TIMEOUT_S = SLICE.amount(240, 1200)
CONFIG = """\
[checks]
positive_data_acceptance.expected-statuses = [200, 400, 401, 403, 404, 409, 413, 429]
"""
"""Some rules are in no schema, such as ``offset`` that needs ``shard``: those requests get 400, and advice."""
WITHOUT_SHARDS = (
    CONFIG.replace("429]", "429, 503]") + 'not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]\n'
)
"""A shard that is not there is answered with 503: a split may have made it a moment ago."""
OPEN = "no token"


class Served(NamedTuple):
    hub: Hub
    tokens: dict[str, str]
    folder: Path


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    path = str(tmp_path / "tokens.yaml")
    tokens = {
        "reader": create_token(path, "reader", Scope.READER, "acme"),
        "publish": create_token(path, "publish", Scope.PUBLISH, "acme"),
        "edge": create_token(path, "edge", Scope.EDGE, "acme", "press-1"),
        "admin": create_token(path, "admin", Scope.ADMIN),
        OPEN: "",
    }
    foreign = create_token(path, FOREIGN, Scope.EDGE, "beta", FOREIGN)
    hub_settings: dict[str, Any] = {"shards": 1, "table_interval_s": 0.05, "tokens": path}
    log, other = EdgeLog(), EdgeLog(FOREIGN)
    log.append(*records(0, [b'{"temperature": 61.2}', b"\xff\x00"] * 20, {0: (("content_type", "application/json"),)}))
    log.gaps = [GapRange(40, 50, 2)]
    other.append(*records(0, [FOREIGN.encode()] * 20))
    async with running_hub(open_store(str(tmp_path / "store")), **hub_settings) as hub:
        mine, theirs = LinkIdentity("acme", "press-1", 0xABC, "test"), LinkIdentity("beta", FOREIGN, 1, "test")
        async with running_link(hub, log, mine, tokens["edge"]), running_link(hub, other, theirs, foreign):

            async def settled() -> bool:
                rows = [
                    (await get(hub, f"/v1/streams/{name}?tenant={tenant}", tokens["admin"]))[1].get("table_rows")
                    for tenant, name in (("acme", "telemetry"), ("beta", FOREIGN))
                ]
                return rows == [40, 20]

            await until(settled)
            yield Served(hub, tokens, tmp_path)


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The document for the data at hand: names are those of the hub's streams, edges and tenants."""
    known: dict[str, list[str | int]] = {
        "stream": ["telemetry", FOREIGN],
        "tenant": ["acme", "beta"],
        "edge": ["press-1", FOREIGN],
        "shard": [0],
        "from_shard": [0],
    }
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                # An edge that filters records may be one that has none.
                is_filter = parameter["name"] == "edge" and not parameter["required"]
                if parameter["name"] in known and not is_filter:
                    parameter["schema"] = {"enum": known[parameter["name"]]}
    return document


# An answer of events does not end; test_changes.py and test_tail.py ask for them.
async def schemathesis(served: Served, document: Path, who: str, mode: str, settings: str = CONFIG) -> str:
    """Return what it prints, empty if it found nothing."""
    config = served.folder / "schemathesis.toml"
    config.write_text(settings)
    asking = ["--header", f"Authorization: Bearer {served.tokens[who]}"] if who != OPEN else []
    excluded = ["--exclude-checks", "ignored_auth"] if who == OPEN else []
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(config),
        "run",
        str(document),
        "--url",
        served.hub.url,
        "--mode",
        mode,
        "--max-examples",
        str(EXAMPLES),
        "--seed",
        str(SLICE.seed),
        "--phases",
        "examples,coverage,fuzzing",
        "--suppress-health-check",
        "all",
        "--request-timeout",
        "30",
        "--warnings",
        "off",
        "--continue-on-failure",
        "--exclude-path",
        OF_NAME["changes"].path,
        "--exclude-path",
        OF_NAME["tail"].path,
        *asking,
        *excluded,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SCHEMATHESIS_HOOKS": "tests.hub_api.foreign",
            **({ALLOWED: "1"} if who == "admin" else {}),
        },
        cwd=served.folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return "" if process.returncode == 0 else output.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.search
@pytest.mark.timeout(8 * TIMEOUT_S)
async def test_requests_of_the_documents_making_find_nothing(served: Served) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install weft-fabric[dev]")
    status, document = await get(served.hub, "/v1/openapi.json", served.tokens["edge"])
    assert status == 200
    as_served, at_hand = served.folder / "openapi.json", served.folder / "narrowed.json"
    as_served.write_text(json.dumps(document))
    at_hand.write_text(json.dumps(narrowed(document)))
    found = {(who, "positive"): await schemathesis(served, at_hand, who, "positive") for who in served.tokens}
    for who, asked in (("admin", as_served), (OPEN, as_served), ("reader", at_hand)):
        found[who, "all"] = await schemathesis(served, asked, who, "all", WITHOUT_SHARDS)
    text = "\n".join(f"=== {who}, {mode}\n{output}" for (who, mode), output in found.items() if output)
    assert not text, text
