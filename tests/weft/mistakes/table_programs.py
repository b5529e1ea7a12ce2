"""Mistakes of programs, which get JSON."""

from __future__ import annotations

from tests.weft.mistakes.mistake import QUIET, STREAM, Mistake, edge, hub

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
        '{"error":"--store nowhere: the store holds no hub: check the store\'s address, or start a hub on it '
        'first","exit_status":1,"problems":[]}',
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
