"""All commands of ``weft``: one table of their groups, with the place of each and what a list says about it.

A command's module is imported when the command is called, or its own help is shown. Lists of commands, such as
``weft --help`` and what a shell completes, come from the table alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from weft.output import Refused

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Command(NamedTuple):
    """A command of the table."""

    place: str
    """``module:name`` below ``weft.commands``."""
    summary: str
    """The first sentence of its docstring; a test compares them."""

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

            near = difflib.get_close_matches(word, self._table.commands, 1)
            advice = f"Did you mean '{near[0]}'?" if near else f"See {ctx.command_path} --help."
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


def _short(entry: Command | Group, room: int = 45) -> str:
    """Return a summary for a list, cut by click. Its own default is 45 characters."""
    return click.Command(None, help=entry.summary).get_short_help_str(room)


_TOKEN_COMMANDS = {
    "create": "add", "new": "add", "issue": "add", "revoke": "remove", "delete": "remove", "withdraw": "remove",
}  # fmt: skip

# A table, because click would import each command of a list for the first sentence of its help: 1.2 s and 45 MB.
COMMANDS = Group(
    """Carry device messages from edge nodes to open tables: acknowledged is on disk, and in the table exactly once.

\b
Exit status: 0 done, 1 it could not be done or the answer is no, 2 wrong usage or
configuration, 130 Ctrl-C. With --json an error is one line of JSON on standard error.""",
    {
        "edge": Group(
            "Run and inspect an edge node, which takes messages from devices, keeps them on disk and sends them"
            " to hubs.",
            {
                "check": Command(
                    "edge_status:check",
                    "Check CONFIG and what it names on this machine: files, folders, disk, ports.",
                ),
                "config": Command(
                    "edge_overlay:edge_config",
                    "Show what the hub has laid over the settings of CONFIG, from its data_dir.",
                ),
                "doctor": Command(
                    "edge_status:edge_doctor",
                    "Examine the machine of CONFIG: clock, disk, files, ports, certificates, and the way to each hub.",
                ),
                "import": Command(
                    "edge_log:edge_import",
                    "Send the records in DIR, the earlier data_dir of the node of CONFIG, to the hubs.",
                ),
                "init": Command(
                    "edge_setup:edge_init",
                    "Write a first CONFIG (edge.yaml) of an edge node, checked as at a start of the node.",
                ),
                "pair": Command(
                    "edge_setup:edge_pair",
                    "Get a token from the hub at URL for this machine, by the CODE that `weft hub token pair` "
                    "has shown.",
                ),
                "query": Command("edge_log:edge_query", "Run a SELECT over the records of a node's log."),
                "reload": Command(
                    "edge_status:reload",
                    "Reload the configuration of a running node, named by its CONFIG or its data_dir.",
                ),
                "rename": Command(
                    "edge_setup:edge_rename",
                    "Rename the log of a stopped node to the `node` and `tenant` in CONFIG.",
                ),
                "replay": Command(
                    "edge_functions:edge_replay",
                    "Compute the derived STREAM of a running node, named by its CONFIG or its data_dir, again.",
                ),
                "run": Command("edge:run", "Run the node of CONFIG until SIGTERM or SIGINT."),
                "status": Command(
                    "edge_status:edge_status",
                    "Show the state of a node: streams, links, disk, and how many hours of outage it survives.",
                ),
                "support-bundle": Command(
                    "support_bundle:edge_support_bundle",
                    "Write an archive for those who help: state, versions, settings, log, metrics, and what the"
                    " doctor finds.",
                ),
                "tail": Command(
                    "edge_log:edge_tail",
                    "Show the records of a node's log, one per line: time, stream, sequence number, topic, "
                    "payload, headers.",
                ),
                "test-function": Command(
                    "edge_functions:edge_test_function",
                    "Show the records that derived stream STREAM of CONFIG would emit for a file, and why it "
                    "drops others.",
                ),
            },
        ),
        "hub": Group(
            "Run and inspect a hub node, which takes links from edges, commits to the object store and keeps "
            "the tables.",
            {
                "acts": Command(
                    "hub_store:acts",
                    "Show who did what at the running hub HUB, when, from where and why, the oldest first.",
                ),
                "adopt": Command(
                    "hub_cluster:adopt",
                    "Include EDGE again at the hub of CONFIG, after `weft hub retire` or a long absence; or "
                    "decide a conflict.",
                ),
                "approve": Command(
                    "hub_approvals:approve",
                    "Approve the act at the hub of CONFIG that request ID is about.",
                ),
                "backup": Command(
                    "hub_backup:backup",
                    "Copy the store of the hub of CONFIG to another place, while its nodes run.",
                ),
                "check": Command("hub:check", "Check CONFIG and what it names: tokens, the store, the ports."),
                "clock": Command(
                    "hub_cluster:clock",
                    "Show the times of the shards at the hub of CONFIG beside the store's time, whether nodes "
                    "run or not.",
                ),
                "config": Group(
                    """Manage the configurations of edges from a hub's store, whether nodes run or not.

