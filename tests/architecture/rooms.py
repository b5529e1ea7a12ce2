"""The order of the rooms: which folders and modules may know which."""

from __future__ import annotations

OTHERS = "*"
"""In a table of rooms: every module of the folder that the table does not name. Among them only circles are refused."""

# Not import-linter: it neither tells imports for types alone apart, nor draws the picture of the architecture.
ROOMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "edge_node": (
        ("counters", "part", "streams", "timing"),
        ("access", "check", "control", "subscriptions"),
        ("ingest",),
        ("sessions",),
        ("queues",),
        ("servers", "sources"),
        ("derived", "links"),
        ("inspect", "reconfigure", "status"),
        ("node", "preflight"),
        ("doctor",),
    ),
    "edge_node.servers": (
        ("listeners",),
        ("clients",),
        ("mqtt", "amqp", "amqp1", "http"),
    ),
    "config": (
        ("release",),
        ("errors", "metrics", "signing", "units"),
        ("limits",),
        ("functions", "links", "listeners", "log_lines", "machine", "payload_schema", "sources"),
        ("schema", "streams"),
        ("models", "pipelines", "reader"),
        ("load",),
    ),
    "functions": (
        ("contract", "python_protocol"),
        ("chain", "enrich", "expression_code", "formats", "python_worker", "series", "window_plan"),
        (
            "aggregates",
            "cbor_format",
            "expressions",
            "python",
            "select",
            "sparkplug_payloads",
            "thinning",
            "window_store",
        ),
        ("fields", "routing", "sparkplug", "windows"),
        ("sql",),
        ("registry",),
    ),
    "edge_node.derived": (
        ("counters", "definitions"),
        ("offline", "steps"),
        ("stream",),
        ("runtime",),
        ("part",),
    ),
    "edge_node.queues": (
        ("definitions", "ready"),
        ("queue",),
        ("exchange",),
        ("limits",),
        ("state",),
        ("contents",),
        ("registry",),
        ("declarations",),
        ("delivery",),
        ("consuming", "dead_letters"),
        ("queues",),
        ("part",),
    ),
    "edge_node.sessions": (
        ("database", "records", "sys_topics"),
        ("backlog", "retained"),
        ("journal",),
        ("packets_out", "session_store"),
        ("broker_state", "window"),
        ("log_readers", "session"),
        ("persistence",),
        ("filters", "wills"),
        ("sessions",),
    ),
    "storage": (
        ("filesystem", "histogram", "host", "hub_keys", "native_threads", "payloads"),
        ("object_store", "segment_log"),
        ("cluster", "cluster_log", "data_directory", "presence"),
        ("chunk_log", "table"),
        ("fenced_store", "table_writer"),
    ),
    "storage.segment_log": (
        ("settings",),
        ("cipher", "index"),
        ("encryption", "pending"),
        ("state",),
        ("scan",),
        ("space",),
        ("reader", "segment_file"),
        ("commit",),
        ("recovery",),
        ("log",),
    ),
    "replication": (
        (OTHERS,),
        ("runner",),
    ),
    "hub_api": (
        ("rights",),
        ("answers", "bodies"),
        ("status",),
        ("operations",),
        ("document",),
    ),
    "cloud_hub": (
        ("clock", "settings"),
        ("cluster", "shard", "store"),
        ("auth", "splits", "stream_deletion"),
        ("facts",),
        ("api", "quotas"),
        ("check", "console"),
        ("down", "pipelines", "preflight", "regions", "rollouts", "tables"),
        ("links",),
        ("pulls",),
        ("administration",),
        ("http",),
        ("hub",),
    ),
    "spark_sinks": (
        ("errors", "replaced"),
        ("blocking",),
        ("source",),
        ("runtime",),
        ("audit", "read", "sinks", "tables"),
        ("lineage", "views"),
        ("completeness",),
        ("pipelines",),
    ),
    "protocols": (
        ("checksum", "errors", "health", "payloads", "topics"),
        ("mqtt", "ranges"),
        ("batch", "lane"),
        ("chunk_index", "message_headers", "segment"),
        ("amqp", "chunk", "link", "shard"),
        ("amqp1",),
    ),
    "weft": (
        (OTHERS,),
        ("service", "text"),
        ("commands",),
        ("cli",),
        ("__main__",),
    ),
}
"""Folder -> its floors from the ground up. A room knows rooms of lower floors, and none of its own floor.

A name of one file is a room as well. What stands in a folder of this table stands in its table. A folder of few
modules has none: that no imports make a circle is order enough there.
"""
