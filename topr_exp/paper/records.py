"""What a figure needs of a run, small enough to be committed: docs/results/<figure>.json holds it for all its runs.

A record is known by the settings that experiments vary (KEYS), so that results that were computed in different
sessions can stand together; each names the commit, the versions and the machine that it came from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from topr_exp.config import Config
from topr_exp.evaluation.statistics import headline_k, measure
from topr_exp.evaluation.verdicts import INVALID, encode
from topr_exp.files import write_text
from topr_exp.report.compare import flatten
from topr_exp.report.runs import Run, read_run
from topr_exp.schema import plain
from topr_exp.store import Store
from topr_exp.types import VERDICTS, TOPRError

Record = dict[str, Any]

# Settings that some experiment varies or that its size depends on; those that are null are left out of a record.
KEYS = (
    "algo.name", "algo.beta", "algo.ratio", "data.name", "data.train_problems", "data.test_problems", "data.n",
    "data.eval_n", "data.test_split", "model.name", "seed", "sampler.seed", "sampler.top_k", "mu", "compose.name",
    "compose.positive_share", "compose.n_examples", "effective_positive", "baseline", "optim.lr", "optim.grad_clip",
    "optim.batch_size", "iterations", "schedule.prompts", "schedule.updates", "schedule.rounds", "schedule.replay",
    "evaluation.every", "evaluation.problems",
)  # fmt: skip
BINS = 20  # of the updates of a run, for metrics against time
METRICS = (
    "grad_norm", "kl_mu", "kl_ref", "ess_neg", "ess_pos", "weight_pos", "weight_neg", "sampled_correct",
    "log_ratio_q05_pos", "log_ratio_q50_pos", "log_ratio_q95_pos", "log_ratio_q05_neg", "log_ratio_q50_neg",
    "log_ratio_q95_neg",
)  # fmt: skip
SHARES = ("pass@1", *VERDICTS)
MACHINE = ("git_commit", "git_dirty", "python", "versions", "platform", "processor", "cores", "gpus")
DIGITS = 6  # of what is written; a second machine has to agree in all of them


def identity(settings: dict[str, Any]) -> str:
    """What tells a run from others; settings: nested, as `config.json` holds them."""
    return json.dumps(chosen(settings), sort_keys=True)


def identity_of(config: Config) -> str:
    values = plain(config)
    return identity(json.loads(json.dumps(values)))


def chosen(settings: dict[str, Any]) -> dict[str, Any]:
    """The values of KEYS by dotted key; null ones left out."""
    flat = dict(flatten(settings))
    return {key: flat[key] for key in KEYS if flat.get(key) is not None}


def extract(folder: Path) -> Record:
    """The record of a finished run. TOPRError for one that is not, or whose completions are gone."""
    run = read_run(folder)
    if run.status != "done":
        raise TOPRError(f"{folder}: not finished")
    evaluations = [results(run, record) for record in run.evaluations]
    record: Record = {
        "run": run.name,
        "settings": chosen(run.config),
        "summary": {key: run.figure(key) for key in ("positive_share", "effective_positive", "baseline", "n_train")},
        "training_seconds": run.figure("seconds", "training"),
        "base": evaluations[0],
        "final": evaluations[-1],
    }
    if len(evaluations) > 2:
        record["iterations"] = evaluations
    if len(run.curve) > len(run.evaluations):
        record["curve"] = {"step": [each["optimizer_step"] for each in run.curve]} | {
            name: [rounded(each.get(name)) for each in run.curve] for name in SHARES
        }
    record["metrics"] = metrics(run)
    return record


def trimmed(record: Record, names: Iterable[str]) -> Record:
    """The record with no other metrics than these, so that files stay small."""
    return {
        **record,
        "metrics": {name: record["metrics"][name] for name in ("step", *names) if name in record["metrics"]},
    }


def results(run: Run, record: dict[str, Any]) -> Record:
    """An evaluation of a run: its shares, and of each problem the correct and the invalid completions and maj@K."""
    n = int(run.config["data"]["eval_n"])
    solutions = (run.config.get("task") or {}).get("test_solutions")  # that a verifier reads of each problem in turn
    verdicts = Path(record["verdicts"])
    columns = Store(verdicts.parent.parent).open(verdicts).read(["verdict", "class"])
    codes = encode(columns["verdict"].to_pylist()).reshape(-1, n)
    k = headline_k(n)
    majority = measure(codes, columns["class"].to_numpy().reshape(-1, n)).maj_at[k]
    return {
        **{name: rounded(record[name]) for name in SHARES},
        "n": n,
        "k": k,
        "of_problems": {
            "correct": packed(np.sum(codes == 0, axis=1)),
            "invalid": packed(np.sum(codes == INVALID, axis=1)),
            "maj": packed(np.rint(1000 * majority).astype(int)),  # per mille
        },
        **({"solutions": int(solutions)} if solutions else {}),
    }


def packed(counts: Iterable[int]) -> str:
    """Whole numbers in one string, which JSON keeps on one line."""
    return " ".join(str(int(count)) for count in counts)


def unpacked(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=np.float64)


def metrics(run: Run) -> dict[str, list[float | None]]:
    """METRICS of the updates, averaged over BINS equal parts of the run, and the last step of each."""
    parts = [part for part in np.array_split(np.arange(len(run.updates)), BINS) if len(part)]
    table: dict[str, list[float | None]] = {"step": [run.updates[part[-1]]["optimizer_step"] for part in parts]}
    for name in METRICS:
        if any(name in update for update in run.updates):
            values = [[run.updates[i].get(name) for i in part] for part in parts]
            known = [[value for value in each if value is not None and np.isfinite(value)] for each in values]
            table[name] = [rounded(float(np.mean(each))) if each else None for each in known]
    return table


def rounded(value: float | None) -> float | None:
    """To DIGITS significant digits."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def environment_of(folder: Path) -> dict[str, Any]:
    """Where a run was computed, without what differs from run to run."""
    values = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["resolved"]
    return {key: values.get(key) for key in MACHINE} | {"device": settings["cluster"]["device"]}


