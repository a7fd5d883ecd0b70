"""What the paper reports, as plain data: Tables 1 to 7 and the numbers that it gives for Figure 4.

Nothing here is ours. Data sets have our names, methods and networks the paper's: FP-SNN is backpropagation through time
with real-valued weights. Sizes are in megabytes, accuracies in percent.
"""

from typing import Any, NamedTuple


class Published(NamedTuple):
    """A row of Table 2 or Table 5."""

    dataset: str
    network: str | None
    """None if the paper does not say."""
    method: str
    time_steps: int
    megabytes: float
    accuracy: float


TABLE_1 = {
    "BPTT": ("O(n²L)", "O(n²L + nLT)"),
    "OTTT": ("O(n²L)", "O(n²L + nL)"),
    "BSO": ("O(n²L/32)", "O(n²L + nL)"),
    "T-BSO": ("O(n²L/32)", "O(n²L + LT + nL)"),
}
"""Memory for weights and for the state of training, by method; n neurons per layer, L layers, T time steps."""

TABLE_2 = (
    Published("cifar10", "VGG-11", "FP-SNN", 6, 36.91, 93.23),
    Published("cifar10", "VGG-11", "OTTT", 6, 36.91, 93.73),
    Published("cifar10", "VGG-11", "NDOT", 6, 36.91, 94.90),
    Published("cifar10", "VGG-16", "CBP", 32, 15.10, 91.51),
    Published("cifar10", "VGG-11", "Q-SNN", 6, 1.20, 93.20),
    Published("cifar10", "VGG-11", "BSO", 6, 1.20, 92.98),
    Published("cifar10", "VGG-11", "BSO", 4, 1.20, 93.45),
    Published("cifar10", "VGG-11", "BSO", 2, 1.20, 93.30),
    Published("cifar10", "VGG-11", "T-BSO", 6, 1.20, 94.70),
    Published("cifar10", "VGG-11", "T-BSO", 4, 1.20, 94.86),
    Published("cifar10", "VGG-11", "T-BSO", 2, 1.20, 94.32),
    Published("cifar100", "VGG-11", "FP-SNN", 6, 37.10, 71.15),
    Published("cifar100", "VGG-11", "OTTT", 6, 37.10, 71.11),
    Published("cifar100", "VGG-11", "NDOT", 6, 37.10, 76.61),
    Published("cifar100", "VGG-16", "CBP", 32, 16.60, 66.53),
    Published("cifar100", "VGG-11", "Q-SNN", 6, 1.39, 73.48),
    Published("cifar100", "VGG-11", "BSO", 6, 1.39, 72.57),
    Published("cifar100", "VGG-11", "BSO", 4, 1.39, 72.34),
    Published("cifar100", "VGG-11", "BSO", 2, 1.39, 72.15),
    Published("cifar100", "VGG-11", "T-BSO", 6, 1.39, 74.27),
    Published("cifar100", "VGG-11", "T-BSO", 4, 1.39, 73.82),
    Published("cifar100", "VGG-11", "T-BSO", 2, 1.39, 73.40),
    Published("imagenet", "ResNet-18", "FP-SNN", 4, 87.19, 63.18),
    Published("imagenet", "ResNet-34", "SLTT", 6, 85.15, 66.19),
    Published("imagenet", "ResNet-34", "OTTT", 6, 87.19, 64.16),
    Published("imagenet", "ResNet-18", "CBP", 4, 4.22, 54.34),
    Published("imagenet", "ResNet-18", "T-BSO", 6, 4.22, 58.86),
    Published("imagenet", "ResNet-18", "T-BSO", 4, 4.22, 57.76),
    Published("dvs_cifar10", "VGG-11", "FP-SNN", 10, 36.91, 73.90),
    Published("dvs_cifar10", "VGG-11", "SLTT", 10, 34.32, 82.20),
    Published("dvs_cifar10", "VGG-11", "NDOT", 10, 36.91, 77.50),
    Published("dvs_cifar10", "16Conv1FC", "CBP", 16, 1.33, 74.70),
    Published("dvs_cifar10", "VGG-11", "Q-SNN", 10, 1.20, 79.10),
    Published("dvs_cifar10", "VGG-11", "BSO", 10, 1.20, 80.60),
    Published("dvs_cifar10", "VGG-11", "T-BSO", 10, 1.20, 81.00),
)
"""The comparison of methods."""

TABLE_3 = {5e-8: 73.75, 2e-7: 73.33, 5e-7: 73.40, 8e-7: 73.24, 1e-6: 73.38, 1.5e-6: 73.34, 2e-6: 73.41, 5e-5: 72.83}
"""Accuracy of T-BSO by γ: CIFAR-100, VGG-11, T = 2."""

TABLE_4 = {
    (1.5e-4, 1.5e-6): 73.22,
    (1.5e-4, 1e-5): 73.31,
    (1.5e-4, 1.5e-5): 73.29,
    (1e-3, 1.5e-6): 73.17,
    (1e-3, 1e-5): 73.40,
    (1e-3, 1.5e-5): 73.34,
}
"""Accuracy of T-BSO by 1 − β1 and 1 − β2: CIFAR-100, VGG-11, T = 2, γ = 5e-7."""

TABLE_5 = (
    Published("speech_commands", None, "ATIF", 4, 44.74, 94.31),
    Published("speech_commands", None, "STS-T", 4, 6.24, 95.18),
    Published("speech_commands", "VGG-11", "T-BSO", 4, 1.26, 96.12),
)
"""Google Speech Commands."""

FIGURE_4 = {"BPTT": (2.86, 58.18), "BSO": (2.9, 2.9), "T-BSO": (3.1, 3.1)}
"""Gigabytes of training at T = 1 and T = 35, by method (Section 5.3)."""

_CIFAR = {"epochs": 400, "batch_size": 128, "gamma": 5e-7, "one_minus_beta1": 1e-3, "learning_rate": 0.1}

TABLE_6: dict[str, dict[str, Any]] = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "dvs_cifar10": {**_CIFAR, "gamma": 1e-6},
}
"""Hyperparameters of BSO by data set, as fields of `bsnn.train.Config`."""

TABLE_7: dict[str, dict[str, Any]] = {
    "cifar10": {**_CIFAR, "one_minus_beta2": 1e-5},
    "cifar100": {**_CIFAR, "one_minus_beta2": 1e-5},
    "imagenet, pre-training": {
        "epochs": 100, "batch_size": 64, "gamma": 1e-6, "one_minus_beta1": 1e-3, "one_minus_beta2": 1e-5,
        "learning_rate": 0.1,
    },
    "imagenet, fine-tuning": {
        "epochs": 30, "batch_size": 64, "gamma": 1e-11, "one_minus_beta1": 1e-8, "one_minus_beta2": 1e-5,
        "learning_rate": 0.1,
    },
    "dvs_cifar10": {**_CIFAR, "gamma": 1e-6, "one_minus_beta2": 1e-5},
}  # fmt: skip
"""Hyperparameters of T-BSO by data set, as fields of `bsnn.train.Config`."""

SPEECH_COMMANDS: dict[str, Any] = {"gamma": 5e-7, "one_minus_beta1": 1e-3, "one_minus_beta2": 1e-5}
"""All the hyperparameters that the appendix gives for Google Speech Commands; its β1 and β2 are 1 − β1 and 1 − β2."""