Settings of an edge, or of a group, are laid over those of the edge's own file. An edge takes them if a link of its
file says `config_from_hub`. It checks them, tries them, and takes them back by itself unless the link is up on them
for a minute. Files, credentials, listeners, accounts and `data_dir` always belong to the edge.""",
                    {
                        "get": Command(
                            "hub_configs:get",
                            "Print the settings of an edge as they are laid over its file, in their order; with"
                            " --group those of a group.",
                        ),
                        "remove": Command(
                            "hub_configs:remove_config",
                            "Withdraw the settings of an edge or a group: its edges go back to what their files"
                            " and other groups say.",
                        ),
                        "rollout": Group(
                            "Look at rollouts, take them further, or end them.",
                            {
                                "abort": Command(
                                    "hub_configs:abort",
                                    "End the rollout of group NAME: the edges that it reached go back to the "
                                    "settings before it.",
                                ),
                                "list": Command(
                                    "hub_configs:list_rollouts",
                                    "List the rollouts of CONFIG, with what the edges that they have reached say.",
                                ),
                                "next": Command(
                                    "hub_configs:next_step",
                                    "Give the new settings of group NAME to a larger share of its edges, also "
                                    "after the rollout stopped by itself.",
                                ),
                            },
                        ),
                        "set": Command(
                            "hub_configs:set_config",
                            "Declare the settings in FILE for an edge, or with --group for a group, at the hubs"
                            " of CONFIG.",
                        ),
                        "status": Command(
                            "hub_configs:status",
                            "Show what the edges of CONFIG's hubs say about their configurations, those that "
                            "failed first.",
                        ),
                    },
                ),
                "declarations": Command(
                    "hub_store:declarations",
                    "Show the newest entries of the cluster log of CONFIG: who declared or withdrew what, when "
                    "and why.",
                ),
                "declare-deletion": Command(
                    "hub_streams:declare_deletion",
                    "Declare that rows of STREAM are deleted from its table on purpose, at the hub of CONFIG.",
                ),
                "doctor": Command(
                    "hub_status:hub_doctor",
                    "Examine the machine of CONFIG: clock, disk or bucket, files, ports, certificates, names, "
                    "and releases.",
                ),
                "drain": Command(
                    "hub_cluster:drain",
                    "Give shards and edges of NODE, a machine or a process as `weft hub nodes` shows it, to the"
                    " others of HUB.",
                ),
                "erase": Command(
                    "hub_streams:erase",
                    "Erase rows of STREAM at the hub of CONFIG, so that no engine, no reader and no file has them.",
                ),
                "erasures": Command(
                    "hub_streams:erasures",
                    "Show the erasures of STREAM at the hub of CONFIG, and what of each is still somewhere.",
                ),
                "finalize": Command(
                    "hub_cluster:finalize",
                    "Raise the level of the cluster of CONFIG to this release's, after all nodes run it.",
                ),
                "group": Group(
                    """Manage groups of edges in a hub's store, whether nodes run or not.

