"""All commands of ``weft``: one table of their groups, with the place of each and what a list says about it.

A command's module is imported when the command is called, or its own help is shown. Lists of commands, such as
``weft --help`` and what a shell completes, come from the table alone.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from weft.output import Refused

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


SUMMARIES = "summaries.txt"
"""File beside this one: a line for each command, its place and the first sentence of its docstring."""


class Command(NamedTuple):
    """A command of the table."""

    place: str
    """``module:name`` below ``weft.commands``."""

    @property
    def summary(self) -> str:
        """Return the first sentence of its docstring."""
        return _summaries().get(self.place, "")

    def load(self, _name: str) -> click.Command:
        """Import the command."""
        module, _, name = self.place.partition(":")
        command = getattr(importlib.import_module(f"weft.commands.{module}"), name)
        assert isinstance(command, click.Command), self.place
        return command


class Group(NamedTuple):
    """A group of the table."""

    summary: str
    """Its whole help."""
    commands: Mapping[str, Command | Group]
    """In the order in which they are listed."""
    others: Mapping[str, str] = {}
    """Usual names of commands that are called otherwise here -> the name."""

    def load(self, name: str) -> click.Command:
        """Make the group, without an import."""
        return LaterGroup(name, self)


_NEAR = 0.75
"""Likeness of two names from which on one may be a slip of the other: `restart` is none of `restore`."""
_ELSEWHERE_MAX = 3
"""Number of commands of a name in other groups that are named."""


def _paths(group: Group, path: str) -> Iterator[str]:
    """Yield all commands below a group, as they are typed."""
    for name, entry in group.commands.items():
        yield f"{path} {name}"
        if isinstance(entry, Group):
            yield from _paths(entry, f"{path} {name}")


class LaterGroup(click.Group):
    """A group that imports the module of a command when the command is called, and none to list its commands.

    Args:
        table: the commands of the group.
        settings: arguments of ``click.Group``.
    """

    def __init__(self, name: str | None, table: Group, **settings: Any) -> None:
        super().__init__(name, **{**settings, "help": table.summary})
        self._table = table

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(self._table.commands)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now, or a group; None for a name that there is not."""
        entry = self._table.commands.get(cmd_name)
        return None if entry is None else entry.load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the called command. An unknown name ends with the nearest one, another usual name with the right one."""
        word = args[0]
        if word not in self._table.commands and not ctx.resilient_parsing:
            if (name := self._table.others.get(word)) is not None:
                raise Refused(f"`{ctx.command_path} {word}` is called `{ctx.command_path} {name}`")
            import difflib

            near = difflib.get_close_matches(word, self._table.commands, 1, _NEAR)
            elsewhere = [path for path in _paths(COMMANDS, "weft") if path.endswith(f" {word}")]
            advice = f"See {ctx.command_path} --help."
            if elsewhere:
                shortest = sorted(elsewhere, key=lambda path: path.count(" "))[:_ELSEWHERE_MAX]
                advice = f"Did you mean {' or '.join(f'`{path}`' for path in shortest)}?"
            elif near:
                advice = f"Did you mean '{near[0]}'?"
            ctx.fail(f"No such command '{word}'. {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        room = formatter.width - 6 - max(map(len, self._table.commands))  # as in click.Group
        with formatter.section("Commands"):
            formatter.write_dl([(name, _short(each, room)) for name, each in self._table.commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with a word, from the table."""
        from click.shell_completion import CompletionItem

        entries = self._table.commands.items()
        found = [CompletionItem(name, help=_short(each)) for name, each in entries if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@functools.cache
def _summaries() -> Mapping[str, str]:
    """Return place -> summary, as ``./run fix`` wrote them. Click would import each command of a list for them: 1.2 s
    and 45 MB."""
    with open(os.path.join(os.path.dirname(__file__), SUMMARIES), encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


def _short(entry: Command | Group, room: int = 45) -> str:
    """Return a summary for a list, cut by click. Its own default is 45 characters."""
    return click.Command(None, help=entry.summary).get_short_help_str(room)


_TOKEN_COMMANDS = {
    "create": "add",
    "new": "add",
    "issue": "add",
    "revoke": "remove",
    "delete": "remove",
    "withdraw": "remove",
}

COMMANDS = Group(
    """Carry device messages from edge nodes to open tables: acknowledged is on disk, and in the table exactly once.

\b
Exit status: 0 done, 1 it could not be done or the answer is no, 2 wrong usage or
configuration, 130 Ctrl-C. With --json an error is one line of JSON on standard error.""",
    {
        "edge": Group(
            "Run and inspect an edge node, which receives messages from devices, stores them on disk and sends them "
            "to hubs.",
            {
                "browse": Command("edge_source:edge_browse"),
                "check": Command("edge_status:check"),
                "config": Command("edge_overlay:edge_config"),
                "doctor": Command("edge_status:edge_doctor"),
                "import": Command("edge_log:edge_import"),
                "init": Command("edge_setup:edge_init"),
                "pair": Command("edge_setup:edge_pair"),
                "query": Command("edge_log:edge_query"),
                "reload": Command("edge_status:reload"),
                "rename": Command("edge_setup:edge_rename"),
                "replay": Command("edge_functions:edge_replay"),
                "run": Command("edge:run"),
                "status": Command("edge_status:edge_status"),
                "support-bundle": Command("support_bundle:edge_support_bundle"),
                "tail": Command("edge_log:edge_tail"),
                "take-over": Command("edge_setup:edge_take_over"),
                "test-function": Command("edge_functions:edge_test_function"),
                "test-source": Command("edge_source:edge_test_source"),
                "trust": Command("edge_source:edge_trust"),
            },
            {"start": "run", "up": "run"},
        ),
        "hub": Group(
            "Run and inspect a hub node, which accepts links from edges, commits to the object store and writes the "
            "tables.",
            {
                "acts": Command("hub_access:acts"),
                "adopt": Command("hub_cluster:adopt"),
                "approve": Command("hub_approvals:approve"),
                "backup": Command("hub_backup:backup"),
                "check": Command("hub:check"),
                "clock": Command("hub_cluster:clock"),
                "config": Group(
                    """Manage the configurations of edges from a hub's store, whether nodes run or not.

Settings of an edge, or of a group, override those of the edge's own file. An edge accepts them if a link of its file
sets `config_from_hub`. It checks them, tries them, and reverts them unless the link stays up with them for a minute.
Files, credentials, listeners, accounts and `data_dir` always belong to the edge.""",
                    {
                        "get": Command("hub_configs:get"),
                        "remove": Command("hub_configs:remove_config"),
                        "rollout": Group(
                            "List, extend or abort rollouts.",
                            {
                                "abort": Command("hub_configs:abort"),
                                "list": Command("hub_configs:list_rollouts"),
                                "next": Command("hub_configs:next_step"),
                            },
                        ),
                        "set": Command("hub_configs:set_config"),
                        "status": Command("hub_configs:status"),
                    },
                ),
                "declarations": Command("hub_access:declarations"),
                "declare-deletion": Command("hub_streams:declare_deletion"),
                "doctor": Command("hub_status:hub_doctor"),
                "drain": Command("hub_cluster:drain"),
                "erase": Command("hub_streams:erase"),
                "erasures": Command("hub_streams:erasures"),
                "finalize": Command("hub_cluster:finalize"),
                "group": Group(
                    """Manage groups of edges in a hub's store, whether nodes run or not.

A group is a list of names and patterns, also of edges that have not linked yet. Running hubs apply a change after two
seconds.""",
                    {
                        "list": Command("hub_configs:list_groups"),
                        "remove": Command("hub_configs:remove_group"),
                        "set": Command("hub_configs:set_group"),
                    },
                ),
                "init": Command("hub_init:hub_init"),
                "losses": Command("hub_status:losses"),
                "messages": Command("hub_records:messages"),
                "nodes": Command("hub_cluster:nodes"),
                "open": Command("hub_tokens:open_hubs"),
                "publish": Command("hub_records:publish"),
                "pull": Command("hub_records:pull"),
                "pulls": Command("hub_records:pulls"),
                "quality": Group(
                    """Manage the quality rules of streams in a hub's store, whether nodes run or not.

A rule is one check. Numbers are within a range, a field has values, payloads fit the schema, values do not repeat, or
the table is fresh. The hub counts the rows that fail, and raises an alarm when they are more than the rule tolerates.
Nothing is dropped or delayed: rows that fail are still written to the table.

Running hubs apply a change after two seconds. To declare the edges that a stream needs, use
`weft hub stream expect`.""",
                    {
                        "get": Command("hub_tables:get_quality"),
                        "list": Command("hub_tables:list_quality"),
                        "remove": Command("hub_tables:remove_quality"),
                        "set": Command("hub_tables:set_quality"),
                    },
                ),
                "region": Group(
                    "Show and control the links to other regions: hubs of other clusters that receive the records "
                    "of this one's log.",
                    {
                        "compare": Command("hub_regions:compare"),
                        "history": Command("hub_regions:history"),
                        "pause": Command("hub_regions:pause"),
                        "resume": Command("hub_regions:resume"),
                        "status": Command("hub_regions:status"),
                    },
                ),
                "requests": Command("hub_approvals:requests"),
                "restore": Command("hub_backup:restore"),
                "retire": Command("hub_cluster:retire"),
                "run": Command("hub:run"),
                "schema": Group(
                    """Manage the schemas of streams in a hub's store, whether nodes run or not.

A schema names fields of a stream's payloads. The stream's table gets a typed column for each, beside the payload
itself; what does not fit is in the column `_misfit` with the reason. Running hubs apply a change after two seconds.
Columns are only added: a field of another type or unit gets another column, and old rows stay as they are.""",
                    {
                        "check": Command("hub_tables:check"),
                        "diff": Command("hub_tables:diff"),
                        "get": Command("hub_tables:get_schema"),
                        "infer": Command("hub_tables:infer"),
                        "list": Command("hub_tables:list_schemas"),
                        "remove": Command("hub_tables:remove_schema"),
                        "set": Command("hub_tables:set_schema"),
                    },
                ),
                "second-person": Command("hub_approvals:second_person"),
                "share": Command("hub_tokens:share"),
                "skip": Command("hub_streams:skip"),
                "split": Command("hub_cluster:split"),
                "status": Command("hub_status:status"),
                "stream": Group(
                    "Work on the streams of a hub's store, whether nodes run or not. `weft streams` lists them.",
                    {"delete": Command("hub_streams:delete"), "expect": Command("hub_streams:expect")},
                ),
                "support-bundle": Command("support_bundle:hub_support_bundle"),
                "table": Group(
                    """Declare tables of streams at a hub's store, whether nodes run or not.

Running hubs apply a change after two seconds.""",
                    {
                        "list": Command("hub_tables:list_tables"),
                        "remove": Command("hub_tables:remove_table"),
                        "set": Command("hub_tables:set_table"),
                    },
                ),
                "tail": Command("hub_records:tail"),
                "tenant": Group(
                    """Manage the tenants of a hub's store, whether nodes run or not.

Tokens of the cluster log are for a declared tenant, or for `default`. The quota of edges is checked when a token is
added. Above a rate, the hub slows the tenant's links. Above a number of links, lanes or streams, new ones wait. Above a
size of tables, these stop, and the log keeps the records. The quota of stored bytes is recorded, not enforced.""",
                    {
                        "add": Command("hub_tenants:add"),
                        "list": Command("hub_tenants:list_tenants"),
                        "remove": Command("hub_tenants:remove"),
                        "set": Command("hub_tenants:set_tenant"),
                    },
                ),
                "token": Group(
                    """Manage the tokens of all hubs of a store, whether nodes run or not.

The cluster log in the store holds only hashes. Running hubs apply a change after two seconds, on all hosts. The first
token can be added before the first start of a hub.""",
                    {
                        "add": Command("hub_tokens:add"),
                        "import": Command("hub_tokens:import_tokens"),
                        "list": Command("hub_tokens:list_tokens"),
                        "pair": Command("hub_tokens:pair"),
                        "remove": Command("hub_tokens:remove"),
                        "rotate": Command("hub_tokens:rotate"),
                    },
                    _TOKEN_COMMANDS,
                ),
                "trace": Command("hub_records:trace"),
                "usage": Command("hub_tenants:usage"),
                "verify": Command("hub_backup:verify"),
                "whoami": Command("credentials:whoami"),
            },
            {"start": "run", "up": "run"},
        ),
        "login": Command("credentials:login_command"),
        "streams": Command("hub_records:streams_command"),
        "sql": Command("hub_records:sql_command"),
        "config": Group(
            "Describe the configuration files, and sign settings and functions of edges.",
            {
                "keygen": Command("config:keygen"),
                "schema": Command("config:schema"),
                "sign": Command("config:sign_settings"),
                "sign-code": Command("config:sign_code"),
                "verify": Command("config:verify"),
            },
        ),
        "link": Group(
            "Look at a running node's links to hubs, pause them, and handle their alarms.",
            {
                "acknowledge": Command("link:acknowledge"),
                "pause": Command("link:pause"),
                "resume": Command("link:resume"),
                "status": Command("link:status"),
            },
        ),
        "log": Group(
            "Inspect an edge node's log, or drop a backlog from it.",
            {"drop": Command("edge_log:drop"), "dump": Command("edge_log:dump")},
        ),
        "user": Group(
            """Manage the user names and passwords of MQTT clients.

The users file holds only argon2id hashes. A running node picks up changes by itself. The commands ask for passwords
or read them from a file: other users of the machine could see a command line.""",
            {
                "add": Command("credentials:add_user"),
                "check": Command("credentials:check"),
                "list": Command("credentials:list_users"),
                "remove": Command("credentials:remove_user"),
            },
        ),
        "ca": Group(
            """Make certificates for hubs, edges and devices by an authority of your own, and revoke them.

The folder of the authority has its key: keep it on one machine, with a copy in a safe place. Nodes need the key of
their own certificate and the authority's certificate, and never its key. Needs the library cryptography, which the
extras hub, encryption and signatures bring.

\b
weft ca init plant-ca --name "Plant A"
weft ca hub plant-ca --host hub.plant.example --to hub
weft ca edge plant-ca press-7 --to press-7""",
            {
                "device": Command("ca:device"),
                "edge": Command("ca:edge"),
                "hub": Command("ca:hub"),
                "init": Command("ca:init"),
                "list": Command("ca:list_certificates"),
                "renew-list": Command("ca:renew_list"),
                "revoke": Command("ca:revoke"),
            },
        ),
        "audit": Command("audit:audit_command"),
        "trace": Command("audit:trace_command"),
        "spark": Group(
            "Check, test, run and move pipelines of Spark, and ask streams in SQL.",
            {
                "check": Command("spark:spark_check"),
                "move": Command("spark:spark_move"),
                "new": Command("spark:spark_new"),
                "run": Command("spark:spark_run"),
                "sql": Command("spark:spark_sql"),
                "test": Command("spark:spark_test"),
            },
        ),
        "completion": Command("completion:completion_command"),
    },
    {"token": "hub token", "version": "--version", "help": "--help"},
)
