"""How large networks are: as real and as binary weights, as a model file, and as C99 on a device.

    python benchmarks/sizes.py

Writes results/sizes.json. Nothing in it depends on the machine.
"""

import json
import tempfile
from pathlib import Path

import torch

import bsnn
from bsnn.data import digits
from bsnn.deploy.codec import read
from bsnn.deploy.formats.c import export_c

RESULTS = Path(__file__).parent / "results" / "sizes.json"


def main() -> None:
    networks = {}
    for classes in (10, 100):
        size = bsnn.model_size(bsnn.models.vgg11(num_classes=classes))
        networks[f"vgg11, {classes} classes"] = {"real_bytes": size.real_bytes, "stored_bytes": size.stored_bytes}
    with tempfile.TemporaryDirectory() as folder:
        file_bytes = bsnn.export(bsnn.models.vgg11(), Path(folder) / "model.bsnn", input_shape=(3, 32, 32)).bytes
        c99 = export_c(read(bsnn.zoo.path("digits")), Path(folder) / "c", digits("test").samples[:3])
    result = {
        "command": "python benchmarks/sizes.py",
        "versions": {"bsnn": bsnn.__version__, "torch": torch.__version__},
        "networks": networks,
        "vgg11_model_file_bytes": file_bytes,
        "digits_c99": {"ram_bytes": c99["ram_bytes"], "flash_bytes": c99["flash_bytes"]},
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
