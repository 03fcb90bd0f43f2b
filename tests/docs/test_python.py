"""docs/python.md: its blocks run as they stand, and its trainer in TRL takes the gradient that ours takes."""

import gc
import importlib
import json
import logging
import pkgutil
import re
import signal
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch

import topr_exp
import topr_exp.api  # named, so that planted faults find these tests
from tests.conftest import at_work_in, document, each_row, read_json, refused, small_config
from topr_exp import report
from topr_exp.config.model_choice import SHIPPED
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError

BLOCKS = re.findall(r"^```python\n(.*?)^```", document("python.md"), re.DOTALL | re.MULTILINE)


def process_state():
    """What a run in a notebook must leave as it was: signal handlers, logging, threads."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    return handlers, list(logging.root.handlers), torch.get_num_threads()


def execute(block, names):
    exec(compile(block, "docs/python.md", "exec"), names)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The page's names after all of its blocks but the one for TRL."""
    names = {}
    with at_work_in(tmp_path_factory.mktemp("python")):
        state = process_state()
        for block in BLOCKS[:-1]:
            execute(block, names)
        assert process_state() == state
        assert topr_exp.run(names["config"]) == names["summary"], "of the finished run"
        job = names["jobs"][0]
        assert read_json(job.config.folder / "launch.json")["arguments"] == job.words, "for a resumed sweep"
    return names


def test_the_blocks_run_and_say_what_they_say(names):
    completions = names["drawn"]
    summary = names["summary"]
    runs = names["runs"]
    training_rows = completions.loc[completions.index.repeat(completions.chosen)]

    assert names["verdicts"] == ["correct", "invalid"]
    assert {*completions.problem_id} == {*names["problems"]}
    golds = [names["problems"][problem_id].answer for problem_id in completions.problem_id]
    assert topr_exp.grade_answers(completions.text, golds, grader="gsm8k") == [*completions.verdict]
    assert list(runs.index) == [names["config"].folder.name]
    assert len(names["curves"]) == runs["updates"].item()
    assert len(training_rows) == summary["n_train"]
    assert (training_rows.verdict == "correct").mean() == pytest.approx(summary["positive_share"])
    assert names["logp"].grad.abs().sum() > 0
    assert names["comparison"].loc["naive", "against"] == "topr"


def generator_with_its_frame():
    with pytest.raises(ValueError) as caught_error:
        raise ValueError
    yield caught_error.value
    yield "goes on"


def test_an_error_that_a_notebook_keeps_keeps_no_model(tmp_path):
    callers_generator = generator_with_its_frame()
    try:
        raise next(callers_generator)
    except ValueError:
        with patch.object(Trainer, "checkpoint", side_effect=TOPRError("no")), pytest.raises(TOPRError) as kept_error:
            topr_exp.run(small_config(tmp_path))

    assert list(callers_generator) == ["goes on"]
    gc.collect()
    assert not [value for value in gc.get_objects() if isinstance(value, Trainer)], kept_error


@pytest.mark.parametrize("module, name", [(topr_exp, "compose"), (report, "read_groups")])
def test_public_names_are_listed_before_they_are_loaded(module, name, monkeypatch):
    monkeypatch.delitem(vars(module), name, raising=False)

    assert {*module.__all__} <= {*dir(module)}


def test_no_public_name_is_also_a_modules():
    modules = {module.name.removeprefix("topr_exp.") for module in pkgutil.iter_modules(topr_exp.__path__)}

    assert not modules & {*topr_exp.__all__}
    assert all(getattr(topr_exp, name).__doc__ for name in topr_exp.__all__)