A group is a list of names and patterns, also of edges that have not linked yet. Running hubs know a change two
seconds later.""",
                    {
                        "list": Command(
                            "hub_configs:list_groups",
                            "List the groups in the cluster log of CONFIG, in the order in which a later one wins.",
                        ),
                        "remove": Command("hub_configs:remove_group", "Withdraw GROUP at the hubs of CONFIG."),
                        "set": Command(
                            "hub_configs:set_group",
                            "Declare GROUP, or replace its EDGES, at the hubs of CONFIG.",
                        ),
                    },
                ),
                "init": Command(
                    "hub_init:hub_init",
                    "Write a first CONFIG (hub.yaml) of a hub, checked as at a start.",
                ),
                "messages": Command(
                    "hub_records:messages",
                    "Show the messages to EDGE of the running hub HUB: those that wait, and what became of others.",
                ),
                "nodes": Command(
                    "hub_cluster:nodes",
                    "Show the hub processes that share the store of HUB, on all hosts.",
                ),
                "open": Command(
                    "hub_tokens:open_hubs",
                    "Let the hubs of CONFIG serve requests without a token again, after their last token was "
                    "withdrawn.",
                ),
                "publish": Command(
                    "hub_records:publish",
                    "Publish PAYLOAD to TOPIC at edges of the running hub HUB; `-` reads the payload from "
                    "standard input.",
                ),
                "pull": Command(
                    "hub_records:pull",
                    "Ask EDGE for the records of STREAM that it received from --from on and before --to.",
                ),
                "pulls": Command(
                    "hub_records:pulls",
                    "Show the pulls of the running hub HUB, the latest first, those of the last week included.",
                ),
                "quality": Group(
                    """Manage the quality rules of streams in a hub's store, whether nodes run or not.

A rule is one check. Numbers are within a range, a field has values, payloads fit the schema, values do not repeat,
or the table is fresh. The hub counts the rows that fail, and raises an alarm when they are more than the rule
tolerates. Nothing is dropped or held back: a row that fails is in the table as before.

Running hubs know a change two seconds later. Edges that a stream needs are another matter: `weft hub stream
expect`.""",
                    {
                        "get": Command(
                            "hub_tables:get_quality",
                            "Print the rules of STREAM in YAML, as `set` reads them.",
                        ),
                        "list": Command(
                            "hub_tables:list_quality",
                            "List the streams with quality rules in the cluster log of CONFIG.",
                        ),
                        "remove": Command(
                            "hub_tables:remove_quality",
                            "Withdraw the rules of STREAM at the hubs of CONFIG.",
                        ),
                        "set": Command(
                            "hub_tables:set_quality",
                            "Declare the rules in FILE for STREAM at the hubs of CONFIG, instead of those before.",
                        ),
                    },
                ),
                "region": Group(
                    "See and steer the links to other regions: hubs of other clusters that get what this one's "
                    "log receives.",
                    {
                        "compare": Command(
                            "hub_regions:compare",
                            "Compare all of the log with what REGION of CONFIG holds, and send what it lacks.",
                        ),
                        "history": Command(
                            "hub_regions:history",
                            "Bring REGION of CONFIG what this hub has in tables alone: what its log deleted "
                            "before the region had it.",
                        ),
                        "pause": Command(
                            "hub_regions:pause",
                            "Let the records for REGION wait, at all hosts, until `weft hub region resume`.",
                        ),
                        "resume": Command("hub_regions:resume", "Let the links to REGION continue after a pause."),
                        "status": Command(
                            "hub_regions:status",
                            "Show the link of each shard of HUB to each region, as its process last wrote it to"
                            " the store.",
                        ),
                    },
                ),
                "requests": Command(
                    "hub_approvals:requests",
                    "Show the acts at the hub of CONFIG that wait for approval, with all their options.",
                ),
                "restore": Command("hub_backup:restore", "Copy a backup into a new store, from which hubs then run."),
                "retire": Command(
                    "hub_cluster:retire",
                    "End the lanes of EDGE at the hub of CONFIG: its disk is gone, or it was taken out of service.",
                ),
                "run": Command("hub:run", "Run the node of CONFIG until SIGTERM or SIGINT."),
                "schema": Group(
                    """Manage the schemas of streams in a hub's store, whether nodes run or not.

