"""Step of the pipeline *features*: rolling features of each record's machine."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.lineage import FROM_COLUMN, FROM_TYPE
from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.shipped.sessions import EDGE, NEW, POSITION, duration, need, number, rows_with_past
from spark_sinks.pipelines.steps import Context

# Numbers of the past of each record of one machine. The past consists of earlier records in the log.

Numbers = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
PAST_MAX = 10_000
"""Maximum number of records of one past; beyond it, only the latest in the log count."""
MICROSECONDS = 1_000_000


def in_log_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one machine's rows in the order of the log. All of them are in one shard."""
    return rows.sort_values("_offset", kind="stable", ignore_index=True)


def pasts(times_us: Times, wanted: npt.NDArray[np.bool_], span_us: int) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield (place of a record, places of its past): records before it in the log, at most ``span_us`` older.

    A record with a later time is not in the past, even if it comes earlier in the log: the edge's clock was set, or the
    record is late.

    Args:
        times_us: times of one machine's records in microseconds, in the order of the log.
        wanted: whether the past of a record is wanted.
    """
    is_sorted = bool(np.all(np.diff(times_us) >= 0))
    for at in np.flatnonzero(wanted):
        low = times_us[at] - span_us
        if is_sorted:
            found = np.arange(np.searchsorted(times_us[:at], low, "left"), at)
        else:
            before = times_us[:at]
            found = np.flatnonzero((before >= low) & (before <= times_us[at]))
        yield int(at), found[-PAST_MAX:]


class Lineage:
    """The column ``_from`` of rows that are made of some rows of a source: one range for each lane.

    The parts of each lane are laid out in arrays once, so that a row costs a few sums over its past, and no loop.

    Args:
        sources: the ``_from`` of each row of the source, in the order of the log.
    """

    def __init__(self, sources: Iterable[Any]) -> None:
        lanes: dict[tuple[str, str], list[tuple[int, int, int, int]]] = {}
        for place, parts in enumerate(sources):
            for part in parts if parts is not None else ():
                lanes.setdefault((part["edge"], part["log"]), []).append(
                    (place, part["first"], part["last"], part["count"])
                )
        self._lanes = [(lane, *np.array(lanes[lane], np.int64).T.copy()) for lane in sorted(lanes)]

    def of(self, places: npt.NDArray[np.intp]) -> list[dict[str, Any]]:
        """Return the ranges of some rows.

        Args:
            places: places of the rows in the source, ascending.
        """
        found = []
        low, high = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
        has_all = len(places) == high - low + 1
        for (edge, log), at, first, last, count in self._lanes:
            part = slice(*np.searchsorted(at, (low, high + 1)))
            chosen = part if has_all else part.start + np.flatnonzero(np.isin(at[part], places))
            if len(at[chosen]):
                found.append(
                    {
                        "edge": edge,
                        "log": log,
                        "first": int(first[chosen].min()),
                        "last": int(last[chosen].max()),
                        "count": int(count[chosen].sum()),
                    }
                )
        return found


FEATURES_VERSION = "1"
"""Version of the features. Models name the version of their training; raise it with each change of a feature."""
FEATURES = ("value", "mean", "deviation", "lowest", "highest", "slope_per_h", "last_step")
"""Input columns of a model, in this order."""
_NEEDED = (*POSITION, "_time", EDGE, FROM_COLUMN, "machine", "value")
_SCHEMA = (
    "_shard int, _offset bigint, _edge string, _time timestamp, machine string, "
    + ", ".join(f"{name} double" for name in FEATURES)
    + f", records int, features_version string, _from {FROM_TYPE}"
)
_COLUMNS = ["_shard", "_offset", "_edge", "_time", "machine", *FEATURES, "records", "features_version", FROM_COLUMN]


def rolling_features(frame: DataFrame, context: Context, *, history: str = "1h", warm_up: int = 6) -> DataFrame:
    """Return each record with features of its machine's last ``history``, the record included.

    Features are computed from earlier records in the log of the same edge node and machine, so later records never
    change a row. They are null while there are fewer than ``warm_up`` records.

    Args:
        frame: rows with ``machine`` (string) and ``value`` (double), and ``_shard, _offset, _time, _edge, _from``.

    Raises:
        PipelineError: an option is out of its bounds, or a column is missing.
    """
    need(frame, context, _NEEDED)
    past = duration(context, "history", history)
    least = int(number(context, "warm_up", warm_up, least=2, most=10_000))
    frame = frame.where(F.col("value").isNotNull() & ~F.isnan("value"))
    rows = rows_with_past(frame.select(*_NEEDED), context, "machine", before=past)
    rows = rows.where(F.col("value").isNotNull() & ~F.isnan("value"))
    rows = rows.withColumn("_time", F.unix_micros("_time")).withColumn("value", F.col("value").cast("double"))
    rolling = Rolling(round(past.total_seconds() * MICROSECONDS), least)

    def features(of_one: pd.DataFrame) -> pd.DataFrame:  # Spark counts the arguments: a bound method has one too many.
        return rolling.features(of_one)

    return rows.groupBy(EDGE, "machine").applyInPandas(features, _SCHEMA)


class Rolling(msgspec.Struct, frozen=True):
    """Options of ``rolling_features``, as numbers."""

    history_us: int
    warm_up: int

    def features(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the features of one machine's new records. ``_time`` comes in microseconds."""
        rows = in_log_order(rows)
        times, values = rows["_time"].to_numpy(np.int64), rows["value"].to_numpy(np.float64)
        shards, offsets, edges, machines = (rows[name].tolist() for name in (*POSITION, EDGE, "machine"))
        lineage = Lineage(rows[FROM_COLUMN])
        made = []
        for at, earlier in pasts(times, rows[NEW].to_numpy(bool), self.history_us):
            used = np.append(earlier, at)
            moment = pd.Timestamp(int(times[at]) * 1000, tz="UTC")
            numbers = _numbers(times[used], values[used]) if len(used) >= self.warm_up else (values[at], *[None] * 6)
            made.append(
                (
                    int(shards[at]),
                    int(offsets[at]),
                    edges[at],
                    moment,
                    machines[at],
                    *numbers,
                    len(used),
                    FEATURES_VERSION,
                    lineage.of(used),
                )
            )
        return pd.DataFrame(made, columns=_COLUMNS).astype(dict.fromkeys(FEATURES, "float64"))


