"""What a check says of listeners that strangers reach, and of secrets that others can read."""

from __future__ import annotations

from tests.weft.mistakes.mistake import QUIET, STREAM, Mistake, edge, hub

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
