"""Mistakes in YAML, in settings, and with the command line itself."""

from __future__ import annotations

from tests.weft.mistakes.place import NODE, STREAM, Mistake, edge, hub

# --- Mistakes in YAML and in the file as such


YAML = [
    Mistake(
        "indented with a tab",
        "edge check edge.yaml",
        "weft: edge.yaml:4: a tab is used for indentation. Replace it with spaces: YAML allows no tabs there",
        files=edge("node: a\ndata_dir: data\nstreams:\n\ttelemetry: {from: x}\n"),
        in_process=True,
    ),
    Mistake(
        "braces without quotes at the beginning of a topic",
        "edge check edge.yaml",
        'weft: edge.yaml:5: a value that begins with { needs quotes. Write "{line}/telemetry"',
        files=edge(NODE + "streams:\n  telemetry:\n    from: {line}/telemetry\n"),
        in_process=True,
    ),
    Mistake(
        "a level in braces alone, without quotes",
        "edge check edge.yaml",
        'weft: edge.yaml:5: streams.telemetry.from: expected an MQTT filter such as "plant/{line}/#", or a '
        'list of them, got a mapping. Write quotes: "{line}"',
        files=edge(NODE + "streams:\n  telemetry:\n    from: {line}\n"),
        in_process=True,
    ),
    Mistake(
        "braces without quotes in a section on one line",
        "edge check edge.yaml",
        'weft: edge.yaml:3: a value that begins with { needs quotes. Write "{line}/x"',
        files=edge(NODE + "streams: {telemetry: {from: {line}/x}}\n"),
        in_process=True,
    ),
    Mistake(
        "a percent sign without quotes",
        "edge check edge.yaml",
        'weft: edge.yaml:4: a value that begins with % needs quotes. Write "%u/x"',
        files=edge(NODE + "streams:\n  telemetry: {from: %u/x}\n"),
        in_process=True,
    ),
    Mistake(
        "an at sign without quotes",
        "edge check edge.yaml",
        'weft: edge.yaml:5: a value that begins with @ needs quotes. Write "@plant/x"',
        files=edge(NODE + "streams:\n  telemetry:\n    from: @plant/x\n"),
        in_process=True,
    ),
    Mistake(
        "a filter that begins with a star",
        "edge check edge.yaml",
        'weft: edge.yaml:5: a value that begins with * needs quotes. Write "*/telemetry"',
        files=edge(NODE + "streams:\n  telemetry:\n    from: */telemetry\n"),
        in_process=True,
    ),
    Mistake(
        "a filter # without quotes, which is a comment",
        "edge check edge.yaml",
        'weft: edge.yaml:5: streams.telemetry.from: expected an MQTT filter such as "plant/{line}/#", or a '
        "list of them, got nothing. A # begins a comment: a value with it needs quotes",
        files=edge(NODE + "streams:\n  telemetry:\n    from: #\n"),
        in_process=True,
    ),
    Mistake(
        "a key twice",
        "edge check edge.yaml",
        "weft: edge.yaml:4: tenant: is given twice, first in line 3: keep one",
        files=edge(NODE + "tenant: a\ntenant: b\n"),
        in_process=True,
    ),
    Mistake(
        "a setting indented too deep",
        "edge check edge.yaml",
        "weft: edge.yaml:2: the indentation does not fit the lines above. Settings of one section begin in "
        "the same column",
        files=edge("node: a\n  data_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "a setting indented too little",
        "edge check edge.yaml",
        "weft: edge.yaml:5: the indentation does not fit the lines above. Settings of one section begin in "
        "the same column",
        files=edge(NODE + "disk:\n    budget: 1GiB\n  segment: 8MiB\n"),
        in_process=True,
    ),
    Mistake(
        "no space after a colon",
        "edge check edge.yaml",
        'weft: edge.yaml:1: a space is missing after the colon of "node:a"',
        files=edge("node:a\ndata_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "no colon",
        "edge check edge.yaml",
        'weft: edge.yaml:2: expected `name: value`, with a space after the colon, got "data_dir"',
        files=edge("node: a\ndata_dir\nstreams: {}\n"),
        in_process=True,
    ),
    Mistake(
        "a quote that is not closed",
        "edge check edge.yaml",
        "weft: edge.yaml:4: a quote that begins here is not closed",
        files=edge(NODE + 'streams:\n  telemetry: {from: "plant/#}\n'),
        in_process=True,
    ),
    Mistake(
        "a bracket that is not closed",
        "edge check edge.yaml",
        "weft: edge.yaml:4: a bracket that opens here is not closed, or a comma is missing after an entry",
        files=edge(NODE + "streams:\n  telemetry: {from: [a, b}\n"),
        in_process=True,
    ),
    Mistake(
        "a colon inside of a value",
        "edge check edge.yaml",
        "weft: edge.yaml:1: a value with a colon and a space needs quotes",
        files=edge("node: press: 7\ndata_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "text behind a quoted value",
        "edge check edge.yaml",
        "weft: edge.yaml:5: text follows after a quoted value. Put all of the value in one pair of quotes",
        files=edge(NODE + 'streams:\n  telemetry:\n    from: "plant"/#\n'),
        in_process=True,
    ),
    Mistake(
        "a Windows path in double quotes",
        "edge check edge.yaml",
        "weft: edge.yaml:2: a backslash in double quotes begins an escape. Use single quotes",
        files=edge('node: a\ndata_dir: "C:\\weft\\data"\n'),
        in_process=True,
    ),
    Mistake(
        "two documents in a file",
        "edge check edge.yaml",
        "weft: edge.yaml:3: a second document begins here. One file holds one configuration: delete the `---`",
        files=edge(NODE + "---\nnode: b\n"),
        in_process=True,
    ),
    Mistake(
        "an empty file",
        "edge check edge.yaml",
        "weft: edge.yaml: expected settings, got an empty file. Write settings into it, or name another file",
        files=edge(""),
        in_process=True,
    ),
    Mistake(
        "a file with comments alone",
        "edge check edge.yaml",
        "weft: edge.yaml: expected settings, got an empty file. Write settings into it, or name another file",
        files=edge("# node: a\n# data_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "a file that is not UTF-8",
        "edge check edge.yaml",
        "weft: edge.yaml:1: expected UTF-8 text, got byte 0xe9. Save the file as UTF-8",
        files=edge(b"node: pr\xe9s-7\ndata_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "a file saved as UTF-16",
        "edge check edge.yaml",
        "weft: edge.yaml:1: this is UTF-16 text. Save the file as UTF-8",
        files=edge(NODE.encode("utf-16")),
        in_process=True,
    ),
    Mistake(
        "a file saved with a byte order mark and a bad name",
        "edge check edge.yaml",
        "weft: edge.yaml:1: node: expected a name (lower-case letters, digits, '-' and '_', at most 64, "
        'starting with a letter or digit), got "A"',
        files=edge(b"\xef\xbb\xbfnode: A\ndata_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "a program in place of the configuration",
        "edge check edge.yaml",
        "weft: edge.yaml:1: the character U+007F is not allowed in YAML. Delete it",
        files=edge(
            b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
        ),
        in_process=True,
    ),
    Mistake(
        "a log of two megabytes in place of the configuration",
        "edge check edge.yaml",
        "weft: edge.yaml: expected a configuration of at most 1048576 bytes. Name a configuration file",
        files=edge("x" * 2097152),
        in_process=True,
    ),
    Mistake(
        "a list in place of settings",
        "edge check edge.yaml",
        "weft: edge.yaml:1: expected keys and values (node, data_dir, tenant, listeners, auth, http, encryption, disk, "
        "commit_interval, streams, functions_signed_by, unrouted, links, pair and 6 more), got a list",
        files=edge("- node: a\n- data_dir: data\n"),
        in_process=True,
    ),
]


# --- Mistakes in settings: values, units, names, sections


SETTINGS = [
    Mistake(
        "a size with its unit in lower case",
        "edge check edge.yaml",
        'weft: edge.yaml:3: disk.budget: expected a size such as 64KiB, 16MiB or 2GiB, got "64mib". Did you '
        "mean 64MiB?",
        files=edge(NODE + "disk: {budget: 64mib}\n"),
        in_process=True,
    ),
    Mistake(
        "a size without its unit",
        "edge check edge.yaml",
        'weft: edge.yaml:3: disk.budget: expected a size such as 64KiB, 16MiB or 2GiB, got "64". Write the unit, '
        "such as 64MiB",
        files=edge(NODE + "disk: {budget: 64}\n"),
        in_process=True,
    ),
    Mistake(
        "a size with half of its unit",
        "edge check edge.yaml",
        'weft: edge.yaml:3: disk.budget: expected a size such as 64KiB, 16MiB or 2GiB, got "64M". Did you mean 64MiB?',
        files=edge(NODE + "disk: {budget: 64M}\n"),
        in_process=True,
    ),
    Mistake(
        "a duration in words",
        "edge check edge.yaml",
        'weft: edge.yaml:3: commit_interval: expected a duration such as 250ms, 10s or 1h30m, got "10 sec". '
        "Did you mean 10s?",
        files=edge(NODE + "commit_interval: 10 sec\n"),
        in_process=True,
    ),
    Mistake(
        "a duration without its unit",
        "edge check edge.yaml",
        "weft: edge.yaml:3: links.cloud.retry_max: expected a duration such as 250ms, 10s or 1h30m, got "
        '"30". Write the unit, such as 30ms, 30s, 30h or 30d',
        files=edge(NODE + "links: {cloud: {to: 'http://localhost:1', retry_max: 30}}\n"),
        in_process=True,
    ),
    Mistake(
        "a budget that is too small",
        "edge check edge.yaml",
        "weft: edge.yaml:3: disk.budget: expected at least 16MiB, got 1MiB",
        files=edge(NODE + "disk: {budget: 1MiB}\n"),
        in_process=True,
    ),
    Mistake(
        "a segment that is too large for the budget",
        "edge check edge.yaml",
        "weft: edge.yaml:3: disk.segment: expected at most a quarter of disk.budget (16MiB), got 32MiB",
        files=edge(NODE + "disk: {budget: 64MiB, segment: 32MiB}\n"),
        in_process=True,
    ),
    Mistake(
        "a number in place of a filter",
        "edge check edge.yaml",
        'weft: edge.yaml:3: streams.telemetry.from: expected an MQTT filter such as "plant/{line}/#", got 3',
        files=edge(NODE + "streams: {telemetry: {from: 3}}\n"),
        in_process=True,
    ),
    Mistake(
        "a list of streams",
        "edge check edge.yaml",
        "weft: edge.yaml:3: streams: expected names with their settings, such as `NAME: {...}`, got a list",
        files=edge(NODE + "streams:\n  - telemetry\n  - alarms\n"),
        in_process=True,
    ),
    Mistake(
        "a stream with its filter directly behind it",
        "edge check edge.yaml",
        "weft: edge.yaml:4: streams.telemetry: expected keys and values (from, from_stream, functions, raw, payload, "
        'schema, on_misfit, misfits, resent, when_full, retain, replicate), got "plant/#"',
        files=edge(NODE + "streams:\n  telemetry: plant/#\n"),
        in_process=True,
    ),
    Mistake(
        "a stream without a filter",
        "edge check edge.yaml",
        "weft: edge.yaml:3: streams.telemetry: has no records: set `from` (MQTT filters) or `from_stream` (streams "
        "of this node), or name it in a `route` of another stream",
        files=edge(NODE + "streams: {telemetry: {when_full: refuse}}\n"),
        in_process=True,
    ),
    Mistake(
        "a filter with # in the middle",
        "edge check edge.yaml",
        "weft: edge.yaml:3: streams.telemetry.from: topic filter 'plant/#/x': '#' must be the whole "
        "last level [MQTT-4.7.1-2]",
        files=edge(NODE + 'streams: {telemetry: {from: "plant/#/x"}}\n'),
        in_process=True,
    ),
    Mistake(
        "a level's name twice",
        "edge check edge.yaml",
        "weft: edge.yaml:3: streams.telemetry.from: pattern '{line}/{line}': level {line} is named twice",
        files=edge(NODE + 'streams: {telemetry: {from: "{line}/{line}"}}\n'),
        in_process=True,
    ),
    Mistake(
        "an MQTT wildcard mixed into a level",
        "edge check edge.yaml",
        "weft: edge.yaml:3: streams.telemetry.from: topic filter 'plant+/x': '+' must be a whole level [MQTT-4.7.1-3]",
        files=edge(NODE + 'streams: {telemetry: {from: "plant+/x"}}\n'),
        in_process=True,
    ),
    Mistake(
        "yes in place of true",
        "edge check edge.yaml",
        "weft: edge.yaml:3: streams.telemetry.replicate: expected true or false, got yes",
        files=edge(NODE + "streams: {telemetry: {from: x, replicate: yes}}\n"),
        in_process=True,
    ),
    Mistake(
        "a word in the wrong case",
        "edge check edge.yaml",
        'weft: edge.yaml:3: disk.compression: expected none or zstd, got "ZSTD"',
        files=edge(NODE + "disk: {compression: ZSTD}\n"),
        in_process=True,
    ),
    Mistake(
        "a word that is not known",
        "edge check edge.yaml",
        'weft: edge.yaml:3: streams.telemetry.when_full: expected drop_oldest or refuse, got "drop"',
        files=edge(NODE + "streams: {telemetry: {from: x, when_full: drop}}\n"),
        in_process=True,
    ),
    Mistake(
        "a number in place of a name",
        "edge check edge.yaml",
        "weft: edge.yaml:1: node: expected text (put it in quotes if it looks like a number, a date or yes/no), got 7",
        files=edge("node: 7\ndata_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "a name with a space and capitals",
        "edge check edge.yaml",
        "weft: edge.yaml:1: node: expected a name (lower-case letters, digits, '-' and '_', at most 64, "
        'starting with a letter or digit), got "Press Shop"',
        files=edge("node: Press Shop\ndata_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "a stream's name with capitals",
        "edge check edge.yaml",
        "weft: edge.yaml:3: streams.Telemetry: expected a name (lower-case letters, digits, '-' and '_', at "
        'most 64, starting with a letter or digit), got "Telemetry"',
        files=edge(NODE + "streams: {Telemetry: {from: x}}\n"),
        in_process=True,
    ),
    Mistake(
        "a home folder as ~",
        "edge check edge.yaml",
        'weft: edge.yaml:2: data_dir: expected a path written out, without ~, got "~/weft"',
        files=edge("node: a\ndata_dir: ~/weft\n"),
        in_process=True,
    ),
    Mistake(
        "a misspelt setting",
        "edge check edge.yaml",
        "weft: edge.yaml:3: disk.budgte: is not a setting. Did you mean budget?",
        files=edge(NODE + "disk: {budgte: 1GiB}\n"),
        in_process=True,
    ),
    Mistake(
        "a setting with a hyphen",
        "edge check edge.yaml",
        "weft: edge.yaml:2: data-dir: is not a setting. Did you mean data_dir?",
        files=edge("node: a\ndata-dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "a setting of a section at the top",
        "edge check edge.yaml",
        "weft: edge.yaml:3: budget: is not a setting here. Did you mean disk.budget?",
        files=edge(NODE + "budget: 1GiB\n"),
        in_process=True,
    ),
    Mistake(
        "a setting that is none",
        "edge check edge.yaml",
        "weft: edge.yaml:3: colour: is not a setting. Known here: node, tenant, data_dir, listeners, auth, "
        "http, encryption, disk, commit_interval, streams, functions_signed_by, unrouted, links, pair and 6 more",
        files=edge(NODE + "colour: b\n"),
        in_process=True,
    ),
    Mistake(
        "a password in the configuration",
        "edge check edge.yaml",
        "weft: edge.yaml:3: auth.password: is not a setting: the configuration never holds secrets. Name a file "
        "with the secret",
        files=edge(NODE + "auth: {password: hunter2}\n"),
        in_process=True,
    ),
    Mistake(
        "no node",
        "edge check edge.yaml",
        "weft: edge.yaml:1: node: is missing. The node's name, unique within its tenant.",
        files=edge("data_dir: data\n"),
        in_process=True,
    ),
    Mistake(
        "two mistakes at once",
        "edge check edge.yaml",
        "edge.yaml:1: node: expected text (put it in quotes if it looks like a number, a date or yes/no), "
        "got 7\n"
        'edge.yaml:3: disk.budget: expected a size such as 64KiB, 16MiB or 2GiB, got "1". Write the unit, '
        "such as 1MiB",
        files=edge("node: 7\ndata_dir: data\ndisk: {budget: 1}\n"),
        in_process=True,
    ),
    Mistake(
        "a port alone as address",
        "edge check edge.yaml",
        "weft: edge.yaml:3: listeners.mqtt.bind: expected host:port such as 127.0.0.1:1883, or unix:/path, got 1883",
        files=edge(NODE + "listeners: {mqtt: {bind: 1883}}\n"),
        in_process=True,
    ),
    Mistake(
        "an address without a port",
        "edge check edge.yaml",
        "weft: edge.yaml:3: listeners.mqtt.bind: expected host:port such as 127.0.0.1:1883 or [::1]:1883, "
        'got "127.0.0.1"',
        files=edge(NODE + "listeners: {mqtt: {bind: 127.0.0.1}}\n"),
        in_process=True,
    ),
    Mistake(
        "a port beyond 65535",
        "edge check edge.yaml",
        "weft: edge.yaml:3: listeners.mqtt.bind: expected host:port with a port of at most 65535, got "
        '"127.0.0.1:70000"',
        files=edge(NODE + "listeners: {mqtt: {bind: '127.0.0.1:70000'}}\n"),
        in_process=True,
    ),
    Mistake(
        "a URL as address",
        "edge check edge.yaml",
        "weft: edge.yaml:3: http.bind: expected host:port such as 127.0.0.1:1883 or [::1]:1883, got "
        '"http://127.0.0.1:8080"',
        files=edge(NODE + "http: {bind: 'http://127.0.0.1:8080'}\n"),
        in_process=True,
    ),
    Mistake(
        "one address for two listeners",
        "edge check edge.yaml",
        "weft: edge.yaml:3: listeners.b.bind: 127.0.0.1:1883 is the address of listeners.a already. Choose another",
        files=edge(NODE + ("listeners: {a: {bind: '127.0.0.1:1883'}, b: {bind: '127.0.0.1:1883'}}\n")),
        in_process=True,
    ),
    Mistake(
        "one address for a listener and the status page",
        "edge check edge.yaml",
        "weft: edge.yaml:3: http.bind: 127.0.0.1:1883 is the address of listeners.mqtt already. Choose another",
        files=edge(NODE + "http: {bind: '127.0.0.1:1883'}\n"),
        in_process=True,
    ),
    *(
        Mistake(
            f"settings for an edge with {what}",
            "hub config set hub.yaml press-1 pushed.yaml",
            f"weft: pushed.yaml: the hub's configuration: {message}",
            files=hub("store: store\n", **{"pushed.yaml": pushed}),
            in_process=True,
        )
        for what, pushed, message in (
            (
                "a filter that is none",
                "streams: {t: {from: [a, 'plant/#/x']}}\n",
                "streams: topic filter 'plant/#/x': '#' must be the whole last level [MQTT-4.7.1-2]",
            ),
            ("a misspelt setting", "streams: {t: {form: a}}\n", "streams.t.form: is not a setting. Did you mean from?"),
            (
                "a size without its unit",
                "disk: {budget: 12}\n",
                'disk.budget: expected a size such as 64KiB, 16MiB or 2GiB, got "12". Write the unit, such as 12MiB',
            ),
        )
    ),
    Mistake(
        "a listener for other machines without users",
        "edge check edge.yaml",
        "weft: edge.yaml:3: listeners.mqtt.bind: 0.0.0.0:1883 can be reached from other machines without "
        "authentication. Set auth.users_file or tls.client_ca, bind to 127.0.0.1, or set `anonymous: "
        "allowed_beyond_loopback`",
        files=edge(NODE + "listeners: {mqtt: {bind: '0.0.0.0:1883'}}\n"),
        in_process=True,
    ),
    Mistake(
        "a status page for other machines",
        "edge check edge.yaml",
        "weft: edge.yaml:3: http.bind: 0.0.0.0:8080 can be reached from other machines without authentication. "
        "Bind to 127.0.0.1, or set `anonymous: allowed_beyond_loopback`",
        files=edge(NODE + "http: {bind: '0.0.0.0:8080'}\n"),
        in_process=True,
    ),
    Mistake(
        "MQTTS without a certificate",
        "edge check edge.yaml",
        "weft: edge.yaml:3: listeners.mqtts.tls: is missing: a listener named mqtts needs TLS. Set certificate and key",
        files=edge(NODE + "listeners: {mqtts: {bind: '127.0.0.1:8883'}}\n"),
        in_process=True,
    ),
    Mistake(
        "nobody without a name, and no users",
        "edge check edge.yaml",
        "weft: edge.yaml:3: listeners.mqtt.bind: `anonymous: never` refuses every client without "
        "auth.users_file or tls.client_ca. Name one of them",
        files=edge(NODE + "listeners: {mqtt: {anonymous: never}}\n"),
        in_process=True,
    ),
    Mistake(
        "a hub without http://",
        "edge check edge.yaml",
        'weft: edge.yaml:3: links.cloud.to: expected a URL such as https://hub.example.com, got "hub.example.com:8090"',
        files=edge(NODE + "links: {cloud: {to: 'hub.example.com:8090'}}\n"),
        in_process=True,
    ),
    Mistake(
        "a password in a hub's URL",
        "edge check edge.yaml",
        "weft: edge.yaml:3: links.cloud.to: expected a URL without a user name or password: the token comes "
        "from token_file",
        files=edge(NODE + "links: {cloud: {to: 'https://edge:secret@hub.example.com'}}\n"),
        in_process=True,
    ),
    Mistake(
        "a link for a stream that is none",
        "edge check edge.yaml",
        'weft: edge.yaml:5: links.cloud.streams: "alarms" is not a stream of this node; streams: telemetry',
        files=edge(STREAM + "links: {cloud: {to: 'http://localhost:8090', streams: [alarms]}}\n"),
        in_process=True,
    ),
    Mistake(
        "a hub's configuration for an edge",
        "edge check edge.yaml",
        "weft: edge.yaml: this is a configuration for `weft hub`. Use that command, or name another file",
        files=edge("store: store\nlisten: 127.0.0.1:0\n"),
        in_process=True,
    ),
    Mistake(
        "an edge's configuration for a hub",
        "hub check hub.yaml",
        "weft: hub.yaml: this is a configuration for `weft edge`. Use that command, or name another file",
        files=hub(STREAM),
        in_process=True,
    ),
    Mistake(
        "a hub without a store",
        "hub check hub.yaml",
        "weft: hub.yaml:1: store: is missing. Store of the hub: a folder, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.",
        files=hub("listen: 127.0.0.1:8090\n"),
        in_process=True,
    ),
    Mistake(
        "a store with one slash",
        "hub check hub.yaml",
        'weft: hub.yaml:1: store: expected s3://bucket/prefix, or a folder of this machine, got "s3:/plant/weft". '
        "Write ./s3:... for a folder of that name",
        files=hub("store: s3:/plant/weft\n"),
    ),
    Mistake(
        "a store of a kind that is none",
        "hub check hub.yaml",
        "weft: hub.yaml:1: store: expected a folder, s3://bucket/prefix, gs://bucket/prefix or "
        'az://container/prefix; got "ftp://server/weft"',
        files=hub("store: ftp://server/weft\n"),
        in_process=True,
    ),
    Mistake(
        "a key of the bucket in the configuration",
        "hub check hub.yaml",
        "weft: hub.yaml:1: store: expected a store without credentials or options: those come from the environment",
        files=hub("store: s3://AKIA:secret@bucket/weft\n"),
        in_process=True,
    ),
    Mistake(
        "a hub for other machines without tokens",
        "hub check hub.yaml",
        "weft: hub.yaml:2: listen: 0.0.0.0:8090 can be reached from other machines without authentication. Set "
        "`anonymous: never`, so that every request needs a token (`weft hub token add`), or bind to 127.0.0.1. "
        "`anonymous: allowed_beyond_loopback` is for a network that you trust",
        files=hub("store: store\nlisten: 0.0.0.0:8090\n"),
        in_process=True,
    ),
    Mistake(
        "no shards",
        "hub check hub.yaml",
        "weft: hub.yaml:2: shards: expected at least 1, got 0",
        files=hub("store: store\nshards: 0\n"),
        in_process=True,
    ),
    Mistake(
        "shards that could never split",
        "hub check hub.yaml",
        "weft: hub.yaml:2: shards: expected a power of two, got 6. Set it to 4 or 8",
        files=hub("store: store\nshards: 6\n"),
        in_process=True,
    ),
    *(
        Mistake(
            f"what other programs call {meant}",
            "edge check edge.yaml",
            f"weft: edge.yaml:3: {written}: is not a setting. Did you mean {meant}?",
            files=edge(NODE + text),
            in_process=True,
        )
        for meant, written, text in (
            ("to", "links.cloud.hub", "links: {cloud: {hub: 'http://127.0.0.1:1'}}\n"),
            ("from", "streams.t.topics", "streams: {t: {topics: 'a/#'}}\n"),
            ("retain", "streams.t.retention", "streams: {t: {from: 'a/#', retention: 1d}}\n"),
        )
    ),
    Mistake(
        "a comma for a point inside braces",
        "edge check edge.yaml",
        'edge.yaml:3: disk.budget: expected a size such as 64KiB, 16MiB or 2GiB, got "1". Write the unit, such as '
        "1MiB\n"
        "edge.yaml:3: disk.5GiB: is not a setting: a comma ends a value inside {}. Write a number with a point, such "
        "as 1.5GiB",
        files=edge(NODE + "disk: {budget: 1,5GiB}\n"),
        in_process=True,
    ),
    Mistake(
        "a section that is switched off",
        "hub check hub.yaml",
        "weft: hub.yaml:2: tables: expected keys and values (interval, write_at, write_after, joined_size, "
        "vacuum_after, formats, iceberg_interval), or null for none, got off",
        files=hub("store: store\ntables: off\n"),
        in_process=True,
    ),
    *(
        Mistake(
            f"a store at {place}",
            "hub check hub.yaml",
            "weft: hub.yaml:1: store: expected s3://bucket/prefix, or a folder of this machine, got "
            f"{got}. Write ./{begin}... for a folder of that name",
            files=hub(f"store: '{place}'\n"),
            in_process=True,
        )
        for place, got, begin in (("s3//bucket", '"s3//bucket"', "s3//"), ("C:\\weft", '"C:\\\\weft"', "C:"))
    ),
]


# --- Mistakes with the command line itself: commands, arguments and options that are none
