"""Text of a schema for people, and the differences between two schemas."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import yaml

from weft.config.payload_schema.model import PayloadSchema, SchemaField


def yaml_text(schema: PayloadSchema) -> str:
    """Return a schema in YAML, as ``config.pipelines.schema_text.parse_schema`` reads it: a line for each field."""
    fields = "".join(f"{field_line(name, field)}\n" for name, field in schema.fields.items())
    given = {name: getattr(schema, name) for name in ("definition", "message", "framing")}
    more = {name: value for name, value in given.items() if value is not None}
    head = yaml.safe_dump(more, allow_unicode=True, sort_keys=False, width=1 << 20) if more else ""
    return f"format: {schema.format}\n{head}fields:\n{fields}"


def field_line(name: str, field: SchemaField) -> str:
    """Return the line of a field below `fields:`."""
    settings = _settings(field)
    is_short = settings.keys() == {"type"}
    written = {name: settings["type"] if is_short else settings}
    flow = False if is_short else None  # a field on one line
    text = yaml.safe_dump(written, allow_unicode=True, default_flow_style=flow, sort_keys=False, width=1 << 20)
    return f"  {text.rstrip()}"


def _settings(field: SchemaField) -> dict[str, object]:
    """Return the settings of a field that are not defaults."""
    found = msgspec.to_builtins(field)
    return {name: value for name, value in found.items() if name == "type" or value not in {None, False}}


class FieldChange(NamedTuple):
    """A field that differs between two schemas."""

    name: str
    before: SchemaField | None
    """None for a new field."""
    after: SchemaField | None
    """None for one that is gone."""

    @property
    def makes_column(self) -> bool:
        """Return whether the table gets another column for the field: its type or unit changed, or it is new."""
        if self.before is None or self.after is None:
            return self.after is not None
        other_unit = self.before.unit is not None and self.after.unit not in {None, self.before.unit}
        return _column_type(self.before) != _column_type(self.after) or other_unit

    def __str__(self) -> str:
        """Return the change on one line."""
        if self.before is None or self.after is None:
            return f"{'+' if self.before is None else '-'} {self.name}: {_words(self.after or self.before)}"
        before, after = _settings(self.before), _settings(self.after)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        return f"~ {self.name}: " + ", ".join(
            f"{name} {_shown(before.get(name))} -> {_shown(after.get(name))}" for name in changed
        )


def differences(before: PayloadSchema, after: PayloadSchema) -> list[FieldChange]:
    """Return the fields that differ, in the order of the later schema, those that are gone behind them."""
    names = dict.fromkeys([*after.fields, *before.fields])
    changes = (FieldChange(name, before.fields.get(name), after.fields.get(name)) for name in names)
    return [each for each in changes if each.before != each.after]


def _column_type(field: SchemaField) -> str:
    # In a column, times of all units are the same.
    kind, item = field.type, field.type.item
    return str(kind._replace(unit=None, item=item and item._replace(unit=None)))


def _words(field: SchemaField | None) -> str:
    return "" if field is None else ", ".join(f"{value}" if name == "type" else f"{name} {_shown(value)}"
                                              for name, value in _settings(field).items())  # fmt: skip


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
