"""Mistakes with who may do what: users, tokens, rules, certificates, and listeners that strangers reach."""

from __future__ import annotations

from tests.weft.mistakes.place import NODE, QUIET, STREAM, Mistake, edge, hub

# --- Mistakes with users and tokens


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
        "weft: --grant: expected one of write[:STREAM], read[:STREAM], share[:STREAM], edges, publish[:EDGE], "
        "pull[:STREAM], status, metrics, acts, relay[:STREAM], report[:PIPELINE], declare[:STREAM], tenants, nodes, "
        "tokens, got 'reed:press-*'",
        in_process=True,
    ),
]


# --- Mistakes in the files that say who may do what: users, access rules, tokens


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
        "a token in quotes",
        "edge check edge.yaml",
        'weft: edge.yaml:7: links.cloud.token_file: <dir>/token: the token begins with a quote ("): write it without '
        "quotes",
        files=edge(QUIET + "links: {cloud: {to: 'http://localhost:8090', token_file: token}}\n", token='"abc"\n'),
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


# --- Mistakes in what an edge shows to clients of an encrypted listener: certificates, keys, authorities


def tls(settings: str) -> str:
    """An edge with an encrypted listener, whose ``tls`` stands in line 7."""
    return NODE + (
        "http: null\n"
        "listeners:\n"
        "  mqtts:\n"
        "    bind: 127.0.0.1:0\n"
        f"    tls: {settings}\n"
        "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
        "disk: {budget: 64MiB}\n"
    )


def link(url: str, settings: str) -> str:
    """An edge with a link, which stands in line 6."""
    return NODE + (
        "http: null\n"
        "streams: {telemetry: {from: x}}\n"
        "disk: {budget: 64MiB}\n"
        f"links: {{cloud: {{to: '{url}', {settings}}}}}\n"
        "listeners: {mqtt: {bind: '127.0.0.1:0'}}\n"
    )


