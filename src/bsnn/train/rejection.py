"""The threshold below which a deployed network says `none of these`, chosen on held-out samples.

What is compared with it is how far the largest logit lies above the mean of all, of logits' means over time.
Background, on which a network was trained to prefer no class, has a value near zero. A word that two classes compete
for does not: both logits lie far above the others.
"""

import numpy as np
import torch
from torch import Tensor, nn

from bsnn.data.dataset import Dataset
from bsnn.data.loader import Loader
from bsnn.nn.neuron import evaluating
from bsnn.online.evaluate import predict
from bsnn.train.distributed import World, summed


@torch.no_grad()
def threshold_for(net: nn.Module, data: Dataset, share: float, time_steps: int, world: World, batch_size: int) -> float:
    """The threshold that rejects a share of samples, rounded down to a whole number of them.

    Args:
        net: The network, with its statistics as in evaluation.
        data: Still samples that it was not trained on.
        share: Of them, to be rejected.
        time_steps: How often each is shown.
        world: Which of how many processes this is; the first one computes.
        batch_size: How many to take at a time.
    """
    threshold = 0.0
    if world.is_first:
        with evaluating(net):
            batches = Loader(data, batch_size, device=world.device).ordered()
            found = [prominence(predict(net, inputs, time_steps) / time_steps).cpu() for inputs, _ in batches]
        values = np.sort(torch.cat(found).double().numpy())
        threshold = float(values[int(share * len(values))])
    return summed([threshold], world)[0]


def prominence(logits: Tensor) -> Tensor:
    """How far the largest logit lies above the mean of all, `[B]` of `[B, classes]`.

    Example:
        >>> prominence(torch.tensor([[4.0, 0.0, 2.0], [1.0, 1.0, 1.0]])).tolist()
        [2.0, 0.0]
    """
    return logits.amax(dim=1) - logits.mean(dim=1)
