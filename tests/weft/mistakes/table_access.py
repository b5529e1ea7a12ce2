"""Mistakes with users and tokens."""

from __future__ import annotations

from tests.weft.mistakes.mistake import Mistake

ACCESS = [
    Mistake(
        "a password without a terminal",
        "user add anna --file users",
        "weft: there is no terminal to ask for the password on. Use --password-file FILE, or --password-file - for "
        "standard input",
    ),
    Mistake(
        "a password on the command line",
        "user add anna secret --file users",
        "Usage: weft user add [OPTIONS] NAME\n"
        "Try 'weft user add --help' for help.\n"
        "\n"
        "Error: Got unexpected extra argument (secret)",
    ),
    Mistake(
        "a password file that is not there",
        "user add anna --file users --password-file nowhere",
        "Usage: weft user add [OPTIONS] NAME\n"
        "Try 'weft user add --help' for help.\n"
        "\n"
        "Error: Invalid value for '--password-file': 'nowhere': No such file or directory",
    ),
    Mistake(
        "an empty password",
        "user add anna --file users --password-file -",
        "weft: expected a password of 1 to 1024 bytes",
    ),
    Mistake(
        "a user's name with a colon",
        "user add an:na --file users --password-file -",
        "weft: a name has no colon and does not begin with '#', got 'an:na'",
        given="secret\n",
    ),
    Mistake(
        "no users file named",
        "user add anna",
        "Usage: weft user add [OPTIONS] NAME\nTry 'weft user add --help' for help.\n\nError: Missing option '--file'.",
    ),
    Mistake(
        "a users file in a folder that is not there",
        "user add anna --file no/users --password-file -",
        "weft: no/users: folder <dir>/no does not exist. Create it first",
        exit_status=1,
        given="secret\n",
    ),
    Mistake(
        "a users file that may not be written",
        "user add anna --file users/list --password-file -",
        "weft: users/list: user <user> may not use it: <dir>/users belongs to user <user> (mode 500). Change its mode: "
        "`chmod u+rwX <dir>/users`",
        exit_status=1,
        files={"users/@0500": ""},
        given="secret\n",
    ),
    Mistake(
        "a user who is none",
        "user remove bert --file users",
        "weft: users: there is no user 'bert'",
        files={"users": ""},
        in_process=True,
    ),
    Mistake(
        "a list of users that is not there",
        "user list --file users",
        "weft: users: there is no such file. `weft user add` creates one",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "the password of a user who is none",
        "user check bert --file users --password-file -",
        "weft: users: there is no user 'bert'",
        exit_status=1,
        files={"users": ""},
        given="x\n",
    ),
    Mistake(
        "a wrong password",
        "user check anna --file users --password-file -",
        "weft: that is not the password of anna",
        exit_status=1,
        files={"users": "<users>"},
        given="wrong\n",
    ),
    Mistake(
        "a token for an edge without the edge's name",
        "hub token add hub.yaml shop --scope edge",
        "weft: scope 'edge' needs an edge, the other scopes must not have one. Name it with --edge",
        in_process=True,
    ),
    Mistake(
        "a token for a reader with an edge's name",
        "hub token add hub.yaml bi --scope reader --edge shop",
        "weft: scope 'edge' needs an edge, the other scopes must not have one. Leave out --edge",
        in_process=True,
    ),
    Mistake(
        "a scope that is none",
        "hub token add hub.yaml shop --scope write",
        "Usage: weft hub token add [OPTIONS] HUB [NAME]\n"
        "Try 'weft hub token add --help' for help.\n"
        "\n"
        "Error: Invalid value for '--scope': 'write' is not one of "
        "'edge', 'reader', 'publish', 'pull', 'region', 'admin'.",
        in_process=True,
    ),
    Mistake(
        "a token without a scope",
        "hub token add hub.yaml shop",
        "weft: a token has a scope, or grants. Give --scope, or --grant once or more",
        in_process=True,
    ),
    Mistake(
        "a right that is none",
        "hub token add hub.yaml shop --grant reed:press-*",
        "weft: --grant: expected one of write[:STREAM], read[:STREAM], edges, publish[:EDGE], pull[:STREAM], status, "
        "metrics, acts, relay[:STREAM], report[:PIPELINE], tenants, nodes, tokens, got 'reed:press-*'",
        in_process=True,
    ),
]
