"""Learn from a stream without end: one frame at a time, in constant memory, with labels only now and then."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

import bsnn

CAMERAS, TIME_STEPS, SCENES = 16, 4, 400


class Cameras:
    """Sixteen cameras, each of which sees a noisy digit for four frames, then another one."""

    labels: Tensor
    """What they see now."""

    def __iter__(self) -> Iterator[bsnn.Moment]:
        digits = bsnn.data.digits("train")
        images, labels = torch.from_numpy(digits.samples) / digits.scale, torch.from_numpy(digits.labels)
        for scene in range(SCENES):
            chosen = torch.randint(len(digits), (CAMERAS,))
            self.labels = labels[chosen]
            for t in range(TIME_STEPS):
                frame = images[chosen] + 0.2 * torch.randn(CAMERAS, 1, 8, 8)
                # In every fourth scene, nobody tells the network what it sees. `cut` says that something new begins,
                # so that the neurons start from zero.
                yield bsnn.Moment(frame, labels=None if scene % 4 == 3 else self.labels, cut=t == 0)


torch.manual_seed(0)
net = bsnn.models.vgg((16, "pool", 32), num_classes=10, in_channels=1)
binary, real = bsnn.split_parameters(net)
# A stream has no last update to anneal towards. The threshold of this rule follows the noise instead.
optimizers = [bsnn.optim.SigmaBSO(binary), torch.optim.SGD(real, lr=0.1)]

cameras = Cameras()
total, right, asked = torch.zeros(CAMERAS, 10), 0, 0
for frame, step in enumerate(bsnn.stream_update(net, cameras, F.cross_entropy, optimizers), start=1):
    # Each labeled frame has been one update. The others are predictions: logits, summed over the frames of a scene.
    if step.loss.isnan():
        total += step.logits
        if frame % TIME_STEPS == 0:
            right, asked = right + int((total.argmax(1) == cameras.labels).sum()), asked + CAMERAS
            total.zero_()
    if frame % (SCENES * TIME_STEPS // 4) == 0:
        print(f"after {frame} frames: {right / asked:.0%} of the unlabeled digits recognized lately")
        right = asked = 0
