"""``weft hub usage``: what a tenant uses of a running hub."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import click

from weft.commands.common import ExistingPath, json_option
from weft.commands.running import any_hub_argument, running_hub
from weft.config.units import approximate_duration, approximate_size
from weft.output import print_facts, print_json, print_table

PAGES_MAX = 100
DAY_S = 86_400.0
GROWTH_AFTER_S = 600.0
"""Time since the start of a process after which its rate is worth a figure a day."""


@click.command()
@any_hub_argument
@click.option("--tenant", default="default", show_default=True, help="Tenant whose use is shown.")
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with a token of scope reader or admin.")
@json_option
def usage(hub: str | None, *, tenant: str, token_file: str | None, as_json: bool) -> None:
    """Show what a tenant uses of the running hub HUB, beside its quotas.

    Links, lanes, streams and records are those of the whole hub. What came, and the time of slowed links, is counted by
    the process that answers, since its start; its metrics have the same figures. Sizes of tables are known to the
    process that makes them.

    \b
    weft hub usage hub.yaml --tenant acme
    """
    running = running_hub(hub, token_file)
    found: dict[str, Any] | None = None
    after: str | None = None
    for _ in range(PAGES_MAX):
        query = {"tenant": tenant} | ({} if after is None else {"after": after})
        page = running.request(f"/v1/usage?{urlencode(query)}")
        found = page if found is None else {**found, "streams": [*found["streams"], *page["streams"]]}
        after = page["next_after"]
        if after is None:
            break
    assert found is not None, "there is a first page"
    if as_json:
        print_json(found)
        return
    _show(found, time.time())


def _show(found: dict[str, Any], now: float) -> None:
    quotas, received = found["quotas"], found["received"]

    def of(used: int, quota: str) -> str:
        return f"{used}" if quotas[quota] is None else f"{used} of {quotas[quota]}"

    facts = {
        "tenant": found["tenant"],
        "links": of(found["links"], "links"),
        "lanes": of(found["lanes"], "lanes"),
        "streams": of(found["streams_count"], "streams"),
        "received": f"{approximate_size(received['bytes'])}, {received['records']} records since {found['since']}"
        + _growth(received["bytes"], found["since"], now),
    }
    if found["table_bytes"] is not None and quotas["table_bytes"] is not None:
        sizes = approximate_size(found["table_bytes"]), approximate_size(quotas["table_bytes"])
        facts["tables"] = f"{sizes[0]} of {sizes[1]}"
    if quotas["bytes_per_second"] is not None:
        facts["bytes a second"] = f"at most {approximate_size(quotas['bytes_per_second'])}"
    if quotas["records_per_second"] is not None:
        facts["records a second"] = f"at most {quotas['records_per_second']}"
    if found["share"] < 1:
        facts["share of this process"] = f"{found['share']:.0%} of the rates"
    if found["throttled_seconds"]:
        facts["throttled"] = f"links were asked to wait {approximate_duration(found['throttled_seconds'])} in all"
    if found["refused"]:
        facts["refused"] = f"{found['refused']} links and lanes beyond a quota"
    print_facts(facts)
    print_table(
        ("stream", "records in the log", "bytes received", "records received", "table"),
        [
            (
                each["stream"], each["records"], each["received"]["bytes"], each["received"]["records"],
                "unknown" if each["table_bytes"] is None else approximate_size(each["table_bytes"]),
            )
            for each in found["streams"]
        ],
    )  # fmt: skip


def _growth(received: int, since: str, now: float) -> str:
    took = now - datetime.fromisoformat(since).timestamp()
    if took < GROWTH_AFTER_S:
        return ""
    return f": {approximate_size(received / took * DAY_S)} a day"
