"""The document of the API is valid OpenAPI, and says of each operation what a client needs."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from weft.cloud_hub.http.application import END_OFFSET, NEXT_CHUNK, NEXT_OFFSET
from weft.hub_api.document import document
from weft.hub_api.operations import ERRORS, OPERATIONS, Operation
from weft.protocols.lane import valid_name


def test_the_document_is_openapi() -> None:
    from openapi_spec_validator import validate  # a second of imports, which every worker would wait for

    validate(document())


def test_operations_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(each.name for each in OPERATIONS).items() if count > 1] == []
    assert [key for key, count in Counter(each.key for each in OPERATIONS).items() if count > 1] == []


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: each.name)
def test_an_operation_says_what_it_takes(each: Operation) -> None:
    in_path = {parameter.name for parameter in each.parameters if parameter.place == "path"}
    assert in_path == {part[1:-1] for part in each.path.split("/") if part.startswith("{")}
    assert all(parameter.required for parameter in each.parameters if parameter.place == "path")
    assert each.errors <= ERRORS.keys()
    assert each.errors >= {401, 403, 421}, "any request may lack the right token"


def test_every_field_that_is_not_plain_is_explained() -> None:
    """Docstrings of fields become descriptions, also those of base classes."""
    members = document()["components"]["schemas"]
    assert members["StreamAnswer"]["properties"]["table_rows"]["description"].startswith("Records that are rows")
    assert members["StreamsAnswer"]["properties"]["missing_shards"]["description"].startswith("Absent when")


def test_bounds_of_rows_are_those_of_the_code_that_makes_them() -> None:
    """That code imports pyarrow, which a hub without tables does not need, so the document repeats them."""
    rows = next(each for each in OPERATIONS if each.name == "rows")
    assert set(rows.headers) == {NEXT_OFFSET, NEXT_CHUNK, END_OFFSET}


@pytest.mark.parametrize("name", ["a", "press-7", "0_", "-a", "", "A", "a" * 64, "a" * 65, "a\n", "ä"])
def test_names_are_described_by_the_rule_of_names(name: str) -> None:
    (stream,) = (each for each in OPERATIONS if each.name == "stream")
    pattern = document()["paths"][stream.path]["get"]["parameters"][0]["schema"]["pattern"]
    assert (re.search(pattern.replace("$", r"\Z"), name) is not None) == valid_name(name)
