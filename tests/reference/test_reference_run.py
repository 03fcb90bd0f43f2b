"""Small runs against the same computed by a plain script (`reference.py`): all that they record.

Tests of single parts can't see what is handed from one to the next: a baseline that never reaches the loss, pairs
turned round, μ in the place of π_ref, an order that ignores the seed. Here whole runs are compared, number by number.
"""

import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import topr_exp
from tests.conftest import column, config_of, lines_of, normal, read_json, refused, values_of, write_lines
from tests.observed import OBSERVED, Observer, observed, reading_models
from tests.reference.model import table_of
from tests.reference.reference import Reference
from topr_exp.pipeline import run

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
GRADED = "data.grader._target_=tests.reference.closeness.grade data.reward=graded data.threshold=2.5"
FASTER = "optim.epochs=2 optim.lr=3e-4"  # so that ratios leave 1
OFFLINE = {
    "topr": "algo=topr optim.epochs=3",
    "zero_one": "algo=topr data.reward=zero_one baseline=-0.3 optim.grad_clip=.inf compose.drop_truncated=true "
    "optim.gradient_checkpointing=true",
    "imported among sampled": f"algo=topr {IMPORTED} compose.mix=0.3 baseline=0.1",
    "mu of the sampler": "algo=topr mu=sampler sampler.top_k=4 sampler.temperature=0.8",
    "two policies": f"algo=decoupled_ppo sampler.top_k=4 algo.correction=1.02 compose.n_examples=25 {FASTER}",
    "two iterations": "algo=topr iterations=2 compose.n_examples=20 effective_positive=0.4 optim.warmup_steps=2 "
    "optim.schedule=cosine optim.epochs=2",
    "pairs": "algo=dpo compose.n_examples=20 optim.epochs=2 optim.batch_size=6",
    "groups": f"algo=agro {ANOTHER} optim.epochs=2",
}
OFFLINE_VARIANTS = {
    "effective share": "algo=topr effective_positive=0.2 compose=proportion compose.positive_share=0.3",
    "imported without log mu": "algo=sft data.completions={outputs}/bare.jsonl compose=positives compose.mix=0.4 "
    "data.n=4",
    "anna karenina": "algo=tis compose=anna_karenina compose.n_examples=30",
    "graded": f"algo=topr {GRADED} baseline=1.2 compose=proportion compose.positive_share=0.4",
    "graded groups": f"algo=grpo {GRADED} compose.n_examples=25 optim.epochs=2",
    "grpo, imported": f"algo=grpo {IMPORTED} compose.mix=0.5 compose.n_examples=22 optim.epochs=2",
    "two policies, imported": f"algo=decoupled_ppo {IMPORTED} compose.mix=0.5 compose.n_examples=22 {FASTER}",
    "by token": "algo=topr optim.reduction=tokens algo.ratio=token algo.length_normalize=false",
    "some problems": "algo=agro compose.pass_rate=[0.1,0.6] optim.epochs=2",
    "adafactor": "algo=sft compose=positives compose.n_examples=8 optim.epochs=4 optim.name=adafactor "
    "optim.grad_clip=.2",
    "grpo": f"algo=grpo data.reward=zero_one algo.length_normalize=true algo.kl_coef=0.2 {ANOTHER}",
    "red_drop": "algo=red_drop optim.epochs=2",
    "masked": f"algo=grpo algo.off_policy_mask=0.002 compose=anna_karenina {FASTER}",
    "m2po": f"algo=m2po algo.tau=1e-4 {FASTER}",
    "oapl": f"algo=oapl algo.beta=0.1 compose.n_examples=25 data.reward=pm1 {IMPORTED}",
    "oapl, reference": f"algo=oapl algo.anchor=ref {ANOTHER} algo.beta=0.02 compose=anna_karenina",
    "agro twice": "algo=agro iterations=2 compose.n_examples=35 algo.beta=0.3 data.reward=pm1",
    "kl_pg": f"algo=kl_pg {ANOTHER} algo.length_normalize=true",
    "rloo": f"algo=rloo schedule=offline {ANOTHER}",
}
ACTIVE_MASKS = ("masked", "m2po")  # cases in which some tokens must be dropped
ON_POLICY = "schedule=on_policy schedule.prompts=3 schedule.rounds=3 optim.batch_size=18"
UPDATES = "schedule.prompts=2 schedule.updates=3 optim.batch_size=8"  # a pass and the next one's half
ROUNDS = {
    "several updates": f"algo=topr {UPDATES} baseline=0.2 sampler.temperature=1.3",
    "replay": f"algo=agro {ANOTHER} schedule.replay=0.6 schedule.rounds=4 schedule.updates=2 optim.batch_size=12",
    "pass rate": "algo=topr optim.batch_size=12 schedule.prompts=2 compose.pass_rate=[0.1,0.4]",
}
ROUND_VARIANTS = {
    "two iterations": "algo=kl_pg iterations=2 schedule.rounds=2",
    "rloo": f"algo=rloo {ANOTHER}",
    "no reference": "algo=rloo algo.beta=0 optim.warmup_steps=1 optim.schedule=linear",
    "agro_on_policy": f"algo=agro_on_policy {ANOTHER} schedule.prompts=4 optim.batch_size=24",
    "few draws": f"algo=grpo {UPDATES} compose.pass_rate=[0.1,0.9] schedule.replay=0.4",
    "graded": f"algo=rloo {ANOTHER} {GRADED}",
    "icepop": f"algo=icepop algo.kl_coef=0.1 algo.unbiased_kl=true {ANOTHER} {UPDATES} sampler.temperature=1.2 "
    "schedule.replay=0.4",
}


