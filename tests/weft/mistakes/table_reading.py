"""Mistakes when looking into nodes, logs and tables: status, tail, query, log and audit."""

from __future__ import annotations

from tests.weft.mistakes.place import STREAM, Mistake, edge, hub

READING = [
    Mistake(
        "status of a node that has never run",
        "edge status edge.yaml",
        "weft: <dir>/data holds no log: expected the data_dir of a node that has run. It was not asked "
        "either: http://127.0.0.1:1/status does not answer (Connection refused); is the node running?",
        exit_status=1,
        files=edge(STREAM + "http: {bind: '127.0.0.1:1'}\n"),
        in_process=True,
    ),
    Mistake(
        "status of a folder that is not there",
        "edge status nowhere",
        "Usage: weft edge status [OPTIONS] CONFIG|DIR\n"
        "Try 'weft edge status --help' for help.\n"
        "\n"
        "Error: Invalid value for 'CONFIG|DIR': Path 'nowhere' does not exist.",
        in_process=True,
    ),
    Mistake(
        "status of a folder without a log",
        "edge status .",
        "weft: . holds no log: expected the data_dir of a node that has run",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "status of a node with a status page on any port",
        "edge status edge.yaml",
        "weft: <dir>/data holds no log: expected the data_dir of a node that has run. It was not asked either: "
        "the node uses any free port, so its address is unknown. Set a port in the configuration",
        exit_status=1,
        files=edge(STREAM + "http: {bind: '127.0.0.1:0'}\n"),
        in_process=True,
    ),
    Mistake(
        "a stream that is none",
        "edge tail <node>/edge.yaml telemetri",
        "weft: there is no stream 'telemetri'; streams: telemetry, unrouted",
        in_process=True,
    ),
    Mistake(
        "a stream that is none, in the folder",
        "edge tail <node>/data telemetri",
        "weft: there is no stream 'telemetri'; streams: telemetry, unrouted",
        in_process=True,
    ),
    Mistake(
        "a time that is none",
        "edge tail <node>/edge.yaml --from yesterday",
        "weft: --from: expected a duration ago such as -10m, or a time such as 2026-11-20T07:00, got 'yesterday'",
        in_process=True,
    ),
    Mistake(
        "a filter that is none",
        "edge tail <node>/edge.yaml --filter plant/#/x",
        "weft: --filter: topic filter 'plant/#/x': '#' must be the whole last level [MQTT-4.7.1-2]",
        in_process=True,
    ),
    Mistake(
        "two beginnings",
        "edge tail <node>/edge.yaml --last 3 --from -1h",
        "weft: --last, --from and --seq exclude each other: choose one",
        in_process=True,
    ),
    Mistake(
        "a number of no stream",
        "edge tail <node>/edge.yaml --seq 3",
        "weft: --seq needs exactly one STREAM",
        in_process=True,
    ),
    Mistake(
        "less than no records",
        "edge tail <node>/edge.yaml --last -3",
        "Usage: weft edge tail [OPTIONS] CONFIG|DIR [STREAM]...\n"
        "Try 'weft edge tail --help' for help.\n"
        "\n"
        "Error: Invalid value for '--last': -3 is not in the range 0<=x<=1000000.",
        in_process=True,
    ),
    Mistake(
        "a table that is none",
        "edge query <node>/edge.yaml 'SELECT * FROM telemetri'",
        "weft: no such table: telemetri; tables: telemetry, unrouted, weft_streams, weft_gaps",
        in_process=True,
    ),
    Mistake(
        "a column that is none",
        "edge query <node>/edge.yaml 'SELECT temperature FROM telemetry'",
        "weft: no such column: temperature. For a field of a JSON payload, write payload ->> "
        "'$.temperature'. Columns: telemetry(time, time_ns, seq, key, line, payload, headers, qos, retained, "
        "resent, _origin); unrouted(time, time_ns, seq, key, payload, headers, qos, retained, resent, _origin); "
        "weft_streams(stream, records, first_seq, next_seq, first_time, last_time, gaps, "
        "records_lost, topics); weft_gaps(stream, first, end, records, reason, time, time_ns)",
        in_process=True,
    ),
    Mistake(
        "a statement that changes something",
        "edge query <node>/edge.yaml 'DELETE FROM telemetry'",
        "weft: a query must be one SELECT: it cannot change, attach, set or load anything",
        in_process=True,
    ),
    Mistake(
        "SQL that ends too early",
        "edge query <node>/edge.yaml 'SELECT * FROM'",
        "weft: the query ends too early: expected a SELECT, such as SELECT * FROM weft_streams",
        in_process=True,
    ),
    Mistake(
        "SQL with a typing mistake",
        "edge query <node>/edge.yaml 'SELCT * FROM telemetry'",
        'weft: near "SELCT": syntax error. Expected a SELECT, such as SELECT * FROM weft_streams',
        in_process=True,
    ),
    Mistake(
        "two statements",
        "edge query <node>/edge.yaml 'SELECT 1; SELECT 2'",
        "weft: a query must be one SELECT, and there is more text after it",
        in_process=True,
    ),
    Mistake(
        "a payload that is not valid JSON",
        "edge query <node>/edge.yaml 'SELECT payload ->> '\"'\"'$.x'\"'\"' FROM telemetry'",
        "weft: a payload is not JSON: write iif(json_valid(payload), payload ->> '$.name', NULL) instead of "
        "payload ->> '$.name'",
        in_process=True,
    ),
    Mistake(
        "a function that is none",
        "edge query <node>/edge.yaml 'SELECT median(seq) FROM telemetry'",
        "weft: no such function: median. Those of SQLite can be used, such as avg, min, max, count and json_extract",
        in_process=True,
    ),
    Mistake(
        "an offset without its sign",
        "edge query <node>/edge.yaml 'SELECT count(*) FROM telemetry WHERE time > now('\"'\"'10m'\"'\"')'",
        "weft: now() takes an offset with its sign, such as now('-10m'); got '10m'",
        in_process=True,
    ),
    Mistake(
        "a timeout without its unit",
        "edge query <node>/edge.yaml 'SELECT 1' --timeout 60",
        'weft: --timeout: expected a duration such as 250ms, 10s or 1h30m, got "60". Write the unit, such '
        "as 60ms, 60s, 60h or 60d",
        in_process=True,
    ),
    Mistake(
        "a since that is none",
        "edge query <node>/edge.yaml 'SELECT 1' --since 10minutes",
        "weft: --since: expected a duration ago such as -10m, or a time such as 2026-11-20T07:00, got '10minutes'",
        in_process=True,
    ),
    Mistake(
        "two ways to print",
        "edge query <node>/edge.yaml 'SELECT 1' --csv --json",
        '{"error":"--csv and --json exclude each other: choose one","exit_status":2,"problems":[]}',
        in_process=True,
    ),
    Mistake(
        "no rows at all",
        "edge query <node>/edge.yaml 'SELECT 1' --rows-max 0",
        "Usage: weft edge query [OPTIONS] CONFIG|DIR SQL\n"
        "Try 'weft edge query --help' for help.\n"
        "\n"
        "Error: Invalid value for '--rows-max': 0 is not in the range x>=1.",
        in_process=True,
    ),
    Mistake(
        "a query of a folder without a log",
        "edge query . 'SELECT 1'",
        "weft: . holds no log: expected the data_dir of a node that has run",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "the log of a folder without one",
        "log dump .",
        "weft: . holds no log: expected the data_dir of a node that has run, or one of its .seg files",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "a log that is not there",
        "log dump nowhere",
        "Usage: weft log dump [OPTIONS] CONFIG|DIR|FILE\n"
        "Try 'weft log dump --help' for help.\n"
        "\n"
        "Error: Invalid value for 'CONFIG|DIR|FILE': Path 'nowhere' does not exist.",
        in_process=True,
    ),
    Mistake(
        "a file that is no segment",
        "log dump notes.txt",
        'file=notes.txt offset=0 error="segment header truncated: 6 of 32 bytes"',
        exit_status=1,
        files={"notes.txt": "hello\n"},
        in_process=True,
    ),
    Mistake(
        "a drop that does not say how much",
        "log drop <node>/edge.yaml telemetry",
        "weft: give either --below SEQ or --all",
    ),
    Mistake(
        "a drop of a stream that is none",
        "log drop <node>/edge.yaml telemetri --all --yes",
        "weft: the log has no stream telemetri; it has telemetry, unrouted",
    ),
    Mistake(
        "a drop without a terminal to ask at",
        "log drop <node>/edge.yaml telemetry --all",
        "drop 2 records of telemetry, received from <time> to <time>? Records that no hub has are lost for good "
        "[y/N]: \nweft: nothing was dropped: there is no terminal to ask on. Add --yes to confirm in advance",
    ),
    Mistake(
        "a drop, and no for an answer",
        "log drop <node>/edge.yaml telemetry --all",
        "drop 2 records of telemetry, received from <time> to <time>? Records that no hub has are lost for good "
        "[y/N]: weft: stopped before it was done",
        exit_status=130,
        given="n\n",
    ),
    Mistake(
        "a drop of no log",
        "log drop edge.yaml telemetry --all --yes",
        "weft: <dir>/data holds no log: expected the data_dir of a node that has run",
        exit_status=1,
        files=edge(STREAM),
    ),
    Mistake(
        "hub status of a hub that does not run",
        "hub status hub.yaml",
        "weft: http://127.0.0.1:1/v1/status does not answer (Connection refused); is the hub running?",
        exit_status=1,
        files=hub("store: store\nlisten: 127.0.0.1:1\n"),
        in_process=True,
    ),
    Mistake(
        "hub status without the token",
        "hub status <hub>/hub.yaml",
        "weft: http://127.0.0.1:<hub port>/v1/status answered 401 Unauthorized: the hub requires a token. Provide "
        "one with --token-file or `weft login`; `weft hub token add CONFIG NAME --scope admin --to FILE` makes one",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "hub status with a token for an edge",
        "hub status <hub>/hub.yaml --token-file <hub>/shop.token",
        "weft: http://127.0.0.1:<hub port>/v1/status answered 403 Forbidden: the token 'shop' of tenant default "
        "has the scope edge. Give another one with --token-file: use a token of scope admin (`weft hub token add "
        "HUB NAME --scope admin`), or the grant status",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "hub status with a token file that is not there",
        "hub status <hub>/hub.yaml --token-file nowhere",
        "Usage: weft hub status [OPTIONS] [HUB]\n"
        "Try 'weft hub status --help' for help.\n"
        "\n"
        "Error: Invalid value for '--token-file': File 'nowhere' does not exist.",
        in_process=True,
    ),
    Mistake(
        "hub status at the port of another program",
        "hub status hub.yaml",
        "weft: http://127.0.0.1:<node http>/v1/status answered 404 Not Found: another program answers there. "
        "Check the address in the configuration",
        exit_status=1,
        files=hub("store: store\nlisten: 127.0.0.1:<node http>\n"),
        in_process=True,
    ),
    Mistake(
        "edge status at the port of another node",
        "edge status edge.yaml",
        "weft: <dir>/data holds no log: expected the data_dir of a node that has run. It was not asked "
        "either: another node answers at 127.0.0.1:<node http>: default/press-shop-1",
        exit_status=1,
        files=edge(STREAM + "http: {bind: '127.0.0.1:<node http>'}\n"),
        in_process=True,
    ),
    Mistake(
        "an audit of a store that is not there",
        "audit telemetry --store nowhere",
        "weft: --store nowhere: there is no such folder. Name a hub's `store`, or where it was copied to",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "an audit without a store", "audit telemetry", "weft: give --store URI, or --regions URI URI", in_process=True
    ),
    Mistake(
        "an audit of a stream that is none",
        "audit telemetri --store <hub>/store",
        "the hub knows no stream default/telemetri. `weft streams` lists those it knows",
        exit_status=1,
        in_process=True,
    ),
    Mistake(
        "an audit of a store of a kind that is none",
        "audit telemetry --store ftp://x/y",
        "weft: 'ftp://x/y' is not a store: expected a path, file:///path, s3://bucket/prefix, "
        "gs://bucket/prefix or az://container/prefix, or memory://name",
        in_process=True,
    ),
    Mistake(
        "an audit of a bucket that does not answer",
        "audit telemetry --store s3://weft-mistakes/x",
        "weft: --store s3://weft-mistakes/x: cluster.json: "
        "GET http://127.0.0.1:1/weft-mistakes/x/cluster.json failed: connection refused, "
        "so nothing listens there (the address is from AWS_ENDPOINT_URL). "
        "Check the store's address, its endpoint and the credentials in the environment",
        exit_status=1,
    ),
    Mistake(
        "an audit of a store that may not be read",
        "audit telemetry --store store",
        "weft: --store store: the store's folder <dir>/store cannot be used for cluster.json: user <user> "
        "may not use it: <dir>/store belongs to user <user> (mode 000). Change its mode: `chmod u+rwX <dir>/store`",
        exit_status=1,
        files={"store/@0000": ""},
    ),
]


