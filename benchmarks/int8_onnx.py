"""The part of int8.py that needs onnxruntime: quantizes a network to int8 and classifies words with it.

    python benchmarks/int8_onnx.py FILE.npz

FILE holds the layers, their weights, calibration inputs, and the inputs to classify. Prints JSON: a class for each.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static


class Reader(CalibrationDataReader):
    """Calibration inputs, one by one."""

    def __init__(self, inputs: np.ndarray) -> None:
        self.rest: Iterator[np.ndarray] = iter(inputs)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next one, or None."""
        sample = next(self.rest, None)
        return None if sample is None else {"x": sample[None]}


def graph(layers: list[dict[str, Any]], arrays: Any) -> onnx.ModelProto:
    """The network before quantization."""
    nodes, values, last = [], [], "x"
    for i, layer in enumerate(layers):
        made = f"y{i}"
        if layer["op"] == "pool":
            nodes.append(helper.make_node("AveragePool", [last], [made], kernel_shape=[2, 2], strides=[2, 2]))
            last = made
            continue
        names = [f"weight{i}", f"bias{i}"]
        values += [numpy_helper.from_array(arrays[name], name) for name in names]
        if layer["op"] == "linear":
            nodes.append(helper.make_node("GlobalAveragePool", [last], ["mean"]))
            nodes.append(helper.make_node("Flatten", ["mean"], ["flat"]))
            nodes.append(helper.make_node("Gemm", ["flat", *names], [made], transB=1))
        else:
            padding = 4 * [layer["padding"]]
            fields = {"pads": padding, "strides": 2 * [layer["stride"]], "group": layer["groups"]}
            nodes.append(helper.make_node("Conv", [last, *names], [f"z{i}"], **fields))
            nodes.append(helper.make_node("Relu", [f"z{i}"], [made]))
        last = made
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *arrays["calibration"].shape[1:]])
    given = helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", None])
    whole = helper.make_graph(nodes, "net", [taken], [given], values)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main() -> None:
    arrays = np.load(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        real, small = (str(Path(folder) / f"{name}.onnx") for name in ("real", "int8"))
        onnx.save(graph(json.loads(str(arrays["layers"])), arrays), real)
        quantize_static(
            real,
            small,
            Reader(arrays["calibration"]),
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
        )
        session = onnxruntime.InferenceSession(small, providers=["CPUExecutionProvider"])
    classes = {split: session.run(None, {"x": arrays[f"inputs_{split}"]})[0].argmax(1) for split in ("val", "test")}
    versions = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    print(json.dumps({"versions": versions, **{split: found.tolist() for split, found in classes.items()}}))


if __name__ == "__main__":
    main()