MISTAKES = r"""
run(["algo=tis"]) | run takes what compose returns; got a list
run(compose(["dry_run=true"])) | dry_run=true: run starts what it is given
read_curves(".", split="training") | split=training: expected train or test
read_completions(".", split="eval") | split=eval: expected train or test
read_problems(compose([]), split="eval") | split=eval: expected train or test
compare_runs(".", figure="pass@2") | figure=pass@2: expected one of pass@1, maj, invalid
compose("seed=1") | overrides=seed=1: expected a list of texts, as in \['seed=1'\]
plan_runs("seed=1") | words=seed=1: expected a list of texts
grade_answers("12", ["1", "2"]) | completions=12: expected a list of texts
grade_answers(["1", "2"], "12") | golds=12: expected a list of texts
grade_answers(["1"], [1]) | golds: expected texts; got 1
grade_answers(["1", "2"], ["1"]) | golds must be 2, one for each completion; got 1
run_sweep([]) | jobs must be one or more; got none
read_problems(compose(["model=tiny_verifier"])) | task=verifier: its problems are sampled solutions
prompt_ids(compose(["model=tiny_verifier"]), None) | task=verifier: its problems are sampled solutions
"""


@each_row("call line", MISTAKES)
def test_a_mistake_is_one_line(call, line):
    with refused(line, topr_exp.ConfigError):
        execute(call, {name: getattr(topr_exp, name) for name in topr_exp.__all__})


# ---- the trainer in TRL


def our_gradient(model, inputs, weights):
    """The gradient by our scoring and our reduction at the weights of the step, and how far these are from μ."""
    model.load_state_dict(weights, strict=False)
    model.zero_grad()
    completion_mask = inputs["completion_mask"].bool()
    sequences = []
    for row, prompt_mask in enumerate(inputs["prompt_mask"].bool()):
        prompt = inputs["prompt_ids"][row][prompt_mask]
        completion = inputs["completion_ids"][row][completion_mask[row]]
        sequences.append((prompt.numpy(), completion.numpy()))

    logp = score_tokens(model, Inputs(sequences, torch.device("cpu"))).logp
    length = logp.shape[1]
    mask = completion_mask[:, :length]
    mu_logp = inputs["old_per_token_logps"][:, :length].where(mask, 0.0)
    reward = inputs["advantages"]
    batch = topr_exp.Batch(logp=logp, mu_logp=mu_logp, mask=mask, reward=reward, positive=reward > 0)
    topr_exp.loss("topr")(batch).loss.mean().backward()
    return gradients_of(model), float((logp - mu_logp).abs().max())


def gradients_of(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


TRL_SETTINGS = """{
    "num_generations": 8, "num_iterations": 2, "steps_per_generation": 1, "max_completion_length": 12, "max_steps": 2,
    "per_device_train_batch_size": 8, "learning_rate": 1e-3, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
    "beta": 0.0, "scale_rewards": "none", "use_cpu": true, "bf16": false, "report_to": [], "save_strategy": "no"
}"""


class Step(NamedTuple):
    """A step in TRL: its inputs, the weights before it, and its gradients."""

    inputs: dict[str, Any]
    weights: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def reward_of_letters(completions, **_):
    return [float(sum(map(ord, text)) % 3 == 0) for text in completions]


def test_a_step_in_trl_takes_our_gradient(names, tmp_path):
    trl = pytest.importorskip("trl", minversion="1.16", reason="TRL is a test extra")
    datasets = importlib.import_module("datasets")
    assert len(BLOCKS[-1].split("class ")[1].splitlines()) <= 25
    execute(BLOCKS[-1], names)
    steps = []

    class Watched(names["TOPRTrainer"]):
        def _prepare_inputs(self, inputs):
            self.prepared = super()._prepare_inputs(inputs)
            self.weights = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
            return self.prepared

        def training_step(self, model, *arguments):
            loss = super().training_step(model, *arguments)
            steps.append(Step(self.prepared, self.weights, gradients_of(model)))
            return loss

    trainer = Watched(
        model=str(SHIPPED / "tiny"),
        reward_funcs=reward_of_letters,
        args=trl.GRPOConfig(output_dir=str(tmp_path), **json.loads(TRL_SETTINGS)),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["Question: 1 + 1?\nAnswer:"] * 4}),
    )
    trainer.train()

    gaps = []
    for step in steps:
        gradients, gap = our_gradient(trainer.model, step.inputs, step.weights)
        gaps.append(gap)
        assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-4
        for name, gradient in gradients.items():
            torch.testing.assert_close(step.gradients[name], gradient, atol=1e-6, rtol=1e-6)
    first_gap, second_gap = gaps
    assert first_gap < 1e-4 < second_gap, "the second step is on the answers of the first"
