"""Records of runs, small enough to be committed: docs/results/FIGURE.json holds those of a figure.

A record is known by the settings that experiments vary (KEYS, and all of the loss), so that results that were computed
in different sessions can stand together; each names the commit, the versions and the machine that it came from.
"""

import functools
import json
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from reproduce.files import read_json, write_file
from reproduce.selection import Record, Runs
from topr_exp import Config, ConfigError, TOPRError, loss, settings_by_key
from topr_exp.report import Run, problem_results, read_run

# Settings that some experiment varies or that its size depends on; those that are null are left out of a record.
KEYS = (
    "algo.name",
    "algo.beta",
    "algo.ratio",
    "data.name",
    "data.train_problems",
    "data.test_problems",
    "data.n",
    "data.eval_n",
    "data.test_split",
    "model.name",
    "seed",
    "sampler.seed",
    "sampler.top_k",
    "mu",
    "compose.name",
    "compose.positive_share",
    "compose.n_examples",
    "effective_positive",
    "baseline",
    "optim.lr",
    "optim.grad_clip",
    "optim.batch_size",
    "iterations",
    "schedule.prompts",
    "schedule.updates",
    "schedule.rounds",
    "schedule.replay",
    "evaluation.every",
    "evaluation.problems",
)
# Left out where they are the usual values, as all settings of a loss are, since most runs vary none of them.
KEYS_BESIDE_THE_LOSS = (
    "optim.reduction",
    "optim.whole_groups",
    "data.turns",
    "data.choices",
    "schedule.lag",
    "schedule.concurrency",
    "schedule.tokens_per_update",
    "schedule.max_lag",
    "schedule.when_stale",
    "sampler.mismatch.weights",
    "sampler.mismatch.logits_noise",
    "sampler.top_logprobs",
)
ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
LEARNING_RATES = CONF / "learning_rates.yaml"
TRIED_RATES = ROOT / "docs" / "results" / "rates.yaml"  # pass@1 (%) by place, loss, rate and choosing seed
SHARES = ("pass@1", "correct", "incorrect", "invalid")
LENGTHS = ("length", "length_correct", "length_incorrect")  # mean tokens of the evaluations' completions
SUMMARY_KEYS = ("positive_share", "effective_positive", "baseline", "n_train")
MACHINE = ("git_commit", "git_dirty", "python", "versions", "platform", "processor", "cores", "gpus")
DIGITS = 6  # of what is written; a second machine has to agree in all of them
BINS = 20  # of the updates of a run, for metrics against time
POSITION_DIGITS = string.digits + string.ascii_lowercase  # of packed counts
UNCOMPARED = ("training_seconds", "environment", "run")  # parts of a record that differ between machines


def rounded(value: float | None) -> float | None:
    """Round to DIGITS significant digits."""
    if value is None:
        return None
    return float(f"{value:.{DIGITS}g}")


# ---- identity


def identity_of(config: Config) -> str:
    """The settings that tell a run from others, as one text."""
    return identity_text(identifying_settings(config))


def identity_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def identifying_settings(settings: Config | Mapping[str, Any]) -> dict[str, Any]:
    """The values of KEYS by dotted key, null ones left out, and those of the loss and beside it that are not usual."""
    values = settings_by_key(settings)
    usual = usual_values(str(values["algo.name"]))
    identifying = {}
    for key in KEYS:
        if values.get(key) is not None:
            identifying[key] = values[key]
    for key, value in values.items():
        if key not in KEYS and tells_losses_apart(key) and value != usual.get(key):
            identifying[key] = value
    return identifying


def tells_losses_apart(key: str) -> bool:
    """True for a setting that a record holds where its value is not the usual one."""
    return key in KEYS_BESIDE_THE_LOSS or (key.startswith("algo.") and key != "algo._target_")


