"""From a trained network to a device: a model file, an engine without torch, and C99 for a microcontroller."""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import bsnn
from bsnn.data import Loader

TIME_STEPS, EPOCHS = 4, 4

# Train a small network, as in own_network.py.
torch.manual_seed(0)
data, test = bsnn.data.digits("train"), bsnn.data.digits("test")
loader = Loader(data, batch_size=64)
net = bsnn.models.vgg((16, "pool", 32), num_classes=10, in_channels=1)
binary, real = bsnn.split_parameters(net)
flip = bsnn.optim.TBSO(binary, betas=(0.99, 0.99999), time_steps=TIME_STEPS)
optimizers = [flip, torch.optim.SGD(real, lr=0.1)]
schedule = bsnn.optim.Schedule(flip, one_minus_beta1=bsnn.optim.cosine(EPOCHS * len(loader)))
for epoch in range(EPOCHS):
    for images, labels in loader.epoch(epoch):
        loss = functools.partial(bsnn.step_loss, labels=labels, time_steps=TIME_STEPS)
        bsnn.online_update(net, bsnn.over_time(images, TIME_STEPS), loss, optimizers)
        schedule.step()
with bsnn.estimating_statistics(net):
    for images, _ in loader.ordered():
        bsnn.predict(net, images, TIME_STEPS)

with tempfile.TemporaryDirectory() as folder:
    # Everything becomes integers. The export says what the rounding changed, on samples of the test set.
    exported = bsnn.export(net, Path(folder, "model.bsnn"), data=test, time_steps=TIME_STEPS)
    print(f"model file: {exported.bytes:,} bytes")
    if exported.changes:
        print(f"  {exported.changes.predictions} of {exported.changes.samples} predictions changed")

    # Another program loads it. It needs NumPy and nothing else.
    np.save(Path(folder, "images.npy"), test.samples)
    program = """
import sys, numpy, bsnn
engine = bsnn.load("model.bsnn")
numpy.save("labels.npy", engine.predict(numpy.load("images.npy")))
print("torch was imported:", "torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)
    print(f"  test accuracy {np.mean(np.load(Path(folder, 'labels.npy')) == test.labels):.1%}")

    # A folder of C99 with the weights as constants. On a computer with a C compiler, `make -C c check` runs it on
    # inputs whose outputs are known.
    command = [sys.executable, "-m", "bsnn", "export", "model.bsnn", "--format", "c", "--out", "c"]
    subprocess.run(command, cwd=folder, check=True)
    print("  files:", ", ".join(sorted(path.name for path in Path(folder, "c").iterdir())))
