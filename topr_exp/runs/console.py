"""A run for people to read: its first prompt, its settings, a table of results at the end, the card of its model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.sampler_choice import why_not_vllm
from topr_exp.config.settings import Config
from topr_exp.data.prompts import TokenizedProblems, build_prompter
from topr_exp.models.loading import encode_chat, encode_text
from topr_exp.runs.attempt import command_of
from topr_exp.runs.preflight import model_folders, problems
from topr_exp.runtime.cpu import slow_precision
from topr_exp.runtime.distributed import main_process_only, visible_gpus
from topr_exp.runtime.exit_status import say, warn
from topr_exp.runtime.files import write_text
from topr_exp.schema import identity, plain
from topr_exp.types import VERDICTS, TOPRError
from topr_exp.verifier.figures import cell, run_table

if TYPE_CHECKING:
    from topr_exp.composition.training_set import TrainingSet
    from topr_exp.data.problems import ProblemSets, SplitReport
    from topr_exp.models.policy import Policy
    from topr_exp.runs.task_set import TrainedOn


REWARDS = {"pm1": "1 and -1", "zero_one": "1 and 0", "graded": "as graded", "given": "as the log has them"}
PROMPT = "prompt.txt"
END = "◀"  # where the completion begins: a space before it would be the prompt's
CARD_FILE = "README.md"
CARD = """---
# license: fill in that of the base model, which holds for these weights too
{matter}
---
# {name}

A language model trained with reinforcement learning on answers to problems, as an experiment: it was tested on the
problems below and on nothing else.

Licence: to be filled in by whoever publishes it. That of the base model holds for these weights too.
{adapter}
```
{header}
```

## Results

```
{results}
```

## Made by

topr_exp {version}{commit}:

```
{command}
```
"""
ADAPTER = """
What was trained is an adapter (LoRA): `adapter/` holds it in peft's format, for `PeftModel.from_pretrained` on the base
model. The weights beside this card are the base model's with the adapter merged in, and load without peft.
"""


def header(
    config: Config,
    policy: Policy,
    sets: ProblemSets,
    train: TokenizedProblems,
    test: TokenizedProblems,
    trained_on: TrainedOn,
    log_report: Mapping[str, str],
) -> str:
    """Format the settings that decide the result, a row a group; log_report: rows on imported completions."""
    data, model, algo, schedule = config.data, config.model, config.algo, config.schedule
    verifies = config.task.verifies
    weighting = {"baseline": config.baseline, "effective_positive": config.effective_positive}
    shown = "".join(f", {key}={value:g}" for key, value in weighting.items() if value is not None)
    split = " of the training split" if data.test_split == "validation" else ""
    tested = f"{len(test.problems)} {'solutions to ' * verifies}{data.described}{split}"
    size = f"{policy.model.num_parameters() / 1e6:,.2f} M parameters"
    rows = {
        "algorithm": f"{algo.name} ({settings_of(algo)}){shown}, rewards {REWARDS[config.reward]}",
        "task": described(config.task, "task.") if verifies else "",
        "trained on": trained_on.text + left_out(sets.train_report, train),
        "tested on": tested + left_out(sets.test_report, test),
        "model": f"{model.name}{f' ({model.path})' * (model.path != model.name)}, {size}, {policy.place}"
        + (f", lora ({settings_of(model.lora)})" if model.lora is not None else ""),
        "settings": f"of {model.settings_of}" if model.settings_of is not None else "",
        "precision": slow_precision(policy.device.type, policy.precision),
        "sampling": f"{described(config.sampler, 'sampler.')}{slow_sampler(config)}; "
        f"n={data.n} to train, eval_n={data.eval_n} to evaluate",
        "examples": described(config.compose, "compose."),
        "completions": data.completions or "",
        "log μ": {"sampler": "what the sampler drew with", "none": "none"}.get(config.mu, ""),
        **log_report,
        "training": described(config.optim, "optim."),
        "rounds": settings_of(schedule) if schedule.in_rounds else "",
        "iterations": str(config.iterations) if config.iterations > 1 else "",
        "seed": str(config.seed),
        "folder": str(config.folder),
        "GPUs": idle_gpus(config.cluster.world_size) if policy.device.type == "cuda" else "",
    }
    return "\n".join(f"{name:<11} {text}" for name, text in rows.items() if text)


def slow_sampler(config: Config) -> str:
    """Say why a large model is not sampled by vLLM; "" where it is, and where it could be."""
    reason = why_not_vllm() if config.sampler.name == "hf" and config.model.size == "large" else None
    return f", many times slower than vllm: {reason}" if reason is not None else ""


def tell_signs(found: TrainingSet, algo: Any, key: str = "effective_positive") -> None:
    """Print of which sign R is, and p̃, where these mean something; warn where wrong answers weigh nothing or too much.

    key: the setting that p̃ can be changed with, effective_positive or baseline.
    """
    if found.description["unit"] != "examples" or "group_rewards" in algo.needs:
        return
    shares = found.signs()
    say(signs(shares))
    effective = found.weight_of_positives() if algo.uses_baseline else None
    if effective is not None:
        share = 100 * found.description["positive_share"]
        say(f"{'p̃':<12} {effective:.3g}: {share:.3g} % positive, c = {found.baseline:g}")  # p̃ is two characters
    advice = never_rarer(shares, algo.name) if getattr(algo, "by_sign", False) else ""
    if not advice and effective is not None:
        advice = weight_advice(found, effective, key)
    if advice:
        warn(advice)


USUAL_WEIGHT = (0.05, 0.5)  # p̃ outside of it gets a line
ADVISED_WEIGHT = 0.15


def weight_advice(found: TrainingSet, effective: float, key: str) -> str:
    """Say where p̃ is far from what the paper found to be good, and what to set; "" elsewhere.

    "" too where the set is of one kind, so that no c changes p̃, and where wrong answers have no weight at all.
    """
    low, high = USUAL_WEIGHT
    of_one_kind = found.description["positive_share"] in (0, 1)
    if of_one_kind or low <= effective <= high or effective == 1:
        return ""
    value = ADVISED_WEIGHT if key == "effective_positive" else found.baseline_of(ADVISED_WEIGHT)
    weight = f"{100 * effective:.3g} % of the weight in training is on correct answers (p̃ = {effective:.3g})"
    ways = "wrong answers can outweigh them and ruin the model" if effective < low else "wrong answers teach little"
    paper = "the paper's best are p̃ of 0.1 to 0.2 (TOPR, Figure 6)"
    return f"{weight}: {ways}; {paper}: {key}={value:.3g} gives {ADVISED_WEIGHT:g}"


def signs(shares: dict[str, tuple[float, float, float]]) -> str:
    """A row for the header: the shares of R = R0 − c above, at and below 0, by verdict; see `TrainingSet.signs`."""
    words = ("> 0", "= 0", "< 0")
    told = {
        kind: ", ".join(f"{word} {100 * share:.3g} %" for word, share in zip(words, found, strict=True) if share)
        for kind, found in shares.items()
    }
    return f"{'R':<11} {'; '.join(f'{kind}: {text}' for kind, text in told.items())}"


def never_rarer(shares: dict[str, tuple[float, float, float]], algo: str) -> str:
    """Say what it means, and what to set, where wrong answers have R ≥ 0 and limits go by the sign; else ""."""
    above, zero, _ = shares.get("wrong", (0.0, 0.0, 0.0))
    if not above + zero:
        return ""
    pushed = f"{algo} makes {100 * above:.3g} % of the wrong answers likelier" if above else ""
    ignored = f"{algo} learns nothing from {100 * zero:.3g} % of the wrong answers" if zero else ""
    why = "their R is not below 0; set data.reward=pm1, or baseline above the reward of wrong answers"
    return f"{' and '.join(filter(None, (pushed, ignored)))}: {why}"


def idle_gpus(taken: int) -> str:
    """What to set where a run sees more GPUs than it takes; "" where it takes all."""
    seen = len(visible_gpus())
    if seen <= taken:
        return ""
    return (
        f"{taken} of {seen} are used: cluster.processes={seen} divides this run over all (docs/parallel.md), "
        f"cluster.jobs={seen} starts as many runs of a sweep at once"
    )


def described(group: Any, prefix: str) -> str:
    """The name of a group's choice with the settings that decide a result and are not neutral."""
    settings = settings_of(group, prefix)
    return str(plain(group.name)) + (f" ({settings})" if settings else "")


