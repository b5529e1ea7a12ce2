"""What a night runs. A job is a row of seeds; a slice is a few of them, made by a process of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

PROPERTIES = (
    "tests/protocols", "tests/storage", "tests/replication", "tests/edge_node/sessions/store/test_journal_model.py",
    "tests/edge_node/sessions/store/test_exactly_once_model.py", "tests/edge_node/servers/mqtt/test_broker_model.py",
    "tests/edge_node/queues/test_queues_model.py",
    "tests/cloud_hub/tables/test_statistics.py", "tests/cloud_hub/tables/test_maintenance.py",
)  # fmt: skip
CODEC_ROUNDS = 20_000
"""Damaged packets of one seed."""
STORM = "tests/end_to_end/test_storms.py::test_kills_of_an_s3_server_and_of_two_nodes_lose_and_double_nothing"
BROKER_STORM = "tests/end_to_end/test_broker_storms.py::test_kills_lose_and_double_nothing_of_amqp_and_http"
BROKER_KILLS = 30
SPARK_STORM = "tests/spark_sinks/cluster/test_storm.py::test_tables_equal_those_of_a_run_without_kills"
SPARK_KILLS = 50
DECODER_S = 40
"""How long one seed fuzzes a decoder, each in its turn."""
FUZZ_S = 60
"""How long one seed keeps a node under damaged conversations."""
REPORT_CHARACTERS = 2000
"""What is kept of a failure's output: its end."""


class Failure(msgspec.Struct, frozen=True):
    """A seed that broke a promise."""

    seed: int
    message: str
    repeat: str
    """The command that shows it again."""


class Outcome(NamedTuple):
    """What a slice came to."""

    done: int
    """In the job's unit."""
    failures: list[Failure]


@dataclass(frozen=True)
class Job:
    """A row of seeds, each of which either keeps every promise or fails the same way again."""

    unit: str
    run: Callable[[int], int]
    """Run one seed and return how much that was, in ``unit``.

    Raises ``Exception`` where a promise was broken.
    """
    repeat: str
    """The command that repeats a seed, which stands for ``{seed}``."""
    slice_seeds: int
    """Seeds of a slice: about a minute's work on one core."""
    share: int = 1
    """Part of the time, beside those of the other jobs."""
    target: int = 0
    """How much a whole night should reach; 0 where more is simply better."""


def run_slice(name: str, first: int, end: int) -> Outcome:
    """Run the seeds from ``first`` to before ``end``; a failing one does not end the slice."""
    job, done, failures = JOBS[name], 0, []
    logging.disable(logging.CRITICAL)  # Thousands of expected complaints of faulty disks and stores.
    try:
        for seed in range(first, end):
            try:
                done += job.run(seed)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"[-REPORT_CHARACTERS:]
                failures.append(Failure(seed, message, job.repeat.format(seed=seed)))
    finally:
        logging.disable(logging.NOTSET)
    return Outcome(done, failures)


def _power_cuts(seed: int) -> int:
    from tests.storage.segment_log.power_cuts_workload import PowerCuts

    cuts = PowerCuts(seed)
    cuts.run()
    return cuts.cuts


def _function_cuts(seed: int) -> int:
    from tests.edge_node.functions.runtime.power_cuts import quiet, run_seed

    with quiet():
        return run_seed(seed)


def _simulation(seed: int) -> int:
    from tests.cloud_hub.simulation import simulate

    simulate(seed)
    return 1


def _collecting(seed: int) -> int:
    from tests.cloud_hub.collecting import simulate_collection

    simulate_collection(seed)
    return 1


def _upgrade(seed: int) -> int:
    from tests.cloud_hub.simulation import simulate_upgrade

    simulate_upgrade(seed)
    return 1


def _storm(seed: int) -> int:
    from tests.support.s3_servers import MINIO, VERSITYGW, built

    for kind in (VERSITYGW, MINIO):
        try:
            built(kind)
        except LookupError as reason:
            raise AssertionError(str(reason)) from reason
    _pytest([STORM], {"WEFT_STORM_SEED": str(seed)})
    return 1


