"""TRL trains and logs its completions; our first gradient on that log is TRL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.conftest import ROOT, config_of, overrides
from topr_exp.data.problems import load_problems
from topr_exp.pipeline import run
from topr_exp.training.trainer import Trainer

LIMIT, N = 24, 4


class Seen(Exception):
    """The gradient of the first update is there."""


def thirds(completions: list[str], **_: Any) -> list[float]:
    return [float(sum(map(ord, text)) % 3 == 0) for text in completions]


def logged_by_trl(folder: Path) -> tuple[Any, dict[str, Any], pd.DataFrame]:
    """TRL's trainer after one step that changes nothing, what it trained on, and what it logged of that."""
    trl = pytest.importorskip("trl", minversion="1.16", reason="TRL is a test extra")
    import datasets

    class Watched(trl.GRPOTrainer):  # type: ignore[name-defined,misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.generated = super()._generate_and_score_completions(inputs)  # later TRL shuffles it
            return self.generated

    problems = load_problems(config_of("experiment=smoke").data).train[:8]
    arguments = {"loss_type": "grpo", "beta": 0.0, "num_generations": N, "max_completion_length": LIMIT}
    arguments |= {"per_device_train_batch_size": N * len(problems), "max_steps": 1, "learning_rate": 0.0}
    arguments |= {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "bf16": False}
    trainer = Watched(
        model=str(ROOT / "topr_exp" / "tiny" / "tiny"),
        reward_funcs=thirds,
        args=trl.GRPOConfig(output_dir=str(folder), log_completions=True, logging_steps=1, **arguments),
        train_dataset=datasets.Dataset.from_dict(
            {"prompt": [f"Question: {one.question}\nAnswer:" for one in problems]}
        ),
    )
    trainer.train()
    return trainer, trainer.generated, pd.read_parquet(folder / "completions" / "completions_00001.parquet")


@pytest.mark.extended
def test_our_first_gradient_on_trl_s_log_is_trl_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On whole groups whose texts encode as they were sampled, which a log without token ids can't promise."""
    trainer, inputs, log = logged_by_trl(tmp_path / "trl")
    tokenizer = trainer.processing_class
    sampled = [ids[mask.bool()].tolist() for ids, mask in zip(inputs["completion_ids"], inputs["completion_mask"])]  # noqa: B905
    again = tokenizer(log["completion"].tolist(), add_special_tokens=False)["input_ids"]
    ends = [[] if len(ids) >= LIMIT else [tokenizer.eos_token_id] for ids in again]
    same = [ids + end == given for ids, end, given in zip(again, ends, sampled, strict=True)]
    kept = pd.Series(same).groupby(log["prompt"]).transform("all").to_numpy()
    assert kept.sum() >= 4 * N
    assert 0 < log["thirds"][kept].mean() < 1
    some = {
        name: value[torch.from_numpy(kept)] for name, value in inputs.items() if torch.is_tensor(value) and value.ndim
    }
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, {**inputs, **some}).backward()
    theirs = {name: value.grad for name, value in trainer.model.named_parameters()}

    log[kept].to_parquet(file := tmp_path / "log.parquet")
    ours: dict[str, torch.Tensor] = {}

    gradients = Trainer.accumulate_gradients

    def accumulate_gradients(self: Trainer, *examples: Any) -> Any:
        gradients(self, *examples)
        ours.update({name: value.grad for name, value in self.policy.model.named_parameters()})
        raise Seen

    monkeypatch.setattr(Trainer, "accumulate_gradients", accumulate_gradients)
    more = [f"data.n={N}", f"optim.batch_size={kept.sum()}", f"data.completion_limit={LIMIT}", "data.reward=given"]
    more += ["algo=grpo", "algo.length_normalize=true", f"data.completions={file}"]
    with pytest.raises(Seen):
        run(config_of(*overrides(tmp_path, *more)))
    assert max(float(value.abs().max()) for value in theirs.values()) > 1e-3
    assert np.isclose([float((ours[name] - value).abs().max()) for name, value in theirs.items()], 0, atol=1e-6).all()
