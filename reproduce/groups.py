"""Groups of runs and what they are called: by algorithm, loss, setting, or what a figure compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reproduce.selection import Level, Runs
from topr_exp.runs.records import Record

Groups = Mapping[Any, Runs]
Split = Callable[[Runs], dict[Any, Runs]]

NAMES = {
    "topr": "TOPR", "tis": "TIS", "is": "IS", "naive": "naive REINFORCE", "sft": "positives only", "ppo": "PPO",
    "dpo": "DPO", "agro": "AGRO", "kl_pg": "KL-PG", "rloo": "RLOO", "agro_on_policy": "AGRO on-policy",
    "grpo": "GRPO", "opmd": "OPMD", "asymre": "AsymRE", "rec": "REC", "gspo": "GSPO", "cispo": "CISPO",
    "vespo": "VESPO", "m2po": "M2PO", "sapo": "SAPO", "oapl": "OAPL", "base": "base",
    "gsm8k": "GSM8K-like", "math": "MATH-like", "uniform": "uniform", "positives": "TOPR on positives",
    "anna_karenina": "Anna Karenina", "weight_neg": "weight of negatives", "grad_norm": "gradient norm",
}  # fmt: skip
ORDER = ("topr", "naive", "ppo", "dpo", "sft", "tis", "is")  # the papers' algorithms come first


def name_of(key: Any) -> str:
    return NAMES.get(str(key), str(key))


def all_runs(runs: Runs) -> Runs:
    return runs


def everything(runs: Runs) -> dict[str, Runs]:
    return {"": runs}


def by(key: str, written: Callable[[Any], str] = name_of) -> Split:
    """Group by a setting; written: how one of its values is called."""
    return lambda runs: {written(value): group for value, group in runs.split(key).items()}


def in_order(key: str, order: tuple[str, ...], *, alone: bool = False) -> Split:
    """Group by a setting whose values have an order; alone: other values are left out."""

    def split(runs: Runs) -> dict[str, Runs]:
        found = runs.split(key)
        known = [*order, *([] if alone else found)]
        return {name: found[name] for name in dict.fromkeys(known) if name in found}

    return split


algorithms, by_model = in_order("algo.name", ORDER), in_order("model.name", ())
compositions = in_order("compose.name", ("uniform", "positives", "anna_karenina"), alone=True)


# ---- settings, as tables and legends write them

EFFECTIVE, RATE, RATIO, TOP_K = "effective_positive", "optim.lr", "algo.ratio", "sampler.top_k"
BETA, REPLAY, TURNS, UPDATES = "algo.beta", "schedule.replay", "data.turns", "schedule.updates"


def told(effective: float) -> str:
    return f"p̃ = {100 * effective:g} %"


def updates_of(updates: int) -> str:
    return f"{updates} update{'' if updates == 1 else 's'}"


def top_k(k: int) -> str:
    return f"top-k {k}" if k else "no top-k"


def few(runs: Runs) -> dict[str, Runs]:
    return {told(p): group for p, group in runs.split(EFFECTIVE).items() if p <= 0.1}


shares = by("compose.positive_share", lambda p: f"p = {100 * p:g} %")
replays, ratios, data_sets = by(REPLAY, "replay {:g}".format), by(RATIO), by("data.name")
lengths, stalenesses = by(TURNS, "{} turns".format), by(UPDATES, updates_of)


def whose_log_mu(runs: Runs) -> dict[str, Runs]:
    return {
        f"{mu}, {top_k(k)}": each for k, group in runs.split(TOP_K).items() for mu, each in group.split("mu").items()
    }


def clipping(runs: Runs) -> dict[str, Runs]:
    """Figure 7's settings."""
    skewed = runs.where(compose__name="proportion").split("optim.grad_clip")
    clipped = {f"60 % negatives, clip {clip:g}": each for clip, each in skewed.items()}
    return {"default": runs.where(compose__name="uniform")} | clipped


def without_replay(runs: Runs) -> dict[str, Runs]:
    """The runs of AGRO's first comparison: without replay, and of AGRO's off-policy loss none in rounds."""

    def belongs(settings: Mapping[str, Any]) -> bool:
        return not settings.get(REPLAY) and not (settings["algo.name"] == "agro" and "schedule.prompts" in settings)

    return {"": Runs([each for each in runs if belongs(each["settings"])])}


def off_policy(runs: Runs) -> dict[str, Runs]:
    return algorithms(without_replay(runs)[""])


def shared_betas(runs: Runs) -> dict[str, Runs]:
    """Group by the β that AGRO and the KL-regularised policy gradient both have."""
    found = {f"{beta:g}": group for beta, group in runs.split(BETA).items()}
    return {beta: group for beta, group in found.items() if {"agro", "kl_pg"} <= {*algorithms(group)}}


def with_betas(runs: Runs) -> dict[str, Runs]:
    """AGRO off- and on-policy, where it has several β."""
    found = in_order("algo.name", ("agro", "agro_on_policy"), alone=True)(runs)
    return {name: group for name, group in found.items() if len(group.split(BETA)) > 1}


def with_fresh(runs: Runs) -> dict[str, Runs]:
    """The runs with each share of replay, beside those without."""
    return {
        f"replay {q:g}": Runs([each for each in runs if each["settings"].get(REPLAY) in (0.0, q)])
        for q in runs.split(REPLAY)
        if q > 0
    }


