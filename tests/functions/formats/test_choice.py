"""The format of a stream from its settings."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest

from weft.config.functions.settings import Payload, PayloadFormat, StructField
from weft.functions.chain import Chain, Outputs
from weft.functions.contract import Row
from weft.functions.registry import decoding_of, format_of
from weft.functions.sparkplug_payloads import Payload as SparkplugMessage

FIELDS = (StructField(name="a", type_="u8"),)


@pytest.mark.parametrize("name", get_args(PayloadFormat))
def test_every_format_of_the_configuration_is_there(name: Any) -> None:
    settings = Payload(format=name, fields=FIELDS if name == "struct" else ())
    value: Any = {"number": 5, "text": "x", "bytes": b"x"}.get(name, 7)
    field = "a" if name == "struct" else "value"
    format_ = format_of(settings)
    assert format_.decode(format_.encode({field: value})) == {field: value}


def test_a_struct_that_cannot_work_says_why() -> None:
    with pytest.raises(ValueError, match="two fields are called a"):
        format_of(Payload(format="struct", fields=FIELDS * 2))


def test_the_byte_order_of_a_struct() -> None:
    fields = (StructField(name="a", type_="u16"),)
    assert format_of(Payload(format="struct", fields=fields, byte_order="big")).decode(b"\0\1") == {"a": 1}
    assert format_of(Payload(format="struct", fields=fields)).decode(b"\0\1") == {"a": 256}


def test_without_the_library_of_sparkplug_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['google.protobuf'] = None\n"
        "from weft.config.functions.settings import Payload\n"
        "from weft.functions.registry import format_of\n"
        "try: format_of(Payload(format='sparkplug'))\n"
        "except ValueError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'weft-fabric[sparkplug]'" in found.stdout


def test_libraries_are_loaded_only_where_a_stream_needs_them() -> None:
    code = (
        "import sys\n"
        "from weft.config.functions.settings import Payload\n"
        "from weft.functions.registry import format_of\n"
        "for name in ('json', 'msgpack', 'number', 'text', 'bytes'): format_of(Payload(format=name))\n"
        "print(sorted({'cbor2', 'google.protobuf'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_a_chain_of_sparkplug_decodes_in_its_first_function() -> None:
    decoding = decoding_of(Payload(format="sparkplug"))
    assert decoding.first is not None
    chain = Chain([("births", decoding.first)], decoding.format, format_of(Payload(format="json")))
    birth = {"name": "temperature", "alias": 1, "datatype": 10, "double_value": 20.5}
    rows = [
        Row(1, topic, SparkplugMessage(metrics=[metric]).SerializeToString(), {})
        for topic, metric in (
            (b"spBv1.0/g/NDATA/n", {"alias": 1, "double_value": 21.5}),
            (b"spBv1.0/g/NBIRTH/n", birth),
            (b"spBv1.0/g/NDATA/n", {"alias": 1, "double_value": 22.5}),
        )
    ]
    out = Outputs()
    await chain.process(rows, out)
    assert [row.values for row in out.rows] == [{"temperature": 20.5}, {"temperature": 22.5}]
    assert ["birth that names it" in each.reason for each in out.rejected] == [True]
    assert decoding_of(Payload(format="cbor")).first is None
