"""Training on completions made elsewhere."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from tests.conftest import ROOT, config_of, overrides, write_lines
from topr_exp.api import read_completions
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter, tokenize_prompts
from topr_exp.grading.verdicts import grade_by_log
from topr_exp.imported.encoding import encode_log, match_problems, tokenize_completions
from topr_exp.imported.log import open_log
from topr_exp.imported.log_report import inspect_log
from topr_exp.models.policy import load_policy
from topr_exp.pipeline import run
from topr_exp.sampling.completions import Completions
from topr_exp.store import Store
from topr_exp.store.__main__ import main
from topr_exp.store.completions import export_file
from topr_exp.store.shards import write_shard
from topr_exp.training.trainer import Trainer
from topr_exp.types import Problem, TOPRError


def problems() -> Any:
    return load_problems(config_of("experiment=smoke").data).train


def test_text_alone_is_tokenized_and_scored_by_the_starting_model(tmp_path: Path) -> None:
    rows = []
    for problem in problems()[:6]:
        rows += [{"problem_id": problem.id, "completion": f" The answer is {a}."} for a in (problem.answer, "7777")]
    file = write_lines(tmp_path / "made.jsonl", rows)
    summary = run(config_of(*overrides(tmp_path, f"data.completions={file}")))
    assert (summary["n_train"], summary["positive_share"]) == (12, 0.5)
    assert summary["tokens"]["tokens_scored"] > 0
    assert "tokens_sampled" not in summary["tokens"]


def test_a_prompt_that_leaves_too_little_room_to_sample_may_be_imported(tmp_path: Path) -> None:
    config = config_of(*overrides(tmp_path))
    policy, prompter = load_policy(config.model, "cpu"), build_prompter(config.data)
    asked = tokenize_prompts(problems(), prompter, policy, 1)
    rows = [{"problem_id": one.id, "completion": " The answer is 1."} for one in asked.problems]
    room = policy.context - max(map(len, asked.prompts)) + 1
    words = (f"data.completions={write_lines(tmp_path / 'all.jsonl', rows)}", f"sampler.max_new_tokens={room}")
    summary = run(config_of(*overrides(tmp_path, *words, "data.test_problems=1", "data.eval_n=1")))
    assert tokenize_prompts(problems(), prompter, policy, room).too_long > 0
    assert (summary["n_train"], summary["too_long"]["train"]) == (len(rows), 0)
    assert summary["trained_on"] == f"{len(rows)} problems generated in the form of gsm8k"


def test_what_one_run_sampled_trains_another_alike_after_export_and_import(smoke: Any, tmp_path: Path) -> None:
    config, sampled = smoke
    store = Store(config.store)
    tables = [store.open(folder) for folder in (config.store / "rollouts").iterdir()]
    (table,) = [table for table in tables if table.row_count() == 64]  # the other holds the base evaluation
    export_file(table, tmp_path / "out.jsonl")
    again = run(config_of(*overrides(tmp_path, f"data.completions={tmp_path / 'out.jsonl'}")))
    assert (again["n_train"], again["positive_share"]) == (sampled["n_train"], sampled["positive_share"])
    # Its sampler's log-probabilities are μ here: the same up to rounding, so the results are close, not equal.
    assert again["final"]["pass@1"] == pytest.approx(sampled["final"]["pass@1"], abs=0.2)


def imported(
    tmp_path: Path, rows: list[dict[str, Any]], *words: str, whole: int | None = None, **more: Any
) -> Completions:
    """What a file of these lines becomes beside the problems of the smoke experiment."""
    config = config_of("experiment=smoke", *words)
    prompter, policy = build_prompter(config.data), load_policy(config.model, "cpu")
    data = dataclasses.replace(config.data, completions=str(write_lines(tmp_path / "own.jsonl", rows)), **more)
    log = open_log(data, Store(tmp_path))
    return encode_log(log, data, policy, problems=problems(), prompter=prompter, group_size=whole)


def test_lines_answer_problems_by_id_or_bring_their_own_with_a_gold_that_wins(tmp_path: Path) -> None:
    known, other = problems()[:2]
    own = {"problem_id": known.id, "question": known.question, "completion": "x"}
    golds = ["7777", known.answer, "7777"]
    rows = [own | {"gold": gold} for gold in golds] + [{"problem_id": other.id, "completion": "y"}]
    rows.append({"question": "2 + 2?", "gold": "4", "completion": "z"})
    found = imported(tmp_path, rows)
    answers = [(problem.id, problem.answer) for problem in found.problems]
    assert answers == [(known.id, "7777"), (known.id, known.answer), (other.id, other.answer), ("imported/000003", "4")]
    assert found.problem_index.tolist() == [0, 1, 0, 2, 3]
    assert found.sample_index.tolist() == [0, 0, 1, 0, 0]
    assert not found.has("mu_logp")


def test_a_problem_keeps_its_fields_in_a_log_that_brings_its_question() -> None:
    known = [Problem("a", "q", "1", fields={"hint": "h"})]
    row = {"problem_id": ["a"], "question": ["q?"], "gold": ["2"], "text": ["x"]}
    (one,) = match_problems(pa.table(row), known, "log", is_graded=True).problems
    assert (one.question, one.answer, one.fields) == ("q?", "2", {"hint": "h"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem_id": "nowhere", "completion": "x"}, "completion 1 answers problem_id 'nowhere', which is not among"),
        ({"question": "q", "gold": "1", "completion": "x", "tokens": [99999]}, "completion 1 has token id 99999"),
        ({"question": "q", "gold": "1", "completion": "", "finish": "length"}, "completion 1 is empty"),
        ({"prompt": "q", "completion": "x"}, "completion 1 has no gold to grade it by; data.reward=given"),
        ({"prompt": "q", "gold": "1", "tokens": [5] * 2048}, "completion 1 and its prompt have 20"),
        ({"prompt_tokens": [99999], "gold": "1", "completion": "x"}, "completion 1 has token id 99999"),
        ({"prompt": [{"role": "user", "content": "q"}], "gold": "1", "completion": "x"}, "no chat template"),
    ],
)
def test_what_cannot_be_trained_on_is_one_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(TOPRError, match=message):
        imported(tmp_path, [row])


def test_completions_that_the_model_cannot_take_may_be_left_out(tmp_path, capsys):
    rows = [{"prompt": "q", "gold": "1", "tokens": ids} for ids in ([5], [99999], [6], [5] * 2048)]
    found = imported(tmp_path, rows, skip_malformed=True)
    assert [ids.tolist() for ids in found.tokens] == [[5], [6]]
    assert found.sample_index.tolist() == [0, 1]
    assert "warning: 2 malformed completions left out: data.completions=" in capsys.readouterr().err
    assert imported(tmp_path, rows[::2]).stored.rollouts != found.stored.rollouts
    with pytest.raises(TOPRError, match="completion 1 has token id 99999"):
        imported(tmp_path, rows[1:2], skip_malformed=True)


def test_a_source_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match=r"data\.completions=imported/abc: neither a file nor an imported table of"):
        run(config_of(*overrides(tmp_path, "data.completions=imported/abc")))


def test_other_prompts_and_no_others_make_another_name_so_that_they_are_scored_again(tmp_path: Path) -> None:
    rows = [{"problem_id": problem.id, "completion": "x"} for problem in problems()[:4]]
    templates = [[], ["data.template='Question: {question}'"], []]
    first, other, again = (imported(tmp_path, rows, *words).stored.rollouts for words in templates)
    assert first == again != other


@pytest.mark.parametrize(("finish", "ended"), [(None, True), ("stop", True), ("length", False), ("stop_string", False)])
def test_text_ends_by_itself_unless_it_says_otherwise(finish: str | None, ended: bool) -> None:
    """docs/rollouts.md says so: without `finish` an end-of-sequence token is put after the text."""
    policy = load_policy(config_of().model, "cpu")
    columns = pa.table({"text": [" The answer is 2."], "finish": pa.array([finish], pa.string())})
    (ids,) = tokenize_completions(columns, policy).to_pylist()
    assert (ids[-1] == policy.tokenizer.eos_token_id) == ended
    assert policy.decode(ids) == " The answer is 2."


CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def test_a_prompt_is_taken_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text as it is, ids as they are, messages through the chat template: all three are one prompt, and one group."""
    policy = load_policy(config_of().model, "cpu")
    policy.tokenizer.chat_template = CHAT
    monkeypatch.setitem(globals(), "load_policy", lambda *given: policy)
    ids = policy.encode(text := "<user>2 + 2?<a>")
    rows: list[dict[str, Any]] = [
        {"prompt": text},
        {"prompt": [{"role": "user", "content": "2 + 2?"}]},
        {"prompt_tokens": ids.tolist()},
    ]
    for row in rows:
        found = imported(tmp_path, [row | {"completion": "x", "reward": 0.5}], reward="given")
        assert found.prompt_of(0).tolist() == ids.tolist()
        assert found.reward is not None
        assert found.reward.tolist() == [0.5]
    policy.tokenizer.chat_template = "{{ raise_exception('No system message, please') }}"
    with pytest.raises(TOPRError, match=r"chat template refuses the messages .* \(No system message, please\)$"):
        imported(tmp_path, [rows[1] | {"completion": "x", "reward": 0.5}], reward="given")