def table_of(times_us: Times, values: Numbers, *, history_us: int, warm_up: int) -> Numbers:
    """Return the features of a series for training: a row of ``FEATURES`` for each value with a full history."""
    wanted = np.ones(len(values), bool)
    used = [np.append(earlier, at) for at, earlier in pasts(times_us, wanted, history_us)]
    found = [_numbers(times_us[each], values[each]) for each in used if len(each) >= warm_up]
    return np.array(found, np.float64).reshape(-1, len(FEATURES))


def _numbers(times_us: Times, values: Numbers) -> tuple[float, ...]:
    """Return the features of the last of some records. Training and scoring both use this function."""
    hours = (times_us - times_us[-1]) / (3600 * MICROSECONDS)
    centred = hours - hours.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (values - values.mean())) / spread if spread > 0 else 0.0
    return (
        float(values[-1]),
        float(values.mean()),
        float(values.std(ddof=1)),
        float(values.min()),
        float(values.max()),
        slope,
        float(values[-1] - values[-2]),
    )


# Step of the pipeline *features*: a scikit-learn model scores each row.

MODEL_BYTES_MAX = 64 << 20
MAGIC = b"weft-model 1\n"
"""First line of a model file: then a line of JSON that can be read without running code, then the pickled model."""
HEAD_BYTES_MAX = 65_536


class ModelHead(msgspec.Struct, frozen=True, kw_only=True):
    """Second line of a model file, in JSON."""

    version: str
    features_version: str
    features: tuple[str, ...]
    library: str
    """Version of scikit-learn that pickled the model."""
    sha256: str
    """Checksum of the pickled model."""


def write_model(path: str, estimator: Any, version: str) -> ModelHead:
    """Write a trained model of the present features. The file is written completely or not at all."""
    import sklearn

    body = pickle.dumps(estimator, protocol=5)
    if len(body) > MODEL_BYTES_MAX:
        raise ValueError(f"the model has {len(body)} bytes; at most {MODEL_BYTES_MAX} can be used. Train a smaller one")
    head = ModelHead(
        version=version,
        features_version=FEATURES_VERSION,
        features=FEATURES,
        library=sklearn.__version__,
        sha256=hashlib.sha256(body).hexdigest(),
    )
    with open(f"{path}.new", "wb") as file:
        file.write(MAGIC + msgspec.json.encode(head) + b"\n" + body)
    os.replace(f"{path}.new", path)
    return head


