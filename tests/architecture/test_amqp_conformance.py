"""docs/reference/amqp-conformance.md says of every method and field of AMQP 0-9-1 which test is about it."""

from __future__ import annotations

from tests.architecture.amqp_conformance import NOT_COVERED, PAGE, filled, items, rows


def test_the_page_has_every_method_and_field_in_order() -> None:
    assert [row.item for row in rows(PAGE.read_text())] == items()


def test_the_page_names_the_tests_that_there_are() -> None:
    assert filled(PAGE.read_text()) == PAGE.read_text(), "run: ./run fix"


def test_everything_is_covered() -> None:
    assert [row.item for row in rows(PAGE.read_text()) if row.covered_by == NOT_COVERED] == []
