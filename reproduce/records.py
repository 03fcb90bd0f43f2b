"""What a figure needs of a run, small enough to be committed: docs/results/<figure>.json holds it for all its runs.

A record is known by the settings that experiments vary (KEYS), so that results that were computed in different
sessions can stand together; each names the commit, the versions and the machine that it came from.
"""

import functools
import json
import os
import string
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING as MISSING_DEFAULT
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

from reproduce.selection import Runs
from topr_exp.algorithms.policy_gradient import PolicyGradient
from topr_exp.config.load import loss_of_yaml
from topr_exp.config.settings import Config
from topr_exp.config.yamls import CONF
from topr_exp.report.reader import Run, read_run
from topr_exp.report.repetitions import problem_results
from topr_exp.runs.records import Record
from topr_exp.runtime.files import write_text
from topr_exp.runtime.json_files import MISSING, read_object
from topr_exp.schema import flatten, plain
from topr_exp.types import VERDICTS, TOPRError

# Settings that some experiment varies or that its size depends on; those that are null are left out of a record.
KEYS = (
    "algo.name", "algo.beta", "algo.ratio", "data.name", "data.train_problems", "data.test_problems", "data.n",
    "data.eval_n", "data.test_split", "model.name", "seed", "sampler.seed", "sampler.top_k", "mu", "compose.name",
    "compose.positive_share", "compose.n_examples", "effective_positive", "baseline", "optim.lr", "optim.grad_clip",
    "optim.batch_size", "iterations", "schedule.prompts", "schedule.updates", "schedule.rounds", "schedule.replay",
    "evaluation.every", "evaluation.problems",
)  # fmt: skip
# Settings of losses and of tasks: left out where they are what conf/algo has, since most runs vary none of them.
KEYS_OF_LOSSES = (
    "algo.advantage", "algo.length_normalize", "algo.eps_low", "algo.eps_high", "algo.cap", "algo.tau", "algo.tau_pos",
    "algo.tau_neg", "algo.c1_pos", "algo.c2_pos", "algo.c1_neg", "algo.c2_neg", "algo.off_policy_mask",
    "optim.reduction", "optim.whole_groups", "data.turns", "data.choices", "algo.correction", "algo.denominator",
    "algo.mask", "algo.rule", "algo.renormalize", "schedule.lag", "schedule.concurrency", "schedule.tokens_per_update",
    "schedule.max_lag", "schedule.when_stale", "sampler.mismatch.weights",
)  # fmt: skip
LEARNING_RATES = CONF / "learning_rates.yaml"
TRIED = CONF.parent / "docs" / "results" / "rates.yaml"  # pass@1 (%) by place, loss, rate and choosing seed
SHARES = ("pass@1", *VERDICTS)
DIGITS = 6  # of what is written; a second machine has to agree in all of them
BINS = 20  # of the updates of a run, for metrics against time
PLACES = string.digits + string.ascii_lowercase
LENGTHS = ("length", "length_correct", "length_incorrect")  # mean tokens of the evaluations' completions
MACHINE = ("git_commit", "git_dirty", "python", "versions", "platform", "processor", "cores", "gpus")


def rounded(value: float | None) -> float | None:
    """To DIGITS significant digits."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def identity_of(config: Config) -> str:
    """What tells a run from others."""
    return json.dumps(chosen(json.loads(json.dumps(plain(config)))), sort_keys=True)


def chosen(settings: dict[str, Any]) -> dict[str, Any]:
    """The values of KEYS by dotted key, null ones left out, and those of KEYS_OF_LOSSES that are not the usual ones."""
    flat = dict(flatten(settings))
    found = {key: flat[key] for key in KEYS if flat.get(key) is not None}
    usual = usual_values(str(flat["algo.name"]))
    return found | {key: flat[key] for key in KEYS_OF_LOSSES if key in flat and flat[key] != usual.get(key)}


@functools.cache
def usual_values(algo: str) -> dict[str, Any]:
    """What conf/algo says for an algorithm, by dotted key; for a user's, what conf/config.yaml does."""
    neutral = {field.name: field.default for field in fields(PolicyGradient) if field.default is not MISSING_DEFAULT}
    path = CONF / "algo" / f"{algo}.yaml"
    values, reduction = {}, "sequences"
    if path.is_file():
        values = plain(loss_of_yaml(path))
        reduction = "tokens" if "divided_by_tokens" in path.read_text(encoding="utf-8") else "sequences"
    usual = {f"algo.{key}": value for key, value in (neutral | values).items()}
    usual |= {"schedule.when_stale": "keep", "sampler.mismatch.weights": "none"}
    return usual | {"optim.reduction": reduction, "optim.whole_groups": False}


def read_rates(path: Path | None = None) -> dict[str, Any]:
    """Return conf/learning_rates.yaml, or another file by place and loss."""
    return cast(dict[str, Any], yaml.safe_load((path or LEARNING_RATES).read_text(encoding="utf-8")))


