"""Types of the settings with their units, and the base class of sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

Duration = Annotated[float, Meta(extra_json_schema={"x-unit": "duration"})]
"""Seconds."""
Size = Annotated[int, Meta(extra_json_schema={"x-unit": "size"})]
"""Bytes."""
Rate = Annotated[int, Meta(ge=1, extra_json_schema={"x-unit": "rate"})]
"""Bytes a second."""
Windows = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16, extra_json_schema={"x-unit": "windows"})]
"""Windows of local time; ``config.units.parse_window`` parses one."""
Zone = Annotated[str, Meta(extra_json_schema={"x-unit": "zone"})]
"""Name of a time zone of the IANA database."""
Count = Annotated[int, Meta(ge=1)]
Bind = Annotated[str, Meta(extra_json_schema={"x-unit": "bind"})]
"""``host:port``; ``config.units.parse_bind`` parses it."""
Path = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "path"})]
Store = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "store"})]
Filters = Annotated[tuple[str, ...], Meta(min_length=1, max_length=256, extra_json_schema={"x-unit": "filters"})]
Urls = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64, extra_json_schema={"x-unit": "urls"})]
AdvertisedUrls = Annotated[
    tuple[str, ...], Meta(min_length=1, max_length=64, extra_json_schema={"x-unit": "advertised_urls"})
]
BrokerUrls = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16, extra_json_schema={"x-unit": "broker_urls"})]
Listen = Annotated[str, Meta(extra_json_schema={"x-unit": "listen"})]
"""``host:port`` or ``unix:/path``; ``config.units.parse_listen`` parses it."""
Networks = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64, extra_json_schema={"x-unit": "networks"})]
Hosts = Annotated[tuple[str, ...], Meta(max_length=64, extra_json_schema={"x-unit": "hosts"})]
"""Host names without port, in lower case."""
Expression = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "expression"})]
"""Text of an expression. In YAML it may also look like a number or a word for true or false: ``where: true``."""
Anonymous = Literal["loopback", "allowed_beyond_loopback"]
RefusedPublish = Literal["close", "acknowledge"]
ListenerAnonymous = Literal["never", "loopback", "allowed_beyond_loopback"]

MiB = 1 << 20


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of sections: immutable, and unknown keys are errors."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Names that settings of this section had in earlier releases -> their present names. Both are read."""

    def with_its_file(self, parse: Callable[..., Any]) -> Self:  # noqa: ARG002
        """Return the section with the settings that a file of its own has; most have none. Blocks.

        Args:
            parse: ``config.load.parse``.

        Raises:
            ValueError, ConfigError: the file that `file` names cannot be used.
        """
        return self


class OneOf(Section, frozen=True, kw_only=True):
    """Base class of sections of which exactly one setting is given. All of them are optional in the model."""

    noun: ClassVar[str] = "setting"
    """Word for a setting of this section in error messages."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Settings allowed beside the one that is given."""

    @property
    def chosen(self) -> tuple[str, Any]:
        """Return the setting that is given: its name as in YAML, and its value."""
        for name, encoded in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if value is not None and name not in self.beside:
                return encoded, value
        raise LookupError(f"this {type(self).__name__} has no {self.noun}")
