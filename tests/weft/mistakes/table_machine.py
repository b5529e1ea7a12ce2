"""Mistakes in what a configuration names: on the machine, programs, schemas and pipelines."""

from __future__ import annotations

from tests.weft.mistakes.place import NODE, QUIET, STREAM, Mistake, edge, hub

# --- Mistakes in what a configuration names on the machine: files, folders, disks, ports, stores


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
        "weft: nowhere to new: the folder does not exist. Name the destination of `weft hub backup CONFIG --to URI`",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "a hub's store in place of its backup",
        "hub restore --from store --to new",
        "weft: store to new: this is a hub's store, not a backup. Name the destination of "
        "`weft hub backup CONFIG --to URI`",
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


# --- Mistakes of programs, which get JSON


PROGRAMS = [
    Mistake(
        "a wrong configuration",
        "edge query edge.yaml SELECT --json",
        '{"error":"edge.yaml:1: node: expected text (put it in quotes if it looks like a number, a date or '
        "yes/no), got 7\\nedge.yaml:1: data_dir: is missing. Folder of the node's "
        'log.","exit_status":2,"problems":[{"file":"edge.yaml","line":1,"setting":"node","message":"expected '
        "text (put it in quotes if it looks like a number, a date or yes/no), got "
        '7"},{"file":"edge.yaml","line":1,"setting":"data_dir","message":"is missing. Folder of the node\'s '
        'log."}]}',
        files=edge("node: 7\n"),
        in_process=True,
    ),
    Mistake(
        "a wrong configuration, asked for status",
        "edge status edge.yaml --json",
        '{"error":"edge.yaml:1: node: expected text (put it in quotes if it looks like a number, a date or '
        "yes/no), got "
        '7","exit_status":2,"problems":[{"file":"edge.yaml","line":1,"setting":"node","message":"expected '
        'text (put it in quotes if it looks like a number, a date or yes/no), got 7"}]}',
        files=edge("node: 7\ndata_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "an option that is none, for a program",
        "edge tail edge.yaml --jsno --json",
        '{"error":"No such option \'--jsno\'. Did you mean \'--json\'?","exit_status":2,"problems":[]}',
        files=edge(STREAM),
        in_process=True,
    ),
    Mistake(
        "SQL that is none, for a program",
        "edge query <node>/edge.yaml SELCT --json",
        '{"error":"near \\"SELCT\\": syntax error. Expected a SELECT, such as SELECT * FROM '
        'weft_streams","exit_status":2,"problems":[]}',
        in_process=True,
    ),
    Mistake(
        "a wrong configuration, checked for a program",
        "edge check edge.yaml --json",
        "{\n"
        '  "file": "edge.yaml",\n'
        '  "good": false,\n'
        '  "errors": [\n'
        "    {\n"
        '      "file": "edge.yaml",\n'
        '      "line": 1,\n'
        '      "setting": "node",\n'
        '      "message": "expected text (put it in quotes if it looks like a number, a date or yes/no), got '
        '7"\n'
        "    },\n"
        "    {\n"
        '      "file": "edge.yaml",\n'
        '      "line": 1,\n'
        '      "setting": "data_dir",\n'
        '      "message": "is missing. Folder of the node\'s log."\n'
        "    }\n"
        "  ],\n"
        '  "warnings": []\n'
        "}",
        files=edge("node: 7\n"),
        in_process=True,
    ),
    Mistake(
        "a node that does not run, for a program",
        "hub status hub.yaml --json",
        '{"error":"http://127.0.0.1:1/v1/status does not answer (Connection refused); is the hub '
        'running?","exit_status":1,"problems":[]}',
        exit_status=1,
        files=hub("store: store\nlisten: 127.0.0.1:1\n"),
        in_process=True,
    ),
    Mistake(
        "a stream that is none, for a program",
        "edge tail <node>/edge.yaml telemetri --json",
        '{"error":"there is no stream \'telemetri\'; streams: telemetry, unrouted","exit_status":2,"problems":[]}',
        in_process=True,
    ),
    Mistake(
        "a users file that is not there, for a program",
        "user list --file users --json",
        '{"error":"users: there is no such file. `weft user add` creates one","exit_status":1,"problems":[]}',
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "a token without a scope, for a program",
        "hub token add hub.yaml bi --json",
        '{"error":"a token has a scope, or grants. Give --scope, or --grant once or more","exit_status":2,'
        '"problems":[]}',
        in_process=True,
    ),
    Mistake(
        "a log that is not there, for a program",
        "log dump . --json",
        '{"error":". holds no log: expected the data_dir of a node that has run, or one of its .seg '
        'files","exit_status":1,"problems":[]}',
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "an audit of no store, for a program",
        "audit telemetry --store nowhere --json",
        '{"error":"--store nowhere: there is no such folder. Name a hub\'s `store`, or where it was copied '
        'to","exit_status":1,"problems":[]}',
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "a users file that is not there, checked for a program",
        "edge check edge.yaml --json",
        '{\n  "file": "edge.yaml",\n  "good": false,\n  "errors": [\n    {\n      "file": "edge.yaml",\n      '
        '"line": 7,\n      "setting": "auth.users_file",\n      "message": "<dir>/users: there is no such file. '
        '`weft user add NAME --file <dir>/users` creates one"\n    }\n  ],\n  "warnings": [],\n  "node": '
        '"press-shop-7",\n  "tenant": "default",\n  "streams": {\n    "telemetry": [\n      '
        '"plant/{line}/telemetry"\n    ]\n  },\n  "links": {},\n  "sources": {},\n  "certificates": {}\n}',
        files=edge(QUIET + "auth: {users_file: users}\n"),
        in_process=True,
    ),
    Mistake(
        "a port in use, checked for a program",
        "hub check hub.yaml --json",
        "{\n"
        '  "file": "hub.yaml",\n'
        '  "good": false,\n'
        '  "errors": [\n'
        "    {\n"
        '      "file": "hub.yaml",\n'
        '      "line": 2,\n'
        '      "setting": "listen",\n'
        '      "message": "cannot listen at 127.0.0.1:<busy>: address already in use. Choose '
        "another, or stop the program that has it (`ss -ltnp 'sport = :<busy>'`)\"\n"
        "    }\n"
        "  ],\n"
        '  "warnings": [],\n'
        '  "listen": "127.0.0.1:<busy>",\n'
        '  "store": "<dir>/store",\n'
        '  "kind": "a folder of this machine",\n'
        '  "shards": 16,\n'
        '  "processes": 1,\n  "certificates": {}\n'
        "}",
        files=hub("store: store\nlisten: 127.0.0.1:<busy>\nprocesses: 1\n"),
        in_process=True,
    ),
]


# --- Mistakes in the schemas that an edge checks payloads against, in its configuration and in files


TYPED = NODE + "streams:\n  telemetry:\n    from: plant/#\n"


def wrong(did: str, setting: str, message: str, **files: str | bytes) -> Mistake:
    """A stream with a setting in line 6."""
    text = f"{TYPED}    {setting}\n"
    return Mistake(
        did, "edge check edge.yaml", f"weft: edge.yaml:{message}", files=edge(text, **files), in_process=True
    )


def wrong_file(did: str, file: str, content: str | bytes, message: str) -> Mistake:
    """A file of a schema."""
    text = f"6: streams.telemetry.schema.file: {message}"
    return wrong(did, f"schema: {file}", text, **{file: content})


FILE, AT = "<dir>/schema.yaml", "streams.telemetry"
SCHEMAS = [
    wrong(
        "a file of a schema that is not there",
        "schema: schema.yaml",
        f"6: {AT}.schema.file: {FILE}: it cannot be read: no such file or directory",
    ),
    wrong_file(
        "a type in a file of a schema",
        "schema.yaml",
        "fields:\n  temperature: double\n",
        f"{FILE}:2: fields.temperature: expected a type such as float, int, string, timestamp(ms) or array<float>, got "
        '"double". Did you mean float?',
    ),
    wrong_file(
        "two mistakes in a file of a schema",
        "schema.yaml",
        "fields:\n  a: flot\n  b: {typ: int}\n",
        f'{FILE}:2: fields.a: expected a type such as float, int, string, timestamp(ms) or array<float>, got "flot". '
        "Did you mean float? (and 1 more)",
    ),
    wrong_file(
        "a file that is no YAML",
        "schema.yaml",
        "fields: {a: float\n",
        f"{FILE}:1: a bracket that opens here is not closed, or a comma is missing after an entry",
    ),
    wrong_file(
        "a JSON Schema without a field",
        "schema.json",
        '{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}',
        "<dir>/schema.json: it has no field that can be a column",
    ),
    wrong_file(
        "a schema of Avro with a type that there is not",
        "schema.avsc",
        '{"type": "record", "name": "R", "fields": [{"name": "t", "type": "real"}]}',
        "<dir>/schema.avsc: there is no type 'real' of Avro, and none before it has this name",
    ),
    wrong_file(
        "a descriptor set that is none",
        "schema.desc",
        b"\xff\xff\xff",
        "<dir>/schema.desc: the descriptor set ends within a field: it is damaged, or none",
    ),
    wrong_file(
        "a descriptor set under another name",
        "schema.bin",
        b"\x0a\xff\xfe",
        "<dir>/schema.bin: it is not UTF-8 text, and its name has no end of a descriptor set (.desc, .pb, .binpb, "
        ".protoset)",
    ),
    wrong(
        "fields beside a file",
        "schema: {file: schema.yaml, fields: {a: int}}",
        f"6: {AT}.schema.file: the file has format and fields of its own: remove the others here, or `file`",
        **{"schema.yaml": "fields: {a: int}"},
    ),
    wrong(
        "a schema without fields",
        "schema: {format: json}",
        f"6: {AT}.schema: has no fields: set `fields`, such as `{{temperature: float}}`, or `file`",
    ),
    wrong(
        "a schema of Avro without its definition",
        "schema: {format: avro, fields: {a: int}}",
        f"6: {AT}.schema.format: payloads of format avro can only be read with `definition`: set it",
    ),
    wrong(
        "one array twice",
        "schema: {fields: {a: array<int>, b: {type: array<float>, from: a}}}",
        f"6: {AT}.schema.fields.b: is the same array as a, and a node looks at each array once. Remove one of the two",
    ),
    wrong(
        "misfits without a schema",
        "on_misfit: refuse",
        f"6: {AT}.on_misfit: is for a stream with a `schema`: declare one, or remove this setting",
    ),
    wrong(
        "an outcome that there is not",
        "on_misfit: drop",
        f'6: {AT}.on_misfit: expected accept or dead_letter or refuse, got "drop"',
    ),
    Mistake(
        "a schema of a stream with functions",
        "edge check edge.yaml",
        f"weft: edge.yaml:6: {AT}.schema: is for a stream without `functions`: what these make of a message is not "
        "checked. Keep the messages in a stream of their own with this schema, and derive this one from it "
        "(`from_stream`)",
        files=edge(f"{TYPED}    schema: {{fields: {{a: int}}}}\n    functions: [where: a > 1]\n"),
        in_process=True,
    ),
    Mistake(
        "a schema of a derived stream",
        "edge check edge.yaml",
        "weft: edge.yaml:6: streams.hot.schema: is for a stream with `from`: the messages that clients publish are "
        "checked. Move it there",
        files=edge(
            f"{TYPED}  hot: {{from_stream: telemetry, functions: [where: a > 1], schema: {{fields: {{a: int}}}}}}\n"
        ),
        in_process=True,
    ),
    Mistake(
        "a schema in another format than the payload",
        "edge check edge.yaml",
        f"weft: edge.yaml:7: {AT}.schema.format: is json, and the stream's `payload` is cbor. Set both to the same "
        "format",
        files=edge(f"{TYPED}    payload: cbor\n    schema: {{fields: {{a: int}}}}\n"),
        in_process=True,
    ),
    Mistake(
        "records of its own for a stream of dead letters",
        "edge check edge.yaml",
        "weft: edge.yaml:8: streams.telemetry-errors: is the stream of the errors of telemetry: it may have "
        "`retain` and `replicate`, and accepts no other records. Choose another name for a stream with other records",
        files=edge(
            f"{TYPED}    schema: {{fields: {{a: int}}}}\n    on_misfit: dead_letter\n"
            "  telemetry-errors: {from: errors/#}\n"
        ),
        in_process=True,
    ),
]


# --- Mistakes with pipelines, which are found before Spark starts; what Spark finds is in tests/spark_sinks/pipelines


TABLE_PIPELINES_FILE = "warm.yaml"
SOURCE = "name: warm\nsource: {store: store, stream: telemetry}\n"
CONSOLE = "sink: {console: {}}\n"


def pipeline(did: str, text: str, message: str, command: str = f"spark check {TABLE_PIPELINES_FILE}") -> Mistake:
    """A pipeline that is wrong as it is written."""
    return Mistake(did, command, message, files={TABLE_PIPELINES_FILE: text}, in_process=True, needs="<spark>")


PIPELINES = [
    Mistake(
        "a pipeline that is not there",
        "spark run nowhere.yaml",
        "weft: nowhere.yaml: there is no such file",
        in_process=True,
        needs="<spark>",
    ),
    Mistake(
        "a shipped pipeline's name misspelt",
        "spark run machine-hour",
        "weft: there is no shipped pipeline 'machine-hour'. Did you mean machine-hours?; there is no file "
        "machine-hour either",
        in_process=True,
        needs="<spark>",
    ),
    Mistake(
        "a shipped pipeline that is none, to be changed",
        "spark new x",
        "weft: there is no shipped pipeline 'x'. Shipped are anomalies, clean, features, machine-hours, "
        "sessions, tables",
        in_process=True,
        needs="<spark>",
    ),
    pipeline(
        "a bracket of a pipeline that is not closed",
        "name: warm\nsource: {store: store, stream: telemetry\n" + CONSOLE,
        "weft: warm.yaml:2: a bracket that opens here is not closed, or a comma is missing after an entry",
    ),
    pipeline(
        "a setting of a source misspelt",
        "name: warm\nsource: {store: store, strem: telemetry}\n" + CONSOLE,
        "weft: warm.yaml:2: source.strem: is not a setting. Did you mean stream?",
    ),
    pipeline(
        "a step of a kind that is none",
        SOURCE + "steps: [{sqll: SELECT 1}]\n" + CONSOLE,
        "weft: warm.yaml:3: steps[0].sqll: is not a setting. Did you mean sql?",
    ),
    pipeline(
        "a pipeline without a sink",
        SOURCE,
        "weft: warm.yaml:1: sink: is missing. Place of the rows that come out of the last step.",
    ),
    pipeline(
        "a sink that is none",
        SOURCE + "sink: {dleta: table}\n",
        "weft: warm.yaml:3: sink.dleta: is not a sink. Did you mean delta?",
    ),
    pipeline(
        "two sinks",
        SOURCE + "sink: {console: {}, delta: t}\n",
        "weft: warm.yaml:3: sink: expected one sink, got console and delta",
    ),
    pipeline(
        "a table without a checkpoint",
        SOURCE + "sink: {delta: t}\n",
        "weft: warm.yaml: checkpoint: is missing, and a sink of kind delta needs one. Name a folder for it",
    ),
    pipeline(
        "a hub's address without a scheme",
        SOURCE + "sink: {stream: {hub: 'hub:8090', stream: a}}\ncheckpoint: c\n",
        'weft: warm.yaml:3: sink.stream.hub: expected a URL such as https://hub.example.com, got "hub:8090"',
    ),
    pipeline(
        "a store of a pipeline of a kind that is none",
        "name: warm\nsource: {store: 'ftp://x/y', stream: telemetry}\n" + CONSOLE,
        "weft: warm.yaml:2: source.store: expected a folder, s3://bucket/prefix, gs://bucket/prefix or "
        'az://container/prefix; got "ftp://x/y"',
    ),
    pipeline(
        "a trigger in words",
        SOURCE + CONSOLE + "trigger: soon\n",
        'weft: warm.yaml:4: trigger: expected a duration such as 10s or 1m, or available_now, got "soon"',
    ),
    pipeline(
        "a setting of a pipeline without a value",
        SOURCE + CONSOLE,
        'weft: --set: expected NAME=VALUE such as source.store=/data/hub, got "trigger"',
        f"spark run {TABLE_PIPELINES_FILE} --set trigger",
    ),
    pipeline(
        "a setting of Spark without a value",
        SOURCE + CONSOLE,
        "weft: --conf: expected NAME=VALUE such as spark.executor.memory=2g, got 'memory'",
        f"spark run {TABLE_PIPELINES_FILE} --conf memory",
    ),
]
