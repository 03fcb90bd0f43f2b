"""Every figure: what the paper claims in it, whose runs it is made of, how it is drawn and judged."""

from __future__ import annotations

from collections.abc import Mapping

from reproduce import (
    agro,
    beyond,
    iterations,
    learning_rates,
    length,
    limits,
    proportions,
    tabular,
    training,
    variance,
    verifier,
)
from reproduce.figure import BY_ALGORITHM, Figure, name_of

BY_DATA = ("data.name", name_of)
BOTH = "model=tiny,tiny_noise"
SEEDS = "seed=0,1,2,3,4"
LOG_RATIOS = tuple(f"log_ratio_q{q}_{sign}" for q in ("05", "50", "95") for sign in ("pos", "neg"))
# On long answers: those of the experiment, TOPR's other ratios, and other widths than are usual with large models; each
# with its name in conf/learning_rates.yaml.
RATIOS = {
    " algo=topr algo.ratio=token": "topr_token_ratio", " algo=topr algo.ratio=geometric": "topr_geometric_ratio",
}  # fmt: skip
WIDER = {
    " algo=gspo algo.eps_low=0.03 algo.eps_high=0.03": "gspo_eps_low_0_03",
    " algo=ppo algo.eps_low=0.8 algo.eps_high=4": "ppo_eps_low_0_8",
    " algo=vespo algo.c1_pos=0.5 algo.c2_pos=0.75 algo.c1_neg=0.75 algo.c2_neg=0.5": "vespo_c1_pos_0_5",
}
NARROWER = {" algo=opmd algo.tau=0.01": "opmd_tau_0_01", " algo=cispo algo.cap=1": "cispo_cap_1"}
VARIANTS = RATIOS | WIDER | NARROWER
WIDTHS = (
    "Wider limits than are usual are losses of their own: PPO with eps_low 0.8 clips ratios to [0.2, 5], GSPO with "
    "0.03 their geometric means to [0.97, 1.03], VESPO with c1_pos 0.5 has a quarter of all four of its exponents."
)


def with_rates(experiment: str, losses: Mapping[str, str]) -> tuple[str, ...]:
    """An experiment with its own losses, and with each of these at its chosen learning rate."""
    return (experiment, *(f"{experiment}{more} learning_rates.loss={name}" for more, name in losses.items()))


THREE = (BOTH,)  # three seeds, where cost forbids five