def extract(folder: Path, names: Collection[str]) -> Record:
    """The record of a finished run with these metrics; lengths only where `length` is one, so that files stay small.

    TOPRError for a run that is not finished, or whose completions are gone.
    """
    run = read_run(folder)
    if run.status != "done":
        raise TOPRError(f"{folder}: not finished")
    if any(each.get(name) is None for each in run.evaluations for name in SHARES):
        raise TOPRError(f"{folder}: an evaluation lacks one of {', '.join(SHARES)}")
    evaluations = [
        {name: rounded(each[name]) for name in SHARES} | problem_results(run, each) for each in run.evaluations
    ]
    record: Record = {
        "run": run.name,
        "settings": chosen(run.config),
        "summary": {key: run.figure(key) for key in ("positive_share", "effective_positive", "baseline", "n_train")},
        "training_seconds": run.figure("seconds", "training"),
        "base": evaluations[0],
        "final": evaluations[-1],
        "environment": {key: run.environment.get(key) for key in MACHINE} | {"device": run.config["cluster"]["device"]},
        "metrics": metrics(run, names),
    }
    if len(evaluations) > 2:
        record["iterations"] = evaluations
    curves = {"curve": SHARES} if len(run.curve) > len(run.evaluations) else {}
    for part, columns in (curves | ({"lengths": LENGTHS} if "length" in names else {})).items():
        values = {name: [rounded(each.get(name)) for each in run.curve] for name in columns}
        record[part] = {"step": [each["optimizer_step"] for each in run.curve]} | values
    return record


def metrics(run: Run, names: Collection[str]) -> dict[str, list[float | None]]:
    """Metrics of the updates, averaged over BINS equal parts of the run, and the last step of each.

    nats: the entropy of an answer, which a run records a token.
    """
    updates = run.updates
    if "nats" in names:
        size = run.config["optim"]["batch_size"]
        updates = [{**one, "nats": one.get("entropy", np.nan) * one["tokens"] / size} for one in updates]
    parts = [part for part in np.array_split(np.arange(len(updates)), BINS) if len(part)]
    table: dict[str, list[float | None]] = {"step": [updates[part[-1]]["optimizer_step"] for part in parts]}
    for name in names:
        if any(name in update for update in updates):
            values = [[updates[i].get(name) for i in part] for part in parts]
            known = [[value for value in each if value is not None and np.isfinite(value)] for each in values]
            table[name] = [rounded(float(np.mean(each))) if each else None for each in known]
    return table


def read(path: Path) -> dict[str, Any]:
    """A figure's file; empty where there is none."""
    stored, fault = read_object(path)
    if fault == MISSING:
        return {"environments": [], "bases": [], "runs": [], "extra": {}}
    if not {"environments", "bases", "runs", "extra"} <= stored.keys():
        raise TOPRError(f"{path} is damaged or holds something else; remove it or check it out again")
    return stored


def known(stored: dict[str, Any]) -> dict[str, Record]:
    """The records of a file by identity, each with its environment, its base and its counts in place."""
    bases = [with_counts(base, unpacked) for base in stored["bases"]]
    found = {}
    for stored_record in stored["runs"]:
        record = {name: with_counts(value, unpacked) for name, value in stored_record.items()}
        record["environment"] = stored["environments"][record["environment"]]
        if "base" in record:
            record["base"] = bases[record["base"]]
        if "iterations" in record:
            record["iterations"] = [record["base"], *(with_counts(each, unpacked) for each in record["iterations"])]
        found[json.dumps(record["settings"], sort_keys=True)] = record
    return found


def runs_of(stored: dict[str, Any]) -> Runs:
    return Runs(list(known(stored).values()))


def write(path: Path, records: Iterable[Record], extra: dict[str, Any]) -> None:
    """Write a figure's file: one line a run, so that a change is a small one to git.

    What many runs share, the environment and the evaluation of the base, stands there once.
    """
    environments: list[dict[str, Any]] = []
    bases: list[dict[str, Any]] = []
    lines = []
    for record in sorted(records, key=lambda record: (record["run"], json.dumps(record["settings"]))):
        stored_record = {name: with_counts(value, packed) for name, value in record.items()}
        stored_record["environment"] = index_in(environments, record["environment"])
        if "base" in record:  # records of chosen rates have none
            stored_record["base"] = index_in(bases, stored_record["base"])
        if "iterations" in record:
            later = record["iterations"][1:]
            stored_record["iterations"] = [with_counts(evaluation, packed) for evaluation in later]
        lines.append(json.dumps(stored_record))
    text = f'{{"environments": {json.dumps(environments, indent=1)},\n"extra": {json.dumps(extra)},\n'
    text += '"bases": [\n' + ",\n".join(map(json.dumps, bases)) + '\n],\n"runs": [\n' + ",\n".join(lines) + "\n]}\n"
    os.makedirs(path.parent, exist_ok=True)
    write_text(path, text)


def index_in(values: list[dict[str, Any]], value: dict[str, Any]) -> int:
    """The index of a value in the list, to which it is added where it is not there yet."""
    if value not in values:
        values.append(value)
    return values.index(value)


def with_counts(value: Any, convert: Callable[[str], str]) -> Any:
    """An evaluation with its counts of each problem converted; anything else as it is."""
    if not isinstance(value, dict) or "of_problems" not in value:
        return value
    return value | {"of_problems": {name: convert(counts) for name, counts in value["of_problems"].items()}}


def packed(counts: str) -> str:
    """Counts in a third of the characters: "4 0 4" as "4 0:010", the distinct ones, then the place of each."""
    numbers = counts.split()
    distinct = list(dict.fromkeys(numbers))
    if len(distinct) > len(PLACES):
        return counts
    return " ".join(distinct) + ":" + "".join(PLACES[distinct.index(number)] for number in numbers)


def unpacked(text: str) -> str:
    """Counts from `packed`."""
    head, separator, places = text.partition(":")
    if not separator:
        return text
    distinct = head.split()
    return " ".join(distinct[PLACES.index(place)] for place in places)


def differences(recorded: Record, again: Record) -> list[str]:
    """What two records of one run disagree in, the time that it took and where it ran left out."""
    one, other = (dict(flatten(record)) for record in (recorded, again))
    return [
        f"{key}: {json.dumps(one.get(key)):.60} recorded, {json.dumps(other.get(key)):.60} now"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key) and key.partition(".")[0] not in ("training_seconds", "environment", "run")
    ]
