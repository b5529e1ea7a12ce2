"""Training of the model of `score-with-a-model.md`: from a series of temperatures to `machine_temperature.onnx`.

    python train.py SERIES.csv.gz machine_temperature.onnx

An hour (12 values, 5 minutes apart) is taken apart into its principal components: its level, its slope, and so on. The
score is how far the most unusual of them is from its mean in a good time, in standard deviations. The same series gives
the same file.
"""

from __future__ import annotations

import csv
import gzip
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WINDOW = 12
"""Values of an hour."""
GOOD_HOURS = 7 * 24
"""The first week, in which the machine worked."""
NOISE = 0.25
"""Degrees of noise that say nothing."""


def main(series: str, model: str) -> None:
    """Write the model of a series."""
    with gzip.open(series, "rt") as file:
        values = [float(row["value"]) for row in csv.DictReader(file)]
    hours = np.lib.stride_tricks.sliding_window_view(np.array(values[: GOOD_HOURS * WINDOW]), WINDOW)
    mean = hours.mean(axis=0)
    variances, components = np.linalg.eigh(np.cov(hours, rowvar=False))
    # The sign of a component is arbitrary; fixed, so that the file is the same on every machine.
    components = components * np.sign(components.sum(axis=0))
    scaled = components / np.sqrt(variances + NOISE**2)
    onnx.save(graph(mean.astype(np.float32), scaled.astype(np.float32)), model)


def graph(mean: np.ndarray, scaled: np.ndarray) -> onnx.ModelProto:
    """Return the model: hours, one a row, to a score for each."""
    nodes = [
        helper.make_node("Sub", ["hours", "mean"], ["off"]),
        helper.make_node("MatMul", ["off", "scaled"], ["deviations"]),
        helper.make_node("Abs", ["deviations"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes", "axis"], ["score"], keepdims=0),
    ]
    axis = np.array([1], dtype=np.int64)
    constants = [
        numpy_helper.from_array(each, name) for each, name in ((mean, "mean"), (scaled, "scaled"), (axis, "axis"))
    ]
    made = helper.make_model(
        helper.make_graph(
            nodes,
            "machine_temperature",
            [helper.make_tensor_value_info("hours", TensorProto.FLOAT, ["records", WINDOW])],
            [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["records"])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    onnx.checker.check_model(made)
    return made


if __name__ == "__main__":
    main(*sys.argv[1:])
