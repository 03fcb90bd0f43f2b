"""Conditions of the bench, its columns, and the losses that are its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UPDATES = 64  # of a run that samples anew
PROMPTS_OF_UPDATE = 2  # with 16 completions each
SMALL_UPDATES = 2
SMALL = ("data.train_problems=16", "data.test_problems=4", "data.n=4", "optim.batch_size=8")  # to try the command
SMALL_SET = "compose.n_examples=40"  # of 64, where a condition sets the share of positives
SHARE = ("compose=proportion", "compose.n_examples=1600")  # of conditions that set the share of positives
REFERENCE = "topr"  # the row that others are compared with


@dataclass(frozen=True)
class Condition:
    """A column: settings of its runs, beside those that the papers' experiments share."""

    name: str
    settings: tuple[str, ...]
    updates: int | None = None  # between two samplings; None: one pass over a fixed set

    def words(self, *, is_small: bool) -> list[str]:
        """The command line of its runs, without loss, learning rate and seed."""
        words = ["experiment=paper", *self.settings]
        if self.updates is not None:
            words += schedule_words(self.updates, is_small=is_small)
        if is_small:
            words += SMALL
        if is_small and set(SHARE) <= set(self.settings):
            words.append(SMALL_SET)
        return words


def schedule_words(updates: int, *, is_small: bool) -> list[str]:
    """A schedule of as many updates in all, however many lie between two samplings."""
    total = UPDATES
    if is_small:
        total = SMALL_UPDATES
    updates = min(updates, total)
    prompts = PROMPTS_OF_UPDATE * updates
    return [f"schedule.updates={updates}", f"schedule.prompts={prompts}", f"schedule.rounds={total // updates}"]


ON_POLICY = "schedule=on_policy"
ASYNC = "schedule=async"
TURNS = ("model=tiny_long", "data.train_problems=200")
CONDITIONS = (
    Condition("fresh", (ON_POLICY,), updates=1),
    Condition("8 updates", (ON_POLICY,), updates=8),
    Condition("64 updates", (ON_POLICY,), updates=64),
    Condition("lag 4", (ASYNC, "schedule.lag=4"), updates=1),
    Condition("lag 16", (ASYNC, "schedule.lag=16"), updates=1),
    # By the sampler's own log μ: scored by the policy it is log π, and every ratio is 1.
    Condition("int4", (ON_POLICY, "mu=sampler", "sampler.mismatch.weights=int4"), updates=1),
    Condition("noise 0.3", (ON_POLICY, "mu=sampler", "sampler.mismatch.logits_noise=0.3"), updates=1),
    # With a baseline of 0 the share of positives is the effective proportion; losses without a baseline have it, too.
    Condition("positives 0.05", (*SHARE, "compose.positive_share=0.05")),
    Condition("positives 0.2", (*SHARE, "compose.positive_share=0.2")),
    Condition("positives 0.5", (*SHARE, "compose.positive_share=0.5")),
    Condition("2 turns", (*TURNS, "data.turns=2")),
    Condition("10 turns", (*TURNS, "data.turns=10")),
)

SHIPPED = (
    "topr",
    "naive",
    "sft",
    "tis",
    "is",
    "ppo",
    "dpo",
    "grpo",
    "gspo",
    "gmpo",
    "luspo",
    "cispo",
    "vespo",
    "m2po",
    "sapo",
    "rec",
    "red_drop",
    "opmd",
    "asymre",
    "oapl",
    "rloo",
    "agro",
    "agro_on_policy",
    "kl_pg",
    "policy_gradient",
    "decoupled_ppo",
    "mis",
    "icepop",
    "ipo",
    "dppo_tv",
    "dppo_kl",
    "trust_region_mask",
    "vaco",
)
NAMED_SETTINGS = (  # of docs/losses.md, those of the loss alone
    "topr algo.advantage=group",
    "topr algo.ratio=token",
    "topr algo.ratio=geometric",
    "sft algo.length_normalize=false",
    "sft algo.a_pos=0",
    "naive algo.a_pos=0 algo.b_pos=0 algo.length_normalize=false",
    "naive algo.a_pos=0.1 algo.b_pos=0.1 algo.length_normalize=false",
    "grpo algo.length_normalize=true",
    "grpo algo.advantage=group",
    "grpo algo.eps_high=0.28 optim.reduction=tokens",
    "grpo algo.off_policy_mask=0.5",
    "vespo algo.advantage=group_std",
    "decoupled_ppo algo.correction=2",
    "ipo algo.mask=[{statistic:ratio,low:0.2,high:5}]",
    "oapl algo.anchor=ref",
    "dppo_kl algo.denominator=old algo.advantage=group_std algo.length_normalize=true",
    "policy_gradient algo.ratio=min_prefix algo.rule=ppo algo.b_pos=1.28 algo.a_neg=0.8 algo.advantage=group_std",
)
LOSS_KEYS = ("algo", "mu", "optim.reduction")  # words of a row; the others are settings of every run


@dataclass(frozen=True)
class Row:
    """A loss with its settings."""

    words: tuple[str, ...]  # of a command line, algo=NAME first

    @property
    def name(self) -> str:
        return " ".join(self.words).removeprefix("algo=")


ROWS = tuple(Row(tuple(f"algo={words}".split())) for words in (*SHIPPED, *NAMED_SETTINGS))


def is_loss_word(word: str) -> bool:
    """True for a setting of the loss, KEY=VALUE."""
    key = word.split("=", 1)[0].lstrip("+")
    return key in LOSS_KEYS or key.startswith("algo.")


def row_of(words: Sequence[str]) -> Row:
    """The row of a command line's words of the loss, one of which is algo=NAME."""
    return Row(tuple(sorted(words, key=lambda word: not word.startswith("algo="))))