A schema names fields of a stream's payloads. The stream's table gets a typed column for each, beside the payload
itself; what does not fit is in the column `_misfit` with the reason. Running hubs know a change two seconds
later. Columns are only added: a field of another type or unit gets another column, and old rows stay as they are.""",
                    {
                        "check": Command(
                            "hub_tables:check",
                            "Check FILE, or the schema of STREAM, against the version that is declared and the "
                            "newest records.",
                        ),
                        "diff": Command(
                            "hub_tables:diff",
                            "Compare FILE with the schema of STREAM, and say which columns its table would get.",
                        ),
                        "get": Command(
                            "hub_tables:get_schema",
                            "Print the schema of STREAM in YAML, as `set` reads it.",
                        ),
                        "infer": Command(
                            "hub_tables:infer",
                            "Draft a schema for STREAM from its newest records, or from a file.",
                        ),
                        "list": Command(
                            "hub_tables:list_schemas",
                            "List the streams with a schema in the cluster log of CONFIG.",
                        ),
                        "remove": Command("hub_tables:remove_schema", "Withdraw the schema of STREAM."),
                        "set": Command(
                            "hub_tables:set_schema",
                            "Declare the schema in FILE for STREAM at the hubs of CONFIG.",
                        ),
                    },
                ),
                "second-person": Command(
                    "hub_approvals:second_person",
                    "Demand a second person at the hub of CONFIG for acts without a way back, whether nodes run"
                    " or not.",
                ),
                "skip": Command(
                    "hub_streams:skip",
                    "Skip records of STREAM that stop its table at the hub of CONFIG; `weft hub status` names them.",
                ),
                "split": Command(
                    "hub_cluster:split",
                    "Split SHARD of HUB: about half of its edges move to a new shard.",
                ),
                "status": Command(
                    "hub_status:status",
                    "Show every edge that the hub HUB knows, whichever machine it is linked to, and this "
                    "machine's shards.",
                ),
                "stream": Group(
                    "Work on the streams of a hub's store, whether nodes run or not. `weft streams` lists them.",
                    {
                        "delete": Command(
                            "hub_streams:delete",
                            "Delete STREAM at the hub of CONFIG; its table stays, and a later stream of the "
                            "same name continues in it.",
                        ),
                        "expect": Command(
                            "hub_streams:expect",
                            "Declare the EDGES without which STREAM is not complete, for all hubs of the store "
                            "of CONFIG.",
                        ),
                    },
                ),
                "support-bundle": Command(
                    "support_bundle:hub_support_bundle",
                    "Write an archive for those who help: state, versions, settings, log, metrics, and what the"
                    " doctor finds.",
                ),
                "table": Group(
                    """Declare tables of streams at a hub's store, whether nodes run or not.

Running hubs know a change two seconds later.""",
                    {
                        "list": Command(
                            "hub_tables:list_tables",
                            "List what the cluster log of CONFIG declares of tables.",
                        ),
                        "remove": Command(
                            "hub_tables:remove_table",
                            "Withdraw what is declared of the tables of STREAM at the hubs of CONFIG.",
                        ),
                        "set": Command("hub_tables:set_table", "Declare tables of STREAM at the hubs of CONFIG."),
                    },
                ),
                "tail": Command(
                    "hub_records:tail",
                    "Show new records of STREAM at the running hub HUB, one per line, until Ctrl-C: edge, time,"
                    " number, key, payload.",
                ),
                "tenant": Group(
                    """Manage the tenants of a hub's store, whether nodes run or not.