FIGURES = (
    Figure(
        "fig1", "Figure 1",
        "Trained on completions of the base alone, naive REINFORCE collapses, PPO stalls, DPO does better, and TOPR "
        "ends far above all of them.",
        ("fig1",), training.draw_figure_1, training.judge_figure_1,
    ),
    Figure(
        "fig2", "Figure 2",
        "Next to ratio 1 TOPR's objective is PPO's; farther off PPO is flat, so that it stops learning, and TOPR is "
        "not.",
        ("fig2",), tabular.draw_figure_2, tabular.judge_figure_2,
        extra=tabular.objective_curves,
        metrics=LOG_RATIOS,
        note="The curves are computed from the losses that train, TOPR's with b⁺ = 1 + ε as in the paper's figure (the "
        "runs have b⁺ = 1); the bars below are measured: where 90 % of the ratios of the last updates' batches lie.",
    ),
    Figure(
        "fig3", "Figure 3",
        "Of naive REINFORCE, PPO, DPO and TOPR, only TOPR makes invalid answers much rarer.",
        ("fig3",), training.draw_figure_3, training.judge_figure_3,
        note="The black lines are the seeds. 'Much rarer' is less than half of the base's share.",
    ),
    Figure(
        "fig4", "Figure 4",
        "Training on negatives as well as positives gives a higher pass@1 and maj@n, leaves fewer problems with few "
        "correct answers, and almost doubles pass@1 on MATH.",
        ("fig4",), training.draw_figure_4, training.judge_figure_4,
        (BY_DATA, BY_ALGORITHM),
    ),
    Figure(
        "fig5", "Figure 5",
        "An effective proportion of positives of 10 to 20 % is best whether the training set holds 10 % or 50 % of "
        "them, and it is slightly better reached by sampling than by a baseline.",
        ("fig5",), proportions.draw_figure_5, proportions.judge_figure_5,
        (proportions.BY_SHARE, proportions.BY_EFFECTIVE),
    ),
    Figure(
        "fig6", "Figure 6",
        "Where positives are few, TIS fails and TOPR does not; where they are many the two are alike; TIS has the "
        "slightly higher peak.",
        ("fig6",), proportions.draw_figure_6, proportions.judge_figure_6,
        (BY_DATA, BY_ALGORITHM, proportions.BY_EFFECTIVE),
    ),
    Figure(
        "fig7", "Figure 7",
        "Plain importance sampling does as well as TOPR in the default setting although its gradients grow; with "
        "60 % negatives and little clipping it harms the model, and TOPR does not.",
        ("fig1 algo=is,topr", "fig7"), training.draw_figure_7, training.judge_figure_7,
        ((training.settings_7, str), BY_ALGORITHM),
        metrics=("grad_norm",),
        note="The paper's clips are 1 and 100; norms of these models hardly ever reach 1, so that those two are nearly "
        "one setting here and 0.1 stands for little room. Adam, which these runs use, rescales gradients, so that a "
        "clip matters less than with Adafactor.",
    ),
    Figure(
        "fig8", "Figure 8",
        "Over several iterations training on all completions beats training on positives, and Anna Karenina sampling "
        "beats both.",
        ("fig8",), iterations.draw_figure_8, iterations.judge_figure_8,
        ((iterations.compositions, name_of),), wider=THREE,
    ),
    Figure(
        "fig9", "Figure 9",
        "The smaller the effective proportion of positives, the more weight hard problems get.",
        ("fig9",), iterations.draw_figure_9, iterations.judge_figure_9,
        extra=iterations.weights_by_difficulty,
        note="Bands: from the lowest to the highest seed, each with its own completions. No training is involved; "
        "the table is that of the runs whose completions were counted.",
    ),
    Figure(
        "table1", "Table 1",
        "Of the choices of limits only TOPR uses negatives, is bounded, keeps the gradient's variance low and learns "
        "fast from positives.",
        ("table1",), limits.draw_table_1, limits.judge_table_1,
        extra=variance.variances, own_table=limits.table_1,
        metrics=("grad_norm", "weight_neg"),
        note="One learning rate for all, so that nothing differs but the limits. Variance: of a single example's "
        "gradient under each choice of limits, on 1,000 training completions at the weights where the seed's run of "
        "TOPR ended.",
    ),
    Figure(
        "table2", "Table 2",
        "Trained with TOPR, a generative verifier becomes far more accurate, hardly ever leaves its verdict "
        "unreadable, and weighs the votes of solutions so that more answers are right.",
        ("table2",), verifier.draw_table_2, verifier.judge_table_2, wider=(SEEDS,),
        own_model=True,
        extra=verifier.tallies, names=("pass@1", "invalid"),
        note="In the table of numbers pass@1 is the verifier's accuracy, the mean over a problem's solutions; in the "
        "picture the intervals are bootstraps over problems. Most solutions are wrong, so that a verifier which always "
        "says so is right more often than half of the time: see the balanced accuracy.",
    ),
    Figure(
        "agro_fig1", "AGRO, Figure 1",
        "On fixed off-policy data AGRO finds the optimum of the KL-regularised reward; the KL-regularised policy "
        "gradient ends elsewhere.",
        ("agro_fig1",), tabular.draw_agro_figure_1, tabular.judge_agro_figure_1,
        extra=tabular.convergence,
    ),
    Figure(
        "agro_kl", "AGRO, KL-efficiency and β",
        "Off-policy AGRO ends above the KL-regularised policy gradient, on-policy AGRO above RLOO; a strong β slows "
        "learning and makes it more KL-efficient.",
        ("agro_kl", "agro_on_policy"), agro.draw_agro_kl, agro.judge_agro_kl, ((agro.plain, name_of), agro.BY_BETA),
        wider=(SEEDS, BOTH, "algo.beta=0.05,0.2,0.5,1.0"),
        extra=variance.distances,
        note="The paper's model had a supervised warm-up and its task was MATH; here it is the GSM8K-like one. Where β "
        "is below 1/2 − p (p: the base's accuracy) on-policy AGRO moves towards wrong answers, the other way to have "
        "no variance (conf/algo/agro_on_policy.yaml): its smallest β is expected to fail. "
        "A best β is chosen by the test problems that it is judged by, which flatters all alike.",
    ),
    Figure(
        "agro_replay", "AGRO, replay",
        "AGRO goes on to learn, and is as KL-efficient, when a part of its samples comes from earlier rounds.",
        ("agro_replay",), agro.draw_agro_replay, agro.judge_agro_replay, (agro.BY_REPLAY,),
        wider=(SEEDS, BOTH, "schedule.replay=0.0,0.5,0.9"),
        extra=variance.distances,
        metrics=("sampled_correct",),
    ),
    Figure(
        "related", "Relatives of TOPR",
        "No claim of the paper's: OPMD, AsymRE, REC and GRPO on the completions that TOPR is trained on.",
        ("related",), training.draw_related, training.judge_related,
    ),
    Figure(
        "learning_rates", "Learning rates",
        "One grid of learning rates for every algorithm; the choice is the highest mean pass@1 on validation "
        "problems.",
        ("learning_rates", "learning_rates_on_policy"), learning_rates.draw_learning_rates,
        learning_rates.judge_learning_rates, (BY_ALGORITHM, ("optim.lr", "{:g}".format)), wider=THREE, only_full=True,
        note="`python -m reproduce.rates` writes the choice into conf/learning_rates.yaml.",
    ),
    Figure(
        "ratio", "Beyond the papers: which ratio",
        "Other frameworks clip the ratio of each token, or the geometric mean over tokens: does it matter?",
        ("ratio",), beyond.draw_ratio, beyond.judge_ratio,
        (BY_ALGORITHM, (beyond.RATIO, str), proportions.BY_RATE), wider=THREE, only_full=True,
        note="The best rate of each ratio is chosen by the test problems that it is judged by: it flatters all.",
    ),
    Figure(
        "mu", "Beyond the papers: whose log μ",
        "Samplers report log-probabilities after top-k: what if these are taken for log μ?",
        ("mu",), beyond.draw_mu, beyond.judge_mu, (BY_ALGORITHM, (beyond.settings_mu, str)), only_full=True,
        note="Completions are sampled, and the model is tested, with the top-k that is named.",
    ),
    Figure(
        "staleness", "Beyond the papers: how stale",
        "The same 128 updates on completions sampled anew after every 1 to 128 of them: which algorithms need fresh "
        "ones?",
        ("staleness",), beyond.draw_staleness, beyond.judge_staleness,
        (BY_ALGORITHM, (beyond.UPDATES, "{} updates".format)), wider=THREE,
        only_full=True,
    ),
    Figure(
        "length_rates", "Learning rates by the length of answers",
        "Which learning rate is best for which loss at which length of answers?",
        tuple(f"length_rates{more}" for more in ("", *VARIANTS, " algo=grpo,sapo,m2po data.turns=10")),
        length.draw_length_rates, length.judge_length_rates,
        length.LEVELS, wider=(), only_full=True, own_model=True,
        note="One seed, on validation problems; `python -m reproduce.rates` writes the choice into "
        f"conf/learning_rates.yaml. {WIDTHS} OPMD with another tau and CISPO whose cap is 1 are, too.",
    ),
    Figure(
        "length", "Beyond the papers: how long",
        "The ratio of a whole answer is a product over its tokens: up to which length does it work, and what is better "
        "beyond?",
        with_rates("length", VARIANTS), length.draw_length, length.judge_length, length.LEVELS,
        wider=(), only_full=True, own_model=True,
        metrics=(*LOG_RATIOS, length.SPENT),
        note="A quarter of the completions is correct at each length. Each loss has the learning rate that was best on "
        f"validation problems of that length (length_rates). {WIDTHS}",
    ),
    Figure(
        "staleness_long", "Beyond the papers: how stale long answers may be",
        "The same 64 updates on answers of about 110 tokens, sampled anew after every 1, 8 or 64 of them: does TOPR "
        "fall behind, and is it its 1/T, its advantage, both or neither?",
        (*with_rates("staleness_long", WIDER),
         "staleness_long algo=topr algo.advantage=reward,group algo.length_normalize=true,false"),
        beyond.draw_staleness_long, beyond.judge_staleness_long,
        ((beyond.ways, str), (beyond.UPDATES, beyond.updates_of)),
        wider=(), only_full=True, own_model=True, metrics=(beyond.EFFECTIVE, "length"),
        note="Stories of 10 turns. Each loss has the learning rate that was best for one epoch on completions made "
        f"once (length_rates), TOPR's four ways that of TOPR. {WIDTHS}",
    ),
    Figure(
        "length_bias", "Beyond the papers: the length of answers",
        "Does dividing the loss by the length of an answer, as TOPR does, make answers shorter?",
        ("length_bias",), length.draw_length_bias, length.judge_length_bias,
        ((length.with_and_without, str),), wider=(),
        only_full=True, own_model=True, metrics=("length",),
        note="Mean tokens of the answers to the first 50 test problems, 22 turns. Longer answers can mean that the "
        "careful way of working took the place of the terse one.",
    ),
    Figure(
        "map", "Beyond the papers: p̃ and the learning rate",
        "Does TOPR, or TIS, need a well-chosen learning rate and effective proportion?",
        ("map",), proportions.draw_map, proportions.judge_map,
        (BY_ALGORITHM, proportions.BY_RATE, proportions.BY_EFFECTIVE), wider=THREE, only_full=True,
    ),
)  # fmt: skip