def read(path: Path) -> dict[str, Any]:
    """A figure's file, its records by identity; empty where there is none."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"environments": [], "runs": [], "extra": {}}
    except OSError as error:
        raise TOPRError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        stored = None
    if not isinstance(stored, dict) or not {"environments", "runs", "extra"} <= set(stored):
        raise TOPRError(f"{path} is damaged or holds something else; remove it or check it out again") from None
    return stored


def known(stored: dict[str, Any]) -> dict[str, Record]:
    """The records of a file by identity, each with its environment in place."""
    found = {}
    for record in stored["runs"]:
        environment = stored["environments"][record["environment"]]
        found[json.dumps(record["settings"], sort_keys=True)] = {**record, "environment": environment}
    return found


def write(path: Path, records: Iterable[Record], extra: dict[str, Any]) -> None:
    """A figure's file: one line a run, so that a change is a small one to git."""
    environments: list[dict[str, Any]] = []
    lines = []
    for record in sorted(records, key=lambda each: (each["run"], json.dumps(each["settings"]))):
        if record["environment"] not in environments:
            environments.append(record["environment"])
        lines.append(json.dumps({**record, "environment": environments.index(record["environment"])}))
    runs = ",\n".join(lines)
    head = f'{{"environments": {json.dumps(environments, indent=1)},\n"extra": {json.dumps(extra)},\n"runs": [\n'
    os.makedirs(path.parent, exist_ok=True)
    write_text(path, f"{head}{runs}\n]}}\n")


def differences(recorded: Record, again: Record, prefix: str = "") -> list[str]:
    """What two records of one run disagree in, the time that it took and where it ran left out."""
    found = []
    for key in sorted({*recorded, *again} - ({"training_seconds", "environment", "run"} if not prefix else set())):
        one, other = recorded.get(key), again.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += differences(one, other, f"{prefix}{key}.")
        elif one != other:
            found.append(f"{prefix}{key}: {short(one)} recorded, {short(other)} now")
    return found


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
