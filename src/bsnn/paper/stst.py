"""STS-T: a spiking transformer with spatial-temporal self-attention (Table 5).

The network is `models/transformer.py`: d = 256, two blocks, one head, MLP ratio 1, dropout 0.3. LIF neurons with λ =
0.5 and V = 1, hard reset and the triangle; TET's loss with 1e-3 and means of 1; AdamW at 1e-2 with decay 1e-4, along
a cosine (to 0; to 1e-6 in the original). For spectrograms of 32 × 32, 35 words and T = 4 it comes to 6.26 MB; Table 5
has 6.24. Ours to choose: dropout stands before the head, and the epochs and batches of our own recipes.
"""

from bsnn.models.transformer import SpikingTransformer, stst
from bsnn.nn.neuron import Neuron
from bsnn.nn.synapse import Weights

_SIZES = {"digits": 8, "mnist": 28, "fashion_mnist": 28, "dvs_cifar10": 128, "nmnist": 34}
"""Height and width where they are not those of a spectrogram."""


def network(
    num_classes: int,
    in_channels: int,
    width: float,
    time_steps: int,
    image_size: int,
    dataset: str,
    weights: Weights,
    neuron: Neuron,
) -> SpikingTransformer:
    """The transformer for the images of a config.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on the channels.
        time_steps: T.
        image_size: Height and width of the images; 0 for those of the data set.
        dataset: Its name.
        weights: Of the convolutions in the blocks.
        neuron: The neuron to copy into every layer.
    """
    return stst(
        num_classes,
        in_channels,
        width,
        time_steps=time_steps,
        image_size=image_size or _SIZES.get(dataset, 32),
        weights=weights,
        neuron=neuron,
    )