Tokens of the cluster log are for a declared tenant, or for `default`. The quota of edges counts when a token is
added. At a rate, the hub slows the tenant's links. Beyond a number of links, lanes or streams, new ones wait. At a
size of tables, these stand, and the log keeps the records. The quota of stored bytes is recorded only.""",
                    {
                        "add": Command(
                            "hub_tenants:add",
                            "Declare tenant NAME at HUB: a configuration on this machine, a URL or the name of "
                            "a login.",
                        ),
                        "list": Command(
                            "hub_tenants:list_tenants",
                            "List the tenants in the cluster log of HUB, with quotas, tokens, and streams with "
                            "declared edges.",
                        ),
                        "remove": Command("hub_tenants:remove", "Withdraw tenant NAME at the hubs of CONFIG."),
                        "set": Command(
                            "hub_tenants:set_tenant",
                            "Change quotas or the isolation of tenant NAME at HUB: a configuration on this "
                            "machine, a URL or the name of a login.",
                        ),
                    },
                ),
                "token": Group(
                    """Manage the tokens of all hubs of a store, whether nodes run or not.

The cluster log in the store holds only hashes. Running hubs know a change two seconds later, on all hosts. The
first token can be added before the first start of a hub.""",
                    {
                        "add": Command(
                            "hub_tokens:add",
                            "Add token NAME at the hubs of CONFIG and print it, or write it to a file of mode "
                            "600 with --to.",
                        ),
                        "import": Command(
                            "hub_tokens:import_tokens",
                            "Declare the tokens of a file at the hubs of CONFIG.",
                        ),
                        "list": Command(
                            "hub_tokens:list_tokens",
                            "List the tokens in the cluster log of HUB, not the tokens themselves.",
                        ),
                        "pair": Command(
                            "hub_tokens:pair",
                            "Show a code by which the machine of EDGE gets a token from the hubs of CONFIG: "
                            "`weft edge pair URL CODE`.",
                        ),
                        "remove": Command(
                            "hub_tokens:remove",
                            "Withdraw token NAME at HUB: a configuration on this machine, a URL or the name of a "
                            "login.",
                        ),
                        "rotate": Command(
                            "hub_tokens:rotate",
                            "Give token NAME at the hubs of CONFIG another secret and print it.",
                        ),
                    },
                    _TOKEN_COMMANDS,
                ),
                "trace": Command(
                    "hub_records:trace",
                    "Show the way of one record of STREAM: edge and number, function, chunk of the log, file "
                    "and row of the table.",
                ),
                "usage": Command(
                    "hub_tenants:usage",
                    "Show what a tenant uses of the running hub HUB, beside its quotas.",
                ),
                "verify": Command(
                    "hub_backup:verify",
                    "Read a hub's store or a backup through, and say what is missing or damaged.",
                ),
                "whoami": Command(
                    "credentials:whoami",
                    "Show the rights of a token, or of a login's certificate, at the running hub HUB: name, "
                    "scope, tenant and end.",
                ),
            },
        ),
        "login": Command(
            "credentials:login_command",
            "Keep the hub at URL with its token as NAME, which commands then take as HUB.",
        ),
        "streams": Command(
            "hub_records:streams_command",
            "List the streams of the running hub HUB: records, rate, completeness, table and its columns.",
        ),
        "config": Group(
            "Describe the configuration files, and sign settings and functions of edges.",
            {
                "keygen": Command(
                    "config:keygen",
                    "Make a key of Ed25519: the private one in NAME.key, the public one, which edges get, in NAME.pub.",
                ),
                "schema": Command(
                    "config:schema",
                    "Print the JSON Schema of an edge's or a hub's configuration or of a pipeline, for editors.",
                ),
                "sign": Command(
                    "config:sign_settings",
                    "Sign the settings in FILE for an edge, or with --group for a group, and write them with "
                    "the signature behind.",
                ),
                "sign-code": Command(
                    "config:sign_code",
                    "Sign FILES that `python` functions run or open, each into a file beside it: score.py.sig "
                    "for score.py.",
                ),
                "verify": Command(
                    "config:verify",
                    "Check the signature in FILE, or of the file of a function in FILE.sig, and show for whom it is.",
                ),
            },
        ),
        "link": Group(
            "Look at a running node's links to hubs, pause them, and handle their alarms.",
            {
                "acknowledge": Command(
                    "link:acknowledge",
                    "End the alarms of a running node, named by its CONFIG or its data_dir.",
                ),
                "pause": Command(
                    "link:pause",
                    "Stop sending data on links of a running node, until `weft link resume`.",
                ),
                "resume": Command("link:resume", "Send data again on links of a running node that were paused."),
                "status": Command(
                    "link:status",
                    "Show the links of a running node, named by its CONFIG or its data_dir.",
                ),
            },
        ),
        "log": Group(
            "Inspect an edge node's log, or drop a backlog from it.",
            {
                "drop": Command(
                    "edge_log:drop",
                    "Drop the backlog of STREAM on a node, named by its CONFIG or its data_dir.",
                ),
                "dump": Command(
                    "edge_log:dump",
                    "Print the log of a node, named by its CONFIG or its data_dir, or one segment FILE.",
                ),
            },
        ),
        "user": Group(
            """Manage the user names and passwords of MQTT clients.

