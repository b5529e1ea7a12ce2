"""Mistakes in what a configuration names on the machine: files, folders, certificates, disks, ports, stores."""

from __future__ import annotations

from tests.weft.mistakes.mistake import NODE, QUIET, STREAM, Mistake, edge, hub

MACHINE = [
    Mistake(
        "a configuration that is not there",
        "edge run nowhere.yaml",
        "weft: nowhere.yaml: there is no such file",
    ),
    Mistake(
        "a folder in place of the configuration",
        "edge run .",
        "weft: .: this is a folder. Name a file",
    ),
    Mistake(
        "a configuration that the user may not read",
        "edge check edge.yaml",
        "weft: edge.yaml: user <user> may not read it: it belongs to user <user> (mode 000). Change its mode: "
        "`chmod u+rwX <dir>/edge.yaml`",
        files={"edge.yaml@0000": STREAM},
    ),
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
        "warning: edge.yaml:7: auth.users_file: every user of this machine may read <dir>/users (mode 755). "
        "Run `chmod o-rwx <dir>/users`\n"
        "weft: edge.yaml:7: auth.users_file: <dir>/users: this is a folder. Name a file",
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
        "weft: edge.yaml:7: auth.acl_file: <dir>/acl:1: expected `user NAME`, `topic ...`, `pattern ...` or "
        "a comment, got 'usr anna'",
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
        "weft: edge.yaml:7: auth.acl_file: <dir>/acl:1: topic filter 'plant/#/x': '#' must stand alone on "
        "the last level [MQTT-4.7.1-2]",
        exit_status=1,
        files=edge(QUIET + "auth: {acl_file: acl}\n", acl="topic read plant/#/x\n"),
    ),
    Mistake(
        "access rules that are not there",
        "edge check edge.yaml",
        "weft: edge.yaml:7: auth.acl_file: <dir>/acl: there is no such file",
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
        "that `weft token create` printed on the hub",
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
        "words. Leave the token alone there",
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
        "http://hub.example.com. Use https",
        exit_status=0,
        files=edge(QUIET + "links: {cloud: {to: 'http://hub.example.com', token_file: token}}\n", token="abc\n"),
        in_process=True,
    ),
    Mistake(
        "no token for a hub on another machine",
        "edge check edge.yaml",
        "warning: edge.yaml:7: links.cloud.token_file: is missing: hubs that other machines reach require a "
        "token. `weft token create` creates one there",
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
        "a certificate that is not there",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/no.crt: there is no such file",
        files=edge(
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: no.crt, key: good.key}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
            **{"good.key": "<good.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a key that is not there, run",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/no.key: there is no such file",
        exit_status=1,
        files=edge(
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: good.crt, key: no.key}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
            **{"good.crt": "<good.crt>"},
        ),
    ),
    Mistake(
        "the key of another certificate",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/other.key is not the key of <dir>/good.crt: they do not "
        "belong together. Name a matching pair",
        files=edge(
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: good.crt, key: other.key}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
            **{"good.crt": "<good.crt>", "other.key": "<other.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "certificate and key the wrong way round",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/good.key is no certificate in PEM, or <dir>/good.crt "
        "no key. Name the certificate with its chain, and its key",
        files=edge(
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: good.key, key: good.crt}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
            **{"good.crt": "<good.crt>", "good.key": "<good.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "an encrypted key",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/encrypted.key is encrypted, and the node cannot ask for "
        "the password. Decrypt the key (`openssl pkey`)",
        files=edge(
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: good.crt, key: encrypted.key}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
            **{"good.crt": "<good.crt>", "encrypted.key": "<encrypted.key>"},
        ),
        in_process=True,
    ),
    Mistake(
        "a certificate that has expired",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls.certificate: clients refuse <dir>/expired.crt: certificate "
        "has expired. Renew it",
        files=edge(
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: expired.crt, key: expired.key}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
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
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: good.crt, key: good.key}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
            **{"good.crt": "<good.crt>", "good.key": "<good.key>"},
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
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: long.crt, key: long.key}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
            **{"long.crt": "<long.crt>", "long.key@0644": "<long.key>"},
        ),
    ),
    Mistake(
        "an authority that is no certificate",
        "edge check edge.yaml",
        "weft: edge.yaml:7: listeners.mqtts.tls: <dir>/ca.pem holds no certificate in PEM. Name the "
        "authorities' PEM file",
        files=edge(
            NODE
            + (
                "http: null\n"
                "listeners:\n"
                "  mqtts:\n"
                "    bind: 127.0.0.1:0\n"
                "    tls: {certificate: good.crt, key: good.key, client_ca: ca.pem}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 64MiB}\n"
            ),
            **{"good.crt": "<good.crt>", "good.key": "<good.key>", "ca.pem": "none\n"},
        ),
        in_process=True,
    ),
    Mistake(
        "a data_dir that is a file",
        "edge check edge.yaml",
        "weft: edge.yaml:2: data_dir: <dir>/data is not a folder. Name a folder, or move that file away",
        files=edge(QUIET, data="x"),
        in_process=True,
    ),
    Mistake(
        "a data_dir that is a file, run",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:2: data_dir: <dir>/data is not a folder. Name a folder, or move that file away",
        exit_status=1,
        files=edge(QUIET, data="x"),
    ),
    Mistake(
        "a data_dir of another user",
        "edge check edge.yaml",
        "weft: edge.yaml:2: data_dir: user <user> may not create it in /var/lib. Run this as the node's user, or "
        "create the folder: `sudo install -d -o <user> -m 750 /var/lib/weft-of-another`",
        files=edge(
            "node: press-shop-7\n"
            "data_dir: /var/lib/weft-of-another\n"
            'streams: {telemetry: {from: "plant/{line}/telemetry", retain: {time: 1d}}}\n'
            "disk: {budget: 64MiB}\n"
            "http: null\n"
            "listeners: {mqtt: null}\n"
        ),
    ),
    Mistake(
        "a data_dir that may not be written",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:2: data_dir: user <user> may not write to it: it belongs to user <user> (mode 500). "
        "Change its mode: `chmod u+rwX <dir>/data`",
        exit_status=1,
        files=edge(QUIET, **{"data/@0500": ""}),
    ),
    Mistake(
        "a data_dir on a read-only file system",
        "edge check edge.yaml",
        "weft: edge.yaml:2: data_dir: <readonly> is on a read-only file system. Name a folder on another, or "
        "mount it writable",
        files=edge(
            "node: press-shop-7\n"
            "data_dir: <readonly>/weft\n"
            'streams: {telemetry: {from: "plant/{line}/telemetry", retain: {time: 1d}}}\n'
            "disk: {budget: 64MiB}\n"
            "http: null\n"
            "listeners: {mqtt: null}\n"
        ),
        needs="<readonly>",
    ),
    Mistake(
        "a budget beyond the disk",
        "edge check edge.yaml",
        "weft: edge.yaml:6: disk.budget: 900TiB is more than the disk of <dir>/data holds (<disk>). Set a smaller size",
        files=edge(
            NODE
            + (
                "http: null\n"
                "listeners: {mqtt: null}\n"
                "streams: {telemetry: {from: x, retain: {time: 1d}}}\n"
                "disk: {budget: 900TiB}\n"
            )
        ),
        in_process=True,
    ),
    Mistake(
        "no streams",
        "edge check edge.yaml",
        "warning: edge.yaml:1: streams: there are none, so no table gets a message. Add one, such as `telemetry: "
        '{from: "#"}`',
        exit_status=0,
        files=edge(NODE + "http: null\nlisteners: {mqtt: null}\ndisk: {budget: 64MiB}\n"),
        in_process=True,
    ),
    Mistake(
        "a stream that no link carries",
        "edge check edge.yaml",
        "warning: edge.yaml: no link carries raw: its records are never deleted. Once they fill "
        "disk.budget (64MiB), devices get no acknowledgements, whatever the stream. Give it a link, `retain` "
        "or `when_full: drop_oldest`",
        exit_status=0,
        files=edge(NODE + ("http: null\nlisteners: {mqtt: null}\nstreams: {raw: {from: x}}\ndisk: {budget: 64MiB}\n")),
        in_process=True,
    ),
    Mistake(
        "the MQTT port in use, checked",
        "edge check edge.yaml",
        "weft: edge.yaml:6: listeners.plant.bind: cannot listen at 127.0.0.1:<busy>: address "
        "already in use. Choose another, or stop the program that has it (`ss -ltnp 'sport = "
        ":<busy>'`)",
        files=edge(STREAM + "http: null\nlisteners: {plant: {bind: '127.0.0.1:<busy>'}}\n"),
        in_process=True,
    ),
    Mistake(
        "the MQTT port in use, run",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:6: listeners.plant.bind: cannot listen at 127.0.0.1:<busy>: address "
        "already in use. Choose another, or stop the program that has it (`ss -ltnp 'sport = "
        ":<busy>'`)",
        exit_status=1,
        files=edge(STREAM + "http: null\nlisteners: {plant: {bind: '127.0.0.1:<busy>'}}\n"),
    ),
    Mistake(
        "the port of the status page in use",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:5: http.bind: cannot listen at 127.0.0.1:<busy>: address already in use. "
        "Choose another, or stop the program that has it (`ss -ltnp 'sport = :<busy>'`)",
        exit_status=1,
        files=edge(STREAM + "http: {bind: '127.0.0.1:<busy>'}\nlisteners: {mqtt: null}\n"),
    ),
    Mistake(
        "a port below 1024 without rights",
        "edge check edge.yaml",
        "weft: edge.yaml:6: listeners.mqtt.bind: user <user> may not listen at 127.0.0.1:<low>: ports below 1024 "
        "are reserved for root. Choose a higher port, or give the service CAP_NET_BIND_SERVICE",
        files=edge(STREAM + "http: null\nlisteners: {mqtt: {bind: '127.0.0.1:<low>'}}\n"),
        needs="<low>",
    ),
    Mistake(
        "an address of another machine",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:6: listeners.mqtt.bind: 192.0.2.7:1883 is not an address of this machine. `ip address` "
        "lists its addresses; 0.0.0.0 means all of them",
        exit_status=1,
        files=edge(
            STREAM + ("http: null\nlisteners: {mqtt: {bind: '192.0.2.7:1883', anonymous: allowed_beyond_loopback}}\n")
        ),
    ),
    Mistake(
        "a name that no machine has",
        "edge check edge.yaml",
        "warning: edge.yaml: listeners.mqtt: every program that reaches nowhere.invalid:1883 may publish and read "
        "every topic. Set auth.users_file with `anonymous: never`, unless you trust that network\n"
        "weft: edge.yaml:6: listeners.mqtt.bind: the name in nowhere.invalid:1883 cannot be resolved. Write "
        "an address of this machine, or 0.0.0.0 for all",
        files=edge(
            STREAM
            + ("http: null\nlisteners: {mqtt: {bind: 'nowhere.invalid:1883', anonymous: allowed_beyond_loopback}}\n")
        ),
        in_process=True,
    ),
    Mistake(
        "a unix socket in a folder that is not there",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:6: listeners.mqtt.bind: the folder of unix:<dir>/run/mqtt.sock does not exist. Create "
        "it, or choose another path",
        exit_status=1,
        files=edge(STREAM + "http: null\nlisteners: {mqtt: {bind: 'unix:run/mqtt.sock'}}\n"),
    ),
    Mistake(
        "a second node with the data_dir of one that runs",
        "edge run edge.yaml --log-level error",
        "weft: edge.yaml:2: data_dir: <node>/data is in use by another process. Stop the node that runs with "
        "it, or name another folder",
        exit_status=1,
        files=edge(
            "node: press-shop-7\n"
            "data_dir: <node>/data\n"
            'streams: {telemetry: {from: "plant/{line}/telemetry", retain: {time: 1d}}}\n'
            "disk: {budget: 64MiB}\n"
            "http: null\n"
            "listeners: {mqtt: null}\n"
        ),
    ),
    Mistake(
        "a check while the node runs",
        "edge check <node>/edge.yaml",
        "warning: <node>/edge.yaml:2: data_dir: a node runs with <node>/data, so its ports were not tried",
        exit_status=0,
        in_process=True,
    ),
    Mistake(
        "a hub's tokens file that is not there",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:3: tokens_file: <dir>/tokens: there is no such file. `weft token create NAME --file "
        "<dir>/tokens ...` creates one",
        exit_status=1,
        files=hub("store: store\nlisten: 127.0.0.1:0\ntokens_file: tokens\n"),
    ),
    Mistake(
        "a hub's tokens file that is not YAML",
        "hub check hub.yaml",
        "weft: hub.yaml:3: tokens_file: <dir>/tokens:1: a bracket that opens here is not closed, or a comma "
        "is missing after an entry",
        files=hub("store: store\nlisten: 127.0.0.1:0\ntokens_file: tokens\n", tokens="tokens: [1\n"),
        in_process=True,
    ),
    Mistake(
        "a token in the hub's tokens file",
        "hub check hub.yaml",
        "weft: hub.yaml:3: tokens_file: <dir>/tokens is not a tokens file (Expected object, got str). Restore "
        "it, or name a file that `weft token create` made",
        files=hub("store: store\nlisten: 127.0.0.1:0\ntokens_file: tokens\n", tokens="abc\n"),
        in_process=True,
    ),
    Mistake(
        "a hub's tokens file without tokens",
        "hub check hub.yaml",
        "warning: hub.yaml:3: tokens_file: <dir>/tokens holds no token, so the hub refuses every request. `weft "
        "token create` adds one",
        exit_status=0,
        files=hub("store: store\nlisten: 127.0.0.1:0\ntokens_file: tokens\n", tokens="tokens: []\n"),
        in_process=True,
    ),
    Mistake(
        "a store that is a file",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:1: store: <dir>/store is not a folder. Name a folder, or move that file away",
        exit_status=1,
        files=hub("store: store\nlisten: 127.0.0.1:0\n", store="x"),
    ),
    Mistake(
        "a store in a folder of another user",
        "hub check hub.yaml",
        "weft: hub.yaml:1: store: user <user> may not create it in /var/lib. Run this as the node's user, or "
        "create the folder: `sudo install -d -o <user> -m 750 /var/lib/weft-of-another`",
        files=hub("store: /var/lib/weft-of-another\nlisten: 127.0.0.1:0\n"),
    ),
    Mistake(
        "another number of shards, checked",
        "hub check hub.yaml",
        "weft: hub.yaml:1: store: the store was made with 4 shards, the configuration says 8; the number "
        "cannot change: set shards to 4",
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\nshards: 8\n",
            **{
                "store/cluster.json": (
                    '{"format":1,"cluster_id":"00112233445566778899aabbccddeeff","shards":4,"placement":"tenant-edge"}'
                )
            },
        ),
        in_process=True,
    ),
    Mistake(
        "another number of shards, run",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:1: store: the store was made with 4 shards, the configuration says 8; the number "
        "cannot change: set shards to 4",
        exit_status=1,
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\nshards: 8\n",
            **{
                "store/cluster.json": (
                    '{"format":1,"cluster_id":"00112233445566778899aabbccddeeff","shards":4,"placement":"tenant-edge"}'
                )
            },
        ),
    ),
    Mistake(
        "a store of a later release",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:1: store: the store has format 9, this release knows 1: use a newer release",
        exit_status=1,
        files=hub("store: store\nlisten: 127.0.0.1:0\n", **{"store/cluster.json": '{"format":9}'}),
    ),
    Mistake(
        "the hub's port in use",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:2: listen: cannot listen at 127.0.0.1:<busy>: address already in use. "
        "Choose another, or stop the program that has it (`ss -ltnp 'sport = :<busy>'`)",
        exit_status=1,
        files=hub("store: store\nlisten: 127.0.0.1:<busy>\nprocesses: 1\n"),
    ),
    Mistake(
        "a bucket that does not answer",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:1: store: probe/<key>/object: "
        "GET http://127.0.0.1:1/weft-mistakes/x/probe/<key>/object failed: HTTP error: error sending request. "
        "Check the store's address, AWS_ENDPOINT_URL and the credentials in the environment",
        exit_status=1,
        files=hub("store: s3://weft-mistakes/x\nlisten: 127.0.0.1:0\n"),
    ),
    Mistake(
        "the hub's port in use, checked",
        "hub check hub.yaml",
        "weft: hub.yaml:2: listen: cannot listen at 127.0.0.1:<busy>: address already in use. "
        "Choose another, or stop the program that has it (`ss -ltnp 'sport = :<busy>'`)",
        files=hub("store: store\nlisten: 127.0.0.1:<busy>\nprocesses: 1\n"),
        in_process=True,
    ),
]
