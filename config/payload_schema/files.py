"""Files with a schema: in YAML or JSON of the model, in its short form, or in another language."""

from __future__ import annotations

import json
from typing import NamedTuple

from weft.config.payload_schema.importing import Imported, imported, imported_descriptors
from weft.config.payload_schema.short_form import written_out

FILE_BYTES_MAX = 1 << 20
DESCRIPTORS = (".desc", ".pb", ".binpb", ".protoset")
"""Ends of the names of files with descriptor sets of Protobuf."""


class SchemaFile(NamedTuple):
    """Contents of a file."""

    text: str
    """YAML or JSON of the model, unchecked."""
    left_out: list[str]
    """Places of a schema in another language that become no field."""


def read_schema_file(file: str, message: str | None = None) -> SchemaFile:
    """Return the schema in a file. Blocks.

    Args:
        message: message of Protobuf with its package; the file is a descriptor set then.

    Raises:
        ValueError: the file cannot be read, or is no schema; the text says why, without the file's name.
        ConfigError: it is the short form, with a mistake.
    """
    try:
        with open(file, "rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX >> 20} MiB: a schema has some kilobytes")
    if message is not None or file.endswith(DESCRIPTORS):
        other: Imported | None = imported_descriptors(data, message)
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            ends = ", ".join(DESCRIPTORS)
            raise ValueError(f"it is not UTF-8 text, and its name has no end of a descriptor set ({ends})") from None
        other = imported(text)
    if other is None:
        return SchemaFile(written_out(text, file), [])
    return SchemaFile(json.dumps(other.settings), other.left_out)
