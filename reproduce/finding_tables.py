"""The tables of docs/findings.md and docs/findings_details.md: which claims stand in which rows."""

from __future__ import annotations

from reproduce.findings import claims, count_rates_beside_cliffs
from reproduce.tried_rates import CLIFF

__all__ = [
    "age_against_rate", "division_by_length", "every_64_updates", "frameworks", "lag_64", "masks", "nats", "offline",
    "rates_beside_cliffs", "small_or_undecided", "verifier", "wide_limits",
]  # fmt: skip


# ---- docs/findings.md


def lag_64() -> None:
    claims("TOPR minus", ["GRPO", "TIS"], {"lag 64": "lag tiny: at 3e-4, lag 64: TOPR ends above {}"})


def age_against_rate() -> None:
    claim = "lag tiny: {}: lag 64 at 1e-4 costs more than lag 16 at 3e-4, each against lag 0"
    claims("cost of lag 64 at 1e-4", ["GRPO", "PPO", "TOPR"], {"minus cost of lag 16 at 3e-4": claim})


def every_64_updates() -> None:
    names = {"GRPO": "GRPO", "GSPO": "GSPO", "TIS": "TIS", "wide PPO": "PPO, 0.2 to 5"}
    claims("minus TOPR", names, {"after 64 updates": "staleness_by_rate tiny_long: 64 updates: {} ends above TOPR"})


def wide_limits() -> None:
    claim = "staleness_by_rate tiny_long: 64 updates: {} with wide limits ends above its usual ones"
    claims("wide minus usual limits", ["GSPO", "VESPO", "PPO", "TOPR"], {"after 64 updates": claim})


def masks() -> None:
    names = {"PPO's clip": "PPO's clipping", "DPPO by KL": "DPPO, KL"}
    claims("minus no mask", names, {"after 64 updates": "masks tiny: 64 updates: {} ends above none"})


def frameworks() -> None:
    names = {
        "geometric mean at 3e-4": "3e-4: the completion's ratio ends above the geometric mean",
        "best geometric mean": "each at its best rate tried: the completion's ratio ends above the geometric mean",
        "token ratio": "3e-4: the completion's ratio ends above each token's",
    }
    claims("whole completion's ratio minus", names, {"22 turns": "frameworks tiny_long: 22 turns, {}"})


def nats() -> None:
    names = {"wide PPO": "PPO, 0.2 to 5", "TOPR": "TOPR"}
    claims("1 wording minus 128", names, {"points": "nats tiny_nats: {}: 1 wording ends above 128"})


def offline() -> None:
    columns = {"`tiny`": "fig1 tiny: TOPR ends above {}", "`tiny_noise`": "fig1 tiny_noise: TOPR ends above {}"}
    claims("TOPR minus", ["PPO", "DPO", "positives only", "TIS"], columns)


def rates_beside_cliffs() -> None:
    chosen_count, cliff_count = count_rates_beside_cliffs()
    print(f"Of {chosen_count} chosen rates {cliff_count} have a neighbour with over {CLIFF:g} points less.")


def verifier() -> None:
    names = {
        "balanced accuracy": "and in balanced accuracy (the mean over correct and over incorrect solutions)",
        "readable verdicts, balanced": "and over readable verdicts (the balanced accuracy over their share)",
        "votes by its verdicts, minus plain votes": "and beats the vote without a verifier",
    }
    claims("after training with TOPR, minus before", names, {"points": "table2 tiny_verifier: {}"})


# ---- docs/findings_details.md


def division_by_length() -> None:
    claim = "length_bias tiny_nats: {}: pass@1 ends higher without 1/T than with"
    claims("without 1/T minus with", ["TOPR", "positives only", "TIS"], {"at 3e-4": claim})


def small_or_undecided() -> None:
    names = {
        "GRPO, 1 update minus 8": "staleness_by_rate tiny_long: GRPO: 1 update ends above 8",
        "wait minus keep": "lag tiny: ages by lengths: wait ends above keep",
        "drop minus keep": "lag tiny: ages by lengths: drop ends above keep",
        "log μ scored again minus the sampler's": (
            "mu tiny: TOPR, top-k 2: recomputing log μ ends above taking the sampler's"
        ),
        "unrounded minus int4 weights": "mismatch tiny: TOPR: unrounded ends above int4 without correction",
        "the better of p̃ = 10 and 20 % minus the best other": (
            "fig5 tiny: p = 10 %: the better of 10 and 20 % ends above the best other effective proportion"
        ),
        "everything minus positives only": "fig8 tiny: uniform beats positives only, pass@1",
        "Anna Karenina minus everything": "fig8 tiny: Anna Karenina beats uniform, pass@1",
        "TOPR at lag 16, centered minus not": "centering tiny_long: TOPR, lag 16: centered ends above as it is",
    }
    claims("", names, {"points": "{}"})
