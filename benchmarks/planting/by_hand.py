"""Faults that somebody thought up, among them three that no test noticed once."""

from planting.mutator import Fault

# Each: file, text that stands there once, text in its place.
_CHANGES: tuple[tuple[str, str, str], ...] = (
    # T-BSO's time index in a stream: not reset at a cut, a wrong period, none at all.
    ("online/stream.py", "state, since_cut = None, 0", "state = None"),
    ("online/stream.py", "since_cut % period", "since_cut % (period + 1)"),
    ("online/stream.py", "since_cut % period", "0"),
    # A process that holds less of an uneven last batch counts as much as the others.
    ("train/trainer.py", "share = len(labels) * self.world.size / global_size", "share = 1.0"),
    # Equation 14 without its root, and a flip at a tie.
    ("optim/rules/tbso.py", "gamma * torch.sqrt(second_moment + eps)", "gamma * (second_moment + eps)"),
    ("optim/rules/tbso.py", "signs * momentum > gamma", "signs * momentum >= gamma"),
    # Time steps that had no gradient count in the mean.
    ("optim/rules/tbso.py", "moments[sorted(self._accumulated_times)].mean()", "moments.mean()"),
    # The reset keeps its graph.
    ("nn/neuron.py", "return spikes.detach() if self.gradient.detach_reset else spikes", "return spikes"),
    # A trace that forgets nothing, and a ratio of 0 where the denominator is.
    ("kernels/formulas.py", "torch.add(spikes, past, alpha=leak)", "torch.add(spikes, past)"),
    ("kernels/formulas.py", "torch.where(defined, previous, 1.0), leak)", "torch.where(defined, previous, 1.0), 0.0)"),
    # The straight-through estimator without its window.
    ("nn/synapse.py", "grad_outputs[0] * (latent.abs() <= 1)", "grad_outputs[0].clone()"),
    # The running variance of many processes, biased.
    ("nn/norm.py", "variance * (count / (count - 1))", "variance"),
    # A bad gradient of a real-valued parameter is not looked for.
    ("optim/drive.py", "            _check_finite(optimizer)\n", "            pass\n"),
    # A damaged checkpoint, newer than the one that is written, stays.
    ("train/checkpoint.py", "[*newer, *older[: -self.keep]", "[*older[: -self.keep]"),
    # The neuron's threshold is cut instead of rounded.
    ("deploy/lowering.py", "round(threshold / self.builder.unit)", "int(threshold / self.builder.unit)"),
    # Windows at the border are divided by the size of the kernel.
    ("deploy/_pooling.py", "return within and (pool.count_padding or pool.padding == (0, 0))", "return within"),
)


def by_hand(modules: dict[str, str]) -> list[Fault]:
    """The faults in the modules that are given.

    Raises:
        ValueError: If a text does not stand in its file exactly once: the code has changed, so must the fault.
    """
    found = []
    for name, old, new in _CHANGES:
        path = f"src/bsnn/{name}"
        if path not in modules:
            continue
        source = modules[path]
        if source.count(old) != 1:
            raise ValueError(f"{path}: expected this text once, found it {source.count(old)} times: {old!r}")
        first = source[: source.index(old)].count("\n") + 1
        lines = (first, first + old.count("\n"))
        found.append(Fault(path, "by hand", first, (lines, (1, float("inf"))), source.replace(old, new)))
    return found