CERTIFICATES = [
    Mistake(
        "a certificate that is not there",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/no.crt: there is no such file",
        files=edge(tls("{certificate: no.crt, key: good.key}"), **{"good.key": "<good.key>"}),
        in_process=True,
    ),
    Mistake(
        "a key that is not there, run",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/no.key: there is no such file",
        exit_status=1,
        files=edge(tls("{certificate: good.crt, key: no.key}"), **{"good.crt": "<good.crt>"}),
    ),
    Mistake(
        "the key of another certificate",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/other.key is not the key of <dir>/good.crt: they do not "
        "belong together. Name a matching pair",
        files=edge(
            tls("{certificate: good.crt, key: other.key}"), **{"good.crt": "<good.crt>", "other.key": "<other.key>"}
        ),
        in_process=True,
    ),
    Mistake(
        "certificate and key the wrong way round",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/good.key is not a certificate in PEM, or <dir>/good.crt "
        "is not a key. Name the certificate with its chain, and its key",
        files=edge(
            tls("{certificate: good.key, key: good.crt}"), **{"good.crt": "<good.crt>", "good.key": "<good.key>"}
        ),
        in_process=True,
    ),
    Mistake(
        "an encrypted key",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/encrypted.key is encrypted, and the node cannot ask for "
        "the password. Decrypt the key (`openssl pkey`)",
        files=edge(
            tls("{certificate: good.crt, key: encrypted.key}"),
            **{"good.crt": "<good.crt>", "encrypted.key": "<encrypted.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a certificate that has expired",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls.certificate: clients refuse <dir>/expired.crt: it has "
        "expired on <past>. Renew it",
        files=edge(
            tls("{certificate: expired.crt, key: expired.key}"),
            **{"expired.crt": "<expired.crt>", "expired.key": "<expired.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a certificate that expires tomorrow",
        "edge check edge.yaml",
        "warning: edge.yaml:7: listeners.mqtts.tls.certificate: <dir>/good.crt expires on <soon>. Renew it before",
        exit_status=0,
        files=edge(
            tls("{certificate: good.crt, key: good.key}"), **{"good.crt": "<good.crt>", "good.key": "<good.key>"}
        ),
        in_process=True,
    ),
    Mistake(
        "a key that everyone may read",
        "edge check edge.yaml",
        "warning: edge.yaml:7: listeners.mqtts.tls.key: every user of this machine may read <dir>/long.key "
        "(mode 644). Run `chmod o-rwx <dir>/long.key`",
        exit_status=0,
        files=edge(
            tls("{certificate: long.crt, key: long.key}"), **{"long.crt": "<long.crt>", "long.key@0644": "<long.key>"}
        ),
    ),
    Mistake(
        "an authority that is no certificate",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/ca.pem holds no certificate in PEM. Name the "
        "authorities' PEM file",
        files=edge(
            tls("{certificate: good.crt, key: good.key, client_ca: ca.pem}"),
            **{"good.crt": "<good.crt>", "good.key": "<good.key>", "ca.pem": "none\n"},
        ),
        in_process=True,
    ),
    Mistake(
        "a hub's certificate that has expired",
        "hub check hub.yaml --offline",
        "weft: hub.yaml:3: tls.certificate: edges and readers refuse <dir>/expired.crt: it has expired on <past>. "
        "Renew it",
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\ntls: {certificate: expired.crt, key: expired.key}\n",
            **{"expired.crt": "<expired.crt>", "expired.key@0600": "<expired.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a hub's certificate as the authority of edges",
        "hub check hub.yaml --offline",
        "warning: hub.yaml:3: tls.client_ca: <dir>/long.crt holds no authority, but the certificate of 'long': no "
        "client is accepted but with that very certificate. Name an authority\n"
        "warning: hub.yaml:3: tls.certificate: <dir>/long.crt has no subjectAltName, so most clients refuse it. Issue "
        "one with the hub's names",
        exit_status=0,
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\ntls: {certificate: long.crt, key: long.key, client_ca: long.crt}\n",
            **{"long.crt": "<long.crt>", "long.key@0600": "<long.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "the key of another certificate at a hub, run",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:3: tls: <dir>/other.key is not the key of <dir>/good.crt: they do not belong together. Name a "
        "matching pair",
        exit_status=1,
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\ntls: {certificate: good.crt, key: other.key}\n",
            **{"good.crt": "<good.crt>", "other.key@0600": "<other.key>"},
        ),
    ),
    Mistake(
        "a hub's revocation list without authorities",
        "hub check hub.yaml --offline",
        "weft: hub.yaml:3: tls.crl_file: needs `client_ca`: without it, no edge shows a certificate",
        files=hub("store: store\nlisten: 127.0.0.1:0\ntls: {certificate: a.crt, key: a.key, crl_file: a.crl}\n"),
        in_process=True,
    ),
    Mistake(
        "a link's certificate without its key",
        "edge check edge.yaml",
        "weft: edge.yaml:6: links.cloud.key: is missing: a certificate and its key belong together. Name both files",
        files=edge(link("https://hub.example.com", "certificate: good.crt")),
        in_process=True,
    ),
    Mistake(
        "a link's certificate that has expired",
        "edge check edge.yaml",
        "edge.yaml:6: links.cloud.certificate: the hub refuses the link: <dir>/expired.crt is for 'expired', and this "
        "edge is 'press-shop-7'. Issue one with this common name\n"
        "edge.yaml:6: links.cloud.certificate: the hub refuses <dir>/expired.crt: it has expired on <past>. "
        "Renew it",
        files=edge(
            link("https://127.0.0.1:1", "certificate: expired.crt, key: expired.key"),
            **{"expired.crt": "<expired.crt>", "expired.key@0600": "<expired.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a link's authorities that are not there",
        "edge check edge.yaml",
        "weft: edge.yaml:6: links.cloud.ca_file: <dir>/ca.pem: there is no such file",
        files=edge(link("https://127.0.0.1:1", "ca_file: ca.pem")),
        in_process=True,
    ),
    Mistake(
        "a link's authorities for a hub without TLS",
        "edge check edge.yaml",
        "weft: edge.yaml:6: links.cloud.ca_file: is for TLS, and no URL of `to` begins with https://. Write https://",
        files=edge(link("http://127.0.0.1:1", "ca_file: good.crt")),
        in_process=True,
    ),
]


# --- What a check says of listeners that strangers reach, and of secrets that others can read


USERS = "alice:$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$cGFzc3dvcmRwYXNzd29yZHBhc3N3b3JkcGFzc3dvcmQ\n"
NO_TOKEN = (
    "warning: hub.yaml:3: anonymous: the store declares no token, so the hub refuses every request. `weft hub token "
    "add` adds one"
)
EXPOSURE = [
    Mistake(
        "a listener for everyone in the network",
        "edge check edge.yaml",
        "warning: edge.yaml: listeners.mqtt: every program that reaches 0.0.0.0:0 may publish and read every topic. "
        "Set auth.users_file with `anonymous: never`, unless you trust that network",
        exit_status=0,
        files=edge(STREAM + "http: null\nlisteners: {mqtt: {bind: '0.0.0.0:0', anonymous: allowed_beyond_loopback}}\n"),
        in_process=True,
    ),
    Mistake(
        "a listener for everyone in the network, with access rules",
        "edge check edge.yaml",
        "warning: edge.yaml: listeners.mqtt: every program that reaches 0.0.0.0:0 may connect without a user name. Set "
        "auth.users_file with `anonymous: never`, unless you trust that network",
        exit_status=0,
        files=edge(
            STREAM + "http: null\nlisteners: {mqtt: {bind: '0.0.0.0:0', anonymous: allowed_beyond_loopback}}\n"
            "auth: {acl_file: acl}\n",
            acl="topic read public/#\n",
        ),
        in_process=True,
    ),
    Mistake(
        "passwords over a network without TLS",
        "edge check edge.yaml",
        "warning: edge.yaml: listeners.mqtt has no TLS: passwords cross the network in clear text. Add `tls`",
        exit_status=0,
        files=edge(
            STREAM + "http: null\nlisteners: {mqtt: {bind: '0.0.0.0:0', anonymous: never}}\n"
            "auth: {users_file: users}\n",
            **{"users@0600": USERS},
        ),
        in_process=True,
    ),
    Mistake(
        "a status page for everyone in the network",
        "edge check edge.yaml",
        "warning: edge.yaml: http: every program that reaches 0.0.0.0:0 may read the status page, which names streams, "
        "hubs and topics. Bind to 127.0.0.1, unless you trust that network",
        exit_status=0,
        files=edge(
            STREAM
            + "http: {bind: '0.0.0.0:0', anonymous: allowed_beyond_loopback, hosts: []}\nlisteners: {mqtt: null}\n"
        ),
        in_process=True,
    ),
    Mistake(
        "a status page that web pages of strangers may read",
        "edge check edge.yaml",
        "warning: edge.yaml: http: every program that reaches 0.0.0.0:0 may read the status page, which names streams, "
        "hubs and topics. Bind to 127.0.0.1, unless you trust that network\n"
        "warning: edge.yaml: http: a web page in a browser of that network may read the status page under a name of "
        "its own (DNS rebinding). List the names of the node in http.hosts, or none: `hosts: []`",
        exit_status=0,
        files=edge(STREAM + "http: {bind: '0.0.0.0:0', anonymous: allowed_beyond_loopback}\nlisteners: {mqtt: null}\n"),
        in_process=True,
    ),
    Mistake(
        "a users file that everyone may read",
        "edge check edge.yaml",
        "warning: edge.yaml:7: auth.users_file: every user of this machine may read <dir>/users (mode 644). Run "
        "`chmod o-rwx <dir>/users`",
        exit_status=0,
        files=edge(QUIET + "auth: {users_file: users}\n", **{"users@0644": USERS}),
        in_process=True,
    ),
    Mistake(
        "a hub for everyone in the network",
        "hub check hub.yaml --offline",
        "warning: hub.yaml:3: anonymous: there is no token: every program that reaches the port may link and read. "
        "`weft hub token add` adds one",
        exit_status=0,
        files=hub("store: store\nlisten: 0.0.0.0:0\nanonymous: allowed_beyond_loopback\nhosts: []\n"),
        in_process=True,
    ),
    Mistake(
        "a hub that web pages of strangers may read",
        "hub check hub.yaml --offline",
        "warning: hub.yaml: hosts: is missing: a web page in a browser of that network may read all under a name of "
        "its own (DNS rebinding). List the names under which readers call the hub, or none: `hosts: []`\n"
        "warning: hub.yaml:3: anonymous: there is no token: every program that reaches the port may link and read. "
        "`weft hub token add` adds one",
        exit_status=0,
        files=hub("store: store\nlisten: 0.0.0.0:0\nanonymous: allowed_beyond_loopback\n"),
        in_process=True,
    ),
    Mistake(
        "a hub's tokens over a network without TLS",
        "hub check hub.yaml --offline",
        "weft: hub.yaml:2: listen: tokens would cross the network in clear text to 0.0.0.0:0. Set `tls`, bind to "
        "127.0.0.1, or set `plain_http: allowed_beyond_loopback` behind a proxy with TLS",
        files=hub("store: store\nlisten: 0.0.0.0:0\nanonymous: never\n"),
        in_process=True,
    ),
    Mistake(
        "a hub's tokens over a network without TLS, allowed in words",
        "hub check hub.yaml --offline",
        "warning: hub.yaml:2: listen: the hub speaks plain HTTP: tokens cross the network in clear text to 0.0.0.0:0. "
        f"Set `tls`, or make sure that only a proxy with TLS reaches it\n{NO_TOKEN}",
        exit_status=0,
        files=hub("store: store\nlisten: 0.0.0.0:0\nanonymous: never\nplain_http: allowed_beyond_loopback\n"),
        in_process=True,
    ),
    Mistake(
        "a hub that sends edges to a URL without TLS",
        "hub check hub.yaml --offline",
        f"{NO_TOKEN}\nwarning: hub.yaml:4: advertise[0]: edges send their tokens in clear text to "
        "http://hub.example.com:8090. Use https",
        exit_status=0,
        files=hub("store: store\nlisten: 127.0.0.1:0\nanonymous: never\nadvertise: 'http://hub.example.com:8090'\n"),
        in_process=True,
    ),
]
