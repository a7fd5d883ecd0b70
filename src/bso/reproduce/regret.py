"""`bso reproduce regret`: the growth of regret beside the claimed one (Section 4.4)."""

from typing import Any

from bso.reproduce.target import Outcome, Settings
from bso.theory import NUM_COORDINATES, PROBLEMS, RULES, SCHEDULES, regret

_ROUNDS = {"smoke": 2**7, "small": 2**16, "paper": 2**18}


def regret_bounds(settings: Settings) -> Outcome:
    """Plays every problem with every rule and schedule."""
    rounds, num_seeds = _ROUNDS[settings.scale], 2 if settings.scale == "smoke" else 8
    rows = [row for problem in PROBLEMS for row in regret(problem, rounds, num_seeds)]
    outcome = Outcome(
        "Theorem 4.1: regret",
        f"{rounds:,} rounds over {{−1, +1}}^{NUM_COORDINATES}, {num_seeds} repetitions, γ = 0.01, β = β1 = 0.999, "
        "β2 = 0.99999. The paper proves and does not measure. Exponents are fitted to the last seven powers of two.",
        data=rows,
    )
    columns = [
        "problem",
        "rule",
        "schedule",
        "R(𝒯)",
        "R(𝒯)/𝒯",
        "exponent",
        "claimed",
        "max |M| at 𝒯",
        "the proof's bound × d",
    ]
    table = []
    for row in rows:
        final, deviation = row["regret"][-1], row["deviation"][-1]
        table.append(
            [
                row["problem"],
                row["rule"],
                row["schedule"],
                f"{final:,.0f} ± {deviation:,.0f}",
                f"{final / rounds:.4f}",
                row["exponent"],
                row["claimed_exponent"],
                f"{row['momentum'][-1]:.2g}",
                f"{NUM_COORDINATES * row['bound']:,.0f}" + (" (exceeded)" if _exceeds(row) else ""),
            ]
        )
    outcome.add_table("Regret against the best fixed point in hindsight", columns, table)
    for problem in PROBLEMS:
        lines = {
            f"{row['rule']}, {row['schedule']}": [[t, r / t] for t, r in zip(row["rounds"], row["regret"], strict=True)]
            for row in rows
            if row["problem"] == problem
        }
        outcome.add_lines(f"R(𝒯)/𝒯, {problem}", lines, "rounds 𝒯", log_x=True, log_y=True)
    found = {(row["problem"], row["rule"], row["schedule"]): row for row in rows}

    def momentum(problem: str) -> float | None:
        return found[problem, "BSO", "gradient"]["momentum_exponent"]

    above = [row for row in rows if (row["exponent"] or 0) > row["claimed_exponent"] + 0.05]
    exceeded = [row for row in rows if _exceeds(row)]
    outcome.notes = [
        "Schedules: `gradient` gives the gradient the share β/√k (proof for BSO), `momentum` gives it to the momentum "
        f"(proof for T-BSO), `constant` does not decay. The growth is above the claim in {len(above)} of {len(rows)} "
        f"cases ({len(RULES)} rules, {len(SCHEDULES)} schedules, {len(PROBLEMS)} problems), and the regret above "
        f"the proof's own bound 2Σγ + 2Σ|M|∞ in {len(exceeded)}, even when that is taken times d, which it leaves out.",
        "A deterministic rule on {−1, +1}^d cannot have sublinear regret against arbitrary losses, whatever its "
        "schedule: with f_k(W) = ⟨W_k, W⟩ it loses d in every round, and the better of any W and −W loses nothing. The "
        "theorem's losses are arbitrary, so it cannot hold as stated. The alternating losses do not even look at what "
        "was played.",
        "Where the proofs break: convexity bounds the regret by Σ⟨G_k, W_k − W*⟩, but they go on with "
        "Σ⟨M_k, W_k − W*⟩. Against the adversary, with schedule `gradient`, |M|∞ does fall (exponent "
        f"{momentum('linear, adversarial')}, as they say), and the regret is linear all the same. And |M_k|∞ = O(1/√k) "
        "follows from neither recursion: on stochastic linear losses the momentum tends to the mean gradient (schedule "
        f"`gradient`, exponent {momentum('linear, stochastic')}) or stays the last gradient (`momentum`).",
        f"With schedule `gradient` and stochastic linear losses BSO's regret grows with exponent "
        f"{found['linear, stochastic', 'BSO', 'gradient']['exponent']}: averaging is what works, as annealing 1 − β1 "
        f"does in training. With `momentum` it is {found['linear, stochastic', 'BSO', 'momentum']['exponent']}: W "
        "follows the last gradient's noise.",
    ]
    return outcome


def _exceeds(row: dict[str, Any]) -> bool:
    # From ⟨M, W − W*⟩ ≤ |M|∞ |W − W*|₁ follows a factor d that the theorem leaves out: in its favor, it is put in.
    return row["regret"][-1] > NUM_COORDINATES * row["bound"]