def settings_of(group: Any, prefix: str = "") -> str:
    decides = identity(group, prefix)
    return ", ".join(f"{key}={value}" for key, value in decides.items() if key not in ("name", "_target_"))


def left_out(report: SplitReport, questions: TokenizedProblems) -> str:
    """Count what was left out of a split."""
    reasons = {
        "no answer can be read": report.unparsable,
        "the question is in test": report.overlapping,
        "the prompt is too long": questions.too_long,
    }
    return "".join(f", {count} left out: {reason}" for reason, count in reasons.items() if count)


def results(summary: dict[str, Any], folder: Path) -> str:
    """What is printed at the end: base against trained, seconds a stage, the files, what to do next."""
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in summary["seconds"].items())
    run, beside = shlex.quote(str(folder)), shlex.quote(str(folder.parent))
    total = sum(summary["seconds"].values())
    files, evaluate = "model/", f"\n      python -m topr_exp.evaluate model={run} data.eval_n=64"
    if summary.get("model_saved") is False:
        files, evaluate = "no model: checkpoint.save_model=false", ""
    return (
        f"{results_table(summary)}\nseconds: {seconds} (total {total:.1f})\n"
        f"files: {folder}/ (summary.json, metrics.jsonl, eval.jsonl, {files})\n"
        f"next: python -m topr_exp.report {run}\n"
        f"      python -m topr_exp.compare {beside}{evaluate}"
    )


def results_table(summary: dict[str, Any]) -> str:
    """Base against trained, and what to know of the numbers."""
    base, final = summary["base"], summary["final"]
    trained = f"{summary['n_train']} training examples, {100 * summary['positive_share']:.1f} % positive, "
    if truncated := summary.get("truncated_share"):
        trained += f"{100 * truncated:.1f} % of those sampled cut off, "
    trained += f"baseline {summary['baseline']:g}"
    if "verifier" in base:
        lines = [*run_table(base["verifier"], final["verifier"]), trained]
        if any(cut_off_of(figures) for figures in (base, final)):
            shares = (f"{name} {cut_off_cell(figures)} %" for name, figures in (("base", base), ("trained", final)))
            lines.append(f"cut off by the token limit: {', '.join(shares)}")
    else:
        lines = solved(base, final)
        lines.append(f"[ ]: 95 % over {base['problems']} problems; {trained}")
    if summary.get("note"):
        lines.append(f"note: {summary['note']}")
    if timeouts := sum(each.get("grader_timeouts", 0) for each in (base, summary, final)):
        lines.append(f"note: the grader was cut off twice on {timeouts} completions, which count as incorrect")
    return "\n".join(lines)


def solved(base: dict[str, Any], final: dict[str, Any]) -> list[str]:
    """The table of a model that answers the problems; with the share cut off by the token limit where there is one."""
    # One, or none where the grader does not say what incorrect completions answer.
    majorities = [name for name in base if name.startswith("maj@") and not name.endswith("k")]
    columns = ("pass@1", *majorities, *VERDICTS)
    graded = ["mean reward"] if "mean_reward" in base else []
    truncated = ["cut off"] if any(cut_off_of(figures) for figures in (base, final)) else []
    lines = [f"{'%':<9}{'pass@1':>20}" + "".join(f"{title:>13}" for title in (*columns[1:], *truncated, *graded))]
    for name, figures in (("base", base), ("trained", final)):
        cells = [f"{100 * figures[key]:.1f}" for key in columns[1:]]
        cells += [cut_off_cell(figures) for _ in truncated]
        cells += [f"{figures['mean_reward']:.3g}" for _ in graded]
        lines.append(f"{name:<9}{cell(figures['pass@k']['1']):>20}" + "".join(f"{each:>13}" for each in cells))
    return lines


