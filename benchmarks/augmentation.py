"""Images a second of crop + flip + normalize + Cutout on CIFAR-10, against kornia on the same batches.

    python benchmarks/augmentation.py [--data DIR]

DIR holds CIFAR-10 in any of its layouts; without it the bytes are random, and the
results say so. The methods take turns, repetition by repetition, in one process without workers, with one and
with two threads. Each gathers its batches from memory and draws its own random numbers. Kornia's are the
transformations nearest to ours: its erased square stays inside the image, and it works on floats throughout.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import kornia
import kornia.augmentation
import numpy as np
import torch
from torch import Tensor, nn

import bsnn
from bsnn.data.augment import Augmentation
from bsnn.data.dataset import ArrayDataset
from bsnn.data.loader import Loader

RESULTS = Path(__file__).parent / "results" / "augmentation.json"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
REQUIRED = 15_000


def cifar10(folder: Path | None, count: int) -> tuple[np.ndarray, str]:
    """The first `count` training images [N, 3, 32, 32], and where they come from."""
    if folder is None:
        return np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), "random bytes"
    return bsnn.data.cifar10(folder, "train").samples[:count], "CIFAR-10"


def by_loader(samples: np.ndarray, batch_size: int, augmentation: Augmentation) -> Callable[[], Iterator[Tensor]]:
    dataset = ArrayDataset(
        name="cifar10",
        kind="image",
        classes=("any",),
        labels=np.zeros(len(samples), np.int64),
        samples=samples,
        mean=MEAN,
        std=STD,
        scale=255.0,
    )
    loader = Loader(dataset, batch_size, augment=augmentation)
    return lambda: (inputs for inputs, _ in loader.epoch(0))


def by_kornia(samples: np.ndarray, batch_size: int) -> Callable[[], Iterator[Tensor]]:
    augmentation = kornia.augmentation
    transform = nn.Sequential(
        augmentation.RandomCrop((32, 32), padding=4),
        augmentation.RandomHorizontalFlip(),
        augmentation.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
        augmentation.RandomErasing(scale=(0.25, 0.25), ratio=(1.0, 1.0), value=0.0, p=1.0),
    )

    def batches() -> Iterator[Tensor]:
        order = np.random.default_rng(0).permutation(len(samples))
        for start in range(0, len(samples), batch_size):
            yield transform(torch.from_numpy(samples[order[start : start + batch_size]]).float() / 255)

    return batches


def processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def images_per_second(batches: Callable[[], Iterator[Tensor]]) -> float:
    start, count = time.perf_counter(), 0
    for batch in batches():
        count += len(batch)
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10's binary version")
    parser.add_argument("--images", type=int, default=10_240)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()

    samples, source = cifar10(options.data, options.images)
    methods = {
        "bsnn": by_loader(samples, options.batch_size, Augmentation()),
        "kornia": by_kornia(samples, options.batch_size),
        "bsnn with AutoAugment": by_loader(samples, options.batch_size, Augmentation(autoaugment=True)),
    }
    load_before = os.getloadavg()
    rates: dict[tuple[str, int], list[float]] = {}
    # The first turn warms up and is not counted.
    for repetition in range(options.repetitions + 1):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for method, batches in methods.items():
                rate = images_per_second(batches)
                if repetition:
                    rates.setdefault((method, threads), []).append(rate)

    points = [
        {
            "method": method,
            "threads": threads,
            "images_per_second": round(statistics.median(values)),
            "least": round(min(values)),
            "most": round(max(values)),
        }
        for (method, threads), values in rates.items()
    ]
    medians = {(point["method"], point["threads"]): point["images_per_second"] for point in points}
    result = {
        "what": "gather, crop (padding 4), flip, normalize, Cutout 16; no worker processes",
        "data": source,
        "images": len(samples),
        "batch_size": options.batch_size,
        "repetitions": options.repetitions,
        "required_images_per_second": REQUIRED,
        "points": points,
        "ratio_to_kornia": {t: round(medians["bsnn", t] / medians["kornia", t], 1) for t in (1, 2)},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "load_average_before": [round(value, 2) for value in load_before],
            "load_average_after": [round(value, 2) for value in os.getloadavg()],
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "kornia": kornia.__version__,
        },
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")

    print(f"{source}, {len(samples)} images, batches of {options.batch_size}, {options.repetitions} repetitions")
    print(f"{'method':<22}{'threads':>8}{'images/s':>12}{'least':>12}{'most':>12}")
    for point in points:
        print("{method:<22}{threads:>8}{images_per_second:>12,}{least:>12,}{most:>12,}".format(**point))
    print(f"ratio to kornia: {result['ratio_to_kornia']}; required: {REQUIRED:,} images/s")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