@functools.cache
def usual_values(algo: str) -> dict[str, Any]:
    """The values of a loss as its YAML makes it, by dotted key, and the defaults of KEYS_BESIDE_THE_LOSS."""
    values = {
        "schedule.when_stale": "keep",
        "sampler.mismatch.weights": "none",
        "sampler.mismatch.logits_noise": 0.0,
        "optim.reduction": "sequences",
        "optim.whole_groups": False,
    }
    values |= settings_by_key({"algo": loss("policy_gradient").function})  # neutral masks and corrections
    try:
        configured = loss(algo)
    except ConfigError:  # a user's own, without a YAML of its name
        return values
    return values | settings_by_key({"algo": configured.function}) | {"optim.reduction": configured.reduction}


def read_rates(path: Path = LEARNING_RATES) -> dict[str, Any]:
    """Read conf/learning_rates.yaml, or another file by place and loss."""
    rates: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return rates


# ---- from a run's folder


def extract(folder: Path, metrics: Collection[str]) -> Record:
    """The record of a finished run with these metrics; lengths only where `length` is one, so that files stay small.

    TOPRError for a run that is not finished, or whose completions are gone.
    """
    run = read_run(folder)
    if run.status != "done":
        raise TOPRError(f"{folder}: not finished")
    evaluations = []
    for evaluation in run.evaluations:
        shares = {name: rounded(evaluation.get(name)) for name in SHARES}
        if None in shares.values():
            raise TOPRError(f"{folder}: an evaluation lacks one of {', '.join(SHARES)}")
        evaluations.append(shares | problem_results(run, evaluation))
    machine = {key: run.environment.get(key) for key in MACHINE}
    record: Record = {
        "run": run.name,
        "settings": identifying_settings(run.config),
        "summary": {key: run.summary_number(key) for key in SUMMARY_KEYS},
        "training_seconds": run.summary_number("seconds", "training"),
        "base": evaluations[0],
        "final": evaluations[-1],
        "environment": machine | {"device": run.config["cluster"]["device"]},
        "metrics": binned_metrics(run, metrics),
    }
    if len(evaluations) > 2:
        record["iterations"] = evaluations
    if len(run.curve) > len(run.evaluations):
        record["curve"] = curve_columns(run, SHARES)
    if "length" in metrics:
        record["lengths"] = curve_columns(run, LENGTHS)
    return record


def curve_columns(run: Run, names: Iterable[str]) -> dict[str, list[Any]]:
    """Figures of the tests while training, and the last step before each test."""
    columns: dict[str, list[Any]] = {"step": [test["optimizer_step"] for test in run.curve]}
    for name in names:
        columns[name] = [rounded(test.get(name)) for test in run.curve]
    return columns


def binned_metrics(run: Run, names: Collection[str]) -> dict[str, list[float | None]]:
    """Metrics of the updates, averaged over BINS equal parts of the run, and the last step of each.

    nats: the entropy of a completion, which a run records a token.
    """
    updates = run.updates
    if "nats" in names:
        updates = [with_nats(update, run.config["optim"]["batch_size"]) for update in updates]
    recorded_names = set[str]().union(*updates)
    columns: dict[str, list[float | None]] = {"step": []}
    for bin_updates in np.array_split(np.array(updates, dtype=object), BINS):
        if not len(bin_updates):
            continue
        columns["step"].append(bin_updates[-1]["optimizer_step"])
        for name in names:
            if name in recorded_names:
                columns.setdefault(name, []).append(mean_of_finite(bin_updates, name))
    return columns


