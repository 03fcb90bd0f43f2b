"""Beyond the papers: score centering where the sampler is noisy, rounded or older; raw and group-relative rewards."""

from functools import partial

from reproduce.claims import Decision, Extra, decide, ends_above, for_each, within
from reproduce.figure import Figure
from reproduce.groups import by_choice, crossed
from reproduce.panels import Panel, bars, grid
from reproduce.selection import Runs

NOISE = "sampler.mismatch.logits_noise"
WEIGHTS = "sampler.mismatch.weights"
GRPO = "algo=policy_gradient algo.rule=ppo algo.ratio=token algo.advantage=group_std algo.b_pos=1.2 algo.a_neg=0.8"
ROUNDED = f"{NOISE}=0 {WEIGHTS}=int4"
STALE = f"{NOISE}=0 schedule=async schedule.lag=4,16"
CENTERED = "algo.center_scores=true sampler.top_logprobs=310"  # the whole vocabulary, which makes it exact
HARDLY = 0.03  # of pass@1
raw_losses = by_choice({"TOPR": ["topr"], "TIS": ["tis"], "IS": ["is"]})
group_losses = by_choice({"GRPO": ["policy_gradient"]})
losses = by_choice({"TOPR": ["topr"], "TIS": ["tis"], "IS": ["is"], "GRPO": ["policy_gradient"]})
mismatches = by_choice({
    "noise 0.1": [f"{NOISE}=0.1"],
    "noise 0.3": [f"{NOISE}=0.3"],
    "noise 1": [f"{NOISE}=1.0"],
    "int4": [f"{WEIGHTS}=int4"],
    "lag 4": ["schedule.lag=4"],
    "lag 16": ["schedule.lag=16"],
})  # fmt: skip
with_and_without = by_choice({"as it is": ["algo.center_scores=null"], "centered": ["algo.center_scores=true"]})
centered_by_mismatch = crossed(mismatches, with_and_without)


def experiments() -> tuple[str, ...]:
    """The sweeps: both kinds of losses, all kinds of mismatch, with and without."""
    sweeps = []
    for loss in ("", GRPO):
        for mismatch in ("", ROUNDED, STALE):
            for centering in ("", CENTERED):
                sweeps.append(" ".join(filter(None, ["centering", loss, mismatch, centering])))
    return tuple(sweeps)


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    panels_of_losses = []
    for name, members in losses(runs).items():
        draw_bars = partial(bars, groups=centered_by_mismatch(members))
        panels_of_losses.append(Panel(draw_bars, name, base=members))
    return panels_of_losses


def helps(loss: str) -> list[Decision]:
    def claims_at(mismatch: str) -> list[Decision]:
        text = f"{loss}, {mismatch}: centered ends above as it is"
        return [ends_above(text, "algo.center_scores=true", "algo.center_scores=null")]

    return [for_each(mismatches, claims_at)]


def hardly_helps(loss: str) -> list[Decision]:
    def claims_at(mismatch: str) -> list[Decision]:
        text = f"{loss}, {mismatch}: centering makes no difference (within 3 points)"
        return [ends_above(text, "algo.center_scores=true", "algo.center_scores=null", rule=within, limit=HARDLY)]

    return [for_each(mismatches, claims_at)]


FIGURE = Figure(
    name="centering",
    title="Beyond the papers: score centering",
    claim="Predicted before any run: where the sampler is not the policy, score centering helps TOPR, TIS and IS, "
    "whose rewards are 1 and −1, and hardly GRPO, whose advantages are 0 on average over the answers to a prompt.",
    experiments=experiments(),
    draw=grid(panels),
    judge=decide(for_each(raw_losses, helps), for_each(group_losses, hardly_helps)),
    levels=(losses, centered_by_mismatch),
    wider=(),
    only_full=True,
    own_model=True,
    metrics=("ess", "sampler_kl_token", "grad_norm"),
    note="Stories of 10 turns, 32 updates at 3e-4, μ as the sampler drew. Answers are new or, with a lag, of the "
    "weights 4 or 16 updates before. GRPO: "
    "`algo=policy_gradient` with PPO's rule, token ratios and standardised advantages. Centered: by the whole "
    "distribution of the sampler. TOPR, TIS and IS weigh the whole answer, where centering is exact only at weight 1.",
)
