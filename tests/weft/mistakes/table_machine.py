"""Mistakes in what a configuration names on the machine: files, folders, disks, ports, stores."""

from __future__ import annotations

from tests.weft.mistakes.mistake import NODE, QUIET, STREAM, Mistake, edge, hub

MACHINE = [
    Mistake("a configuration that is not there", "edge run nowhere.yaml", "weft: nowhere.yaml: there is no such file"),
    Mistake("a folder in place of the configuration", "edge run .", "weft: .: this is a folder. Name a file"),
    Mistake(
        "a configuration that the user may not read",
        "edge check edge.yaml",
        "weft: edge.yaml: user <user> may not read it: it belongs to user <user> (mode 000). Change its mode: "
        "`chmod u+rwX <dir>/edge.yaml`",
        files={"edge.yaml@0000": STREAM},
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
        "warning: edge.yaml: streams: there are none, so no table gets a message. Add one, such as `telemetry: "
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
        "weft: edge.yaml:6: listeners.mqtt.bind: the name in nowhere.invalid:1883 cannot be resolved. Write "
        "an address of this machine, or 0.0.0.0 for all\n"
        "warning: edge.yaml: listeners.mqtt: every program that reaches nowhere.invalid:1883 may publish and read "
        "every topic. Set auth.users_file with `anonymous: never`, unless you trust that network",
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
        "weft: hub.yaml:1: store: the store was made with 4 shards, the configuration has 8; the number "
        "cannot change: set shards to 4, or leave it out",
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\nshards: 8\n",
            **{
                "store/cluster.json": (
                    '{"format":1,"cluster_id":"00112233445566778899aabbccddeeff","shards":4,"placement":"tenant-edge","level":4}'
                )
            },
        ),
        in_process=True,
    ),
    Mistake(
        "another number of shards, run",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:1: store: the store was made with 4 shards, the configuration has 8; the number "
        "cannot change: set shards to 4, or leave it out",
        exit_status=1,
        files=hub(
            "store: store\nlisten: 127.0.0.1:0\nshards: 8\n",
            **{
                "store/cluster.json": (
                    '{"format":1,"cluster_id":"00112233445566778899aabbccddeeff","shards":4,"placement":"tenant-edge","level":4}'
                )
            },
        ),
    ),
    Mistake(
        "a store of a later release",
        "hub run hub.yaml --log-level error",
        "weft: hub.yaml:1: store: the store was written by a later release of Weft (format 9; this one knows 1): "
        "install that release again",
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
        "weft: hub.yaml:1: store: cluster.json: "
        "GET http://127.0.0.1:1/weft-mistakes/x/cluster.json failed: connection refused, "
        "so nothing listens there (the address is from AWS_ENDPOINT_URL). "
        "Check the store's address, its endpoint and the credentials in the environment",
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
    Mistake(
        "a backup in a folder that is not there",
        "hub restore --from nowhere --to new",
        "weft: nowhere to new: the folder does not exist. Name the destination of `weft hub backup --to`",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "a hub's store in place of its backup",
        "hub restore --from store --to new",
        "weft: store to new: this is a hub's store, not a backup. Name the destination of `weft hub backup --to`",
        exit_status=1,
        files={"store/cluster.json": "{}"},
        in_process=True,
    ),
    Mistake(
        "a store within the backup that it is restored from",
        "hub restore --from backup --to backup/store",
        "weft: backup to backup/store: the new store would be inside the backup: name another place",
        exit_status=1,
        files={"backup/backup.json": "{}"},
        in_process=True,
    ),
]