# ---- losses: an algorithm, and what of its settings is unusual

WIDTHS = ("eps_low", "tau", "cap", "c1_pos")  # one key of each loss that is also run at another width
# TOPR by whether its advantage is the group's and whether its loss is divided by the answer's length.
WAYS = {
    (False, True): "TOPR",
    (False, False): "TOPR, without 1/T",
    (True, True): "TOPR, the group's advantage",
    (True, False): "TOPR, both",
}


def loss_of(record: Record) -> str:
    """The name of a run's loss, as conf/learning_rates.yaml has it but for the signs: "gspo, eps_low 0.03"."""
    settings = record["settings"]
    ratio = [f"{settings[RATIO]} ratio"] if settings.get(RATIO) in ("token", "geometric") else []
    widths = [f"{key} {settings[f'algo.{key}']:g}" for key in WIDTHS if f"algo.{key}" in settings]
    return ", ".join([settings["algo.name"], *ratio, *widths])


def title_of(record: Record) -> str:
    name, *unusual = loss_of(record).split(", ")
    return ", ".join([name_of(name), *unusual])


def way_of(record: Record) -> str:
    settings = record["settings"]
    if settings["algo.name"] != "topr":
        return title_of(record)
    return WAYS[settings.get("algo.advantage") == "group", settings.get("algo.length_normalize", True)]


def by_loss(name: Callable[[Record], str]) -> Split:
    """Group by what `name` calls a run's loss, TOPR's ways first."""

    def split(runs: Runs) -> dict[str, Runs]:
        return {
            loss: Runs([record for record in group if name(record) == loss])
            for group in algorithms(runs).values()
            for loss in sorted({*map(name, group)}, key=lambda loss: ([*WAYS.values(), loss].index(loss), loss))
        }

    return split


losses, titled, ways = by_loss(loss_of), by_loss(title_of), by_loss(way_of)


def part(split: Split, names: Callable[[str], bool]) -> Split:
    """Those of the groups whose names these are."""
    return lambda runs: {name: group for name, group in split(runs).items() if names(name)}


def is_one_of(*known: str) -> Callable[[str], bool]:
    return lambda name: name.split(",")[0] in known


of_topr, of_papers = part(ways, is_one_of("TOPR")), part(algorithms, is_one_of(*ORDER))
of_others = part(algorithms, lambda name: name not in ORDER)
topr = part(titled, lambda name: name == "TOPR")
relatives = part(titled, is_one_of("TOPR", "TIS", "IS"))
rivals = part(titled, lambda name: name == "TOPR" or ("," not in name and name not in ("TIS", "IS")))
rivals_at_other_widths = part(titled, lambda name: name == "TOPR" or ("," in name and name[:4] != "TOPR"))
CLIPS = ("PPO", "GRPO", "GSPO", "M2PO")  # an answer or token too far from where it was sampled has no gradient
weighing = part(ways, lambda name: name == "TOPR" or name.split(",")[0] not in ("TOPR", *CLIPS))
clipping_losses = part(ways, lambda name: name == "TOPR" or name.split(",")[0] in CLIPS)
# The algorithms of the staleness figure by what keeps them in place on old completions.
KINDS = {
    "each response weighed": ("topr", "tis", "is", "sft", "naive"),
    "clipped next to ratio 1": ("ppo", "grpo", "rec"),
    "no ratio to μ": ("opmd", "asymre", "agro"),
}
in_kind = in_order("algo.name", tuple(name for names in KINDS.values() for name in names), alone=True)


def kinds(runs: Runs) -> dict[str, Runs]:
    return {
        kind: Runs([each for each in runs if each["settings"]["algo.name"] in names]) for kind, names in KINDS.items()
    }


def places(runs: Runs) -> dict[str, Runs]:
    """Group by model with the turns of the story."""
    return {
        f"{model}, {turns} turns": group
        for model, members in by_model(runs).items()
        for turns, group in members.split(TURNS).items()
    }


def divided(by_length: bool) -> Callable[[Runs], Runs]:
    """The runs whose loss is divided by the answer's length T, or those whose is not."""
    return lambda runs: Runs(
        [each for each in runs if each["settings"].get("algo.length_normalize", True) == by_length]
    )


def with_and_without(runs: Runs) -> dict[str, Runs]:
    """Group by algorithm, and by whether the loss is divided by T."""
    return {
        f"{name_of(name)}, {label} 1/T": each
        for name, group in algorithms(runs).items()
        for label, each in (("with", divided(True)(group)), ("without", divided(False)(group)))
        if len(each)
    }


# What the rows of a figure's table are, and how these are written.
LEVELS: dict[str, Level] = {
    "algorithm": (algorithms, name_of), "data": ("data.name", name_of), "share": (shares, str),
    "effective": (EFFECTIVE, told), "clipping": (clipping, str), "composition": (compositions, name_of),
    "off_policy": (off_policy, name_of), "beta": (BETA, "β = {:g}".format), "replay": (replays, str),
    "rate": (RATE, "lr {:g}".format), "bare_rate": (RATE, "{:g}".format), "ratio": (RATIO, str),
    "log_mu": (whose_log_mu, str), "bare_updates": (UPDATES, "{} updates".format), "updates": (UPDATES, updates_of),
    "loss": (titled, str), "way": (ways, str), "turns": (TURNS, "{} turns".format), "divided": (with_and_without, str),
}  # fmt: skip
