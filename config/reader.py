"""Reader of a YAML tree into a model. It keeps the line of every key and continues after an error, so that all are
reported.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import yaml
from msgspec import inspect

from weft.config.errors import ConfigError, Finding, KeyPath, Problem
from weft.config.schema import UNITS, Shape, out_of_bounds, settings, shape_of
from weft.config.units import OneOf, quoted

# Guesses at the setting that a person meant, from nearby sections: the same one, the one around it, one in it, or a
# named one in one in it.
#
# A setting of that name in a distant section would distract from the list of settings that are valid here.

_SUFFIXES = ("_file", "_path", "file", "path")
_WORD_MIN = 2
_OTHER_WORDS = {
    "from": "file",
    "hub": "to",
    "topic": "from",
    "topics": "from",
    "source": "file",
    "path": "file",
    "filename": "file",
    "key": "on",
    "join": "on",
    "url": "to",
    "urls": "to",
}
"""Words that other programs have for a setting."""


def near_setting(key: str, known: Sequence[str]) -> str | None:
    """Return the setting of the same section that an unknown key may mean."""
    import difflib  # where there is a mistake, and not in every node

    word = key.lower().replace("-", "_")
    if (other := _OTHER_WORDS.get(word)) in known:
        return other
    if word == "retention":
        return next((name for name in ("retain", "retain_log") if name in known), None)
    stem = next((word.removesuffix(end) for end in _SUFFIXES if word.endswith(end) and word != end), word)
    if stem in known:
        return stem
    if len(stem) >= _WORD_MIN:
        # `cert_file` is `certificate`, and `ca` is `client_ca`: letters in common would find `crl_file` for both.
        parts = [name for name in known if name.startswith(stem) or stem in name.split("_")]
        if len(parts) == 1:
            return parts[0]
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.7)), None)


def near_path(key: str, section: KeyPath, paths: Sequence[str]) -> str | None:
    """Return the path of a setting of this name in the section around, or in a section of this one; else in those of
    any name within one section of this one, if in no other.

    Args:
        section: section of the key.
        paths: of all settings, with ``<name>`` for a name and ``[]`` for an entry of a list.
    """
    here = ["[]" if isinstance(step, int) else step for step in section]
    for path in paths:
        *around, name = path.replace("[]", ".[]").split(".")
        if name != key:
            continue
        if _fit(around, here[:-1]) or (_fit(around[:-1], here) and not around[-1].startswith(("<", "["))):
            return path
    here_named = [path for path in paths if _within_named(path, key, here)]
    return here_named[0] if len(here_named) == 1 else None


def _within_named(path: str, key: str, here: list[str]) -> bool:
    *around, name = path.replace("[]", ".[]").split(".")
    return name == key and around[-1:] == ["<name>"] and len(around) > 1 and _fit(around[:-2], here)


def _fit(pattern: list[str], path: list[str]) -> bool:
    return len(pattern) == len(path) and all(
        each.startswith("<") or each == step for each, step in zip(pattern, path, strict=True)
    )


_TAG = "tag:yaml.org,2002:"
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}(\.[0-9]{0,18})?([eE][-+]?[0-9]{1,2})?")
"""Number as people write it; YAML 1.1 reads ``1e-3`` as text. Infinity and NaN are left out: they are not valid for any
setting."""
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None", "~": "None"}
"""YAML's words without quotes -> the same in an expression."""
_SECRETS = re.compile(r"password|passwd|secret|token|api_?key|credentials?|access_key", re.IGNORECASE)
_TEXT_SHOWN_MAX = 80
_KEYS_SHOWN_MAX = 14
_MEASURED = ("duration", "share", "size")
"""Units that the error asks for after a bare number; for other units a number is not a value."""