def read_model(path: str) -> tuple[ModelHead, bytes]:
    """Return the head of a model file and the pickled model. No code of the file is run.

    Raises:
        ValueError: the file cannot be read, or is not a model file.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MODEL_BYTES_MAX + HEAD_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}. Train a model, or name its file") from None
    if len(content) > MODEL_BYTES_MAX + HEAD_BYTES_MAX:
        raise ValueError(f"{path} has more than {MODEL_BYTES_MAX} bytes. Train a smaller model")
    text, _, body = content.removeprefix(MAGIC).partition(b"\n")
    try:
        if not content.startswith(MAGIC):
            raise msgspec.ValidationError("it does not begin with weft-model")
        head = msgspec.json.decode(text, type=ModelHead)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a model file: {error}. Write it with the training script") from None
    if hashlib.sha256(body).hexdigest() != head.sha256:
        raise ValueError(f"{path} is damaged: its checksum is another one. Copy it again")
    return head, body


def apply_model(frame: DataFrame, context: Context, *, model: str, version: str | None = None) -> DataFrame:
    """Add ``score``, the model's answer for each row, ``model_version`` and ``model_sha256``.

    The score is ``score_samples`` of a model for anomalies (lower is more unusual), else ``predict``. It is null if
    features are null. The driver reads the file at each micro-batch and sends it along, so executors need no copy.

    A model is a pickle, and to load a pickle is to run its code: use only models that you trained.

    Args:
        model: path of the model file on the driver.
        version: version that the model must have. None accepts any.

    Raises:
        PipelineError: there is no such file, or its model has another version or other features.
    """
    try:
        head, body = read_model(str(model))
        _check_head(head, str(model), version)
    except ValueError as error:
        raise PipelineError((*_place(context), "options", "model"), str(error)) from None
    if lost := [name for name in FEATURES if name not in frame.columns]:
        message = f"needs the column {', '.join(lost)}. Make it the step after rolling_features"
        raise PipelineError((*_place(context), "python"), message)

    def score(batches: Iterator[pd.DataFrame]) -> Iterator[pd.Series]:
        estimator = pickle.loads(body)  # noqa: S301  (the user's own model; see above)
        answer = getattr(estimator, "score_samples", None) or estimator.predict
        for rows in batches:
            found = pd.Series(float("nan"), index=rows.index, dtype="float64")
            full = rows.notna().all(axis=1)
            if full.any():
                found[full] = answer(rows.loc[full, list(FEATURES)].to_numpy())
            yield found

    scored = F.pandas_udf(score, "double")(F.struct(*FEATURES))
    return (
        frame.withColumn("score", F.nanvl(scored, F.lit(None).cast("double")))
        .withColumn("model_version", F.lit(head.version))
        .withColumn("model_sha256", F.lit(head.sha256))
    )


def _check_head(head: ModelHead, path: str, version: str | None) -> None:
    import sklearn

    if version is not None and head.version != str(version):
        raise ValueError(
            f"{path} is version {head.version} of the model, and the pipeline asks for {version}. "
            "Set `version`, or name the file of that version"
        )
    if head.features_version != FEATURES_VERSION or head.features != FEATURES:
        raise ValueError(
            f"{path} was trained with version {head.features_version} of the features, and these are version "
            f"{FEATURES_VERSION}. Train it again"
        )
    if head.library.split(".")[:2] != sklearn.__version__.split(".")[:2]:
        raise ValueError(
            f"{path} was made by scikit-learn {head.library}, and {sklearn.__version__} is installed. "
            "Train it again, or install that version"
        )


def _place(context: Context) -> tuple[str, int]:
    """Return the place of this step in the pipeline, for errors."""
    own = [at for at, step in enumerate(context.pipeline.steps) if (step.python or "").startswith(f"{__name__}:")]
    return ("steps", own[0] if own else 0)