def test_a_limit_says_which_rows_were_cut_off(tmp_path: Path) -> None:
    policy = load_policy(config_of().model, "cpu")
    size = len(policy.tokenizer(" The answer is 2.", add_special_tokens=False)["input_ids"])
    rows = [{"prompt": "?", "gold": "2", "completion": text} for text in (" The answer is 2.", " The answer")]
    plain, limited = (imported(tmp_path, rows, *more) for more in ([], [f"data.completion_limit={size}"]))
    ends = [[row[-1] in policy.eos_ids for row in one.tokens] for one in (plain, limited)]
    assert ends == [[True, True], [False, True]]
    assert limited.is_truncated.tolist() == [True, False]
    other = imported(tmp_path, rows, f"data.completion_limit={size + 1}")
    assert len({each.stored.rollouts for each in (plain, limited, other)}) == 3


def test_complete_groups_go_to_losses_of_groups(tmp_path: Path) -> None:
    rows = [{"prompt": name, "gold": "2", "completion": f" {at}"} for name in "abc" for at in range(3 - (name == "b"))]
    found = imported(tmp_path, rows, whole=3)
    assert found.problem_index.tolist() == [0, 0, 0, 2, 2, 2]
    assert found.stored.bounds == [0, 6]
    with pytest.raises(TOPRError, match=r"^data\.n=4: no prompt of .* has so many completions; they have 2, 3$"):
        imported(tmp_path, rows, whole=4)