The users file holds only argon2id hashes. A running node picks up changes by itself. The commands ask for passwords
or read them from a file: other users of the machine could see a command line.""",
            {
                "add": Command(
                    "credentials:add_user",
                    "Add NAME to the file, which is created if it is missing, or give NAME a new password.",
                ),
                "check": Command("credentials:check", "Check the password of NAME."),
                "list": Command("credentials:list_users", "List the names in the file."),
                "remove": Command("credentials:remove_user", "Remove NAME from the file."),
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
                "device": Command(
                    "ca:device",
                    "Issue the certificate of a device, which logs in at edges as USER "
                    "(`listeners.<name>.tls.client_ca`).",
                ),
                "edge": Command(
                    "ca:edge",
                    "Issue the certificate of EDGE, by which a hub with `tls.client_ca` knows it without a token.",
                ),
                "hub": Command(
                    "ca:hub",
                    "Issue the certificate of a hub, for the names by which edges and readers call it.",
                ),
                "init": Command("ca:init", "Make an authority in FOLDER, which is new or has none yet."),
                "list": Command(
                    "ca:list_certificates",
                    "Show every certificate that the authority has issued, the newest last.",
                ),
                "renew-list": Command("ca:renew_list", "Sign the list of revoked certificates again."),
                "revoke": Command(
                    "ca:revoke",
                    "Revoke the certificates of NAME, or the one of a serial number, and sign the list of "
                    "revoked ones again.",
                ),
            },
        ),
        "audit": Command("audit:audit_command", "Compare lanes, log and table of STREAM, record by record."),
        "trace": Command("audit:trace_command", "Show the records of devices that went into a row."),
        "spark": Group(
            "Check, test, run and move pipelines of Spark, and ask streams in SQL.",
            {
                "check": Command(
                    "spark:spark_check",
                    "Check PIPELINE, a YAML file or the name of a shipped pipeline, without reading a record.",
                ),
                "move": Command(
                    "spark:spark_move",
                    "Continue the stopped query of CHECKPOINT in the store of another region, with each record once.",
                ),
                "new": Command(
                    "spark:spark_new",
                    "Print the YAML of shipped pipeline NAME, as a start for your own; without NAME, list all names.",
                ),
                "run": Command(
                    "spark:spark_run",
                    "Run PIPELINE, a YAML file or the name of a shipped pipeline, until Ctrl-C or SIGTERM.",
                ),
                "sql": Command(
                    "spark:spark_sql",
                    "Ask the streams of STORE in SQL, each under the name `weft.STREAM`, and print the rows.",
                ),
                "test": Command(
                    "spark:spark_test",
                    "Run the steps of PIPELINE over sample rows, and compare what they make with expected rows.",
                ),
            },
        ),
        "completion": Command(
            "completion:completion_command",
            "Print the code by which SHELL completes the commands and options of weft.",
        ),
    },
    {"token": "hub token"},
)
