"""Small runs against the same computed by a plain script (`reference.py`): all that they record.

Tests of single parts can't see what is handed from one to the next: a baseline that never reaches the loss, pairs
turned round, μ in the place of π_ref, an order that ignores the seed. Here whole runs are compared, number by number.
"""

import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import topr_exp
from tests.conftest import config_of, lines_of, write_lines
from tests.reference.model import table_of
from tests.reference.reference import Draw, Reference, Replay
from topr_exp.models.loading import load_model
from topr_exp.pipeline import run
from topr_exp.sampling.hf import HFSampler
from topr_exp.types import TOPRError

# Both compute in float64, so that no processor's kernels show: most cases agree to 1e-14. What a run keeps in float32
# on the way (rewards, advantages, sampled log-probabilities: a relative 6e-8 each) moves some numbers by up to 2e-6.
# Absolute, and relative where a number is above 1.
TOLERANCE = 1e-5

# Of the kind that the shipped model was made for: it solves some of them sometimes.
TRAIN = {
    "Mia has 40 coins. Bea has 4 more than Mia. How many coins does Bea have now?": 44,
    "Bea has 31 toys. She finds 13 more toys. Clara has 7 fewer than Bea. How many toys does Clara have now?": 37,
    "Leo has 27 plums. She finds 25 more plums. How many plums does Leo have now?": 52,
    "Mia has 30 keys. Then Ben takes 27 of them. How many keys does Mia have now?": 3,
    "Evan has 18 pens. Nora has 9 more than Evan. How many pens does Nora have now?": 27,
    "Tom has 20 apples. Nora has 12 fewer than Tom. How many apples does Nora have now?": 8,
    "Ben has 11 apples. Then Evan brings 5 more. How many apples does Ben have now?": 16,
}
TEST = {"Anna has 32 balls. Then Dina brings 5 more. How many balls does Anna have now?": 37}
N = 6  # completions a problem

