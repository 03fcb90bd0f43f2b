"""A training set that teaches a loss nothing is refused; one without positives that still trains is told."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, config_of, overrides
from topr_exp.composition.candidates import Candidates
from topr_exp.composition.training_set import TrainingSet, build_training_set
from topr_exp.config.data import Reward
from topr_exp.config.groups import Unit, unit_of
from topr_exp.pipeline import INCORRECT_REWARD, run
from topr_exp.training.examples import refuse_nothing_to_learn, representatives
from topr_exp.types import TOPRError

ALGORITHMS = sorted(path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml") if path.stem != "dpo")
# By the papers' formulas: sft gives incorrect ones no weight; of losses relative to their group those without another
# term (a shift, a penalty on the ratio, a reference) have nothing to compare where a group is of one kind.
RELATIVE = {"grpo", "opmd", "rec", "red_drop", "gspo", "cispo", "vespo", "m2po", "sapo", "oapl"}
SILENT = {"wrong": {"sft", *RELATIVE}, "correct": RELATIVE, "mixed": set[str]()}
N = 4


def composed(algo: str, kind: str) -> tuple[Any, TrainingSet]:
    """An algorithm and a training set of three problems whose completions are all wrong, all correct, or both."""
    rounds = ["optim.batch_size=16", "schedule.updates=1", "schedule.prompts=4", "schedule.rounds=1"]
    config = config_of(f"algo={algo}", f"data.n={N}", *(rounds if algo in ("agro_on_policy", "rloo") else []))
    positive = np.array([[kind != "wrong"] * N, [kind == "correct"] * N, [kind == "correct"] * N]).ravel()
    if kind == "mixed":
        positive[1] = False
    candidates = Candidates(np.repeat(np.arange(3), N), positive)
    wrong = INCORRECT_REWARD[config.reward]
    unit = unit_of(config.algo.needs)
    return config.algo, built(candidates, wrong, config, unit)


def built(candidates: Candidates, wrong: float | None, config: Any, unit: Unit, c: float | None = None) -> TrainingSet:
    more = {"seed": 0, "iteration": 1, "baseline": c, "effective": None}
    return build_training_set(candidates, wrong, config.compose, unit, **more)


@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_what_an_algorithm_can_learn_from(algo: str, kind: str) -> None:
    loss, made = composed(algo, kind)
    if algo not in SILENT[kind]:
        refuse_nothing_to_learn(loss, made)
        return
    share = {"wrong": "0.0", "correct": "100.0"}[kind]
    with pytest.raises(TOPRError, match=rf"^algo={algo} has nothing to learn from: {share} % of the 12 completions of"):
        refuse_nothing_to_learn(loss, made)


def test_rewards_of_zero_and_a_baseline() -> None:
    """naive REINFORCE with rewards 1 and 0 gives a wrong completion no weight, unless a baseline does."""
    config = config_of("algo=naive", "data.reward=zero_one")
    candidates = Candidates(np.arange(6), np.zeros(6, dtype=bool))
    assert config.reward is Reward.zero_one
    with pytest.raises(TOPRError, match="nothing to learn from"):
        refuse_nothing_to_learn(config.algo, built(candidates, 0.0, config, "examples"))
    refuse_nothing_to_learn(config.algo, built(candidates, 0.0, config, "examples", 0.5))


def test_graded_groups_of_one_mean_are_not_taken_for_each_other() -> None:
    """A group of equal rewards teaches a relative loss nothing; one with the same mean may."""
    config = config_of("algo=red_drop", f"data.n={N}")
    rewards = np.array([[0.5] * N, [0.5] * N, [0.25, 0.75, 0.25, 0.75]])

    def made(rewards: np.ndarray) -> TrainingSet:
        problem = np.repeat(np.arange(len(rewards)), N)
        graded = Candidates(problem, rewards.ravel() > 0.6, reward=rewards.ravel())
        return built(graded, INCORRECT_REWARD[Reward.graded], config, "groups")

    refuse_nothing_to_learn(config.algo, made(rewards))
    with pytest.raises(TOPRError, match="nothing to learn from"):
        refuse_nothing_to_learn(config.algo, made(rewards[:2]))


def test_of_equal_rewards_those_that_are_correct_count_as_positives() -> None:
    """At R = 0 and among single completions too: the verdict is a kind of its own."""
    graded = Candidates(np.arange(2), np.array([False, True]), reward=np.array([0.5, 0.5]))
    made = built(graded, None, config_of("algo=sft"), "examples")
    assert made.summary()["mean_reward"] == 0.5
    assert (made.description.n_positive, made.effective_positive) == (1, None)
    assert representatives(made).tolist() == [0, 1]


def wrong_answers(folder: Path) -> str:
    """A setting that trains on completions that are all wrong."""
    question = "Mia has {} shells. She buys 2 more. How many shells does Mia have now?"
    rows = [
        {"question": question.format(a), "gold": str(a + 2), "completion": f" The answer is {a}."} for a in range(16)
    ]
    path = folder / "wrong.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.completions={path}"


def test_a_run_without_positives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = wrong_answers(tmp_path)
    with pytest.raises(TOPRError, match="algo=sft has nothing to learn from"):
        run(config_of(*overrides(tmp_path), wrong, "algo=sft"))
    told = "0 % of the 16 completions of the training set are correct: it has negatives alone"
    for compose in ("uniform", "anna_karenina"):
        config = config_of(*overrides(tmp_path), wrong, f"compose={compose}")
        capsys.readouterr()
        summary = run(config)
        printed = capsys.readouterr()
        assert f"warning: {told}\n" in printed.err
        assert f"\nnote: {told}\n" in printed.out
        assert (summary["note"], summary["positive_share"]) == (told, 0.0)
        described = json.loads((config.folder / "iteration-1" / "training_set.json").read_text())
        assert described["note"] == told


def test_rounds_without_positives_are_told_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may have none, all of them together should have some."""
    (tmp_path / "strict.py").write_text('def grade(completion, gold):\n    return "incorrect"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rounds = ["schedule=on_policy", "schedule.rounds=1", "schedule.prompts=4", "data.grader=strict:grade"]
    summary = run(config_of(*overrides(tmp_path), *rounds))
    assert summary["note"].startswith("0 % of the ")
    assert run(config_of(*overrides(tmp_path)))["note"] is None