@pytest.mark.parametrize(
    "asked", [{}, {"whole": 3}, {"skip_malformed": True}, {"completion_limit": 4}], ids=lambda asked: "".join(asked)
)
def test_verify_knows_which_tables_have_all_rows_of_a_log(tmp_path: Path, asked: dict[str, Any], capsys: Any) -> None:
    rows = [{"prompt": name, "gold": "2", "completion": f" {at}"} for name in "abc" for at in range(3 - (name == "b"))]
    rows[1] |= {"tokens": [99999]} if asked == {"skip_malformed": True} else {}
    rows = [{"tokens": [5], **row} for row in rows]
    rollouts = imported(tmp_path, rows, **asked)
    some_rows = asked.keys() & {"whole", "skip_malformed"}
    assert (len(rollouts) < len(rows)) == bool(some_rows)
    store = Store(tmp_path)
    verdicts = grade_by_log(rollouts.with_columns({"reward": pa.array(np.ones(len(rollouts)))}), 0.5, store)
    assert main(["--root", str(store.root), "verify"]) == 0
    table = store.open(store.root / verdicts.stored.verdicts)
    write_shard(table.shard_file(0), table.shard(0).slice(1))
    assert main(["--root", str(store.root), "verify"]) == int(not some_rows)


def log_of(folder: Path, **more: Any) -> Path:
    """Four answers to each of 16 prompts, with rewards that no grader would give; as a Parquet file."""
    rows = [
        {
            "prompt": f"Question: {p.question}\nAnswer:",
            "completion": f" The answer is {k}.",
            "score": float(k == 1),
            **more,
        }
        for p in problems()
        for k in range(4)
    ]
    pd.DataFrame(rows).to_parquet(folder / "log.parquet")
    return folder / "log.parquet"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


def trained(outputs: Path, *more: str, **columns: Any) -> tuple[dict[str, Any], Any]:
    """A run on the log, and the record of its first update."""
    file = log_of(outputs, **columns)
    more = (f"data.completions={file}", "data.reward=given", "data.test_problems=2", "data.eval_n=1", *more)
    config = config_of(*overrides(outputs, *more))
    return run(config), json.loads((config.folder / "metrics.jsonl").read_text().splitlines()[0])


def test_a_log_s_rewards_are_trained_on_without_gold_and_grader(outputs, monkeypatch, capsys):
    summary, record = trained(outputs)
    assert (summary["n_train"], summary["positive_share"], summary["mean_reward"]) == (64, 0.25, 0.25)
    assert record["kl_mu"] == pytest.approx(0, abs=1e-6)
    printed = capsys.readouterr().out
    assert "reward from score" in printed
    assert "64 completions of 16 prompts, 4 of each" in printed
    assert "taken for the model that drew them" in printed
    (folder,) = {path.parents[1] for path in outputs.rglob("iteration-1/sources.json")}
    drawn = read_completions(folder)
    assert (len(drawn), drawn.chosen.sum(), drawn.reward.mean()) == (64, 64, 0.25)
    assert (drawn.verdict == "correct").equals(drawn.reward > 0)


