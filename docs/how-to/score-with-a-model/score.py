"""Anomaly score of a machine's temperature: about 2 is usual, above 12 the machine needs a look."""

import numpy as np
import onnxruntime

WINDOW = 12


def setup(ctx):
    global model
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = onnxruntime.InferenceSession("machine_temperature.onnx", options, providers=["CPUExecutionProvider"])


def process_batch(records, ctx):
    scored, hours = [], []
    for record in records:
        last = [*ctx.state.get(record.key, []), record["value"]][-WINDOW:]
        ctx.state[record.key] = last
        record["score"] = None  # until an hour is there
        if len(last) == WINDOW:
            scored.append(record)
            hours.append(last)
    if hours:
        (scores,) = model.run(None, {"hours": np.array(hours, dtype=np.float32)})
        for record, score in zip(scored, scores, strict=True):
            record["score"] = round(float(score), 2)
    return records
