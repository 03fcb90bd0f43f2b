"""Groups of runs and their names: by the values of a setting, or by named choices of runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reproduce.selection import Runs, join, pick

Groups = Mapping[Any, Runs]
Split = Callable[[Runs], dict[Any, Runs]]
Choices = Mapping[str, Sequence[str]]  # name -> choices of `pick`

PAPERS = ("topr", "naive", "ppo", "dpo", "sft", "tis", "is")  # algorithms of the paper; they come first
NAMES = {
    "topr": "TOPR",
    "tis": "TIS",
    "is": "IS",
    "naive": "naive REINFORCE",
    "sft": "positives only",
    "ppo": "PPO",
    "dpo": "DPO",
    "agro": "AGRO",
    "kl_pg": "KL-PG",
    "rloo": "RLOO",
    "agro_on_policy": "AGRO on-policy",
    "grpo": "GRPO",
    "opmd": "OPMD",
    "asymre": "AsymRE",
    "rec": "REC",
    "gspo": "GSPO",
    "cispo": "CISPO",
    "vespo": "VESPO",
    "m2po": "M2PO",
    "sapo": "SAPO",
    "oapl": "OAPL",
    "dppo_tv": "DPPO",
    "gsm8k": "GSM8K-like",
    "math": "MATH-like",
    "topr_undivided": "TOPR, without 1/T",
    "topr_token_ratio": "TOPR, token ratio",
    "topr_geometric_ratio": "TOPR, geometric ratio",
    "topr_b_neg_5": "TOPR, negatives to 5",
    "topr_b_pos_5": "TOPR, 0.2 to 5",
    "ppo_eps_low_0_8": "PPO, 0.2 to 5",
    "gspo_eps_low_0_03": "GSPO, ε = 0.03",
    "vespo_c1_pos_0_5": "VESPO, a quarter",
    "positives": "TOPR on positives",
    "anna_karenina": "Anna Karenina",
    "weight_neg": "weight of negatives",
    "grad_norm": "gradient norm",
}
EFFECTIVE, RATE, BETA = "effective_positive", "optim.lr", "algo.beta"
TURNS, CHOICES = "data.turns", "data.choices"


def name_of(key: Any) -> str:
    """What a group, an algorithm or a metric is called in pictures and claims."""
    return NAMES.get(str(key), str(key))


# ---- ways to group


def by_setting(
    key: str,
    form: str = "{}",
    *,
    words: Mapping[Any, str] | None = None,
    first: Sequence[Any] = (),
    only: Sequence[Any] = (),
) -> Split:
    """Group by the values of a setting.

    form: of a group's name; words: names of single values in its place. first: values that come first; only: no others.
    """
    names = words or {}

    def split(runs: Runs) -> dict[Any, Runs]:
        groups = runs.split(key)
        named = {}
        for value in only or dict.fromkeys([*first, *groups]):
            if value in groups:
                name = form.format(value).replace("%", " %")
                named[names.get(value, name)] = groups[value]
        return named

    return split


def by_choice(choices: Choices) -> Split:
    """Group by named choices; a group joins the runs of its choices, and is left out where the first one has none."""

    def split(runs: Runs) -> dict[Any, Runs]:
        groups = {}
        for name, words in choices.items():
            picked = [pick(runs, choice) for choice in words]
            if len(picked[0]):
                groups[name] = join(picked)
        return groups

    return split


def crossed(*splits: Split) -> Split:
    """Group by several splits at once, each within the one before it; the names are joined by commas."""
    return lambda runs: group_by(runs, *splits)


def group_by(runs: Runs, *splits: Split, separator: str = ", ") -> dict[str, Runs]:
    """The groups of runs by several splits at once, as in {"TOPR, β = 0.1": ...}, in order."""
    groups = {"": runs}
    for split in splits:
        finer = {}
        for outer_name, group in groups.items():
            for key, members in split(group).items():
                names = filter(None, (outer_name, name_of(key)))
                finer[separator.join(names)] = members
        groups = finer
    return groups


def everything(runs: Runs) -> dict[Any, Runs]:
    """One group without a name."""
    return {"": runs}


# ---- groupings of several figures

algorithms = by_setting("algo.name", first=PAPERS)
models = by_setting("model.name")
data_sets = by_setting("data.name")
top_ks = by_setting("sampler.top_k", "top-k {}", words={0: "no top-k"})
lengths = by_setting(TURNS, "{} turns")
wordings = by_setting(CHOICES, "{} wordings", words={1: "1 wording"})
rates = by_setting(RATE, "lr {:g}")
effective = by_setting(EFFECTIVE, "p̃ = {:.0%}")
ratios = by_setting("algo.ratio")
betas = by_setting(BETA, "β = {:g}")
stalenesses = by_setting("schedule.updates", "{} updates", words={1: "1 update"})
TESTS = (data_sets, lengths, wordings, top_ks)  # groupings that decide what the base scores
