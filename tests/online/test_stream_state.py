"""The state that a caller gives to a stream is the caller's: a stream goes on from it and leaves it as it was."""

import torch
from torch.nn import functional as F

import bsnn
from bsnn.nn.neuron import map_state
from bsnn.online.stream import Moment, stream_update


def test_a_stream_goes_on_from_a_state_and_leaves_it() -> None:
    net = bsnn.models.vgg((4, 4), in_channels=1, num_classes=3)
    frames = torch.randn(4, 2, 1, 8, 8)
    labels = torch.tensor([0, 1])

    def run(moments: torch.Tensor, state: object) -> list[torch.Tensor]:
        stream = (Moment(frame, labels) for frame in moments)
        return [outcome.logits for outcome in stream_update(net, stream, F.cross_entropy, [], state=state)]

    with torch.no_grad():
        _, state = net(frames[0], None)
    parts: list[torch.Tensor] = []
    map_state(parts.append, state)
    before = [part.clone() for part in parts]
    going_on = run(frames[1:], state)
    assert all(torch.equal(a, b) for a, b in zip(parts, before, strict=True))
    assert not torch.equal(going_on[0], run(frames[1:], None)[0])
