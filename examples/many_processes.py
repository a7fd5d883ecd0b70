"""Your own training loop on many processes: torchrun --standalone --nproc-per-node 2 examples/many_processes.py.

Run with plain python, the same program trains in one process.
"""

import torch

import bsnn
from bsnn.data import Loader

TIME_STEPS, EPOCHS, BATCH_SIZE = 4, 3, 64


def main() -> None:
    torch.manual_seed(0)
    with bsnn.train.joined_world() as world:
        # Each process reads its own part of every batch.
        part = {"batch_size": BATCH_SIZE // world.size, "rank": world.rank, "world_size": world.size}
        train, test = (Loader(bsnn.data.digits(name), **part) for name in ("train", "test"))

        net = bsnn.models.vgg((16, 32, "pool", 32), num_classes=10, in_channels=1).to(world.device)
        binary, real = bsnn.split_parameters(net)
        flip = bsnn.optim.TBSO(binary, gamma=5e-7, betas=(0.99, 0.99999), time_steps=TIME_STEPS)
        sgd = torch.optim.SGD(real, lr=0.1)
        schedule = bsnn.optim.Schedule(flip, one_minus_beta1=bsnn.optim.cosine(EPOCHS * len(train)))

        # The one line for many processes: the same weights everywhere, and gradients that are means over all of them.
        bsnn.train.distribute(net, [flip, sgd], world)

        for epoch in range(EPOCHS):
            for images, labels in train.epoch(epoch):
                share = world.share(len(labels))  # 1, but for a last batch that is split unevenly
                state = net.initial_state(images)
                for t in range(TIME_STEPS):
                    logits, state = net(images, state)
                    (share * bsnn.step_loss(logits, labels, time_steps=TIME_STEPS)).backward()
                    flip.step(t=t)
                    sgd.step()
                    flip.zero_grad()
                    sgd.zero_grad()
                schedule.step()
            bsnn.train.check_identical(net, [flip, sgd], world)  # an error if the processes have trained apart

        bsnn.estimate_statistics(net, (images for images, _ in train.ordered()), TIME_STEPS)
        bsnn.train.average_buffers(net)
        result = bsnn.evaluate(net, test.ordered(), TIME_STEPS)
        correct, samples = bsnn.train.summed([int(result.confusion.trace()), result.samples], world)
        if world.is_first:
            print(f"{world.size} process(es): test accuracy {correct / samples:.1%} on {samples:.0f} images")


if __name__ == "__main__":
    main()