ANOTHER = "model.reference={outputs}/another"
IMPORTED = "data.completions={outputs}/completions.jsonl"
BARE = "data.completions={outputs}/bare.jsonl"
GRADED = ["data.grader._target_=tests.reference.closeness.grade", "data.reward=graded", "data.threshold=2.5"]
DISTINCT = "compose.duplicates=drop"
RECOMPUTED = "optim.gradient_checkpointing=true"
WARM_UP = ["optim.warmup_steps=2", "optim.schedule=cosine", "optim.epochs=2"]
TWO_UPDATES = ["schedule.updates=2", "optim.batch_size=12"]
FASTER = ["optim.epochs=2", "optim.lr=3e-4"]  # so that ratios leave 1
ADAMW = ["optim.weight_decay=1"]
ADAFACTOR = ["optim.name=adafactor", "optim.weight_decay=1", "optim.grad_clip=.2"]
POSITIVES = ["compose=positives", "compose.n_examples=8", "optim.epochs=4"]
OFFLINE = {
    "topr": ["algo=topr", "optim.epochs=3"],
    "topr, baseline": ["algo=topr", "baseline=-0.3", "compose.drop_truncated=true", RECOMPUTED],
    "topr, effective": ["algo=topr", "effective_positive=0.2", "compose=proportion", "compose.positive_share=0.3"],
    "topr, zero_one": ["algo=topr", "data.reward=zero_one", "baseline=-0.3", "optim.grad_clip=.inf"],
    "topr, graded": ["algo=topr", *GRADED, "baseline=1.2", "compose=proportion", "compose.positive_share=0.4"],
    "grpo, graded": ["algo=grpo", *GRADED, "compose.n_examples=25", "optim.epochs=2"],
    "topr, mixed": ["algo=topr", IMPORTED, "compose.mix=0.3", "baseline=0.1"],
    "grpo, mixed": ["algo=grpo", IMPORTED, "compose.mix=0.5", "compose.n_examples=22", "optim.epochs=2"],
    "sft, mixed without log mu": ["algo=sft", BARE, "compose=positives", "compose.mix=0.4", "data.n=4"],
    "topr, mu of the sampler": ["algo=topr", "mu=sampler", "sampler.top_k=4", "sampler.temperature=0.8"],
    "decoupled_ppo": ["algo=decoupled_ppo", "sampler.top_k=4", "algo.correction=1.02", *FASTER],
    "decoupled_ppo, mixed": ["algo=decoupled_ppo", IMPORTED, "compose.mix=0.5", "compose.n_examples=22", *FASTER],
    "topr, group": ["algo=topr", "algo.advantage=group", "compose.n_examples=25", "algo.a_neg=0.8", "optim.epochs=2"],
    "topr, per token": ["algo=topr", "optim.reduction=tokens", "algo.ratio=token", "algo.length_normalize=false"],
    "topr, twice": ["algo=topr", "iterations=2", "compose.n_examples=20", "effective_positive=0.4", *WARM_UP],
    "topr, some problems": ["algo=topr", "compose.pass_rate=[0.1,0.6]", DISTINCT, "baseline=0.1"],
    "agro, some problems": ["algo=agro", "compose.pass_rate=[0.1,0.6]", "optim.epochs=2"],
    "dpo, some problems": ["algo=dpo", "compose.pass_rate=[0.3,1]", DISTINCT, "sampler.temperature=.5"],
    "tis": ["algo=tis", "compose=anna_karenina", "compose.n_examples=30", "effective_positive=0.6", *ADAMW],
    "adafactor": ["algo=sft", *POSITIVES, *ADAFACTOR],
    "dpo": ["algo=dpo", "compose.n_examples=20", "optim.epochs=2", "optim.batch_size=6"],
    "grpo, zero_one": ["algo=grpo", "data.reward=zero_one", "algo.length_normalize=true", DISTINCT],
    "red_drop": ["algo=red_drop", "optim.epochs=2"],
    "grpo, masked": ["algo=grpo", "algo.off_policy_mask=0.002", "compose=anna_karenina", *FASTER],
    "m2po": ["algo=m2po", "algo.tau=1e-4", *FASTER],
    "oapl": ["algo=oapl", "algo.beta=0.1", "compose.n_examples=25", "data.reward=pm1", IMPORTED],
    "oapl, a star po": ["algo=oapl", "algo.anchor=ref", ANOTHER, "algo.beta=0.02", "compose=anna_karenina"],
    "agro": ["algo=agro", ANOTHER, "optim.epochs=2"],
    "agro, twice": ["algo=agro", "iterations=2", "compose.n_examples=35", "algo.beta=0.3", "data.reward=pm1"],
    "kl_pg": ["algo=kl_pg", ANOTHER, "algo.length_normalize=true"],
    "rloo, offline": ["algo=rloo", "schedule=offline", ANOTHER],
}
# Of what these join each part is in another case, too.
EXTENDED = {"grpo, graded", "grpo, mixed", "topr, group", "agro, some problems", "dpo, some problems"}
EXTENDED |= {"grpo, masked", "oapl, a star po", "rloo, offline", "red_drop", "m2po", "oapl", "kl_pg", "agro, twice"}
EXTENDED |= {"decoupled_ppo, mixed", "topr, graded", "topr, per token", "adafactor", "grpo, zero_one"}
EXTENDED |= {"rloo", "rloo, no reference", "rloo, graded", "icepop", "agro_on_policy", "grpo, few draws"}  # in rounds
ACTS = {"grpo, masked": "masked_neg", "m2po": "masked_neg"}
SAMPLED_ANEW = ["schedule=on_policy", "schedule.prompts=3", "schedule.rounds=3", "optim.batch_size=18"]
SEVERAL_UPDATES = ["schedule.prompts=2", "schedule.updates=3", "optim.batch_size=8"]  # a pass and the next one's half
ON_POLICY = ["algo=agro_on_policy", ANOTHER]
FEW_DRAWS = ["compose.pass_rate=[0.1,0.9]", "schedule.replay=0.4"]
LINEAR = ["optim.warmup_steps=1", "optim.schedule=linear"]
ROUNDS = {
    "rloo": ["algo=rloo", ANOTHER],
    "rloo, no reference": ["algo=rloo", "algo.beta=0", "compose.n_examples=11", "optim.batch_size=11", *LINEAR],
    "agro_on_policy": [*ON_POLICY, "schedule.prompts=4", "optim.batch_size=24"],
    "agro, replay": ["algo=agro", ANOTHER, "schedule.replay=0.6", "schedule.rounds=4", *TWO_UPDATES],
    "kl_pg": ["algo=kl_pg", "iterations=2", "schedule.rounds=2"],
    "topr": ["algo=topr", *SEVERAL_UPDATES, "baseline=0.2", "sampler.temperature=1.3"],
    "topr, some problems": ["algo=topr", "optim.batch_size=12", "schedule.prompts=2", "compose.pass_rate=[0.1,0.4]"],
    "grpo, few draws": ["algo=grpo", *SEVERAL_UPDATES, *FEW_DRAWS],
    "rloo, graded": ["algo=rloo", ANOTHER, *GRADED],
    "icepop": ["algo=icepop", *SEVERAL_UPDATES, "sampler.temperature=1.2", "schedule.replay=0.4"],
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Problems, the model, another one as π_ref, completions as if made elsewhere; the store that all runs share."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "problems").mkdir()
    for split, problems in (("train", TRAIN), ("test", TEST)):
        lines = [{"question": question, "answer": f"#### {gold}"} for question, gold in problems.items()]
        write_lines(folder / "problems" / f"{split}.jsonl", lines)
    shipped = next(Path(topr_exp.__file__).parent.rglob("tiny/config.json")).parent
    for name in ("base", "another"):
        shutil.copytree(shipped, folder / name)
    chance = torch.Generator().manual_seed(0)
    moved = {
        name: weight.float() * (1 + 0.1 * torch.randn(weight.shape, generator=chance))
        for name, weight in load_file(shipped / "model.safetensors").items()
    }
    save_file(moved, folder / "another" / "model.safetensors", {"format": "pt"})
    config = config_of(*settings(folder, "name=first"))
    run(config)
    rollouts, verdicts = (table_of(config.folder, kind) for kind in ("rollouts", "verdicts"))
    # Of each kind there must be some, or it is not seen how they are treated.
    assert {row["finish"] for row in rollouts} == {"stop", "length"}
    assert {row["verdict"] for row in verdicts} == {"correct", "incorrect", "invalid"}
    some = [row for row in rollouts if row["sample"] < 3 + row["problem"] % 4]  # of each problem another number
    kept = ("problem_id", "tokens", "finish")
    bare = [{"completion": row["text"], **{name: row[name] for name in kept}} for row in some]
    nearly = [[value - 0.03 * (i % 4) for value in row["sampler_logp"]] for i, row in enumerate(some)]
    given = [row | {"logprobs": values} for row, values in zip(bare, nearly, strict=True)]
    write_lines(folder / "completions.jsonl", given)
    write_lines(folder / "bare.jsonl", bare)
    return folder


@pytest.fixture(autouse=True)
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs compute in float64: in float32 two kinds of processor differ by more than a fault may."""

    def load(*arguments: Any, **options: Any) -> tuple[Any, Any]:
        model, tokenizer = load_model(*arguments, **options)
        return model.double(), tokenizer

    monkeypatch.setattr("topr_exp.models.policy.load_model", load)


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[Draw]:
    """What the sampler draws, as it draws it: rounds keep none."""
    drawn: list[Draw] = []
    seeds: set[Any] = set()
    draw = HFSampler.sample

    def recorded(self: Any, policy: Any, prompts: Any, n: int, seed: Any, *more: Any) -> Any:
        if n == N:  # evaluations, of one completion a problem, share theirs
            assert seed not in seeds, "two draws of a run with the same randomness"
            seeds.add(seed)
        groups = draw(self, policy, prompts, n, seed, *more)
        for prompt, group in zip(prompts, groups, strict=True):
            drawn.append((prompt, [one.tokens for one in group], seed))
        return groups

    monkeypatch.setattr(HFSampler, "sample", recorded)
    return drawn


def settings(outputs: Path, *more: str) -> list[str]:
    """A run of a second, in which a batch is several micro-batches and the last one of an epoch is smaller."""
    return [
        "data=gsm8k", f"data.source={outputs}/problems", "data.train_problems=null", "data.test_problems=null",
        f"data.n={N}", "data.eval_n=1", f"model.path={outputs}/base", f"output_dir={outputs}", "cluster.threads=1",
        "sampler.max_new_tokens=22", "sampler.prompts_per_shard=3", "seed=3", "optim.lr=1e-4",
        "optim.batch_size=12", "optim.micro_batch_size=5",
        *(text.format(outputs=outputs) for text in more),
    ]  # fmt: skip


def some(cases: Iterable[str]) -> Any:
    return pytest.mark.parametrize(
        "case", [pytest.param(case, marks=[pytest.mark.extended] * (case in EXTENDED)) for case in cases]
    )


@some(OFFLINE)
def test_a_run_is_what_the_plain_script_computes(outputs: Path, case: str) -> None:
    config = config_of(*settings(outputs, *OFFLINE[case]))
    run(config)
    if case in ACTS:
        shares = [line.get(ACTS[case], 0) for line in lines_of(config.folder / "metrics.jsonl")]
        assert 0 < max(shares) <= 1
    compare(config.folder, Reference(config.folder).replay())


@some(ROUNDS)
def test_a_run_in_rounds_is_what_the_plain_script_computes(outputs: Path, draws: list[Draw], case: str) -> None:
    config = config_of(*settings(outputs, *SAMPLED_ANEW, *ROUNDS[case]))
    run(config)
    replay = Reference(config.folder, draws).replay()
    assert {record["round"] for record in replay.records} == set(range(config.schedule.rounds or 0))
    compare(config.folder, replay)


def compare(folder: Path, replay: Replay) -> None:
    """Every number that the run recorded of its updates, its training sets, and its final weights."""
    for iteration, chosen in replay.sets.items():
        part = folder / f"iteration-{iteration}"
        assert np.load(part / "examples.npy").tolist() == chosen.rows.tolist()
        summary = json.loads((part / "training_set.json").read_text())
        p, c = chosen.positive_share, chosen.baseline
        assert (summary["n_train"], summary["n_positive"]) == (len(chosen.rows), round(p * chosen.rows.size))
        assert summary["positive_share"] == pytest.approx(p, abs=1e-12)
        assert summary["baseline"] == pytest.approx(c, abs=1e-12)
        if summary["effective_positive"] is not None:
            assert summary["effective_positive"] == pytest.approx(p * (1 - c) / (1 + (1 - 2 * p) * c))
    if not replay.sets:  # rounds
        last = replay.records[-1]
        summary = json.loads((folder / f"iteration-{last['iteration']}" / "training_set.json").read_text())
        assert summary["n_train"] == last["samples"]
        rounds = {record["round"]: record for record in replay.records}.values()
        for name in [name for name in ("problems_drawn", "problems_kept") if name in replay.records[0]]:
            assert summary[name] == sum(record[name] for record in rounds)
    lines = lines_of(folder / "metrics.jsonl")
    places = [[(each["iteration"], each["step"]) for each in some] for some in (lines, replay.records)]
    assert places[0] == places[1]
    wrong = []
    for line, record in zip(lines, replay.records, strict=True):
        assert set(line) == {*record, "tokens_per_second"}
        for name, value in record.items():
            found = math.nan if line[name] is None else line[name]
            if not (abs(found - value) <= TOLERANCE * max(1, abs(value)) or math.isnan(value)):
                wrong.append(f"iteration {line['iteration']}, update {line['step']}: {name} {found}, not {value}")
    assert not wrong, "\n".join(wrong[:20])
    trained = load_file(folder / "model" / "model.safetensors")
    apart = moved = 0.0
    for name, weight in replay.after.items():
        apart += float((trained[name] - weight).square().sum())
        moved += float((replay.before[name] - weight).square().sum())
    assert moved > 0
    assert math.sqrt(apart / moved) < 0.01  # where the gradient is all but 0 AdamW makes much of rounding


@pytest.mark.parametrize(("more", "after"), [(SAMPLED_ANEW, 0), (SAMPLED_ANEW, 1), (["iterations=2"], 3)])
def test_a_mu_that_is_scored_otherwise_is_refused(outputs, monkeypatch, more, after):
    """From some call of the sampler on the model computes otherwise without gradients, as with dropout in scoring."""
    sample, calls, hooked = HFSampler.sample, [], set()

    def blur(module: Any, arguments: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            output.last_hidden_state.mul_(1.01)

    def sampled(self: Any, policy: Any, prompts: Any, n: int, *rest: Any) -> Any:
        calls.extend([policy] if n == N else [])  # not to evaluate
        if len(calls) > after and id(policy.model) not in hooked:
            hooked.add(id(policy.model))
            policy.model.base_model.register_forward_hook(blur)
        return sample(self, policy, prompts, n, *rest)

    monkeypatch.setattr(HFSampler, "sample", sampled)
    config = config_of(*settings(outputs, *more, "sampler.seed=9", f"name=blurred-{after}"))
    with pytest.raises(TOPRError, match="before the first update"):
        run(config)
    assert bool(lines_of(config.folder / "metrics.jsonl")) == (after > 0)
