"""``weft streams``: the streams of a running hub."""

from __future__ import annotations

import time
from urllib.parse import urlencode

import click

from weft.commands.common import ExistingPath, json_option
from weft.commands.running import any_hub_argument, running_hub
from weft.output import print_json
from weft.text.fleet import show_streams


@click.command("streams")
@any_hub_argument
@click.option("--tenant", help="Tenant of the streams. Unset: the token's; without tokens, `default`.")
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with a token of scope reader or admin.")
@click.option("--columns", is_flag=True, help="Show the columns of all tables, also of more than eight streams.")
@json_option
def streams_command(
    hub: str | None, *, tenant: str | None, token_file: str | None, columns: bool, as_json: bool
) -> None:
    """List the streams of the running hub HUB: records, rate, completeness, table and its columns.

    The rate is that of the last one to two minutes. It is unknown for the first ten seconds after a hub's start, and
    up to a minute longer for shards of its other processes.
    """
    running = running_hub(hub, token_file)
    facts = running.pages(f"/v1/streams?{urlencode({'tenant': tenant})}" if tenant else "/v1/streams", "streams")
    of_token = "default"
    if running.has_token and not tenant and not facts["streams"]:
        of_token = running.get("/v1/whoami")["tenant"]
    if as_json:
        print_json(facts)
        return
    for missing in facts.get("missing_shards", []):
        click.echo(f"warning: shard {missing['shard']} cannot be read: {missing['trouble']}", err=True)
    if facts["streams"]:
        show_streams(facts["streams"], time.time(), with_columns=columns)
    else:
        click.echo(f"the hub has no streams of tenant {tenant or of_token} yet; --tenant names another")