@pytest.mark.parametrize(
    "more",
    [
        ("algo=naive", "mu=none"),
        pytest.param(("algo=sft", "mu=none"), marks=pytest.mark.extended),
        pytest.param(("algo=asymre", "mu=none"), marks=pytest.mark.extended),
        ("algo=agro",),
        ("algo=dpo", "mu=none"),
    ],
)
def test_losses_on_a_log(outputs: Path, more: tuple[str, ...]) -> None:
    """Without μ nothing is scored, and no metric speaks of it; the gradient is that of a scored μ."""
    summary, record = trained(outputs, *more)
    if "mu=none" not in more:
        assert summary["n_train"] == 64
        return
    pairs = "algo=dpo" in more
    assert ("tokens_scored" in summary["tokens"]) == pairs
    assert ("kl_mu" in record) == pairs
    _, with_mu = trained(outputs, more[0])
    assert record["grad_norm"] == pytest.approx(with_mu["grad_norm"], rel=1e-5)


def test_inspect_takes_a_file_of_any_name(tmp_path: Path) -> None:
    file = log_of(tmp_path).rename(tmp_path / "it's log(1),a=b.parquet")
    assert inspect_log(str(file), [])["log"] == "64 completions of 16 prompts, 4 of each"


def test_completions_of_whole_groups_are_read_beside_their_own_verdicts(tmp_path: Path) -> None:
    log = pd.read_parquet(log_of(tmp_path)).drop(index=[1, 9])  # of two groups three are left
    log.to_parquet(file := tmp_path / "uneven.parquet")
    given = ("data.n=4", f"data.completions={file}", "data.reward=given", "data.test_problems=2", "data.eval_n=1")
    whole = run(config_of(*overrides(tmp_path, "algo=grpo", "optim.whole_groups=true", *given)))
    assert whole["n_train"] == 56
    run(config := config_of(*overrides(tmp_path, "algo=agro", *given)))
    (tmp_path / "moved").mkdir()
    for part in (config.store, config.folder.parent):
        part.rename(tmp_path / "moved" / part.name)
    drawn = read_completions(tmp_path / "moved" / config.folder.relative_to(tmp_path))
    assert (len(drawn), drawn.chosen.sum()) == (56, 56)
    assert (drawn.verdict == "correct").equals(drawn.text == " The answer is 1.")
    folder = tmp_path / "moved" / config.folder.relative_to(tmp_path)
    (folder / "iteration-1" / "examples.npy").write_bytes(b"")
    with pytest.raises(TOPRError, match=r"examples\.npy can't be read"):
        read_completions(folder)


def test_mu_is_whose_it_is_said_to_be(tmp_path: Path) -> None:
    """The log's own by default, the named model's where one is, refused where mu=sampler finds none."""
    ids = load_policy(config_of().model, "cpu").tokenizer(" The answer is 1.", add_special_tokens=False)["input_ids"]
    own = {"tokens": ids, "logprobs": [-1.0 - 0.1 * (place % 2) for place in range(len(ids))]}
    words = ((), ("mu=sampler",), ("mu_model=tiny_noise",))
    logged, sampled, named = (trained(tmp_path, *more, **own)[1]["kl_mu"] for more in words)
    assert logged == sampled > 0.1
    assert logged != named > 1e-4
    with pytest.raises(TOPRError, match=r"^mu=sampler: .* has no log-probabilities of its tokens$"):
        trained(tmp_path, "mu=sampler", "name=b")


def test_a_loss_of_groups_refuses_a_log_in_which_a_prompt_has_a_single_completion(tmp_path: Path) -> None:
    log = pd.read_parquet(log_of(tmp_path)).drop(index=[0, 1, 2])
    log.to_parquet(file := tmp_path / "alone.parquet")
    more = ("data.n=4", f"data.completions={file}", "data.reward=given", "data.test_problems=2")
    with pytest.raises(TOPRError, match=r"^algo=grpo compares .*: 1 of 16 prompts of .* have a single one$"):
        run(config := config_of(*overrides(tmp_path, "algo=grpo", *more, "data.eval_n=1")))
    assert not (config.folder / "eval.jsonl").exists()
    row = {"problem_id": problems()[0].id, "completion": " The answer is 7."}  # in the group of those that are sampled
    given = f"data.completions={write_lines(tmp_path / 'one.jsonl', [row])}"
    assert run(config_of(*overrides(tmp_path, "algo=grpo", "data.n=4", given, "compose.mix=0.02")))


# ---- TRL trains and logs its completions; our first gradient on that log is TRL's


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
