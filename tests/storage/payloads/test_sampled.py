"""A schema held against a sample of payloads: what does not fit, what is never there, and what has no name."""

from __future__ import annotations

import json

from weft.config.load import parse_schema
from weft.storage.payloads.decoder import FieldFindings, SampleOfSchema


def test_a_sample_says_what_devices_changed() -> None:
    sample = SampleOfSchema(parse_schema("fields: {t: float, rpm: {type: int, from: motor.rpm}, renamed: string}"))
    sent = [
        {"t": "n/a" if n % 10 == 0 else n, "motor": {"rpm": n, "load": 0.5}, "new_name": "x", "t_2": n}
        for n in range(100)
    ]
    for part in (sent[:50], sent[50:]):
        sample.take([json.dumps(each).encode() for each in part])
    sample.take([b"no JSON"])
    assert (sample.records, sample.misfits) == (101, 11)
    t, rpm, renamed, payload = sample.fields()
    assert t == FieldFindings("t", 90, 10, 'expected a number of 64 bits, got "n/a"')
    assert (rpm.values, rpm.misfits, renamed.values, renamed.misfits) == (100, 0, 0, 0)
    assert (payload.name, payload.misfits) == ("payload", 1)
    assert [line.split("  #")[0].strip() for line in sample.unnamed()] == [
        "motor_load: {type: float, from: motor.load}",
        "new_name: string",
        "t_2: int",
    ]
