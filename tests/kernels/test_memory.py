import functools
import gc
import itertools

import pytest
import torch

import bsnn
from bsnn.kernels import memory
from bsnn.kernels.memory import keeping_memory, keeps_memory, peak_bytes
from bsnn.kernels.torch_internals import storage_id
from bsnn.nn.bits import BinaryParameter
from bsnn.optim import BSO, TBSO


def train(method: str, time_steps: int) -> None:
    rule, weights = ("bptt", "latent") if method == "bptt" else ("ottt", "binary")
    net = bsnn.models.vgg11(width=0.125, weights=weights, neuron=bsnn.LIF(gradient=rule))
    x, y = torch.randn(4, 3, 16, 16), torch.zeros(4, dtype=torch.long)
    loss, frames = functools.partial(bsnn.step_loss, labels=y, time_steps=time_steps), itertools.repeat(x, time_steps)
    if method == "bptt":
        bsnn.bptt_update(net, frames, loss, [torch.optim.SGD(net.parameters(), lr=0.1)])
        return
    binary, real = bsnn.split_parameters(net)
    flip = BSO(binary) if method == "bso" else TBSO(binary, time_steps=time_steps)
    bsnn.online_update(net, frames, loss, [flip, torch.optim.SGD(real, lr=0.1)])


@pytest.mark.parametrize("method", ["bso", "tbso"])
def test_memory_of_online_training_does_not_depend_on_time(method: str) -> None:
    one, many = (peak_bytes(functools.partial(train, method, t)) for t in (1, 32))
    assert one > 1e6
    assert many <= 1.02 * one


def test_memory_of_bptt_grows_with_time() -> None:
    one, many = (peak_bytes(functools.partial(train, "bptt", t)) for t in (1, 32))
    assert many > 10 * one


def test_peak_bytes_counts_births_and_deaths() -> None:
    def compute() -> None:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b * 2
        c.add_(b)
        c.view(10, 100)

    assert peak_bytes(compute) == 8000
    existing = torch.zeros(1000)
    assert peak_bytes(lambda: existing.add_(1)) == 0


def test_between_updates_only_bits_one_momentum_a_weight_and_t_numbers_a_layer_are_alive() -> None:
    time_steps, batch = 4, 2
    gc.collect()
    before = {id(o) for o in gc.get_objects() if issubclass(type(o), torch.Tensor)}
    net = bsnn.models.vgg11()
    binary, real = bsnn.split_parameters(net)
    flip, sgd = TBSO(binary, time_steps=time_steps), torch.optim.SGD(real, lr=0.1)
    x, y = torch.randn(batch, 3, 8, 8), torch.tensor([1, 2])
    loss = functools.partial(bsnn.step_loss, labels=y, time_steps=time_steps)
    state = bsnn.online_update(net, itertools.repeat(x, time_steps), loss, [flip, sgd]).state

    expected = {storage_id(x), storage_id(y)}
    for layer in state:
        expected |= {storage_id(layer.membrane), storage_id(layer.trace)}
    for tensor in (*real, *net.buffers()):
        expected.add(storage_id(tensor))
    persistent = 0
    for parameter in binary:
        assert isinstance(parameter, BinaryParameter)
        assert parameter.grad is None
        assert set(flip.state[parameter]) == {"momentum", "second_moment"}
        momentum, moments = flip.state[parameter]["momentum"], flip.state[parameter]["second_moment"]
        assert momentum.shape == parameter.shape
        assert moments.shape == (time_steps,)
        for tensor in (parameter, parameter.bits, momentum, moments):
            expected.add(storage_id(tensor))
            persistent += tensor.untyped_storage().nbytes()
    assert persistent / 9_216_000 < 4.13

    gc.collect()
    strangers = [
        tuple(o.shape)
        for o in gc.get_objects()
        if issubclass(type(o), torch.Tensor)
        and id(o) not in before
        and storage_id(o) not in expected
        and o.untyped_storage().nbytes() > 256 * 8 * 4  # the table of signs, shared by all networks
    ]
    assert strangers == []


@pytest.mark.skipif(memory.program_with("mallopt", "malloc_trim") is None, reason="the C library is not glibc")
def test_kept_memory_costs_no_page_faults() -> None:
    resource = pytest.importorskip("resource")

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(4):
            torch.ones(1 << 22)  # 4,096 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with keeping_memory():
        assert keeps_memory()
        with keeping_memory():
            faults()
        assert keeps_memory()
        kept = faults()
    assert not keeps_memory()
    assert kept < 100
    with keeping_memory(wanted=False):
        assert not keeps_memory()
        assert faults() > 10 * max(kept, 1)


def test_free_memory_is_given_back_unless_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(memory, "give_back_free_memory", lambda: called.append(None))
    large = torch.empty(1 << 22)
    memory.make_room(large)
    assert len(called) == 1
    with keeping_memory():
        memory.make_room(large)
        assert len(called) == 1
    assert len(called) == 2