def _broker_storm(seed: int) -> int:
    _pytest([BROKER_STORM], {"WEFT_STORM_SEED": str(seed), "WEFT_STORM_KILLS": str(BROKER_KILLS)})
    return BROKER_KILLS


def _spark_storm(seed: int) -> int:
    _pytest([SPARK_STORM], {"WEFT_STORM_SEED": str(seed), "WEFT_STORM_KILLS": str(SPARK_KILLS)})
    return SPARK_KILLS


def _codec(seed: int) -> int:
    from tests.fuzz.mqtt_damage import run_damaged

    run_damaged(seed, CODEC_ROUNDS)
    return CODEC_ROUNDS


def _decoders(seed: int) -> int:
    from tests.fuzz.long_run import run

    run(seed, DECODER_S)
    return DECODER_S


def _node(seed: int) -> int:
    _pytest(
        ["tests/fuzz/test_node.py::test_damaged_conversations_for_longer"],
        {"WEFT_FUZZ_SEED": str(seed), "WEFT_FUZZ_SECONDS": str(FUZZ_S)},
    )
    return FUZZ_S


def _properties(seed: int) -> int:
    _pytest(["-m", "hypothesis", f"--hypothesis-seed={seed}", "--hypothesis-profile=nightly", *PROPERTIES])
    return 1


def _pytest(arguments: list[str], environment: Mapping[str, str] = {}) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    variables = os.environ | environment
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError((done.stdout + done.stderr)[-REPORT_CHARACTERS:])


_AGAIN = ".venv/bin/python -m"
JOBS: Mapping[str, Job] = {
    "power_cuts": Job(
        "power cuts", _power_cuts, f"{_AGAIN} tests.storage.segment_log.power_cuts --replay {{seed}} --shrink",
        slice_seeds=100, share=4, target=1_000_000,
    ),
    "function_cuts": Job(
        "power cuts of functions", _function_cuts, f"{_AGAIN} tests.nightly repeat function_cuts {{seed}}", 100,
        share=2, target=100_000,
    ),
    "simulation": Job("histories of a shard", _simulation, f"{_AGAIN} tests.nightly repeat simulation {{seed}}", 200),
    "collecting": Job(
        "histories of a collected shard", _collecting, f"{_AGAIN} tests.nightly repeat collecting {{seed}}", 100,
    ),
    "upgrade": Job("histories of an upgrade", _upgrade, f"{_AGAIN} tests.nightly repeat upgrade {{seed}}", 200),
    "storms": Job(
        "storms of versitygw and MinIO", _storm, f"WEFT_STORM_SEED={{seed}} {_AGAIN} pytest {STORM}", slice_seeds=1,
    ),
    "broker_storms": Job(
        "kills under AMQP and HTTP", _broker_storm,
        f"WEFT_STORM_SEED={{seed}} WEFT_STORM_KILLS={BROKER_KILLS} {_AGAIN} pytest {BROKER_STORM}", slice_seeds=1,
    ),
    "spark_storms": Job(
        "kills of a Spark job", _spark_storm,
        f"WEFT_STORM_SEED={{seed}} WEFT_STORM_KILLS={SPARK_KILLS} {_AGAIN} pytest {SPARK_STORM}", slice_seeds=1,
    ),
    "mqtt_codec": Job("damaged packets", _codec, f"{_AGAIN} tests.nightly repeat mqtt_codec {{seed}}", 20),
    "decoders": Job(
        "seconds of fuzzed decoders", _decoders, f"{_AGAIN} tests.nightly repeat decoders {{seed}}", slice_seeds=1,
        share=2,
    ),
    "node": Job(
        "seconds under damaged conversations", _node,
        f"WEFT_FUZZ_SEED={{seed}} WEFT_FUZZ_SECONDS={FUZZ_S} "
        f"{_AGAIN} pytest tests/fuzz/test_node.py::test_damaged_conversations_for_longer",
        slice_seeds=1,
    ),
    "properties": Job(
        "passes of every property", _properties,
        f"{_AGAIN} pytest -m hypothesis --hypothesis-seed={{seed}} --hypothesis-profile=nightly {' '.join(PROPERTIES)}",
        slice_seeds=1,
    ),
}  # fmt: skip
"""Name -> job. Each night goes on with the seeds behind those of the last one."""
