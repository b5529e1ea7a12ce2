"""Why a test starts a process: told from the command."""

from __future__ import annotations

from collections.abc import Sequence

SERVERS = (
    "mosquitto", "rabbitmq", "beam", "erl", "postgres", "initdb", "pg_ctl", "psql", "versitygw", "minio", "moto",
    "kafka", "celery", "npm", "node", "mvn", "telegraf", "nginx", "duckdb",
)  # fmt: skip


def cause_of(command: Sequence[str]) -> str:
    """Return the cause of a process.

    Args:
        command: the program and its arguments.
    """
    words = [each.rpartition("/")[2] for each in command[:8]]
    if not words:
        return "other processes"
    joined = " ".join(words)
    if any(word in joined for word in ("spark", "java", "jdk", "pyspark")) and "kafka" not in joined:
        return "Spark"
    if any(word.startswith(server) for word in words[:4] for server in SERVERS):
        return "servers of others"
    if words[0].startswith("python"):
        if "-m" in words and "weft" in words:
            return "nodes and hubs" if "run" in words else "commands"
        return "interpreters"
    if words[0] == "weft":
        return "nodes and hubs" if "run" in words else "commands"
    return "other processes"