def cases_of(short_cases, variants):
    extended = [pytest.param(case, id=name, marks=pytest.mark.extended) for name, case in variants.items()]
    return [pytest.param(case, id=name) for name, case in short_cases.items()] + extended


@pytest.fixture(scope="module", autouse=True)
def float64():
    """Have runs compute in float64: in float32 two kinds of processor differ by more than a fault may."""

    with reading_models(lambda folder, read_model: read_model().double()):
        yield


def write_another_model(shipped, folder):
    """A copy of a model, whose weights differ by a tenth."""
    shutil.copytree(shipped, folder)
    weights = load_file(shipped / "model.safetensors")
    for name, weight in weights.items():
        noise = normal(*weight.shape)
        weights[name] = weight.float() * (1 + 0.1 * noise)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def write_imported(rollouts, folder):
    """Completions as if made elsewhere, of each problem another number; with and without log-probabilities."""
    bare, complete = [], []
    for row in rollouts:
        if row["sample"] < 3 + row["problem"] % 4:
            line = {
                "problem_id": row["problem_id"],
                "tokens": row["tokens"],
                "finish": row["finish"],
                "completion": row["text"],
            }
            error = 0.03 * (len(complete) % 4)
            bare.append(line)
            complete.append(line | {"logprobs": [logp - error for logp in row["sampler_logp"]]})
    write_lines(folder / "bare.jsonl", bare)
    write_lines(folder / "completions.jsonl", complete)


@pytest.fixture(scope="module")
def outputs(float64, tmp_path_factory):
    """Problems, the model, another one as π_ref, completions as if made elsewhere; the store that all runs share."""
    folder = tmp_path_factory.mktemp("outputs")
    for split, problems in (("train", TRAIN), ("test", TEST)):
        lines = [{"question": question, "answer": f"#### {gold}"} for question, gold in problems.items()]
        write_lines(folder / f"problems/{split}.jsonl", lines)
    shipped = Path(topr_exp.__file__).parent / "tiny/tiny"
    shutil.copytree(shipped, folder / "base")
    write_another_model(shipped, folder / "another")

    config = config_of(*settings(folder, "name=first"))
    run(config)
    rollouts, verdicts = (table_of(config.folder, kind) for kind in ("rollouts", "verdicts"))
    # Of each kind there must be some, or it is not seen how they are treated.
    assert set(column(rollouts, "finish")) == {"stop", "length"}
    assert set(column(verdicts, "verdict")) == {"correct", "incorrect", "invalid"}
    write_imported(rollouts, folder)
    return folder


def settings(outputs, *cases):
    """A run of a second, in which a batch is several micro-batches and the last one of an epoch is smaller."""
    words = f"""data=gsm8k data.source={outputs}/problems data.train_problems=null data.test_problems=null data.n={N}
        data.eval_n=1 model.path={outputs}/base output_dir={outputs} cluster.threads=1 sampler.max_new_tokens=22
        sampler.prompts_per_shard=3 seed=3 optim.lr=1e-4 optim.batch_size=12 optim.micro_batch_size=5""".split()
    for case in cases:
        words += case.format(outputs=outputs).split()
    return words


@pytest.mark.parametrize("case", cases_of(OFFLINE, OFFLINE_VARIANTS))
def test_a_run_is_what_the_plain_script_computes(outputs, case, request):
    config = config_of(*settings(outputs, case))

    run(config)

    compare(config.folder, Reference(config.folder).replay())
    if request.node.callspec.id in ACTIVE_MASKS:
        assert max(line.get("masked_neg", 0) for line in lines_of(config.folder / "metrics.jsonl")) > 0


