"""Mistakes with the command line itself: commands, arguments and options that are none."""

from __future__ import annotations

from tests.weft.mistakes.mistake import STREAM, Mistake, edge

USAGE = [
    Mistake(
        "a command that is none",
        "egde run",
        "Usage: weft [OPTIONS] COMMAND [ARGS]...\n"
        "Try 'weft --help' for help.\n"
        "\n"
        "Error: No such command 'egde'. Did you mean 'edge'?",
    ),
    Mistake(
        "a subcommand that is none",
        "edge start edge.yaml",
        "weft: `weft edge start` is called `weft edge run`",
        in_process=True,
    ),
    Mistake(
        "no configuration",
        "edge run",
        "Usage: weft edge run [OPTIONS] CONFIG\n"
        "Try 'weft edge run --help' for help.\n"
        "\n"
        "Error: Missing argument 'CONFIG'.",
    ),
    Mistake(
        "a configuration too many",
        "edge check edge.yaml hub.yaml",
        "Usage: weft edge check [OPTIONS] CONFIG\n"
        "Try 'weft edge check --help' for help.\n"
        "\n"
        "Error: Got unexpected extra argument (hub.yaml)",
        files=edge(STREAM),
        in_process=True,
    ),
    Mistake(
        "an option that is none",
        "edge check edge.yaml --jsn",
        "Usage: weft edge check [OPTIONS] CONFIG\n"
        "Try 'weft edge check --help' for help.\n"
        "\n"
        "Error: No such option '--jsn'. Did you mean '--json'?",
        files=edge(STREAM),
        in_process=True,
    ),
    Mistake(
        "a shard below zero",
        "hub split hub.yaml -1 --yes",
        "Usage: weft hub split [OPTIONS] HUB SHARD\n"
        "Try 'weft hub split --help' for help.\n"
        "\n"
        "Error: Invalid value for 'SHARD': -1 is not in the range x>=0.",
        in_process=True,
    ),
    Mistake(
        "a number below zero where a name is expected",
        "hub retire hub.yaml -12",
        "Usage: weft hub retire [OPTIONS] CONFIG EDGE\n"
        "Try 'weft hub retire --help' for help.\n"
        "\n"
        "Error: '-12' is neither an option nor a name: no name begins with a dash.",
        in_process=True,
    ),
    Mistake(
        "a log level that is none",
        "edge run edge.yaml --log-level verbose",
        "Usage: weft edge run [OPTIONS] CONFIG\n"
        "Try 'weft edge run --help' for help.\n"
        "\n"
        "Error: Invalid value for '--log-level': 'verbose' is not one of 'debug', 'info', 'warning', 'error'.",
        files=edge(STREAM),
    ),
    Mistake(
        "the schema of a node that is none",
        "config schema sensor",
        "Usage: weft config schema [OPTIONS] {edge|hub|pipeline}\n"
        "Try 'weft config schema --help' for help.\n"
        "\n"
        "Error: Invalid value for '{edge|hub|pipeline}': 'sensor' is not one of 'edge', 'hub', 'pipeline'.",
        in_process=True,
    ),
    Mistake(
        "a check while the hub runs",
        "hub check <hub>/hub.yaml",
        "warning: <hub>/hub.yaml:3: listen: a hub answers at 127.0.0.1:<hub port> already, so the port was not tried",
        exit_status=0,
        in_process=True,
    ),
    *(
        Mistake(
            f"the command of another group: {word}",
            f"{group} {word}".strip(),
            f"Usage: weft {group}[OPTIONS] COMMAND [ARGS]...\n"
            f"Try 'weft {group}--help' for help.\n"
            "\n"
            f"Error: No such command '{word}'. {advice}",
            in_process=True,
        )
        for group, word, advice in (
            ("", "run", "Did you mean `weft edge run` or `weft hub run` or `weft spark run`?"),
            ("hub ", "audit", "Did you mean `weft audit`?"),
            ("hub ", "restart", "See weft hub --help."),
        )
    ),
]
