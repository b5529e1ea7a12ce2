"""The time-table of a night: each search of the tests is in a row, and the minutes of all rows are at most eight hours
of two processes. What they leave is room for new rows; a night shares it among all.

How long a slice takes was measured on a machine of two cores that did other work beside it. ``./run nightly`` tells
what each row reached, and how fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.nightly.jobs import Job, Made, pytest_job, run_pytest
from tests.support.silence import silent_logs

AGAIN = ".venv/bin/python -m"
PROPERTIES = (
    "tests/protocols",
    "tests/storage",
    "tests/replication",
    "tests/edge_node/sessions/test_models.py",
    "tests/edge_node/servers/mqtt/test_broker_model.py",
    "tests/edge_node/queues/test_queues_model.py",
    "tests/edge_node/servers/test_clients.py",
    "tests/cloud_hub/tables/test_statistics.py",
    "tests/cloud_hub/tables/test_maintenance.py",
)
OTHER_PROPERTIES = (
    "tests/bounds",
    "tests/config",
    "tests/cloud_hub/down",
    "tests/cloud_hub/shard",
    "tests/edge_node",
    "tests/functions",
    "tests/spark_sinks",
)
"""Their properties without the mark ``search``; a pass meets a few of ``PROPERTIES`` again."""
CODEC_ROUNDS = 20_000
"""Damaged packets of one seed."""
DECODER_S = 40
"""How long one seed fuzzes a decoder, each in its turn."""


def searched(
    name: str,
    unit: str,
    run: Callable[[int], int],
    *tests: str,
    minutes: int,
    slice_seeds: int,
    slice_units: int,
    slice_s: float,
    repeat: str = "",
) -> Job:
    """Make the job of a search that needs no pytest.

    Args:
        run: runs one seed; returns how much that was.
    """

    def made(seed: int) -> Made:
        with silent_logs():
            return Made(run(seed))

    again = repeat or f"{AGAIN} tests.nightly repeat {name} {{seed}}"
    return Job(unit, minutes, made, again, tests, slice_seeds, slice_units, slice_s)


def _power_cuts(seed: int) -> int:
    from tests.storage.segment_log.power_cuts_workload import PowerCuts

    cuts = PowerCuts(seed)
    cuts.run()
    return cuts.cuts


def _function_cuts(seed: int) -> int:
    from tests.edge_node.derived.power_cuts import quiet, run_seed

    with quiet():
        return run_seed(seed)


def _simulation(seed: int) -> int:
    from tests.cloud_hub.simulation import simulate

    simulate(seed)
    return 1


def _fabric(seed: int) -> int:
    from tests.simulation.fabric import simulate

    simulate(seed)
    return 1


def _regions(seed: int) -> int:
    from tests.simulation.regions import simulate_regions

    simulate_regions(seed)
    return 1


def _pairs(seed: int) -> int:
    from tests.simulation.pairs import simulate_pairs

    simulate_pairs(seed)
    return 1


def _clocks(seed: int) -> int:
    from tests.cloud_hub.simulation import simulate_clocks

    simulate_clocks(seed)
    return 1


def _splits(seed: int) -> int:
    from tests.cloud_hub.splitting import simulate_splits

    simulate_splits(seed)
    return 1


def _members(seed: int) -> int:
    from tests.cloud_hub.members import simulate_members

    simulate_members(seed)
    return 1


def _set_back(seed: int) -> int:
    from tests.cloud_hub.simulation import simulate_set_back

    simulate_set_back(seed)
    return 1


def _upgrade(seed: int) -> int:
    from tests.cloud_hub.simulation import simulate_upgrade

    simulate_upgrade(seed)
    return 1


def _collecting(seed: int) -> int:
    from tests.cloud_hub.collecting import simulate_collection

    simulate_collection(seed)
    return 1


def _codec(seed: int) -> int:
    from tests.fuzz.mqtt_codec import run_damaged

    run_damaged(seed, CODEC_ROUNDS)
    return CODEC_ROUNDS


def _decoders(seed: int) -> int:
    from tests.fuzz.long_run import run

    run(seed, DECODER_S)
    return DECODER_S


def properties(only: str, *folders: str, minutes: int, slice_s: float) -> Job:
    """Make the job of properties with more examples, and other ones, than the quick tests take.

    Args:
        only: what pytest's ``-m`` chooses.
    """

    def made(seed: int) -> Made:
        return Made(1, run_pytest(["-m", only, f"--hypothesis-seed={seed}", *folders], seed))

    again = f"WEFT_SLICE=night-{{seed}} ./run test --all -m '{only}' --hypothesis-seed={{seed}} {' '.join(folders)}"
    return Job("passes of every property", minutes, made, again, (), 1, 1, slice_s)


JOBS: Mapping[str, Job] = {
    # Storage and functions, on disks that are made up.
    "power_cuts": searched(
        "power_cuts",
        "power cuts",
        _power_cuts,
        "tests/storage/segment_log/test_power_cuts.py::test_thousands_of_power_cuts",
        minutes=23,
        slice_seeds=100,
        slice_units=18_500,
        slice_s=50,
        repeat=f"{AGAIN} tests.storage.segment_log.power_cuts --replay {{seed}} --shrink",
    ),
    "sealed_cuts": pytest_job(
        "power cuts of encrypted logs",
        "tests/storage/segment_log/test_power_cuts.py::test_power_cuts_of_an_encrypted_log",
        minutes=5,
        slice_units=40_000,
        slice_s=200,
    ),
    "log_errnos": pytest_job(
        "errors at any call",
        "tests/storage/segment_log/test_power_cuts.py::test_any_call_may_fail_with_any_errno",
        minutes=5,
        slice_units=12,
        slice_s=60,
    ),
    "function_cuts": searched(
        "function_cuts",
        "power cuts of functions",
        _function_cuts,
        "tests/edge_node/derived/test_power_cuts.py::test_many_power_cuts_change_no_output",
        minutes=25,
        slice_seeds=200,
        slice_units=1_900,
        slice_s=50,
    ),
    "kinds_cuts": pytest_job(
        "lives of functions with power cuts",
        "tests/edge_node/derived/test_power_cuts.py::test_many_power_cuts_change_no_output_of_kinds",
        "tests/edge_node/derived/test_power_cuts.py::test_many_power_cuts_change_no_output_of_reducers",
        "tests/functions/test_windows.py::test_many_power_cuts_change_no_window",
        "tests/functions/test_sparkplug.py::test_many_power_cuts_change_no_output",
        minutes=26,
        slice_units=700,
        slice_s=285,
    ),
    "recorded_cuts": pytest_job(
        "power cuts of real processes", "tests/durability/test_power_cuts.py", minutes=29, slice_units=620, slice_s=240
    ),
    "full_disk": pytest_job(
        "minutes without room", "tests/durability/test_full_disk.py", minutes=10, slice_units=3, slice_s=215
    ),
    # Histories of hubs in virtual time. Those with wrong clocks, of two rows, are 100,000 in a night, as are
    # those of splits.
    "simulation": searched(
        "simulation",
        "histories of a shard",
        _simulation,
        "tests/cloud_hub/test_histories.py::test_nothing_acknowledged_is_lost_or_doubled_in_many_histories",
        minutes=20,
        slice_seeds=500,
        slice_units=500,
        slice_s=40,
    ),
    "fabric": searched(
        "fabric",
        "histories of a whole fabric",
        _fabric,
        "tests/simulation/test_simulation.py::test_whatever_fails_nothing_acknowledged_is_lost_in_many_histories",
        minutes=14,
        slice_seeds=250,
        slice_units=250,
        slice_s=57,
        repeat=f"{AGAIN} tests.simulation --seed {{seed}}",
    ),
    "regions": searched(
        "regions",
        "histories of regions",
        _regions,
        "tests/simulation/test_simulation.py::test_whatever_fails_regions_end_with_the_same_records_in_many_histories",
        minutes=20,
        slice_seeds=100,
        slice_units=100,
        slice_s=70,
        repeat=f"{AGAIN} tests.simulation --regions --seed {{seed}}",
    ),
    "pairs": searched(
        "pairs",
        "histories of pairs",
        _pairs,
        "tests/simulation/test_simulation.py::test_whatever_fails_a_pair_loses_nothing_with_one_disk_in_many_histories",
        minutes=14,
        slice_seeds=250,
        slice_units=250,
        slice_s=80,
        repeat=f"{AGAIN} tests.simulation --pairs --seed {{seed}}",
    ),
    "clocks": searched(
        "clocks",
        "histories of hubs whose clocks are set",
        _clocks,
        "tests/cloud_hub/test_clock.py::test_no_chunk_has_the_time_of_a_wrong_clock_in_many_histories",
        minutes=54,
        slice_seeds=1000,
        slice_units=1000,
        slice_s=44,
    ),
    "set_back": searched(
        "set_back",
        "histories of shards whose time is lowered",
        _set_back,
        "tests/cloud_hub/test_clock.py::test_a_time_of_the_future_is_lowered_for_good_in_many_histories",
        minutes=26,
        slice_seeds=1000,
        slice_units=1000,
        slice_s=53,
    ),
    "shard_splits": searched(
        "shard_splits",
        "histories of shards that split",
        _splits,
        "tests/cloud_hub/test_histories.py::test_a_split_loses_and_doubles_nothing_in_many_histories",
        minutes=42,
        slice_seeds=1000,
        slice_units=1000,
        slice_s=42,
    ),
    "members": searched(
        "members",
        "histories of processes that come, go and split",
        _members,
        "tests/cloud_hub/test_histories.py::test_whoever_owns_a_shard_nothing_is_lost_and_edges_are_served_in_many_histories",
        minutes=40,
        slice_seeds=250,
        slice_units=250,
        slice_s=62,
    ),
    "deletions": pytest_job(
        "histories of deleted streams", "tests/cloud_hub/test_stream_deletion.py", minutes=5, slice_units=1, slice_s=60
    ),
    "table_storms": pytest_job(
        "keepers and joiners of one table in storms",
        "tests/storage/table/test_delta_log.py",
        minutes=5,
        slice_units=1,
        slice_s=60,
    ),
    "upgrade": searched(
        "upgrade",
        "histories of an upgrade",
        _upgrade,
        "tests/cloud_hub/test_histories.py::test_two_releases_on_one_store_make_one_fold_in_many_histories",
        minutes=10,
        slice_seeds=800,
        slice_units=800,
        slice_s=60,
    ),
    "collecting": searched(
        "collecting",
        "histories of a collected shard",
        _collecting,
        "tests/cloud_hub/test_histories.py::test_nothing_that_anyone_needs_is_deleted_in_many_histories",
        minutes=24,
        slice_seeds=250,
        slice_units=250,
        slice_s=58,
    ),
    # Processes that are killed.
    "kills": pytest_job(
        "kills of an edge and a hub",
        "tests/end_to_end/test_kills.py::test_many_kills_of_edge_and_hub",
        minutes=27,
        slice_units=200,
        slice_s=350,
    ),
    "hub_kills": pytest_job(
        "kills and stops of hub nodes",
        "tests/end_to_end/test_hub_processes.py",
        minutes=27,
        slice_units=64,
        slice_s=270,
    ),
    "function_kills": pytest_job(
        "kills of an edge with functions",
        "tests/end_to_end/test_kills.py::test_many_kills_change_nothing_of_what_functions_make",
        minutes=17,
        slice_units=51,
        slice_s=80,
    ),
    "arm64": pytest_job(
        "power cuts of an emulated node on arm64, and a pass of all images",
        "tests/end_to_end/test_arm64.py",
        "tests/deploy/test_images.py",
        minutes=15,
        slice_units=5,
        slice_s=600,
    ),
    "edge_kills": pytest_job(
        "kills of an edge under its clients",
        "tests/end_to_end/test_http_kills.py",
        "tests/edge_node/queues/test_state.py",
        "tests/edge_node/sessions/test_shared_crash.py",
        "tests/end_to_end/test_down_kills.py",
        minutes=18,
        slice_units=280,
        slice_s=500,
    ),
    "plant_servers": pytest_job(
        "cuts, kills and restarts between a node and OPC UA servers",
        "tests/edge_node/sources/test_other_servers.py",
        minutes=8,
        slice_units=100,
        slice_s=240,
    ),
    "table_kills": pytest_job(
        "kills of what writes a table, and histories of three makers of one",
        "tests/cloud_hub/tables/test_crashes.py",
        minutes=20,
        slice_units=132,
        slice_s=380,
    ),
    "storms": pytest_job(
        "blows in storms of S3 servers and hub nodes",
        "tests/end_to_end/test_storms.py::test_kills_of_an_s3_server_and_of_two_nodes_lose_and_double_nothing",
        "tests/end_to_end/test_storms.py::test_edges_leave_a_node_whose_store_fails_and_lose_nothing",
        "tests/end_to_end/test_storms.py::test_processes_and_nodes_are_killed_and_stopped_and_lose_and_double_nothing",
        minutes=34,
        slice_units=45,
        slice_s=740,
    ),
    "region_storms": pytest_job(
        "blows in storms of regions", "tests/end_to_end/test_region_storms.py", minutes=10, slice_units=15, slice_s=200
    ),
    "host_storms": pytest_job(
        "minutes of three hosts under blows",
        "tests/end_to_end/hosts/test_storm.py",
        minutes=20,
        slice_units=10,
        slice_s=900,
    ),
    "broker_storms": pytest_job(
        "kills under AMQP and HTTP",
        "tests/end_to_end/test_storms.py::test_kills_lose_and_double_nothing_of_amqp_and_http",
        minutes=17,
        slice_units=30,
        slice_s=50,
    ),
    "sink_kills": pytest_job(
        "kills of a sink's writer and its hub",
        "tests/spark_sinks/sinks/stream/test_faults.py",
        "tests/spark_sinks/sinks/stream/test_lane.py",
        minutes=10,
        slice_units=25,
        slice_s=90,
    ),
    "spark_storms": pytest_job(
        "kills of a Spark job",
        "tests/spark_sinks/cluster/test_reading.py::test_tables_equal_those_of_a_run_without_kills",
        minutes=32,
        slice_units=60,
        slice_s=1140,
    ),
    "spark_tables": pytest_job(
        "passes of deaths of a pipeline that makes tables",
        "tests/spark_sinks/tables/test_query.py",
        minutes=5,
        slice_units=1,
        slice_s=120,
    ),
    "claims": pytest_job(
        "claims under copies, dead disks and clocks",
        "tests/end_to_end/test_claims.py",
        minutes=13,
        slice_units=4,
        slice_s=80,
    ),
    "attacks": pytest_job(
        "attacks beside a good client",
        "tests/hostile",
        "tests/conformance/test_abuse_bounds.py",
        minutes=25,
        slice_units=70,
        slice_s=620,
    ),
    # Tests that take turns in CI.
    "pages": pytest_job(
        "passes of the pages' commands", "tests/end_to_end/test_pages.py", minutes=23, slice_units=1, slice_s=1250
    ),
    "spark_cluster": pytest_job(
        "passes of jobs on a cluster of Spark",
        "tests/spark_sinks/cluster/test_pipelines.py",
        "tests/spark_sinks/cluster/test_reading.py::test_a_pipeline_runs_through_a_server_on_the_cluster",
        "tests/spark_sinks/cluster/test_reading.py::test_reads_and_sinks_of_a_client_on_a_server",
        "tests/spark_sinks/cluster/test_reading.py::test_every_way_of_reading_gives_every_record_once",
        "tests/spark_sinks/cluster/test_reading.py::test_executors_audit_a_stream_and_trace_its_windows",
        minutes=11,
        slice_units=1,
        slice_s=600,
    ),
    "spark_kills": pytest_job(
        "passes of killed queries and drivers, and of windows by events",
        "tests/spark_sinks/completeness/test_event_time.py",
        "tests/spark_sinks/completeness/test_event_time_kills.py",
        "tests/spark_sinks/completeness/test_window_kills.py",
        "tests/spark_sinks/pipelines/shipped/test_kills.py",
        "tests/spark_sinks/pipelines/test_run.py",
        "tests/spark_sinks/sinks/test_delivery.py",
        "tests/spark_sinks/sinks/delta/test_kills.py",
        "tests/spark_sinks/source/test_splits.py",
        minutes=16,
        slice_units=1,
        slice_s=850,
    ),
    "spark_steps": pytest_job(
        "chains of random steps before windows",
        "tests/spark_sinks/completeness/test_row_steps.py",
        minutes=6,
        slice_units=120,
        slice_s=330,
    ),
    "spark_scripts": pytest_job(
        "passes of scripts with a Spark of their own",
        "tests/spark_sinks/test_own_session.py",
        "tests/spark_sinks/test_delta_spark.py",
        minutes=5,
        slice_units=1,
        slice_s=240,
    ),
    "releases": pytest_job(
        "passes of upgrades, trials of configurations and restored stores",
        "tests/end_to_end/test_releases.py",
        "tests/weft/test_hub_configs.py",
        "tests/edge_node/links/test_desired.py",
        "tests/cloud_hub/test_backup.py",
        minutes=8,
        slice_units=1,
        slice_s=440,
    ),
    "lines": pytest_job(
        "passes of bad lines and long outages",
        "tests/bench/test_benchmarks.py",
        "tests/replication/test_policy.py",
        minutes=7,
        slice_units=1,
        slice_s=370,
    ),
    "planted": pytest_job(
        "passes of planted faults and of tenants set apart",
        "tests/simulation/test_simulation.py::test_a_planted_fault_is_found",
        "tests/simulation/test_simulation.py::test_a_planted_fault_of_regions_is_found",
        "tests/simulation/test_simulation.py::test_a_planted_fault_of_pairs_is_found",
        "tests/cloud_hub/test_histories.py::test_a_planted_fault_of_members_is_found",
        "tests/cloud_hub/test_histories.py::test_a_tenant_that_is_set_apart_loses_and_doubles_nothing",
        minutes=7,
        slice_units=1,
        slice_s=290,
    ),
    # Damage and random examples.
    "api": pytest_job(
        "passes of requests made from the API's document",
        "tests/hub_api/test_schemathesis.py",
        minutes=10,
        slice_units=1,
        slice_s=300,
    ),
    "mqtt_codec": searched(
        "mqtt_codec", "damaged packets", _codec, minutes=17, slice_seeds=100, slice_units=100 * CODEC_ROUNDS, slice_s=38
    ),
    "decoders": searched(
        "decoders",
        "seconds of fuzzed decoders",
        _decoders,
        minutes=22,
        slice_seeds=1,
        slice_units=DECODER_S,
        slice_s=DECODER_S + 2,
    ),
    "segments": pytest_job(
        "damaged segment logs", "tests/fuzz/test_segments.py", minutes=18, slice_units=3_000, slice_s=150
    ),
    "node": pytest_job(
        "seconds under damaged conversations", "tests/fuzz/test_node.py", minutes=19, slice_units=60, slice_s=70
    ),
    "splits": pytest_job(
        "inputs of functions cut anywhere",
        "tests/functions/test_chain.py::test_how_any_input_is_cut_changes_no_byte",
        "tests/functions/test_sparkplug.py::test_how_any_input_is_cut_changes_no_byte",
        minutes=20,
        slice_units=4_400,
        slice_s=205,
    ),
    "function_properties": pytest_job(
        "passes of the properties of functions",
        "tests/functions/test_expressions.py",
        "tests/functions/test_formats.py",
        "tests/functions/test_sparkplug_payloads.py",
        "tests/functions/test_thinning.py",
        "tests/functions/test_routing.py",
        "tests/functions/test_chain.py::test_the_fields_are_those_of_the_whole",
        "tests/functions/test_chain.py::test_a_damaged_payload_is_refused_as_a_whole_one_is",
        "tests/functions/test_window_store.py",
        "tests/functions/test_windows.py::test_the_topic_with_the_most_rows_gives_way_first",
        "tests/functions/test_sql.py",
        minutes=26,
        slice_units=1,
        slice_s=1300,
    ),
    "properties": properties("hypothesis", *PROPERTIES, minutes=25, slice_s=900),
    "other_properties": properties("hypothesis and not search", *OTHER_PROPERTIES, minutes=25, slice_s=440),
}
"""Name -> job. Each night continues with the seeds behind those of the last one."""
