"""The parts of queues that know no log: numbers in little memory, patterns, and counts of who needs what."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.bounds import Owner, OwnerKind, Quota, Refusals
from weft.edge_node.queues import limits
from weft.edge_node.queues import queue as part_of_queue
from weft.edge_node.queues.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    ExchangeKind,
    headers_of_route,
    origin_of,
    topic_of,
)
from weft.edge_node.queues.exchange import Destination, Exchange, HeadersBindings, PatternTree
from weft.edge_node.queues.queue import Queue
from weft.edge_node.queues.ready import AHEAD_MAX, EXACT, DeliveryMarks, LoadedMessages, Ready, SeqRuns, Unsettled
from weft.edge_node.queues.state import RefCounts
from weft.edge_node.subscriptions.message import LogRecord
from weft.protocols.topics import check_topic

WORDS = st.sampled_from(["a", "b", "*", "#", ""])
KEYS = st.lists(st.sampled_from(["a", "b", "*", "#", "", "c"]), max_size=5).map(".".join)
NUMBERS = st.lists(st.integers(0, 5000), unique=True, max_size=60)


def as_expression(pattern: str) -> re.Pattern[str]:
    """The same pattern for words that each end with a dot."""
    parts = []
    for word in pattern.split(".") if pattern else []:
        parts.append({"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}.get(word, re.escape(word) + r"\."))
    return re.compile("".join(parts))


@given(st.lists(st.lists(WORDS, max_size=5).map(".".join), max_size=8), st.lists(KEYS, min_size=1, max_size=8))
def test_patterns_match_word_by_word(patterns: list[str], keys: list[str]) -> None:
    tree: PatternTree[int] = PatternTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, number)
    for key in keys:
        words = "".join(f"{word}." for word in key.split(".")) if key else ""
        wanted = {number for number, each in enumerate(patterns) if as_expression(each).fullmatch(words)}
        assert tree.match(key) == wanted
    for number, pattern in enumerate(patterns):
        tree.remove(pattern, number)
    assert tree._root.is_empty


def test_many_wildcards_in_one_pattern_do_not_multiply() -> None:
    tree: PatternTree[int] = PatternTree()
    tree.add(".".join(["#", "a"] * 30), 1)
    assert tree.match(".".join(["a"] * 120)) == {1}
    assert tree.match(".".join(["a"] * 120) + ".b") == set()


ARGUMENTS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "x-d"]), st.sampled_from([None, 0, 1, True, "1", 1.5, float("nan")]), max_size=3
)
HOW = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])


def matches(wanted: dict[str, Any], how: str, headers: dict[str, Any]) -> bool:
    found = [
        name in headers and (value is None or (type(value), repr(value)) == (type(headers[name]), repr(headers[name])))
        for name, value in wanted.items()
        if how.endswith("-with-x") or not name.startswith("x-")
    ]
    return any(found) if how.startswith("any") else all(found)


@given(st.lists(st.tuples(ARGUMENTS, HOW), max_size=8), st.lists(ARGUMENTS, min_size=1, max_size=6))
def test_headers_match_as_their_arguments_say(
    bindings: list[tuple[dict[str, Any], str]], messages: list[dict[str, Any]]
) -> None:
    tables: HeadersBindings[int] = HeadersBindings()
    for number, (wanted, how) in enumerate(bindings):
        tables.add({**wanted, "x-match": how}, number)
        tables.add({**wanted, "x-match": how}, number)
    for number, (wanted, how) in enumerate(bindings):
        tables.remove({**wanted, "x-match": how}, number)
        if not number % 2:
            tables.remove({**wanted, "x-match": how}, number)
    for headers in messages:
        had = {name: value for name, value in headers.items() if value is not None}
        wanted_now = {
            number for number, (wanted, how) in enumerate(bindings) if number % 2 and matches(wanted, how, had)
        }
        assert tables.match(had) == wanted_now
    for number, (wanted, how) in enumerate(bindings):
        if number % 2:
            tables.remove({**wanted, "x-match": how}, number)
    assert not tables._places
    assert not tables._where


@given(st.lists(st.lists(WORDS, max_size=5).map(".".join), max_size=20, unique=True), st.lists(KEYS, min_size=1))
def test_a_look_up_takes_no_more_steps_than_its_patterns_cost(patterns: list[str], keys: list[str]) -> None:
    ann, bob = Owner(OwnerKind.USER, "ann"), Owner(OwnerKind.USER, "bob")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "COMMON_WORDS", 0)
        patch.setattr(limits, "COMMON_STARS", 0)
        cost = limits.LookUpCost(Quota("", 1 << 30, 1 << 30, ""), Refusals(lambda: 0.0))
        exchange = Exchange(ExchangeDefinition("e", ExchangeKind.TOPIC, False, False, False, None, *ann))
        tree: PatternTree[int] = PatternTree()
        bound = [
            (BindingDefinition("e", "q", False, each, b""), (ann, bob)[at % 2]) for at, each in enumerate(patterns)
        ]
        for binding, owner in bound:
            assert cost.take(owner, exchange, binding)
            tree.add(binding.key, 1)
        assert max(cost.of(ann), cost.of(bob)) <= cost.used <= cost.of(ann) + cost.of(bob)
        for key in keys:
            tree.match(key)
            assert tree.steps <= 1 + 2 * cost.used, "the root, and each node, a loop when it is reached as well"
        for binding, owner in bound:
            cost.free(owner, exchange, binding)
        assert not cost.used
        assert not cost._owners
        assert not cost._taken


@given(st.lists(st.tuples(ARGUMENTS, HOW, st.sampled_from("ab")), max_size=20), st.randoms(use_true_random=False))
def test_bindings_by_headers_give_back_what_they_cost(
    wanted: list[tuple[dict[str, Any], str, str]], order: random.Random
) -> None:
    ann, bob = Owner(OwnerKind.USER, "ann"), Owner(OwnerKind.USER, "bob")
    cost = limits.LookUpCost(Quota("", 1 << 30, 1 << 30, ""), Refusals(lambda: 0.0))
    exchange = Exchange(ExchangeDefinition("e", ExchangeKind.HEADERS, False, False, False, None, *ann))
    to = {name: Destination(name, owner, is_exchange=False) for name, owner in (("a", ann), ("b", bob))}
    bound = dict.fromkeys(
        BindingDefinition("e", name, False, "", msgspec.msgpack.encode({**arguments, "x-match": how}))
        for arguments, how, name in wanted
    )
    for binding in bound:
        assert cost.take(to[binding.destination].owner, exchange, binding)
        exchange.add(binding, to[binding.destination])
    assert cost.used == cost.of(ann) + cost.of(bob)
    for binding in order.sample([*bound], len(bound)):
        cost.free(to[binding.destination].owner, exchange, binding)
        exchange.remove(binding, to[binding.destination])
    assert (cost.used, cost._owners, cost._taken, cost._standing, exchange.bindings) == (0, {}, {}, {}, {})


@given(NUMBERS, NUMBERS, st.integers(0, 5000), st.integers(1, 9))
def test_runs_are_the_numbers_they_were_made_of(numbers: list[int], taken: list[int], end: int, count: int) -> None:
    runs, left = SeqRuns(), SeqRuns()
    for number in sorted(numbers):
        runs.append(number)
    for number in sorted(taken):
        left.extend(number, number + 1)
    assert list(runs) == sorted(numbers)
    assert list(runs.without(left)) == sorted(set(numbers) - set(taken))
    assert list(runs.below(end)) == [number for number in sorted(numbers) if number < end]
    copy = SeqRuns()
    for columns in runs.to_bytes():
        copy.add_bytes(*columns)
    assert list(copy) == list(runs)
    assert [runs.pop() for _ in numbers] == sorted(numbers)
    assert len(runs) == 0
    for at in range(0, len(numbers), count):
        assert list(copy.next(count)) == sorted(numbers)[at : at + count]
        copy.pop_many(min(count, len(copy)))
    assert len(copy) == 0


def test_a_backlog_takes_next_to_nothing() -> None:
    runs = SeqRuns()
    runs.extend(0, 1_000_000)
    ((firsts, counts),) = runs.to_bytes()
    assert len(firsts) + len(counts) == 16


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=60))
def test_what_comes_back_goes_to_its_place(steps: list[tuple[int, int, int]]) -> None:
    ready, model, out = Ready(), list[tuple[int, int]](), list[tuple[int, int]]()
    number = 0
    for what, priority, count in steps:
        if what == 2:
            ready.add(number, number + count, priority, sum(range(number, number + count)))
            model += [(-priority, each) for each in range(number, number + count)]
            number += count
        elif what and model:
            model.sort()
            assert ready.peek() == (model[0][1], -model[0][0])
            run = ready.peek_run(count)
            assert [(ready.peek()[1], seq) for seq in run] == [(-negative, seq) for negative, seq in model[: len(run)]]
            ready.pop_run(len(run), sum(run))
            out += model[: len(run)]
            del model[: len(run)]
        elif out:
            negative, seq = out.pop()
            ready.put_back(seq, -negative, seq)
            model.append((negative, seq))
    assert list(ready) == [seq for _, seq in sorted(model)]
    assert len(ready) == len(model)
    assert ready.bytes == sum(seq for _, seq in model)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 300)), max_size=12), st.data())
def test_a_message_is_free_when_no_queue_needs_it(parts: list[tuple[int, int]], data: st.DataObject) -> None:
    ref_counts, model = RefCounts(), dict[int, int]()
    for first, length in parts:
        if length % 2:
            ref_counts.hold_run(first, first + length)
            change = dict.fromkeys(range(first, first + length), 1)
        else:
            ref_counts.hold(first, length)
            change = {first: length}
        for seq, count in change.items():
            model[seq] = model.get(seq, 0) + count
    unneeded = {seq for first, end in ref_counts.unneeded(2000) for seq in range(first, end)}
    assert unneeded == {seq for seq in range(2000) if not model.get(seq)}
    for first, length in data.draw(st.permutations(parts)):
        if length % 2:
            step = data.draw(st.integers(1, 3))
            for begin in range(first, first + min(step, length)):
                ref_counts.drop_each(range(begin, first + length, step))
            change = dict.fromkeys(range(first, first + length), 1)
        else:
            for _ in range(length):
                ref_counts.drop(first)
            change = {first: length}
        freed = {seq for seq, count in change.items() if model[seq] == count}
        for seq, count in change.items():
            model[seq] -= count
        assert {seq for first, end in ref_counts.take_free() for seq in range(first, end)} == freed
    unneeded = {seq for first, end in ref_counts.unneeded(2000) for seq in range(first, end)}
    assert unneeded == set(range(2000))
    assert not ref_counts._blocks


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_key_is_a_topic_and_comes_back_as_it_was(exchange: str, key: str) -> None:
    try:
        key.encode()
        exchange.encode()
    except UnicodeEncodeError:
        return
    topic = topic_of(exchange, key)
    check_topic(topic)
    assert origin_of(topic.encode(), headers_of_route(exchange, key, topic)) == (exchange, key)


def test_a_queue_s_state_is_changed_in_its_room_alone() -> None:
    fields = {name for part in (Queue, Ready, LoadedMessages, Unsettled, DeliveryMarks) for name in part.__slots__}
    folder = Path(part_of_queue.__file__).parent
    found = []
    for path in folder.parent.rglob("*.py"):
        if path.parent == folder:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
                targets = [node.target]
            elif isinstance(node, ast.Delete):
                targets = node.targets
            for target in targets:
                owner = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(owner, ast.Attribute) and owner.attr in fields and "queue" in ast.unparse(owner.value):
                    found.append(f"{path.name}: {ast.unparse(target)}")
    assert found == []


def test_marks_of_deliveries_run_ahead_by_more_where_readers_wait_for_early_ones() -> None:
    marks = DeliveryMarks()
    assert [marks.ahead(3) for _ in range(EXACT + 4)] == [3] * EXACT + [3, 4, 8, 16]
    while marks.reach < AHEAD_MAX // 4:
        assert not marks.is_due(0), "readers take a few messages, so far"
        marks.ahead(1)
    assert marks.ahead(1) == AHEAD_MAX // 4
    end, reaches = 0, []
    for is_early, waits in ((False, 2), (True, 0), (True, 2), (True, 1), (True, 1)):
        first, end = end, end + 10 * marks.reach  # nine of ten messages are other queues'
        middle = (first + end) // 2
        marks.write(end, middle, is_early=is_early)
        assert not marks.is_due(end - 1), "one is on its way"
        for _ in range(waits):
            marks.late()
        marks.written(end)
        assert [marks.is_due(seq) for seq in (first, middle - 1, middle, end)] == [False, False, True, True]
        reaches.append(marks.ahead(1))
    assert reaches == [AHEAD_MAX // 4] * 2 + [AHEAD_MAX // 2] + [AHEAD_MAX] * 2


def test_memory_of_loaded_messages_is_given_back() -> None:
    loaded = LoadedMessages()
    sizes = []
    for seq in range(3):
        loaded.keep([LogRecord(seq, b"t", b"x" * 100 * seq, 0, (), 0)])
        loaded.keep([LogRecord(seq, b"t", b"kept already, and not counted again", 0, (), 0)])
        sizes.append(loaded.bytes)
    assert loaded.drop(7) is None
    assert loaded.bytes == sizes[2]
    for seq, left in ((2, sizes[1]), (1, sizes[0]), (0, 0)):
        dropped = loaded.drop(seq)
        assert dropped is not None
        assert (dropped.seq, loaded.bytes) == (seq, left)
