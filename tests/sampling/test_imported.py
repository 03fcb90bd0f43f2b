"""Training on completions made elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, overrides
from topr_exp.data.problems import load_problems
from topr_exp.pipeline import run
from topr_exp.sampling.imported import index_in_group
from topr_exp.store import Store
from topr_exp.store.completions import export_file
from topr_exp.types import ConfigError, TOPRError


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
    assert summary["n_train"] == 12
    assert summary["positive_share"] == 0.5
    assert summary["tokens"]["tokens_scored"] > 0
    assert "tokens_sampled" not in summary["tokens"]


def test_what_one_run_sampled_trains_another_alike_after_export_and_import(tmp_path: Path) -> None:
    sampled = run(config_of(*overrides(tmp_path)))
    store = Store(tmp_path / "store")
    tables = [store.open(folder) for folder in (tmp_path / "store" / "rollouts").iterdir()]
    (table,) = [table for table in tables if table.bounds()[-1] == 64]  # the other holds the base evaluation
    export_file(table, tmp_path / "out.jsonl")
    again = run(config_of(*overrides(tmp_path, f"data.completions={tmp_path / 'out.jsonl'}")))
    assert again["n_train"] == sampled["n_train"]
    assert again["positive_share"] == sampled["positive_share"]
    # Its sampler's log-probabilities are μ here: the same up to rounding, so the results are close, not equal.
    assert again["final"]["pass@1"] == pytest.approx(sampled["final"]["pass@1"], abs=0.2)


def test_lines_may_bring_their_own_problems(tmp_path: Path) -> None:
    rows = [
        {"question": f"Mia has {a} shells. She buys 2 more. How many shells does Mia have now?", "gold": str(a + 2),
         "completion": f" {a}+2={answer}. The answer is {answer}.", "finish": "stop"}
        for a in range(10, 20)
        for answer in (a + 2, a + 3)
    ]  # fmt: skip
    summary = run(
        config_of(*overrides(tmp_path, f"data.completions={lines(tmp_path / 'own.jsonl', rows)}", "algo=dpo"))
    )
    assert summary["n_train"] == 10


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
        run(config_of(*overrides(tmp_path, f"data.completions={lines(tmp_path / 'bad.jsonl', [row])}")))


def test_a_source_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match=r"data\.completions=imported/abc: neither a file nor a table of"):
        run(config_of(*overrides(tmp_path, "data.completions=imported/abc")))
    with pytest.raises(ConfigError, match="iterations must be 1 where data"):
        config_of(*overrides(tmp_path, "data.completions=imported/abc", "iterations=2"))


def test_lines_with_a_gold_of_their_own_are_graded_by_it_whatever_the_data_set_says(tmp_path: Path) -> None:
    known = problems()[0]
    rows = [
        {"problem_id": known.id, "question": known.question, "gold": gold, "completion": " The answer is 7777."}
        for gold in ("7777", known.answer)
    ]
    assert run(config_of(*overrides(tmp_path, f"data.completions={lines(tmp_path / 'own.jsonl', rows)}")))[
        "positive_share"
    ] == 0.5  # fmt: skip


def test_the_same_completions_after_other_prompts_are_scored_again(tmp_path: Path) -> None:
    rows = [{"problem_id": problem.id, "completion": f" The answer is {problem.answer}."} for problem in problems()[:4]]
    source = f"data.completions={lines(tmp_path / 'made.jsonl', rows)}"
    for template in ([], ["data.template='Question: {question}'"], []):
        scored = run(config_of(*overrides(tmp_path, source, *template, f"name=n{len(template)}", "seed=1")))["tokens"]
        assert scored.get("tokens_scored", 0) > 0 or not template
    (tables,) = [[*(tmp_path / "store" / "logprobs").iterdir()]]
    assert len(tables) == 2


def test_places_within_groups() -> None:
    import numpy as np

    assert index_in_group(np.array([2, 0, 2, 2, 0, 1], dtype=np.int32)).tolist() == [0, 0, 1, 2, 1, 0]


@pytest.mark.parametrize(("finish", "ended"), [(None, True), ("stop", True), ("length", False), ("stop_string", False)])
def test_text_ends_by_itself_unless_it_says_otherwise(finish: str | None, ended: bool) -> None:
    """docs/store.md says so: without `finish` an end-of-sequence token is put after the text."""
    import pyarrow as pa

    from topr_exp.models.policy import load_policy
    from topr_exp.sampling.imported import tokenize_completions

    policy = load_policy(config_of().model, "cpu")
    columns = pa.table({"text": [" The answer is 2."], "finish": pa.array([finish], pa.string())})
    (ids,) = tokenize_completions(columns, policy).to_pylist()
    assert (ids[-1] == policy.tokenizer.eos_token_id) == ended
    assert policy.decode(ids) == " The answer is 2."
