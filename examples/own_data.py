"""Train on your own pictures, one folder per class. Here the pictures are drawn first: disks and squares."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import bsnn
from bsnn.train import train


def draw_pictures(root: Path) -> None:
    """Writes root/disk/0.png, root/square/0.png and so on: gray shapes anywhere in a noisy picture."""
    rng = np.random.default_rng(0)
    for name in ("disk", "square"):
        (root / name).mkdir(parents=True)
        for number in range(100):
            picture = Image.fromarray(rng.integers(0, 60, (16, 16), dtype=np.uint8))
            left, top = rng.integers(1, 7, 2).tolist()
            box, gray = (left, top, left + 8, top + 8), int(rng.integers(150, 255))
            draw = ImageDraw.Draw(picture)
            (draw.ellipse if name == "disk" else draw.rectangle)(box, fill=gray)
            picture.save(root / name / f"{number}.png")


with tempfile.TemporaryDirectory() as folder:
    root = Path(folder, "shapes")
    draw_pictures(root)

    # What is there? The same as `bsnn data shapes`.
    about = bsnn.data.describe(root)
    print(f"{about['kind']}s of {' and '.join(about['classes'])}, {about['counts']}")

    # A fifth of each class is held out for the test. The same as
    # `bsnn train folder --data shapes --image-size 16 --plan 16,pool,32 --epochs 3 --batch-size 16`.
    config = dataclasses.replace(bsnn.recipe("folder"), image_size=16, plan=(16, "pool", 32), epochs=3, batch_size=16)
    result = train(config, Path(folder, "run"), data=str(root))
    print(f"test accuracy {result['test_accuracy']:.1%} after {result['train_seconds']:.1f} seconds")

    # From the run's last epoch to a model file that needs no torch; the command `bsnn train` makes one by itself.
    trained = bsnn.train.load_network(Path(folder, "run"))
    bsnn.export(trained.net, Path(folder, "model.bsnn"), spec=trained.spec, time_steps=config.time_steps)
    engine = bsnn.load(Path(folder, "model.bsnn"))
    picture = np.asarray(Image.open(root / "disk" / "0.png"))
    guess = engine.predict(picture[None, None])[0]
    print(f"the first disk is taken for a {about['classes'][guess]}")