_TEXT = {f"{_TAG}str", f"{_TAG}timestamp"}
_PLAIN = {*_TEXT, *(f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null"))}
ANY_DEPTH_MAX = 16
"""Maximum number of keys on the way to a value of a setting that takes any value."""

ANY_VALUES_MAX = 10_000
"""Maximum number of values in settings that take any value. A few lines of YAML aliases expand to billions."""

INVALID: Any = object()
"""Marker for a refused value; ``YamlReader.findings`` has the reason."""


class YamlReader:
    """A reader of one tree. ``findings`` collects the problems and ``lines`` the line of each key, counted from 1."""

    def __init__(self, folder: str, model: type[msgspec.Struct], parse: Callable[..., Any]) -> None:
        """Start on a file of ``model`` in ``folder``.

        Args:
            parse: ``config.load.parse``, for files of sections.
        """
        self._folder = folder
        self._parse = parse
        self._model = model
        self.findings: list[Finding] = []
        self.lines: dict[KeyPath, int] = {}
        self._any_values = 0

    def read(self, node: yaml.Node, type_: inspect.Type, path: KeyPath) -> Any:
        """Return the value of ``node``, of ``type_`` as msgspec describes it, or ``INVALID``."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        shape = shape_of(type_)
        inner = shape.type
        if isinstance(inner, inspect.UnionType):
            return self._union(node, inner, shape, path)
        if isinstance(inner, inspect.StructType):
            return self._struct(node, inner, path, shape.short)
        if isinstance(inner, inspect.DictType):
            return self._named(node, inner, path)
        if isinstance(inner, inspect.VarTupleType):
            return self._list(node, inner, shape, path)
        if isinstance(inner, inspect.AnyType):
            return self._any(node, path)
        if not isinstance(node, yaml.ScalarNode):
            return self._refuse(path, _expected(shape), node)
        return self._scalar(node, shape, path)

    def _any(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return a value as YAML has it: text, numbers, booleans, null, lists and mappings; times stay text."""
        if len(path) > ANY_DEPTH_MAX:
            self.findings.append(Finding(path, f"is nested deeper than {ANY_DEPTH_MAX} levels. Make it flatter"))
            return INVALID
        self._any_values += 1
        if self._any_values > ANY_VALUES_MAX:
            if self._any_values == ANY_VALUES_MAX + 1:
                self.findings.append(Finding(path, f"is one value too many: at most {ANY_VALUES_MAX} are allowed here"))
            return INVALID
        if isinstance(node, yaml.ScalarNode):
            if node.tag not in _PLAIN:
                return self._refuse(path, "text, a number, true, false or null", node)
            return _construct(node) if node.tag not in _TEXT else node.value
        if isinstance(node, yaml.SequenceNode):
            values: Any = [self._any(each, (*path, i)) for i, each in enumerate(node.value)]
            return INVALID if any(value is INVALID for value in values) else values
        assert isinstance(node, yaml.MappingNode)
        values = {name: self._any(value, (*path, name)) for name, value in self._entries(node, path)}
        return INVALID if any(value is INVALID for value in values.values()) else values

    def _refuse(self, path: KeyPath, expected: str, node: yaml.Node) -> Any:
        self.findings.append(Finding(path, f"expected {expected}, got {_shown(node)}"))
        return INVALID

    @functools.cached_property
    def _paths(self) -> list[str]:
        """Return the path of each setting of the model."""
        return [each.path for each in settings(self._model)]

    def _unknown(self, key: str, section: KeyPath, known: list[str], noun: str = "setting") -> str:
        """Return the message for an unknown key."""
        if _SECRETS.fullmatch(key):
            return "is not a setting: the configuration never holds secrets. Name a file with the secret"
        if re.fullmatch(r"[0-9]+ *[A-Za-z/%]*", key):
            return f"is not a {noun}: a comma ends a value inside {{}}. Write a number with a point, such as 1.5GiB"
        near = near_setting(key, known)
        if near is None and (elsewhere := near_path(key, section, self._paths)):
            return f"is not a {noun} here. Did you mean {elsewhere}?"
        return f"is not a {noun}. {f'Did you mean {near}?' if near else f'Known here: {_listed(known)}'}"

    def _union(self, node: yaml.Node, type_: inspect.UnionType, outer: Shape, path: KeyPath) -> Any:
        types = [each for each in type_.types if not isinstance(each, inspect.NoneType)]
        if _is_null(node) and len(types) < len(type_.types):
            if node.value == "" and not any(isinstance(shape_of(each).type, _MAPPINGS) for each in types):
                # Only of a section may all lines be commented out.
                shape = shape_of(types[0])
                return self._refuse(path, f"{_expected(shape._replace(unit=shape.unit or outer.unit))}, or null", node)
            return None
        if node.tag == f"{_TAG}bool" and node.value.lower() in ("no", "off", "false") and len(types) < len(type_.types):
            shape = shape_of(types[0])
            if isinstance(shape.type, inspect.StructType):
                return self._refuse(path, f"{_sections(shape.type)}, or null for none", node)
        # The unit of an optional value may be on the outside: Annotated[Path | None, ...].
        extra = {"x-unit": outer.unit, "x-short": outer.short}
        extra = {key: value for key, value in extra.items() if value is not None}
        return self.read(node, inspect.Metadata(_fitting(node, types), extra_json_schema=extra), path)

    def _entries(
        self, node: yaml.MappingNode, path: KeyPath, renamed: Mapping[str, str] | None = None
    ) -> list[tuple[str, yaml.Node]]:
        """Return the keys of a mapping with their values.

        Args:
            renamed: former names of settings -> present ones, the result has the present names.
        """
        entries: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.findings.append(Finding(path, f"expected a name as key, got {_shown(key)}"))
                continue
            name = (renamed or {}).get(key.value, key.value)
            at = (*path, name)
            if name in entries:
                message = f"is given twice, first in line {self.lines[at]}: keep one"
                self.lines[at] = key.start_mark.line + 1
                self.findings.append(Finding(at, message))
                continue
            self.lines[at] = key.start_mark.line + 1
            entries[name] = value
        return list(entries.items())

    def _struct(self, node: yaml.Node, type_: inspect.StructType, path: KeyPath, short: str | None = None) -> Any:
        if _is_null(node):  # a section whose lines are all commented out
            node = yaml.MappingNode(node.tag, [], node.start_mark, node.end_mark)
        only = next((field for field in type_.fields if field.encode_name == short), None)
        if only is not None and _may_be(node, only.type):
            value = self.read(node, only.type, path)
            # The section's own check names the setting, whether the file has the short or the long form.
            within = {key[len(path) :]: line for key, line in self.lines.items() if key[: len(path)] == path}
            self.lines.update(((*path, only.encode_name, *key), line) for key, line in within.items())
            return value if value is INVALID else self._made(type_.cls(**{only.name: value}), path)
        if not isinstance(node, yaml.MappingNode):
            return self._refuse(path, _sections(type_), node)
        fields = {field.encode_name: field for field in type_.fields}
        one_of = type_.cls if issubclass(type_.cls, OneOf) else None
        entries = self._entries(node, path, getattr(type_.cls, "renamed", None))
        chosen = [key for key, _ in entries if one_of is None or key not in one_of.beside]
        if one_of is not None and len(chosen) != 1:
            known = [name for name in fields if name not in one_of.beside]
            got = " and ".join(chosen) or f"nothing. Known here: {_listed(known)}"
            self.findings.append(Finding(path, f"expected one {one_of.noun}, got {got}"))
            return INVALID
        values: dict[str, Any] = {}
        for key, value in entries:
            if key not in fields:
                noun = one_of.noun if one_of is not None else "setting"
                removed = getattr(type_.cls, "removed", {}).get(key)
                message = removed or self._unknown(key, path, list(fields), noun)
                self.findings.append(Finding((*path, key), message))
                values[key] = INVALID
                continue
            # The only setting is never missing: null means its defaults.
            is_choice = one_of is not None and key not in one_of.beside
            type_of = _without_null(fields[key].type) if is_choice else fields[key].type
            values[fields[key].name] = self.read(value, type_of, (*path, key))
        for name, field in fields.items():
            if field.required and field.name not in values:
                if not any(name in message for at, message in self.findings if at[:-1] == path):  # it was misspelt
                    self.findings.append(Finding((*path, name), _missing(field)))
                values[field.name] = INVALID
        if any(value is INVALID for value in values.values()):
            return INVALID
        return self._made(type_.cls(**values), path)

    def _made(self, section: Any, path: KeyPath) -> Any:
        """Return a section, with what a file of its own has."""
        try:
            return section.with_its_file(self._parse)
        except (ConfigError, ValueError) as error:
            self.findings.append(
                Finding((*path, "file"), error.first if isinstance(error, ConfigError) else str(error))
            )
            return INVALID

    def _named(self, node: yaml.Node, type_: inspect.DictType, path: KeyPath) -> Any:
        if _is_null(node) and not type_.min_length:
            return {}
        is_of_sections = isinstance(shape_of(_without_null(type_.value_type)).type, inspect.StructType)
        words = "names with their " + ("settings, such as `NAME: {...}`" if is_of_sections else "values: `NAME: VALUE`")
        if not isinstance(node, yaml.MappingNode):
            return self._refuse(path, words, node)
        entries = self._entries(node, path)
        if type_.max_length is not None and len(entries) > type_.max_length:
            self.findings.append(Finding(path, f"expected at most {type_.max_length} entries, got {len(entries)}"))
            return INVALID
        if len(entries) < (type_.min_length or 0):
            self.findings.append(Finding(path, f"expected {words}, got nothing"))
            return INVALID
        return {name: self.read(value, type_.value_type, (*path, name)) for name, value in entries}

    def _list(self, node: yaml.Node, type_: inspect.VarTupleType, shape: Shape, path: KeyPath) -> Any:
        item = shape_of(type_.item_type)
        item = item._replace(unit=item.unit or shape.unit)
        is_of_sections = isinstance(item.type, inspect.StructType)
        if isinstance(node, yaml.ScalarNode) and not _is_null(node) and not is_of_sections:
            value = self._scalar(node, item, path)
            return value if value is INVALID else (value,)
        if is_of_sections and _is_null(node):  # a list whose lines are all commented out
            node = yaml.SequenceNode(node.tag, [], node.start_mark, node.end_mark)
        if not isinstance(node, yaml.SequenceNode):
            words = "a list of entries that begin with a dash, such as `- where: rms > 2.5`"
            return self._refuse(path, words if is_of_sections else f"{_expected(item)}, or a list of them", node)
        count = len(node.value)
        if count < (type_.min_length or 0) or count > (type_.max_length or count):
            bounds = f"{type_.min_length or 0} to {type_.max_length}" if type_.max_length else f"{type_.min_length}"
            self.findings.append(Finding(path, f"expected {bounds} entries, got {count}"))
            return INVALID
        values = tuple(self._item(each, item, (*path, i)) for i, each in enumerate(node.value))
        return INVALID if any(value is INVALID for value in values) else values

    def _item(self, node: yaml.Node, shape: Shape, path: KeyPath) -> Any:
        self.lines[path] = node.start_mark.line + 1
        if isinstance(shape.type, inspect.StructType):
            return self._struct(node, shape.type, path, shape.short)
        if not isinstance(node, yaml.ScalarNode):
            return self._refuse(path, _expected(shape), node)
        return self._scalar(node, shape, path)

    def _scalar(self, node: yaml.ScalarNode, shape: Shape, path: KeyPath) -> Any:
        is_text = node.tag in (f"{_TAG}str", f"{_TAG}timestamp")
        inner = shape.type
        if shape.unit is not None:
            is_number = node.tag in (f"{_TAG}int", f"{_TAG}float")
            if shape.unit == "expression" and node.value:
                return self._expression(node, path)
            if not is_text and not (is_number and shape.unit in _MEASURED):
                return self._refuse(path, UNITS[shape.unit].words, node)
            return self._with_unit(node, shape, path)
        if isinstance(inner, inspect.StrType) and is_text and node.value:
            fits = inner.pattern is None or re.search(inner.pattern, node.value)
            return node.value if fits else self._refuse(path, _expected(shape), node)
        if isinstance(inner, inspect.LiteralType) and is_text and node.value in inner.values:
            return node.value
        if isinstance(inner, inspect.BoolType) and node.value in ("true", "false"):
            return node.value == "true"
        if (
            isinstance(inner, inspect.IntType)
            and node.tag == f"{_TAG}int"
            and re.fullmatch(r"-?[0-9]{1,18}", node.value)
        ):
            return self._bounded(int(node.value), shape, path)
        if isinstance(inner, inspect.FloatType) and node.style is None and _NUMBER.fullmatch(node.value):
            return self._bounded(float(node.value), shape, path)
        return self._refuse(path, _expected(shape), node)

    def _expression(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """Return the text of a scalar of any type: YAML would read ``3`` as a number, and ``true`` as a boolean."""
        if not node.value.strip():
            return self._refuse(path, UNITS["expression"].words, node)
        return _PYTHON_WORDS.get(node.value.lower(), node.value) if node.style is None else node.value

    def _with_unit(self, node: yaml.ScalarNode, shape: Shape, path: KeyPath) -> Any:
        assert shape.unit is not None
        try:
            value = UNITS[shape.unit].parse(node.value, self._folder)
        except ValueError as error:
            self.findings.append(Finding(path, str(error)))
            return INVALID
        return self._bounded(value, shape, path)

    def _bounded(self, value: Any, shape: Shape, path: KeyPath) -> Any:
        inner = shape.type
        if isinstance(inner, inspect.IntType | inspect.FloatType):
            expected = out_of_bounds(value, inner, UNITS[shape.unit].format if shape.unit else str)
            if expected is not None:
                self.findings.append(Finding(path, expected))
                return INVALID
        return value


def _construct(node: yaml.ScalarNode) -> Any:
    """Return the value of a number, a boolean or null."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()


MISSING = "is missing"
"""Beginning of what is said of a required setting."""


def _missing(field: inspect.Field) -> str:
    meaning = shape_of(field.type).description.partition(". ")[0].rstrip(".")
    return f"{MISSING}. {meaning}." if meaning else MISSING


def _without_null(type_: inspect.Type) -> inspect.Type:
    """Return a type that may be null as the type that it is otherwise."""
    shape = shape_of(type_)
    if not isinstance(shape.type, inspect.UnionType):
        return type_
    types = tuple(each for each in shape.type.types if not isinstance(each, inspect.NoneType))
    extra = {key: value for key, value in (("x-unit", shape.unit), ("x-short", shape.short)) if value is not None}
    return inspect.Metadata(types[0] if len(types) == 1 else inspect.UnionType(types), extra_json_schema=extra)


_MAPPINGS = (inspect.DictType, inspect.StructType)
_LISTS = (inspect.VarTupleType,)


def _fitting(node: yaml.Node, types: list[inspect.Type]) -> inspect.Type:
    """Return the type that a value is meant to be, by its form: a mapping, a list or a single value."""

    def has_form(type_: inspect.Type) -> bool:
        inner = shape_of(type_).type
        if isinstance(node, yaml.MappingNode):
            return isinstance(inner, _MAPPINGS)
        if isinstance(node, yaml.SequenceNode):
            return isinstance(inner, _LISTS)
        return not isinstance(inner, (*_MAPPINGS, *_LISTS))

    fits = next((each for each in types if has_form(each)), None)
    # A single value may stand for a list, and for a section.
    return fits or next((each for each in types if isinstance(shape_of(each).type, _LISTS)), types[0])


def _may_be(node: yaml.Node, type_: inspect.Type) -> bool:
    """Return whether a node can stand for a section as the value of its only setting, which is of this type."""
    inner = shape_of(_without_null(type_)).type
    return isinstance(node, yaml.ScalarNode) or (isinstance(node, yaml.SequenceNode) and isinstance(inner, _LISTS))


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"


def _is_comment(node: yaml.Node) -> bool:
    """Return whether a value is missing because it begins with ``#`` and has no quotes."""
    mark = node.start_mark
    rest = (mark.buffer or "")[mark.pointer :].partition("\n")[0]
    return rest.lstrip(" :").startswith("#")


def _expected(shape: Shape) -> str:
    if shape.unit is not None:
        return UNITS[shape.unit].words
    if isinstance(shape.type, inspect.LiteralType):
        return " or ".join(map(str, shape.type.values))
    if isinstance(shape.type, inspect.IntType):
        return "a whole number"
    if isinstance(shape.type, inspect.FloatType):
        return "a number"
    if isinstance(shape.type, inspect.BoolType):
        return "true or false"
    if shape.examples:
        *others, last = shape.examples
        return f"text such as {', '.join(others)} or {last}" if others else f"text such as {last}"
    return "text (put it in quotes if it looks like a number, a date or yes/no)"


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        # An unquoted topic level, {line}, is a mapping with one key and no value.
        is_level = len(node.value) == 1 and _is_null(node.value[0][1]) and isinstance(node.value[0][0], yaml.ScalarNode)
        return f'a mapping. Write quotes: "{{{node.value[0][0].value}}}"' if is_level else "settings with their values"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if _is_null(node):
        return "nothing. A # begins a comment: a value with it needs quotes" if _is_comment(node) else "nothing"
    return quoted(node.value) if node.tag == f"{_TAG}str" else node.value[:_TEXT_SHOWN_MAX]


def _sections(type_: inspect.StructType) -> str:
    """Return what a section consists of, its required settings first."""
    fields = sorted(type_.fields, key=lambda field: not field.required)
    return f"keys and values ({_listed([field.encode_name for field in fields])})"


def _listed(names: list[str]) -> str:
    """Join names for a sentence; a long list is cut."""
    more = len(names) - _KEYS_SHOWN_MAX
    return ", ".join(names[:_KEYS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


# YAML's own errors, reworded for the person who wrote the file.

_NEEDS_QUOTES = re.compile(r"found character '([^\\])' that cannot start any token")
_MARKS = "*&!"
"""Characters that begin an alias, an anchor and a tag: none of them has a meaning in a configuration."""
_VALUE = re.compile(r"(?:.*?:\s+|\s*-\s+)(?P<value>\S.*?)\s*")
_FLOW_END = re.compile(r",\s|\s?[\]}]+\s*$|(?<=\S)\s+[\]}]")
_NO_SPACE = re.compile(r"\s*[a-z_]+:[^\s:]")
_INDENTATION = "the indentation does not fit the lines above. Settings of one section begin in the same column"


class LineProblem(NamedTuple):
    """A line, counted from 1 (0 for the file as a whole), and the problem there."""

    line: int
    message: str


def explained(error: yaml.YAMLError, text: str) -> LineProblem:
    """Return the place where a text is not YAML, and what to write instead."""
    if isinstance(error, yaml.reader.ReaderError):
        number = text.count("\n", 0, error.position) + 1
        return LineProblem(number, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML. Delete it")
    if not isinstance(error, yaml.MarkedYAMLError):
        return LineProblem(0, f"this is not YAML: {str(error).splitlines()[0]}")
    at = error.problem_mark or error.context_mark
    if at is None:
        return LineProblem(0, f"this is not YAML: {error.problem or error.context}")
    lines = text.splitlines()
    line = lines[at.line] if at.line < len(lines) else ""
    opened = error.context_mark.line if error.context_mark is not None else at.line
    return _explained(error, line, at, opened, lines) or LineProblem(
        at.line + 1, f"this is not YAML: {error.problem or error.context}"
    )


def _explained(
    error: yaml.MarkedYAMLError, line: str, at: yaml.Mark, opened: int, lines: list[str]
) -> LineProblem | None:
    """Explain the most common mistakes, by the words of PyYAML and the line itself."""
    problem, context = error.problem or "", error.context or ""
    number = at.line + 1
    if r"'\t'" in problem:
        return LineProblem(number, "a tab is used for indentation. Replace it with spaces: YAML allows no tabs there")
    if line[: at.column].rstrip().endswith(("}", "]")) and ("block end" in problem or "expected ','" in problem):
        return LineProblem(number, _quotes_for(_bracketed(line, at.column)))
    if match := _NEEDS_QUOTES.search(problem):
        return LineProblem(number, _quotes_for(_value(line, at.column) or match[1]))
    value = _VALUE.fullmatch(line)
    if value and value["value"][0] in _MARKS and ("alias" in context + problem or "anchor" in context):
        return LineProblem(number, _quotes_for(value["value"]))
    if "mapping values are not allowed" in problem:
        return _second_colon(line, number, lines)
    if line[: at.column].rstrip().endswith(("'", '"')) and "expected <block end>" in problem:
        return LineProblem(number, "text follows after a quoted value. Put all of the value in one pair of quotes")
    if "end of stream" in problem and "quoted scalar" in context:
        return LineProblem(opened + 1, "a quote that begins here is not closed")
    if "expected ',' or" in problem:
        return LineProblem(opened + 1, "a bracket that opens here is not closed, or a comma is missing after an entry")
    if "could not find expected ':'" in problem:
        return LineProblem(
            opened + 1, f"expected `name: value`, with a space after the colon, got {quoted(lines[opened])}"
        )
    if "another document" in problem:
        return LineProblem(number, "a second document begins here. One file holds one configuration: delete the `---`")
    if "unknown escape character" in problem:
        return LineProblem(number, "a backslash in double quotes begins an escape. Use single quotes")
    return LineProblem(number, _INDENTATION) if "expected <block end>" in problem else None


def _second_colon(line: str, number: int, lines: list[str]) -> LineProblem:
    """Explain an unexpected colon: the value needs quotes, or the line above lacks a space after its colon."""
    if line.count(": ") > 1:
        return LineProblem(number, "a value with a colon and a space needs quotes")
    if number > 1 and _NO_SPACE.match(lines[number - 2]):
        return LineProblem(number - 1, f"a space is missing after the colon of {quoted(lines[number - 2].strip())}")
    return LineProblem(number, _INDENTATION)


def _bracketed(line: str, column: int) -> str:
    """Return the bracketed value that ends before ``column``."""
    start = line.rfind("{" if line[:column].rstrip().endswith("}") else "[", 0, column)
    return _value(line, start)


def _value(line: str, start: int) -> str:
    """Return the value that begins at ``start``, up to a comment, or inside brackets up to a comma or the closing
    bracket."""
    value = line[start:].partition(" #")[0]
    is_inside = bool({"{", "["} & set(line[:start]))
    return (_FLOW_END.split(value, maxsplit=1)[0] if is_inside else value).strip()


def _quotes_for(value: str) -> str:
    return f"a value that begins with {value[0]} needs quotes. Write {quoted(value)}"


# Settings given on a command line: ``source.store=/data/hub`` in place of the file's values.

OPTION = "--set"
_KEY = re.compile(r"([^.\[\]=\s]+)|\[(\d{1,4})\]")
_PATH = re.compile(r"[^.\[\]=\s]+(\.[^.\[\]=\s]+|\[\d{1,4}\])*")


def apply(node: yaml.Node, settings: Sequence[str]) -> yaml.Node:
    """Return the tree of a file with some settings replaced or added. Values are YAML, and have no line.

    Raises:
        ConfigError: one is not ``NAME.NAME=VALUE``, its value is not YAML, or its path leads through a single value.
    """
    for text in settings:
        path, equals, value = text.partition("=")
        if not equals or not _PATH.fullmatch(path):
            raise _wrong(f"expected NAME=VALUE such as source.store=/data/hub, got {quoted(text)}")
        keys = [int(match[2]) if match[2] else match[1] for match in _KEY.finditer(path)]
        node = _replaced(node, keys, _compose(value, path), path)
    return node


def _compose(value: str, path: str) -> yaml.Node:
    try:
        node = yaml.compose(value, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _wrong(f"{path}: {explained(error, value)[1]}") from None
    except RecursionError:
        raise _wrong(f"{path}: this is nested too deeply") from None
    if node is None:
        node = yaml.ScalarNode("tag:yaml.org,2002:null", "", *_nowhere())
    _forget_places(node)
    return node


def _replaced(node: yaml.Node, keys: Sequence[str | int], value: yaml.Node, path: str) -> yaml.Node:
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        node = yaml.MappingNode("tag:yaml.org,2002:map", [], *_nowhere())
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        node.value[key] = _replaced(node.value[key], rest, value, path)
        return node
    if not isinstance(node, yaml.MappingNode) or isinstance(key, int):
        raise _wrong(f"{path}: the file has no such place")
    for at, (name, inner) in enumerate(node.value):
        if name.value == key:
            node.value[at] = (name, _replaced(inner, rest, value, path))
            return node
    name = yaml.ScalarNode("tag:yaml.org,2002:str", str(key), *_nowhere())
    empty = yaml.ScalarNode("tag:yaml.org,2002:null", "", *_nowhere())
    node.value.append((name, _replaced(empty, rest, value, path)))
    return node


def _forget_places(node: yaml.Node) -> None:
    node.start_mark, node.end_mark = _nowhere()
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _forget_places(each)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            _forget_places(name)
            _forget_places(value)


def _nowhere() -> tuple[yaml.Mark, yaml.Mark]:
    """Return marks of line 0, as messages count: they then name no line."""
    mark = yaml.Mark(OPTION, 0, -1, 0, None, 0)
    return mark, mark


def _wrong(message: str) -> ConfigError:
    return ConfigError([Problem(OPTION, 0, (), message)])