def cut_off_of(figures: Mapping[str, Any]) -> float | None:
    """The share of an evaluation's completions that the token limit cut off; None where an older run has none."""
    share: float | None = figures.get("truncated_share")
    return share


def cut_off_cell(figures: Mapping[str, Any]) -> str:
    share = cut_off_of(figures)
    return "–" if share is None else f"{100 * share:.1f}"


# ---- the first prompt, by `dry_run=true` and in a run's folder


def preview_prompt(config: Config) -> str:
    """The prompt of the first training problem as the model gets it, with the tokenizer alone loaded."""
    from transformers import PreTrainedTokenizerFast  # unlike AutoTokenizer it imports no torch

    sets, model = problems(config.data), config.model
    # Problems that are elsewhere, as on the hub, are not fetched for this.
    question = sets.train[0].question if sets is not None else "{question}"
    fields = sets.train[0].fields if sets is not None else {}
    prompter = build_prompter(config.data)
    if config.task.verifies:  # the solution is sampled
        assert config.task.template is not None
        question = config.task.template.replace("{question}", question)
        prompter = replace(prompter, template="{question}", shots=(), chat=bool(config.task.chat), stop=())
    folder = model_folders(config).get("model.path")
    options: dict[str, Any] = {"trust_remote_code": model.trust_remote_code}
    if folder is None:
        options |= {"revision": model.revision or "main", "local_files_only": True}
    loader: Any = PreTrainedTokenizerFast
    if folder is None or model.trust_remote_code or not (folder / "tokenizer.json").exists():
        from transformers import AutoTokenizer

        loader = AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(folder or model.path, **options)
    except Exception as error:  # transformers raises many types for tokenizers that it can't read
        if folder is not None:
            reason = " ".join(str(error).split())
            raise TOPRError(f"model folder {folder}: its tokenizer can't be loaded: {reason}") from error
        return f"prompt: made with the tokenizer of {model.path}, which is not on this machine yet"
    encoded = encode_chat if prompter.chat else encode_text
    ids = encoded(tokenizer, prompter.render(question, tokenizer, fields))
    return shown_tokens(ids, tokenizer, prompter.stop)


@main_process_only
def write_prompt(folder: Path, questions: TokenizedProblems, tokenizer: Any) -> None:
    """Write the first prompt of a run into its folder."""
    write_text(folder / PROMPT, shown_tokens(questions.prompts[0].tolist(), tokenizer, questions.stop) + "\n")


def shown_tokens(ids: Sequence[int], tokenizer: Any, stop: Sequence[str]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    ends = f" and ends before {' or '.join(json.dumps(each, ensure_ascii=False) for each in stop)}" if stop else ""
    return (
        f"prompt of the first training problem ({len(ids)} tokens; the completion begins at {END}{ends}):\n{text}{END}"
    )


# ---- the card of a trained model, for those who get the folder and nothing else


@main_process_only
def write_card(
    model: Path, config: Config, summary: dict[str, Any], environment: dict[str, Any], trained_on: TrainedOn, shown: str
) -> None:
    """Write the card into a trained model's folder; no run reads it. shown: the header.

    The hub's metadata name no licence, and a data set only where its own problems were trained on.
    """
    from huggingface_hub import ModelCardData

    train = config.data.hub_name("train") if trained_on.of_data else None
    matter = ModelCardData(
        base_model=None if "model.path" in model_folders(config) else config.model.path,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["topr_exp", "reinforcement-learning", config.algo.name, *(["lora"] if config.model.lora else [])],
        datasets=[train] if train else None,
    )
    text = CARD.format(
        matter=matter.to_yaml(),
        name=config.folder.name,
        adapter=ADAPTER if config.model.lora is not None else "",
        header=shown,
        results=results_table(summary),
        version=environment.get("versions", {}).get("topr-exp"),
        commit=f", commit {commit}" if (commit := environment.get("git_commit")) else "",
        command=command_of(config.folder, environment),
    )
    write_text(model / CARD_FILE, text)