# Mistakes in commands and options.

USAGE = [
    *(
        Mistake(
            f"a URL in place of a configuration, for {command.partition(' --')[0]}",
            f"{command} https://hub.example.com{rest}",
            f"weft: https://hub.example.com: a URL cannot be used here: name the {kind}'s configuration on this "
            "machine",
            in_process=True,
        )
        for command, rest, kind in (
            ("hub config status", "", "hub"),
            ("hub retire", " press-1 --reason gone --yes", "hub"),
            ("edge check", "", "edge"),
        )
    ),
    Mistake(
        "a command of another group",
        "hub streams hub.yaml",
        "Usage: weft hub [OPTIONS] COMMAND [ARGS]...\n"
        "Try 'weft hub --help' for help.\n"
        "\n"
        "Error: No such command 'streams'. Did you mean `weft streams`?",
        in_process=True,
    ),
    Mistake(
        "a reload of a node that has never run",
        "edge reload edge.yaml",
        "weft: no node has run with <dir>/data. Start one (`weft edge run CONFIG`)",
        exit_status=1,
        files=edge(STREAM),
        in_process=True,
    ),
    Mistake(
        "a pairing code with a character too few",
        "edge pair http://127.0.0.1:1 K7QF-9XDM-2RP",
        "weft: 'K7QF-9XDM-2RP' is not a code: a code has 12 letters and digits, such as K7QF-9XDM-2RPT",
        in_process=True,
    ),
    Mistake(
        "a tail of a stream that is none",
        "hub tail 'http://127.0.0.1:<hub port>' telemetri --token-file <hub>/bi.token",
        "weft: the hub answered 404 Not Found: tenant default has no stream 'telemetri'; `weft streams` lists the "
        "streams",
        exit_status=1,
        in_process=True,
    ),
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
