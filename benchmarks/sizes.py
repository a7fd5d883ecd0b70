"""How large networks are: as real and as binary weights, and as a model file. For devices, see device.py.

    python benchmarks/sizes.py

Writes results/sizes.json. Nothing in it depends on the machine.
"""

import json
import tempfile
from pathlib import Path

import torch

import bsnn

RESULTS = Path(__file__).parent / "results" / "sizes.json"


def main() -> None:
    networks = {}
    for classes in (10, 100):
        size = bsnn.model_size(bsnn.models.vgg11(num_classes=classes))
        networks[f"vgg11, {classes} classes"] = {"real_bytes": size.real_bytes, "stored_bytes": size.stored_bytes}
    with tempfile.TemporaryDirectory() as folder:
        file_bytes = bsnn.export(bsnn.models.vgg11(), Path(folder) / "model.bsnn", input_shape=(3, 32, 32)).bytes
    result = {
        "command": "python benchmarks/sizes.py",
        "versions": {"bsnn": bsnn.__version__, "torch": torch.__version__},
        "networks": networks,
        "vgg11_model_file_bytes": file_bytes,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
