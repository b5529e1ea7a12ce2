"""Mistakes in YAML and in the file as such."""

from __future__ import annotations

from tests.weft.mistakes.mistake import NODE, Mistake, edge

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
        "commit_interval, streams, functions_signed_by, unrouted, links, sparkplug and 5 more), got a list",
        files=edge("- node: a\n- data_dir: data\n"),
        in_process=True,
    ),
]
