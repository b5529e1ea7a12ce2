"""Mistakes in the files that say who may do what: users, access rules, tokens."""

from __future__ import annotations

from tests.weft.mistakes.mistake import QUIET, Mistake, edge, hub

CREDENTIALS = [
    Mistake(
        "a users file that is not there, checked",
        "edge check edge.yaml",
        "weft: edge.yaml:7: auth.users_file: <dir>/users: there is no such file. `weft user add NAME --file "
        "<dir>/users` creates one",
        files=edge(QUIET + "auth: {users_file: users}\n"),
        in_process=True,
    ),
    Mistake(
        "a users file that is not there, run",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:7: auth.users_file: <dir>/users: there is no such file. `weft user add NAME --file "
        "<dir>/users` creates one",
        exit_status=1,
        files=edge(QUIET + "auth: {users_file: users}\n"),
    ),
    Mistake(
        "a users file with a password in it",
        "edge check edge.yaml",
        "weft: edge.yaml:7: auth.users_file: <dir>/users:1: expected name:hash with an argon2id hash that "
        "`weft user add` makes",
        files=edge(QUIET + "auth: {users_file: users}\n", users="anna:secret\n"),
        in_process=True,
    ),
    Mistake(
        "a users file with a broken line",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:7: auth.users_file: <dir>/users:3: expected name:hash with an argon2id hash that "
        "`weft user add` makes",
        exit_status=1,
        files=edge(QUIET + "auth: {users_file: users}\n", users="# users\n\nanna\n"),
    ),
    Mistake(
        "a users file that is a folder",
        "edge check edge.yaml",
        "weft: edge.yaml:7: auth.users_file: <dir>/users: this is a folder. Name a file\n"
        "warning: edge.yaml:7: auth.users_file: every user of this machine may read <dir>/users (mode 755). "
        "Run `chmod o-rwx <dir>/users`",
        files=edge(QUIET + "auth: {users_file: users}\n", **{"users/": ""}),
        in_process=True,
    ),
    Mistake(
        "a users file without users",
        "edge check edge.yaml",
        "warning: edge.yaml:7: auth.users_file: <dir>/users names no user. Add users with `weft user add "
        "NAME --file <dir>/users`",
        exit_status=0,
        files=edge(QUIET + "auth: {users_file: users}\n", users="# none yet\n"),
        in_process=True,
    ),
    Mistake(
        "access rules with a word that is not known",
        "edge check edge.yaml",
        "weft: edge.yaml:7: auth.acl_file: <dir>/acl:2: expected read, write, readwrite or deny before the "
        "topic filter, got 'reed'",
        files=edge(QUIET + "auth: {acl_file: acl}\n", acl="user anna\ntopic reed plant/#\n"),
        in_process=True,
    ),
    Mistake(
        "access rules with a line that is not known",
        "edge check edge.yaml",
        "weft: edge.yaml:7: auth.acl_file: <dir>/acl:1: expected `user NAME`, `topic ...`, `queue ...`, "
        "`pattern ...` or a comment, got 'usr anna'",
        files=edge(QUIET + "auth: {acl_file: acl}\n", acl="usr anna\ntopic read plant/#\n"),
        in_process=True,
    ),
    Mistake(
        "access rules with %u in a topic line",
        "edge check edge.yaml",
        "weft: edge.yaml:7: auth.acl_file: <dir>/acl:1: %u and %c are replaced only in `pattern` lines: write "
        "`pattern` instead of `topic`",
        files=edge(QUIET + "auth: {acl_file: acl}\n", acl="topic write devices/%u/x\n"),
        in_process=True,
    ),
    Mistake(
        "access rules with a bad filter",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:7: auth.acl_file: <dir>/acl:1: topic filter 'plant/#/x': '#' must be the "
        "whole last level [MQTT-4.7.1-2]",
        exit_status=1,
        files=edge(QUIET + "auth: {acl_file: acl}\n", acl="topic read plant/#/x\n"),
    ),
    Mistake(
        "access rules that are not there",
        "edge check edge.yaml",
        "weft: edge.yaml:7: auth.acl_file: <dir>/acl: there is no such file. Write rules into it, such as `topic "
        "readwrite plant/#` (docs/reference/access-rules.md)",
        files=edge(QUIET + "auth: {acl_file: acl}\n"),
        in_process=True,
    ),
    Mistake(
        "access rules for a user who is none",
        "edge check edge.yaml",
        "warning: edge.yaml:7: auth.users_file: <dir>/users names no user. Add users with `weft user add "
        "NAME --file <dir>/users`\n"
        "warning: edge.yaml:7: auth.acl_file: <dir>/acl has rules for users that are not in auth.users_file: "
        "bert. Add them",
        exit_status=0,
        files=edge(
            QUIET + "auth: {users_file: users, acl_file: acl}\n", acl="user bert\ntopic read plant/#\n", users=""
        ),
        in_process=True,
    ),
    Mistake(
        "a token file that is not there",
        "edge check edge.yaml",
        "weft: edge.yaml:7: links.cloud.token_file: <dir>/token: there is no such file. Write the token into it "
        "that `weft hub token add` printed at the hub",
        files=edge(QUIET + "links: {cloud: {to: 'http://localhost:8090', token_file: token}}\n"),
        in_process=True,
    ),
    Mistake(
        "a token file that is empty",
        "edge check edge.yaml",
        "weft: edge.yaml:7: links.cloud.token_file: <dir>/token is empty: expected one token on one line. "
        "Write it there",
        files=edge(QUIET + "links: {cloud: {to: 'http://localhost:8090', token_file: token}}\n", token="\n"),
        in_process=True,
    ),
    Mistake(
        "a token file with words around the token",
        "edge check edge.yaml",
        "weft: edge.yaml:7: links.cloud.token_file: <dir>/token: expected one token on one line, got several "
        "words. Keep the token alone",
        files=edge(QUIET + "links: {cloud: {to: 'http://localhost:8090', token_file: token}}\n", token="token: abc\n"),
        in_process=True,
    ),
    Mistake(
        "a token file that everyone may read",
        "edge check edge.yaml",
        "warning: edge.yaml:7: links.cloud.token_file: every user of this machine may read <dir>/token (mode "
        "644). Run `chmod o-rwx <dir>/token`",
        exit_status=0,
        files=edge(
            QUIET + "links: {cloud: {to: 'http://localhost:8090', token_file: token}}\n", **{"token@0644": "abc\n"}
        ),
    ),
    Mistake(
        "a token file that the user may not read",
        "edge check edge.yaml",
        "weft: edge.yaml:7: links.cloud.token_file: <dir>/token: user <user> may not read it: it "
        "belongs to user <user> (mode 000). Change its mode: `chmod u+rwX <dir>/token`",
        files=edge(
            QUIET + "links: {cloud: {to: 'http://localhost:8090', token_file: token}}\n", **{"token@0000": "abc\n"}
        ),
    ),
    Mistake(
        "a token over http to another machine",
        "edge check edge.yaml",
        "warning: edge.yaml:7: links.cloud.to: the token crosses the network in clear text to "
        "http://hub.example.com:8090. Use https",
        exit_status=0,
        files=edge(QUIET + "links: {cloud: {to: 'http://hub.example.com:8090', token_file: token}}\n", token="abc\n"),
        in_process=True,
    ),
    Mistake(
        "no token for a hub on another machine",
        "edge check edge.yaml",
        "warning: edge.yaml:7: links.cloud.token_file: is missing: hubs that other machines reach require a "
        "token. `weft hub token add` makes one there",
        exit_status=0,
        files=edge(QUIET + "links: {cloud: {to: 'https://hub.example.com'}}\n"),
        in_process=True,
    ),
    Mistake(
        "a token from systemd, looked at by hand",
        "edge check edge.yaml",
        "warning: edge.yaml:7: links.cloud.token_file: /run/credentials/weft-edge.service/token exists only "
        "while systemd runs the unit, so it was not checked",
        exit_status=0,
        files=edge(
            QUIET
            + (
                "links: {cloud: {to: 'https://hub.example.com', "
                "token_file: /run/credentials/weft-edge.service/token}}\n"
            )
        ),
        in_process=True,
    ),
    Mistake(
        "a file to import that is not YAML",
        "hub token import hub.yaml --file tokens",
        "weft: tokens:1: a bracket that opens here is not closed, or a comma is missing after an entry",
        files=hub("store: store\n", tokens="tokens: [1\n"),
        in_process=True,
    ),
    Mistake(
        "a token in a file to import",
        "hub token import hub.yaml --file tokens",
        "weft: tokens is not a file of tokens (Expected object, got str). Expected `tokens:` and a list with name, "
        "sha256 and scope of each",
        files=hub("store: store\n", tokens="abc\n"),
        in_process=True,
    ),
    Mistake(
        "a hub without tokens that demands one",
        "hub check hub.yaml",
        "warning: hub.yaml:2: anonymous: the store declares no token, so the hub refuses every request. `weft hub "
        "token add` adds one",
        exit_status=0,
        files=hub("store: store\nanonymous: never\nlisten: 127.0.0.1:0\n"),
        in_process=True,
    ),
]