def with_nats(update: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    return {**update, "nats": update.get("entropy", np.nan) * update["tokens"] / batch_size}


def mean_of_finite(updates: Iterable[Mapping[str, Any]], name: str) -> float | None:
    values = np.array([update.get(name) for update in updates], dtype=np.float64)  # None: NaN
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    return rounded(float(finite.mean()))


# ---- a figure's file


def read(path: Path) -> dict[str, Any]:
    """Read a figure's file; without records where there is none."""
    stored = read_json(path)
    if not stored:
        return {"environments": [], "bases": [], "runs": [], "extra": {}}
    if not {"environments", "bases", "runs", "extra"} <= stored.keys():
        raise TOPRError(f"{path} is damaged or holds something else; remove it or check it out again")
    return stored


def records_by_identity(stored: Mapping[str, Any]) -> dict[str, Record]:
    """The records of a file by identity, each with its environment, its base and its counts in place."""
    bases = list(map(unpacked, stored["bases"]))
    records = {}
    for stored_record in stored["runs"]:
        record = {name: unpacked(value) for name, value in stored_record.items()}
        record["environment"] = stored["environments"][record["environment"]]
        if "base" in record:
            record["base"] = bases[record["base"]]
        if "iterations" in record:
            record["iterations"] = [record["base"], *map(unpacked, record["iterations"])]
        records[identity_text(record["settings"])] = record
    return records


def runs_of(stored: Mapping[str, Any]) -> Runs:
    return Runs(records_by_identity(stored).values())


def write(path: Path, records: Iterable[Record], extra: dict[str, Any]) -> None:
    """Write a figure's file: one line a run, so that a change is a small one to git.

    The environment and the evaluation of the base, which many runs share, stand there once.
    """
    environments: list[dict[str, Any]] = []
    bases: list[dict[str, Any]] = []
    lines = []
    for record in sorted(records, key=lambda record: (record["run"], json.dumps(record["settings"]))):
        stored_record = {name: packed(value) for name, value in record.items()}
        stored_record["environment"] = find_or_append(environments, record["environment"])
        if "base" in record:  # records of chosen rates have none
            stored_record["base"] = find_or_append(bases, stored_record["base"])
        if "iterations" in record:
            stored_record["iterations"] = list(map(packed, record["iterations"][1:]))
        lines.append(json.dumps(stored_record))
    text = f'{{"environments": {json.dumps(environments, indent=1)},\n"extra": {json.dumps(extra)},\n'
    base_lines = ",\n".join(map(json.dumps, bases))
    run_lines = ",\n".join(lines)
    text += f'"bases": [\n{base_lines}\n],\n"runs": [\n{run_lines}\n]}}\n'
    write_file(path, text)


def find_or_append(values: list[dict[str, Any]], value: dict[str, Any]) -> int:
    """The index of a value in a list; a missing one is appended."""
    if value not in values:
        values.append(value)
    return values.index(value)


def packed(value: Any) -> Any:
    return convert_counts(value, pack_counts)


def unpacked(value: Any) -> Any:
    return convert_counts(value, unpack_counts)


def convert_counts(value: Any, convert: Callable[[str], str]) -> Any:
    """An evaluation with its counts of each problem converted; anything else as it is."""
    if not isinstance(value, dict) or "of_problems" not in value:
        return value
    converted = {name: convert(counts) for name, counts in value["of_problems"].items()}
    return value | {"of_problems": converted}


def pack_counts(counts: str) -> str:
    """Counts in a third of the characters: "4 0 4" as "4 0:010", the distinct ones, then the position of each."""
    numbers = counts.split()
    distinct = list(dict.fromkeys(numbers))
    if len(distinct) > len(POSITION_DIGITS):
        return counts
    positions = [POSITION_DIGITS[distinct.index(number)] for number in numbers]
    return f"{' '.join(distinct)}:{''.join(positions)}"


def unpack_counts(text: str) -> str:
    """Counts from `pack_counts`."""
    head, separator, positions = text.partition(":")
    if not separator:
        return text
    distinct = head.split()
    numbers = [distinct[POSITION_DIGITS.index(position)] for position in positions]
    return " ".join(numbers)


def differences(recorded: Record, computed: Record) -> list[str]:
    """What two records of one run disagree in, UNCOMPARED left out."""
    recorded_values, computed_values = settings_by_key(recorded), settings_by_key(computed)
    lines = []
    for key in sorted(recorded_values.keys() | computed_values.keys()):
        part = key.partition(".")[0]
        recorded_value = recorded_values.get(key)
        computed_value = computed_values.get(key)
        if recorded_value != computed_value and part not in UNCOMPARED:
            lines.append(f"{key}: {json.dumps(recorded_value):.60} recorded, {json.dumps(computed_value):.60} now")
    return lines
