"""Training on completions made elsewhere."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import config_of, overrides
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.models.policy import load_policy
from topr_exp.pipeline import run
from topr_exp.sampling.imported import load_imported, tokenize_completions
from topr_exp.sampling.rollouts import Completions
from topr_exp.store import Store
from topr_exp.store.completions import export_file
from topr_exp.types import TOPRError


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def problems() -> Any:
    return load_problems(config_of("experiment=smoke").data).train


def test_text_alone_is_tokenized_and_scored_by_the_starting_model(tmp_path: Path) -> None:
    rows = []
    for problem in problems()[:6]:
        rows += [{"problem_id": problem.id, "completion": f" The answer is {a}."} for a in (problem.answer, "7777")]
    file = lines(tmp_path / "made.jsonl", rows)
    summary = run(config_of(*overrides(tmp_path, f"data.completions={file}")))
    assert (summary["n_train"], summary["positive_share"]) == (12, 0.5)
    assert summary["tokens"]["tokens_scored"] > 0
    assert "tokens_sampled" not in summary["tokens"]


def test_what_one_run_sampled_trains_another_alike_after_export_and_import(smoke: Any, tmp_path: Path) -> None:
    config, sampled = smoke
    store = Store(config.store)
    tables = [store.open(folder) for folder in (config.store / "rollouts").iterdir()]
    (table,) = [table for table in tables if table.bounds()[-1] == 64]  # the other holds the base evaluation
    export_file(table, tmp_path / "out.jsonl")
    again = run(config_of(*overrides(tmp_path, f"data.completions={tmp_path / 'out.jsonl'}")))
    assert (again["n_train"], again["positive_share"]) == (sampled["n_train"], sampled["positive_share"])
    # Its sampler's log-probabilities are μ here: the same up to rounding, so the results are close, not equal.
    assert again["final"]["pass@1"] == pytest.approx(sampled["final"]["pass@1"], abs=0.2)


def imported(tmp_path: Path, rows: list[dict[str, Any]], *words: str) -> Completions:
    """What a file of these lines becomes beside the problems of the smoke experiment."""
    config = config_of("experiment=smoke", *words)
    prompter, policy = build_prompter(config.data), load_policy(config.model, "cpu")
    return load_imported(str(lines(tmp_path / "own.jsonl", rows)), problems(), prompter, policy, Store(tmp_path))


def test_lines_answer_problems_by_id_or_bring_their_own_with_a_gold_that_wins(tmp_path: Path) -> None:
    known, other = problems()[:2]
    own = {"problem_id": known.id, "question": known.question, "completion": "x"}
    golds = ["7777", known.answer, "7777"]
    rows = [own | {"gold": gold} for gold in golds] + [{"problem_id": other.id, "completion": "y"}]
    rows.append({"question": "2 + 2?", "gold": "4", "completion": "z"})
    found = imported(tmp_path, rows)
    answers = [(problem.id, problem.answer) for problem in found.questions.problems]
    assert answers == [(known.id, "7777"), (known.id, known.answer), (other.id, other.answer), ("imported/000003", "4")]
    assert found.rollouts.problem.tolist() == [0, 1, 0, 2, 3]
    assert found.rollouts.sample.tolist() == [0, 0, 1, 0, 0]
    assert found.log_mu is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem_id": "nowhere", "completion": "x"}, "completion 1 answers problem_id 'nowhere', which is not among"),
        ({"question": "q", "gold": "1", "completion": "x", "tokens": [99999]}, "completion 1 has token id 99999"),
        ({"question": "q", "gold": "1", "completion": "", "finish": "length"}, "completion 1 is empty"),
    ],
)
def test_what_cannot_be_trained_on_is_one_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(TOPRError, match=message):
        imported(tmp_path, [row])


def test_a_source_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match=r"data\.completions=imported/abc: neither a file nor a table of"):
        run(config_of(*overrides(tmp_path, "data.completions=imported/abc")))


def test_other_prompts_and_no_others_make_another_name_so_that_they_are_scored_again(tmp_path: Path) -> None:
    rows = [{"problem_id": problem.id, "completion": "x"} for problem in problems()[:4]]
    templates = [[], ["data.template='Question: {question}'"], []]
    first, other, again = (imported(tmp_path, rows, *words).rollouts.name for words in templates)
    assert first == again != other


@pytest.mark.parametrize(("finish", "ended"), [(None, True), ("stop", True), ("length", False), ("stop_string", False)])
def test_text_ends_by_itself_unless_it_says_otherwise(finish: str | None, ended: bool) -> None:
    """docs/store.md says so: without `finish` an end-of-sequence token is put after the text."""
    policy = load_policy(config_of().model, "cpu")
    columns = pa.table({"text": [" The answer is 2."], "finish": pa.array([finish], pa.string())})
    (ids,) = tokenize_completions(columns, policy).to_pylist()
    assert (ids[-1] == policy.tokenizer.eos_token_id) == ended
    assert policy.decode(ids) == " The answer is 2."
