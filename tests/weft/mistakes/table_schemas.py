"""Mistakes in the schemas that an edge checks payloads against, in its configuration and in files."""

from __future__ import annotations

from tests.weft.mistakes.mistake import NODE, Mistake, edge

STREAM = NODE + "streams:\n  telemetry:\n    from: plant/#\n"


def wrong(did: str, setting: str, message: str, **files: str | bytes) -> Mistake:
    """A stream with a setting in line 6."""
    text = f"{STREAM}    {setting}\n"
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
        files=edge(f"{STREAM}    schema: {{fields: {{a: int}}}}\n    functions: [where: a > 1]\n"),
        in_process=True,
    ),
    Mistake(
        "a schema of a derived stream",
        "edge check edge.yaml",
        "weft: edge.yaml:6: streams.hot.schema: is for a stream with `from`: the messages that clients publish are "
        "checked. Move it there",
        files=edge(
            f"{STREAM}  hot: {{from_stream: telemetry, functions: [where: a > 1], schema: {{fields: {{a: int}}}}}}\n"
        ),
        in_process=True,
    ),
    Mistake(
        "a schema in another format than the payload",
        "edge check edge.yaml",
        f"weft: edge.yaml:7: {AT}.schema.format: is json, and the stream's `payload` is cbor. Set both to the same "
        "format",
        files=edge(f"{STREAM}    payload: cbor\n    schema: {{fields: {{a: int}}}}\n"),
        in_process=True,
    ),
    Mistake(
        "records of its own for a stream of dead letters",
        "edge check edge.yaml",
        "weft: edge.yaml:8: streams.telemetry-errors: is the stream of the errors of telemetry: it may have "
        "`retain` and `replicate`, and accepts no other records. Choose another name for a stream with other records",
        files=edge(
            f"{STREAM}    schema: {{fields: {{a: int}}}}\n    on_misfit: dead_letter\n"
            "  telemetry-errors: {from: errors/#}\n"
        ),
        in_process=True,
    ),
]
