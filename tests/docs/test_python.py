"""docs/python.md: its blocks run as they stand, and its trainer in TRL takes the gradient that ours takes."""

import importlib
import logging
import pkgutil
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import topr_exp
import topr_exp.api  # named, so that planted faults find these tests
from tests.conftest import ROOT
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL | re.MULTILINE)
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The page's names after all of its blocks but the one for TRL."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("python"))
        patch.setattr(logging.root, "handlers", [])  # as in a notebook that set up none
        before, threads = [signal.getsignal(number) for number in STOPS], torch.get_num_threads()
        for block in BLOCKS[:-1]:
            exec(compile(block, "docs/python.md", "exec"), found)
        assert [signal.getsignal(number) for number in STOPS] == before
        assert logging.root.handlers == []
        assert torch.get_num_threads() == threads
        again = topr_exp.run(found["config"])
        assert again == found["summary"]
    return found


def test_the_blocks_run_and_say_what_they_say(names: dict[str, Any]) -> None:
    assert names["verdicts"] == ["correct", "invalid"]
    assert list(names["runs"].index) == [names["config"].folder.name]
    assert len(names["curves"]) == names["runs"]["updates"].item()
    drawn, summary = names["drawn"], names["summary"]
    assert drawn["chosen"].sum() == summary["n_train"]
    chosen = drawn.loc[drawn.index.repeat(drawn.chosen)]
    assert (chosen.verdict == "correct").mean() == pytest.approx(summary["positive_share"])
    assert names["logp"].grad.abs().sum() > 0
    assert list(names["found"].index) == ["naive", "topr"]
    assert names["found"].loc["naive", "against"] == "topr"


def test_no_public_name_is_also_a_modules() -> None:
    modules = {name.split(".")[1] for _, name, _ in pkgutil.walk_packages(topr_exp.__path__, "topr_exp.")}
    assert not modules & {*topr_exp.__all__}
    for name in topr_exp.__all__:
        assert getattr(topr_exp, name).__doc__
    with pytest.raises(AttributeError):
        topr_exp.losss  # noqa: B018


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: topr_exp.loss("torp"), "no loss is called torp"),
        (lambda: topr_exp.loss("topr", ratio="bogus"), "algo.ratio=bogus"),
        (lambda: topr_exp.compose(["-m", "seed=0,1"]), "-m"),
        (lambda: topr_exp.run(topr_exp.compose(["dry_run=true"])), "dry_run=true: run starts what it is given"),
        (lambda: topr_exp.compose(["basline=1"]), "did you mean baseline"),
        (lambda: topr_exp.compare_runs(ROOT, figure="pass@2"), "figure=pass@2: expected one of pass@1, maj, invalid"),
    ],
)
def test_mistakes_are_one_line(call: Any, line: str) -> None:
    with pytest.raises(topr_exp.ConfigError, match=line) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_a_step_in_trl_takes_our_gradient(names: dict[str, Any], tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", minversion="1.16", reason="TRL is a test extra")
    datasets = importlib.import_module("datasets")
    assert len(BLOCKS[-1].split("class ")[1].splitlines()) <= 25
    exec(compile(BLOCKS[-1], "docs/python.md", "exec"), names)
    sampling = {"num_generations": 8, "num_iterations": 2, "steps_per_generation": 1, "max_completion_length": 12}
    training = {"max_steps": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "max_grad_norm": 0.0}
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "output_dir": str(tmp_path)}
    config = trl.GRPOConfig(
        **sampling,
        **training,
        **quiet,
        beta=0.0,
        scale_rewards="none",
        lr_scheduler_type="constant",
        use_cpu=True,
        bf16=False,
    )
    steps: list[tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []

    class Watched(names["TOPRTrainer"]):
        def _prepare_inputs(self, inputs: Any) -> Any:
            self.prepared = super()._prepare_inputs(inputs)
            self.before = {name: value.detach().clone() for name, value in self.model.named_parameters()}
            return self.prepared

        def training_step(self, model: Any, *rest: Any) -> Any:
            loss = super().training_step(model, *rest)
            found = {name: value.grad.clone() for name, value in model.named_parameters()}
            steps.append((self.prepared, self.before, found))
            return loss

    trainer = Watched(
        model=str(ROOT / "topr_exp" / "tiny" / "tiny"),
        reward_funcs=lambda completions, **_: [float(sum(map(ord, text)) % 3 == 0) for text in completions],
        args=config,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["Question: 1 + 1?\nAnswer:"] * 4}),
    )
    trainer.train()
    assert len(steps) == 2
    gaps = []
    for inputs, weights, theirs in steps:
        ours, gap = our_gradient(trainer.model, inputs, weights)
        gaps.append(gap)
        assert max(float(value.abs().max()) for value in ours.values()) > 1e-4
        for name, value in ours.items():
            assert (value - theirs[name]).abs().max() <= 1e-6 * max(1.0, float(value.abs().max())), name
    assert gaps[0] < 1e-4 < gaps[1]  # the second step is on the answers of the first


def our_gradient(
    model: Any, inputs: dict[str, Any], weights: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], float]:
    """The gradient by our scoring and our reduction at the weights of the step, and how far these are from μ."""
    model.load_state_dict(weights, strict=False)
    model.zero_grad()
    mask = inputs["completion_mask"].bool()
    pairs = [
        (prompt[there.bool()].numpy(), completion[real].numpy())
        for prompt, there, completion, real in zip(
            inputs["prompt_ids"], inputs["prompt_mask"], inputs["completion_ids"], mask, strict=True
        )
    ]
    logp = score_tokens(model, Inputs(pairs, torch.device("cpu"))).logp
    mask = mask[:, : logp.shape[1]]
    mu = inputs["old_per_token_logps"][:, : logp.shape[1]].where(mask, 0.0)
    batch = topr_exp.Batch(
        logp=logp, mu_logp=mu, mask=mask, reward=inputs["advantages"], positive=inputs["advantages"] > 0
    )
    topr_exp.loss("topr")(batch).loss.mean().backward()
    return {name: value.grad for name, value in model.named_parameters()}, float((logp - mu).abs().max())
