"""Train a binary spiking network on the bundled digits: the whole loop, with nothing hidden."""

import torch

import bsnn
from bsnn.data import Loader

TIME_STEPS, EPOCHS = 4, 3

torch.manual_seed(0)
train = Loader(bsnn.data.digits("train"), batch_size=64)
test = Loader(bsnn.data.digits("test"), batch_size=64)

# Every convolution but the first has weights of one bit. A flip rule updates those, SGD the few real-valued numbers.
net = bsnn.models.vgg((16, 32, "pool", 32), num_classes=10, in_channels=1)
binary, real = bsnn.split_parameters(net)
flip = bsnn.optim.TBSO(binary, gamma=5e-7, betas=(0.99, 0.99999), time_steps=TIME_STEPS)
sgd = torch.optim.SGD(real, lr=0.1)

# The momentum must slow down in the end, or weights keep flipping back and forth.
schedule = bsnn.optim.Schedule(flip, one_minus_beta1=bsnn.optim.cosine(EPOCHS * len(train)))

for epoch in range(EPOCHS):
    for images, labels in train.epoch(epoch):
        state = net.initial_state(images)  # the neurons' membranes, all zero; nothing else is remembered
        for t in range(TIME_STEPS):  # the same image at every time step
            logits, state = net(images, state)
            bsnn.step_loss(logits, labels, time_steps=TIME_STEPS).backward()
            flip.step(t=t)
            sgd.step()
            flip.zero_grad()
            sgd.zero_grad()
        schedule.step()
    print(f"epoch {epoch + 1}: {flip.flip_ratio:.2%} of the weights flipped in the last update")

# Flips change what BatchNorm sees, so its statistics are estimated again before an evaluation.
inputs = (images for images, _ in train.ordered())
bsnn.estimate_statistics(net, inputs, TIME_STEPS)
result = bsnn.evaluate(net, test.ordered(), TIME_STEPS)
print(f"test accuracy {result.accuracy:.1%} on {result.samples} images")
