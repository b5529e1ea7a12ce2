"""``weft streams``: the streams of a running hub."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

import click

from weft.commands.common import (
    ExistingPath,
    certificate_of,
    config_argument,
    get_pages,
    get_status,
    json_option,
    load_hub,
    using,
)
from weft.output import print_json
from weft.text.fleet import show_streams


@click.command("streams")
@config_argument
@click.option("--tenant", help="Tenant of the streams. Unset: the token's; without tokens, `default`.")
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with a token of scope reader or admin.")
@json_option
def command(config_file: str, tenant: str | None, token_file: str | None, as_json: bool) -> None:
    """List the streams of the running hub of CONFIG: records, rate, completeness, table and its columns.

    The rate is that of the last one to two minutes. It is unknown for the first ten seconds after a hub's start, and
    up to a minute longer for shards of its other processes.
    """
    config = load_hub(config_file)
    query = f"?{urlencode({'tenant': tenant})}" if tenant else ""
    with using(token_file or ""):
        facts: dict[str, Any] = get_pages(
            config.listen, f"/v1/streams{query}", "streams", token_file, certificate_of(config)
        )
        of_token = "default"
        if token_file is not None and not tenant and not facts["streams"]:
            of_token = get_status(config.listen, "/v1/whoami", token_file, certificate_of(config))["tenant"]
    if as_json:
        print_json(facts)
        return
    for missing in facts.get("missing_shards", []):
        click.echo(f"warning: shard {missing['shard']} cannot be read: {missing['trouble']}", err=True)
    if facts["streams"]:
        show_streams(facts["streams"], time.time())
    else:
        click.echo(f"the hub has no streams of tenant {tenant or of_token} yet; --tenant names another")