@pytest.mark.parametrize("case", cases_of(ROUNDS, ROUND_VARIANTS))
def test_a_run_in_rounds_is_what_the_plain_script_computes(outputs, case):
    config = config_of(*settings(outputs, ON_POLICY, case, *OBSERVED))
    recorder = DrawRecorder()

    with observed(recorder):
        run(config)

    replay = Reference(config.folder, recorder.draws).replay()
    assert set(column(replay.records, "round")) == set(range(config.schedule.rounds))
    compare(config.folder, replay)


class DrawRecorder(Observer):
    """Lists what the sampler draws, as it draws it: rounds keep none."""

    def __init__(self):
        super().__init__()
        self.draws = []
        self.seeds = set()

    def after_sample(self, prompts, n, seed, groups):
        if n == N:  # evaluations, of one completion a problem, share theirs
            assert seed not in self.seeds, "two draws of a run with the same randomness"
            self.seeds.add(seed)
        for prompt, group in zip(prompts, groups, strict=True):
            self.draws.append((prompt, values_of(group, "tokens")))


def compare(folder, replay):
    """Every number that the run recorded of its updates, its training sets, and its final weights."""
    for iteration, training_set in replay.sets.items():
        compare_training_set(folder / f"iteration-{iteration}", training_set)
    if not replay.sets:
        compare_rounds(folder, replay.records)
    compare_updates(lines_of(folder / "metrics.jsonl"), replay.records)
    trained = load_file(folder / "model/model.safetensors")
    distance = movement = 0.0
    for name, weight in replay.final_weights.items():
        distance += float((trained[name] - weight).square().sum())
        movement += float((replay.initial_weights[name] - weight).square().sum())
    assert movement > 0
    assert math.sqrt(distance / movement) < 0.01  # where the gradient is all but 0 AdamW makes much of rounding


def compare_training_set(folder, training_set):
    p = training_set.positive_share
    c = training_set.baseline
    summary = read_json(folder / "training_set.json")
    assert summary["n_train"] == len(training_set.examples)
    assert summary["positive_share"] == pytest.approx(p, abs=1e-12)
    assert summary["baseline"] == pytest.approx(c, abs=1e-12)
    effective = p * (1 - c) / (1 + (1 - 2 * p) * c)
    if summary["effective_positive"] is not None:
        assert summary["effective_positive"] == pytest.approx(effective)


def compare_rounds(folder, records):
    last_record = records[-1]
    summary = read_json(folder / f"iteration-{last_record['iteration']}/training_set.json")
    assert summary["n_train"] == last_record["samples"]
    record_of_round = {record["round"]: record for record in records}
    for name in ("problems_drawn", "problems_kept"):
        if name in last_record:
            assert summary[name] == sum(record[name] for record in record_of_round.values())


def compare_updates(lines, records):
    differences = []
    for line, record in zip(lines, records, strict=True):
        assert set(line) == {*record, "tokens_per_second"}
        place = f"iteration {line['iteration']}, update {line['step']}"
        for name, expected in record.items():
            value = math.nan if line[name] is None else line[name]
            is_close = abs(value - expected) <= TOLERANCE * max(1, abs(expected))
            if not is_close and not math.isnan(expected):
                differences.append(f"{place}: {name} {value}, not {expected}")
    assert not differences, "\n".join(differences[:20])


@pytest.mark.parametrize(
    "case, draws", [(ON_POLICY, 0), pytest.param(ON_POLICY, 1, marks=pytest.mark.extended), ("iterations=2", 3)]
)
def test_a_mu_that_is_scored_otherwise_is_refused(outputs, case, draws):
    """From some call of the sampler on the model computes otherwise without gradients, as with dropout in scoring."""
    policies = []
    blurred = set()

    def blur(module, arguments, output):
        if not torch.is_grad_enabled():
            output.last_hidden_state.mul_(1.01)

    class Blurrer(Observer):
        def before_sample(self, policy, n):
            if n == N:  # not to evaluate
                policies.append(policy)
            if len(policies) > draws and id(policy.model) not in blurred:
                blurred.add(id(policy.model))
                policy.model.base_model.register_forward_hook(blur)

    config = config_of(*settings(outputs, case, *OBSERVED, f"sampler.seed=9 name=blurred-{draws}"))

    with observed(Blurrer()), refused("before the first update"):
        run(config)

    assert bool(lines_of(config.folder / "metrics.jsonl")) == (draws > 0)
