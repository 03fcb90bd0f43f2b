"""What a run says of itself: its header, the prompt it shows, the card of its model."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

from tests.composition.test_selection import compose
from tests.conftest import ROOT, config_of, make_graded, overrides, write_lines
from tests.run_folders import write_json
from topr_exp.__main__ import main
from topr_exp.composition.training_set import build_training_set
from topr_exp.config.data import ENDINGS
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import CHAT_TEMPLATES, TEMPLATES
from topr_exp.models.model_folder import weights_fingerprint
from topr_exp.pipeline import run
from topr_exp.runs.console import header
from topr_exp.runs.first_prompt import preview_prompt
from topr_exp.runs.model_card import CARD_FILE, write_card
from topr_exp.runs.provenance import user_overrides as overrides_of
from topr_exp.runs.reward_signs import advise_sign, format_signs, report_reward_signs
from topr_exp.runs.tasks import TrainedOn
from topr_exp.runtime import machine
from topr_exp.types import TOPRError

TOPR = "topr (a_pos=1.0, b_pos=1.0, a_neg=0.0, b_neg=1.0, ratio=sequence, length_normalize=True)"
LEFT_OUT = (
    ", 1 left out: no answer can be read, 1 left out: the question is in test, 1 left out: the prompt is too long"
)
ROUNDS = ["experiment=smoke", "algo=rloo", "schedule.rounds=3", "schedule.prompts=8", "schedule.replay=0.3",
          "optim.batch_size=32"]  # fmt: skip
VERIFIER = ["task=verifier", "task.solver=tiny"]


def shown(*overrides: str, device: str = "cpu", precision: str = "float32") -> dict[str, str]:
    """The header by its rows, for 5 training problems, of which more were left out, and 3 test problems."""
    model = SimpleNamespace(num_parameters=lambda: 598_000)
    policy: Any = SimpleNamespace(model=model, device_description="cpu, float32", device=SimpleNamespace(type=device))
    policy.precision = precision
    nothing, some = SimpleNamespace(unparsable=0, overlapping=0), SimpleNamespace(unparsable=1, overlapping=1)
    sets: Any = SimpleNamespace(train_report=some, test_report=nothing)
    train, test = (SimpleNamespace(problems=[None] * count, too_long=left) for count, left in ((5, 1), (3, 0)))
    config = config_of("output_dir=out", "name=n", *overrides)
    lines = header(config, policy, sets, train, test, TrainedOn(5, 5, "5 of them"), {}).splitlines()  # type: ignore
    return {line[:12].rstrip(): line[12:] for line in lines}


def test_every_row_of_a_plain_run() -> None:
    rows = shown("algo=topr", "baseline=-0.3", "data=gsm8k", "sampler.top_k=5", "sampler.top_p=0.9")
    assert rows.pop("folder").startswith("out/n/topr_gsm8k_tiny_lr1e-4_c-0.3_s0_")
    assert rows == {
        "algorithm": f"{TOPR}, baseline=-0.3, rewards 1 and -1",
        "trained on": f"5 of them{LEFT_OUT}",
        "tested on": "3 problems generated in the form of gsm8k",
        "model": "tiny, 0.60 M parameters, cpu, float32",
        "sampling": "hf (seed=0, temperature=1.0, top_p=0.9, top_k=5, max_new_tokens=64, prompts_per_shard=32); "
        "n=16 to train, eval_n=8 to evaluate",
        "examples": "uniform",
        "training": "adamw (lr=0.0001, weight_decay=0.0, grad_clip=1.0, batch_size=32, epochs=1)",
        "seed": "0",
    }


@pytest.mark.parametrize(
    ("reason", "text"),
    [("no GPU is seen", "prompts_per_shard=32), many times slower than vllm: no GPU is seen; n=8 "),
     (None, "prompts_per_shard=32); n=8 ")],
)  # fmt: skip
def test_a_large_model_that_vllm_does_not_sample_says_why(reason, text, monkeypatch):
    monkeypatch.setattr("topr_exp.runs.console.why_not_vllm", lambda: reason)
    assert text in shown("model=qwen2_5_0_5b", "data=gsm8k", "sampler=hf")["sampling"]
    assert "vllm" not in shown("model=tiny")["sampling"]


@pytest.mark.parametrize(
    ("overrides", "row", "text"),
    [
        (["effective_positive=0.5"], "algorithm", f"{TOPR}, effective_positive=0.5, rewards 1 and -1"),
        (["data.reward=zero_one"], "algorithm", f"{TOPR}, rewards 1 and 0"),
        (ROUNDS, "rounds", "prompts=8, updates=1, rounds=3, replay=0.3"),
        (["iterations=3"], "iterations", "3"),
        (["mu=sampler"], "log μ", "what the sampler drew with"),
        (["compose.n_examples=10", "compose.drop_truncated=true"], "examples",
         "uniform (n_examples=10, drop_truncated=True)"),
        (VERIFIER, "task", "verifier (solver=tiny, solutions=16, test_solutions=32, template="),
        (VERIFIER, "tested on", "3 solutions to problems generated in the form of gsm8k"),
        (["data.test_split=validation"], "tested on", "3 problems generated in the form of gsm8k of the train"),
    ],
)  # fmt: skip
def test_a_setting_is_named_where_it_is_made(overrides: list[str], row: str, text: str) -> None:
    assert text in shown(*overrides)[row]


def test_a_precision_that_is_slow_here_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("flags : avx2\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    assert shown(precision="bfloat16")["precision"] == machine.SLOW_BFLOAT16
    assert "precision" not in shown()


def test_whose_settings_a_folder_takes_has_a_row(own_model: Path) -> None:
    assert shown(f"model={own_model}")["settings"] == "of model=tiny, whose model has its shape"
    assert "settings" not in shown("model=tiny")


@pytest.mark.parametrize(("seen", "processes", "idle"), [(8, 1, True), (8, 8, False), (1, 1, False)])
def test_gpus_that_are_left_idle_are_said(seen, processes, idle, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(seen))))
    rows = shown(f"cluster.processes={processes}", device="cuda")
    assert ("GPUs" in rows) == idle
    if idle:
        assert rows["GPUs"].startswith("1 of 8 are used: cluster.processes=8 divides this run over all")
        assert "cluster.jobs=8" in rows["GPUs"]


@pytest.mark.parametrize(
    ("kind", "rewards", "c", "row", "said"),
    [
        ("pm1", None, 0.3, "correct: > 0 100 %; wrong: < 0 100 %", ""),
        ("zero_one", None, 0.0, "correct: > 0 100 %; wrong: = 0 100 %",
         "topr learns nothing from 100 % of the wrong answers"),
        ("zero_one", None, 0.1, "correct: > 0 100 %; wrong: < 0 100 %", ""),
        ("graded", [1, 0.9, 0.3, 0, 0], 0.0, "correct: > 0 100 %; wrong: > 0 33.3 %, = 0 66.7 %",
         "topr makes 33.3 % of the wrong answers likelier and topr learns nothing from 66.7 % of the wrong answers"),
        ("graded", [1, 0.2, 0.3, 0, 0], 0.2, "correct: > 0 50 %, = 0 50 %; wrong: > 0 33.3 %, < 0 66.7 %",
         "topr makes 33.3 % of the wrong answers likelier"),
    ],
)  # fmt: skip
def test_the_signs_of_r_are_said_before_training(kind, rewards, c, row, said):
    """Two correct completions and three wrong ones."""
    reward = {} if rewards is None else {"reward": [float(number) for number in rewards]}
    candidates = make_graded([0] * 5, [True, True, False, False, False], **reward)
    found = build_training_set(candidates, kind, compose(), "examples", seed=0, iteration=1, baseline=c,
                               effective=None).signs()  # fmt: skip
    assert format_signs(found) == f"R           {row}"
    assert advise_sign(found, "topr") == said + bool(said) * (
        ": their R is not below 0; set data.reward=pm1, or baseline above the reward of wrong answers"
    )


def composed(
    positives: int, n: int, rewards: str = "pm1", given: tuple[float, float] = (1, -1), **weighting: Any
) -> Any:
    """A training set of n completions of one problem."""
    positive = np.arange(n) < positives
    reward = {"reward": np.where(positive, *map(float, given))} if rewards == "given" else {}
    candidates = make_graded(np.zeros(n, np.int64), positive, **reward)
    options = {"baseline": None, "effective": None, **weighting}
    return build_training_set(candidates, rewards, compose(), "examples", seed=0, iteration=1, **options)


@pytest.mark.parametrize(
    ("positives", "rewards", "given", "weighting", "algo", "row", "advice"),
    [
        (23, "pm1", (1, -1), {}, "topr", "0.023: 2.3 % positive, c = 0", "0.15"),
        (23, "pm1", (1, -1), {}, "tis", "0.023: 2.3 % positive, c = 0", "0.15"),
        (23, "pm1", (1, -1), {}, "ppo", "0.023: 2.3 % positive, c = 0", "0.15"),
        (23, "pm1", (1, -1), {}, "sft", None, None),  # wrong answers have no weight whatever c is
        (277, "pm1", (1, -1), {}, "topr", "0.277: 27.7 % positive, c = 0", None),  # the demo
        (49, "pm1", (1, -1), {}, "topr", "0.049: 4.9 % positive, c = 0", "0.15"),
        (50, "pm1", (1, -1), {}, "topr", "0.05: 5 % positive, c = 0", None),
        (500, "pm1", (1, -1), {}, "topr", "0.5: 50 % positive, c = 0", None),
        (501, "pm1", (1, -1), {}, "topr", "0.501: 50.1 % positive, c = 0", "0.15"),
        (23, "pm1", (1, -1), {"effective": 0.15}, "topr", "0.15: 2.3 % positive, c = -0.7646", None),
        (300, "pm1", (1, -1), {"effective": 0.01}, "topr", "0.01: 30 % positive, c = 0.953947", "0.15"),
        (23, "pm1", (1, -1), {"baseline": -1.0}, "topr", "1: 2.3 % positive, c = -1", None),  # positives alone
        (0, "pm1", (1, -1), {}, "topr", "0: 0 % positive, c = 0", None),  # no c changes that: the set's note says so
        (1000, "pm1", (1, -1), {}, "topr", "1: 100 % positive, c = 0", None),
        (23, "zero_one", (1, 0), {"baseline": 0.5}, "topr", "0.023: 2.3 % positive, c = 0.5", "0.118"),
        (23, "given", (1, -1), {}, "topr", "0.023: 2.3 % positive, c = 0", "-0.765"),
        (23, "given", (1, -1), {"baseline": -2.0}, "topr", None, None),  # all answers are made likelier
    ],
)  # fmt: skip
def test_p_tilde_is_said_and_a_line_warns_where_it_is_far_from_the_papers_best(
    positives, rewards, given, weighting, algo, row, advice, capsys
):
    found = composed(positives, 1000, rewards, given, **weighting)
    key = "effective_positive" if rewards == "pm1" else "baseline"
    report_reward_signs(found, config_of(f"algo={algo}").algo, key)
    out, err = capsys.readouterr()
    assert [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("p̃")] == [row] * bool(row)
    wanted = f"the paper's best are p̃ of 0.1 to 0.2 (TOPR, Figure 6): {key}={advice} gives 0.15"
    assert (wanted in err) == bool(advice), err
    assert ("p̃" in err) == bool(advice), err


@pytest.mark.parametrize(
    ("rewards", "given", "key"),
    [("pm1", (1, -1), "effective_positive"), ("pm1", (1, -1), "baseline"), ("zero_one", (1, 0), "baseline"),
     ("given", (3, 1), "baseline")],
)  # fmt: skip
def test_the_setting_that_the_line_names_mends_it(rewards, given, key, capsys):
    start = {"baseline": (given[0] + given[1]) / 2}
    report_reward_signs(composed(600, 1000, rewards, given, **start), config_of().algo, key)
    value = float(re.search(rf"{key}=([\d.-]+) gives", capsys.readouterr().err)[1])
    setting = {"effective" if key == "effective_positive" else key: value}
    assert composed(600, 1000, rewards, given, **setting).weight_of_positives() == pytest.approx(0.15, abs=2e-3)


@pytest.mark.parametrize(
    ("overrides", "by_sign"), [((), True), (("algo=naive",), True), (("algo=sft",), False), (("algo=tis",), True),
                               (("algo.advantage=group",), False)],
)  # fmt: skip
def test_losses_whose_limits_go_by_the_sign(overrides: tuple[str, ...], by_sign: bool) -> None:
    assert config_of("output_dir=out", "name=n", *overrides).algo.limits_by_reward_sign is by_sign


# ---- the first prompt: a dry run's and a run folder's is what the model gets


HEADING = "prompt of the first training problem (27 tokens; the completion begins at ◀):"


def test_a_run_and_a_dry_run_show_the_same_prompt(smoke, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["topr_exp", *overrides(tmp_path), "dry_run=true"])
    assert main() == 0
    shown, _, rows = capsys.readouterr().out.rpartition("\n\n")
    assert shown.splitlines() == [
        HEADING,
        "<bos>Question: Mia has 40 coins. Bea has 4 more than Mia. How many coins does Bea have now?",
        "Answer:◀",
    ]
    assert rows.splitlines()[-1] == "1 run, cluster=local; nothing started"
    assert not list(tmp_path.iterdir())
    assert (smoke[0].folder / "prompt.txt").read_text() == shown + "\n"


def test_worked_examples_stop_strings_and_a_template_of_ones_own() -> None:
    text = preview_prompt(config_of("data.shots=2", "data.train_problems=2", "data.template='Q: {question}\nA:'"))
    assert 'begins at ◀ and ends before "\\nQ:"):\n<bos>Q: A ferry' in text
    assert text.count("\n\nQ: ") == 2
    assert text.endswith("\nA:◀")


def test_a_chat_prompt_goes_through_the_models_template(own_model: Path) -> None:
    path = own_model / "tokenizer_config.json"
    template = "{% for m in messages %}<eos>{{ m['role'] }}: {{ m['content'] }}{% endfor %}<eos>bot:"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    text = preview_prompt(config_of(f"model.path={own_model}", "data.chat=true"))
    assert "\n<eos>user: Mia has" in text, "a template puts a token before the messages, or none"
    assert text.endswith('End with your number, as in "The answer is 12."<eos>bot:◀')


def test_a_verifiers_prompt() -> None:
    text = preview_prompt(config_of("model=tiny_verifier"))
    assert text.endswith("How many coins does Bea have now?\nSolution: {solution}\nVerification:◀")


def test_what_is_on_the_hub_and_what_was_fetched(own_model, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    settings = ["model=llama3_8b", "model.path=owner/own", "data.shots=0"]
    assert preview_prompt(config_of(*settings)).endswith("tokenizer of owner/own, which is not on this machine yet")
    fetched = tmp_path / "hub" / "models--owner--own"
    shutil.copytree(own_model, fetched / "snapshots" / "abc")
    (fetched / "refs").mkdir()
    (fetched / "refs" / "main").write_text("abc")
    text = preview_prompt(config_of(*settings))
    assert text.endswith("\n<bos>Question: {question}\nAnswer:◀")


def test_a_tokenizer_that_is_damaged_is_one_line(own_model: Path) -> None:
    (own_model / "tokenizer.json").write_text("{")
    with pytest.raises(TOPRError, match=r"its tokenizer can't be loaded: ") as caught:
        preview_prompt(config_of(f"model.path={own_model}"))
    assert "\n" not in str(caught.value)


def test_the_documents_table_of_templates_is_the_codes() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    for kind in ENDINGS:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{kind}` |"))
        for template in (TEMPLATES[kind], CHAT_TEMPLATES[kind]):
            assert "`" + template.replace("\n", "\\n") + "`" in row


# ---- the card: read by the hub's own reader, in the way of nothing that reads the model


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = config_of(*overrides(tmp_path_factory.mktemp("runs"), "baseline=-0.3"))
    run(config)
    return config


def test_a_run_leaves_a_card_that_the_hub_reads(finished: Any) -> None:
    text = (finished.folder / "model" / CARD_FILE).read_text()
    summary = json.loads((finished.folder / "summary.json").read_text())
    found = ModelCard(text).data
    assert (found.library_name, found.pipeline_tag) == ("transformers", "text-generation")
    assert found.tags == ["topr_exp", "reinforcement-learning", "topr"]
    assert found.base_model is found.license is found.datasets is None  # the base is a folder here
    assert summary["trained_on"] == "16 problems generated in the form of gsm8k"
    for line in (
        "license: fill in",
        "topr (a_pos=1.0, b_pos=1.0, a_neg=0.0, b_neg=1.0, ratio=sequence",
        "baseline=-0.3",
        f"trained on  {summary['trained_on']}",
        "tested on   8 problems generated in the form of gsm8k",
        "\ntopr_exp.run(...)  # from Python",  # not the words of the tests' command
    ):
        assert line in text
    for row, end in (("base", "base"), ("trained", "final")):
        figures = [f"{100 * summary[end][name]:.1f}" for name in ("pass@1", "maj@4")]
        low, high = (f"{100 * summary[end]['pass@k']['1'][part]:.1f}" for part in ("low", "high"))
        assert re.search(rf"^{row} +{figures[0]} \[{low}, {high}\] +{figures[1]} ", text, re.MULTILINE)


def test_the_model_is_the_same_without_its_card_which_a_stopped_run_still_gets(finished: Any) -> None:
    folder = finished.folder / "model"
    before = weights_fingerprint(folder)
    (folder / CARD_FILE).write_text("filled in")
    assert weights_fingerprint(folder) == before
    run(finished)  # finished before: nothing is written again
    assert (folder / CARD_FILE).read_text() == "filled in"
    for name in ("DONE", "summary.json", f"model/{CARD_FILE}"):
        (finished.folder / name).unlink()
    run(finished)
    assert (folder / CARD_FILE).read_text().startswith("---\n# license")


@pytest.mark.parametrize(
    ("of_data", "datasets"),
    [(2, ["EleutherAI/hendrycks_math"]), (0, None)],  # 0: completions made elsewhere brought all problems
)
def test_a_model_of_the_hub_and_its_data_are_named(tmp_path: Path, of_data: int, datasets: list[str] | None) -> None:
    config = config_of("model=llama3_8b", "data=math", f"output_dir={tmp_path}")
    shares = dict.fromkeys(("pass@1", "correct", "incorrect", "invalid"), 0.5)
    figures = {**shares, "pass@k": {"1": {"value": 0.5, "low": None, "high": None}}, "problems": 1}
    summary = {"base": figures, "final": figures, "problems": {"test": 1}, "n_train": 3, "positive_share": 0.5}
    environment = {"versions": {}, "git_commit": None, "command": ["a/topr_exp/__main__.py", "-cd", "a b", "seed=1"]}
    write_card(tmp_path, config, {**summary, "baseline": 0.0}, environment, TrainedOn(2, of_data, "x"), "the header")
    text = (tmp_path / CARD_FILE).read_text()
    found = ModelCard(text).data
    assert found.base_model == "meta-llama/Meta-Llama-3-8B-Instruct"
    assert found.datasets == datasets
    assert "trained                  50.0         50.0" in text
    assert "\nthe header\n" in text
    assert "python -m topr_exp -cd 'a b'" in text
    assert "commit" not in text  # of an installed package


@pytest.mark.parametrize("mixed", [False, True])
def test_header_summary_and_card_name_the_problems_that_imported_completions_answer(tmp_path, mixed, capsys):
    known = load_problems(config_of(*overrides(tmp_path)).data).train[0]
    rows = [{"problem_id": known.id, "completion": f"The answer is {known.answer}."}]
    rows += [
        {"question": f"How much is {i} + 1?", "gold": str(i + 1), "completion": "The answer is 3."} for i in (1, 2)
    ]
    write_lines(tmp_path / "made.jsonl", rows)
    more = ["compose.mix=0.5"] if mixed else []
    config = config_of(*overrides(tmp_path, f"data.completions={tmp_path / 'made.jsonl'}", *more))
    summary = run(config)
    count = 16 if mixed else 1
    named = f"{count} problems generated in the form of gsm8k, 2 problems that {tmp_path / 'made.jsonl'} brought"
    assert summary["trained_on"] == named
    assert summary["problems"] == {"train": count + 2, "test": 8}
    for text in (capsys.readouterr().out, (config.folder / "model" / CARD_FILE).read_text()):
        assert f"\ntrained on  {named}\n" in text


def test_a_run_names_its_part_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["topr", "-m", "seed=0,1"])
    assert overrides_of(tmp_path / "a") == ["seed=0,1"]
    stored = {"number": 1, "settings": {}, "cwd": "/", "arguments": [], "launched": 0.0}
    write_json(tmp_path / "launch.json", {**stored, "overrides": ["seed=1"]})
    assert overrides_of(tmp_path) == ["seed=1"]
