"""Step of the pipeline *features*: a scikit-learn model scores each row."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator
from typing import Any

import msgspec
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.pipelines.context import Context
from spark_sinks.pipelines.errors import PipelineError
from spark_sinks.pipelines.shipped.features import FEATURES, FEATURES_VERSION

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
        raise ValueError(f"{path} is no model file: {error}. Write it with the training script") from None
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
