"""Mixup and alternating flips: which samples are mixed or mirrored, and by how much."""

import numpy as np
import pytest
import torch
from loader_cases import EVERYTHING, SHAPE, in_memory

from bsnn.data import loader as loader_module
from bsnn.data.augment import Augmentation
from bsnn.data.loader import Loader


@pytest.mark.parametrize("shape", [SHAPE, (3, *SHAPE)])
def test_each_sample_is_mixed_with_the_next_one_of_its_batch(shape: tuple[int, ...]) -> None:
    loader = Loader(in_memory(23, shape), 5, augment=EVERYTHING, seed=2)
    key = loader_module._Key(2, 3)
    batches = zip(loader.epoch(3), loader.epoch(3, mixed=False), strict=True)
    seen: list[float] = []
    for number, ((inputs, labels), (plain, classes)) in enumerate(batches):
        size, axis = len(classes), 1 if len(shape) == 4 else 0
        shares = torch.from_numpy(key.shares(np.arange(5 * number, 5 * number + size), 0.5)).float()
        weight = shares.view(-1, *[1] * 3)
        torch.testing.assert_close(inputs, weight * plain + (1 - weight) * plain.roll(-1, axis))
        expected = torch.zeros(size, 3)
        for place in range(size):
            expected[place, classes[place]] += shares[place]
            expected[place, classes[(place + 1) % size]] += 1 - shares[place]
        torch.testing.assert_close(labels, expected)
        seen += shares.tolist()
    assert len(set(seen)) == 23


def test_shares_have_the_distribution_that_was_asked_for() -> None:
    key, places = loader_module._Key(0, 0), np.arange(4000)
    for alpha in (0.2, 1.0, 4.0):  # of Beta(α, α), mean 1/2 and variance 1/(4 (2 α + 1))
        shares = key.shares(places, alpha)
        assert shares.mean() == pytest.approx(0.5, abs=0.02)
        assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_alternating_flips_mirror_each_sample_in_every_other_epoch() -> None:
    dataset = in_memory(200)
    augment = Augmentation(crop_padding=0, cutout=0, alternating_flip=True)
    whole, _ = next(Loader(dataset, 200).ordered())

    def mirrored(seed: int, epoch: int) -> list[bool]:
        order = loader_module._Key(seed, epoch).order(200)
        inputs, _ = next(Loader(dataset, 200, augment=augment, seed=seed).epoch(epoch))
        flags = {}
        for index, sample in zip(order.tolist(), inputs, strict=True):
            flags[index] = torch.equal(sample, whole[index].flip(-1))
            assert flags[index] or torch.equal(sample, whole[index])
        return [flags[index] for index in range(200)]

    first = mirrored(0, 0)
    assert 70 < sum(first) < 130
    assert mirrored(0, 1) == mirrored(0, 3) == [not flag for flag in first]
    assert mirrored(0, 2) == first
    assert mirrored(1, 0) != first
