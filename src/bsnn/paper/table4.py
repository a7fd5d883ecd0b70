"""Table 4: the accuracy of T-BSO against the decay rates of its momentum and second moments."""

from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import DIGITS, OTHER_TASK, config_at, mean_and_spread, setup, trained
from bsnn.paper.numbers import TABLE_4


def measure(settings: Settings) -> Findings:
    """Trains with each pair of rates."""
    config = config_at(settings, DIGITS, "cifar100-tbso-t2")
    more = () if settings.scale == "paper" else (1e-2, 5e-2)
    first = (1e-3,) if settings.scale == "smoke" else (1.5e-4, 1e-3, *more)
    second = (1e-5,) if settings.scale == "smoke" else (1.5e-6, 1e-5, 1.5e-5)
    points = trained(settings, "table4", config, {"one_minus_beta1": first, "one_minus_beta2": second})
    findings = Findings(
        "Table 4: effect of the decay rates in T-BSO",
        setup(settings, config, "CIFAR-100, VGG-11, T = 2, 400 epochs"),
        data=points,
    )
    rows = []
    for point in points:
        pair = (point["one_minus_beta1"], point["one_minus_beta2"])
        rows.append([*(f"{rate:g}" for rate in pair), TABLE_4.get(pair), mean_and_spread(point["accuracies"])])
    findings.add_table("Test accuracy, %", ["1 − β1", "1 − β2", "paper", "ours"], rows)
    findings.notes = ["1 − β2 can hardly matter while γ·sqrt(v) is far below the momentum (Table 3)."]
    if settings.scale != "paper":
        findings.notes += [
            "1 − β1 sets how fast the signs follow the gradients, and our runs are short, so we add larger values "
            "than the paper's.",
            OTHER_TASK,
        ]
    return findings
