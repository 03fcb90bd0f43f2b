"""Lines that a run prints: its header, the signs of its rewards, its first prompt."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.composition.test_selection import compose
from tests.conftest import config_of, document, each_row, make_graded, overrides, refused, write_file, write_lines
from tests.observed import OBSERVED
from tests.sweep_tools import answer
from topr_exp.composition.selection import select
from topr_exp.composition.training_set import build_training_set
from topr_exp.config.data import ENDINGS
from topr_exp.config.yamls import OwnFolder
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import CHAT_TEMPLATES, TEMPLATES
from topr_exp.runs.console import evaluation_command, format_header
from topr_exp.runs.first_prompt import preview_prompt
from topr_exp.runs.training_report import advise_sign, format_signs, report_reward_signs
from topr_exp.runtime.machine import describe_slow_precision

# ---- the header


StandIn = SimpleNamespace


def header_rows(*words, precision="float32"):
    """The header by its rows, for 5 training problems, of which more were left out, and 3 test problems."""
    config = config_of("output_dir=out", "name=n", *words)
    model = StandIn(num_parameters=lambda: 598_000)
    policy = StandIn(model=model, device_description="cpu, float32", device=StandIn(type="cpu"), precision=precision)
    left_out = StandIn(unparsable=1, overlapping=1)
    nothing_left_out = StandIn(unparsable=0, overlapping=0)
    sets = StandIn(train_report=left_out, test_report=nothing_left_out)
    train = StandIn(problems=[None] * 5, too_long=1)
    test = StandIn(problems=[None] * 3, too_long=0)
    return rows_of(format_header(config, policy, sets, train, test, "5 of them", {}))


def rows_of(text):
    return {line[:12].rstrip(): line[12:] for line in text.splitlines()}


PLAIN_HEADER = """
algorithm   topr (a_pos=1.0, b_pos=1.0, a_neg=0.0, b_neg=1.0, ratio=sequence, length_normalize=true), baseline=-0.3, rewards 1 and -1
trained on  5 of them, 1 left out: no answer can be read, 1 left out: the question is in test, 1 left out: the prompt is too long
tested on   3 problems generated in the form of gsm8k
model       tiny, 0.60 M parameters, cpu, float32
sampling    hf (seed=0, temperature=1.0, top_p=0.9, top_k=5, max_new_tokens=64, prompts_per_shard=32); n=16 to train, eval_n=8 to evaluate
examples    uniform
training    adamw (lr=0.0001, grad_clip=1.0, batch_size=32, epochs=1)
seed        0
"""  # noqa: E501


def test_the_header_of_a_plain_run_has_these_rows_and_no_others():
    rows = header_rows("algo=topr", "baseline=-0.3", "data=gsm8k", "sampler.top_k=5", "sampler.top_p=0.9")

    assert rows.pop("folder").startswith("out/n/topr_gsm8k_tiny_lr1e-4_c-0.3_s0_")
    assert rows == rows_of(PLAIN_HEADER.strip())


# Settings | a row of the header | a part of it
ROWS = """
effective_positive=0.5 | algorithm | length_normalize=true), effective_positive=0.5, rewards 1 and -1
data.reward=zero_one | algorithm | length_normalize=true), rewards 1 and 0
experiment=smoke algo=rloo schedule.prompts=8 optim.batch_size=32 schedule.replay=0.3 | rounds | prompts=8, updates=1,
iterations=3 | iterations | 3
mu=sampler | log μ | what the sampler drew with
compose.n_examples=10 compose.drop_truncated=true | examples | uniform (n_examples=10, drop_truncated=true)
task=verifier task.solver=tiny task.chat=false | task | verifier (solver=tiny, solutions=16, test_solutions=32
task=verifier task.solver=tiny task.chat=false | task | Problem: {question}\\n\\nSolution: {solution}\\n\\nWork
task=verifier task.solver=tiny task.chat=false | tested on | 3 solutions to problems generated in the form of gsm8k
data.test_split=validation | tested on | 3 problems generated in the form of gsm8k of the training split
"""


@each_row("words row text", ROWS)
def test_a_setting_is_named_where_it_is_made(words, row, text):
    assert text in header_rows(*words.split())[row]


def test_the_command_of_an_evaluation_names_the_folder_of_ones_own_yamls(monkeypatch):
    config = config_of(*OBSERVED)
    monkeypatch.setattr(OwnFolder, "path", Path("my conf"))

    command = evaluation_command(config)

    assert command.startswith("python -m topr_exp.evaluate --config-dir 'my conf' model=")
    assert command.endswith(" sampler=observed")


def test_a_precision_that_is_slow_here_is_said():
    rows = header_rows(precision="bfloat16")

    assert rows.get("precision", "") == describe_slow_precision("cpu", "bfloat16")


# ---- the signs of R, and p̃


def training_set(is_correct, kind="pm1", rewards=None, baseline=None, effective=None):
    """A training set of completions of one problem."""
    columns = {}
    if rewards is not None:
        columns["reward"] = np.asarray(rewards, float)
    one_problem = np.zeros(len(is_correct), np.int64)
    graded = make_graded(one_problem, np.asarray(is_correct), **columns)
    selection = select(graded, compose(), "examples", seed=0, iteration=1)
    return build_training_set(graded, selection, kind, baseline=baseline, effective=effective)


# Kind of rewards | rewards | c | the row of R | what a line warns of
SIGNS = """
"pm1" | None | 0.3 | "positives: > 0 100 %; negatives: < 0 100 %" | ""
"zero_one" | None | 0.0 | "positives: > 0 100 %; negatives: = 0 100 %" | "topr learns nothing from 100 % of the negatives"
"graded" | [1, 0.9, 0.3, 0, 0] | 0.0 | "positives: > 0 100 %; negatives: > 0 33.3 %, = 0 66.7 %" | "topr makes 33.3 % of the negatives likelier and topr learns nothing from 66.7 % of the negatives"
"""  # noqa: E501


@each_row("kind rewards c row advice", SIGNS, literals=True)
def test_the_signs_of_r_are_said_before_training(kind, rewards, c, row, advice):
    examples = training_set([True, True, False, False, False], kind, rewards, baseline=c)

    signs = examples.sign_shares()
    line = advise_sign(signs, "topr")

    assert format_signs(signs) == f"R           {row}"
    assert line.partition(": their R is not below 0; set baseline above their reward")[0] == advice


# Correct ones of 1000 completions | kind of rewards | c or p̃ where one is set | the row of p̃ | what gives 0.15
WEIGHTS = """
49 | "pm1" | {} | "0.049: 4.9 % positive, c = 0" | "effective_positive=0.15"
50 | "pm1" | {} | "0.05: 5 % positive, c = 0" | None
500 | "pm1" | {} | "0.5: 50 % positive, c = 0" | None
501 | "pm1" | {} | "0.501: 50.1 % positive, c = 0" | "effective_positive=0.15"
23 | "pm1" | {"effective": 0.15} | "0.15: 2.3 % positive, c = -0.7646" | None
23 | "pm1" | {"baseline": -1.0} | "1: 2.3 % positive, c = -1" | None
0 | "pm1" | {} | "0: 0 % positive, c = 0" | None
23 | "zero_one" | {"baseline": 0.5} | "0.023: 2.3 % positive, c = 0.5" | "baseline=0.118"
23 | "given" | {} | "0.023: 2.3 % positive, c = 0" | "baseline=-0.765"
23 | "given" | {"baseline": -2.0} | None | None
23 | "graded" | {} | None | None
"""


def report_signs(capsys, algo, correct_count, kind, options):
    """What is printed of p̃ for 1000 completions, and what is warned of."""
    is_correct = np.arange(1000) < correct_count
    rewards = {"given": np.where(is_correct, 1, -1), "graded": np.where(is_correct, 1 + np.arange(1000), -1)}.get(kind)
    key = "effective_positive" if kind == "pm1" else "baseline"
    report_reward_signs(training_set(is_correct, kind, rewards, **options), config_of(f"algo={algo}").algo, key)
    out, err = capsys.readouterr()
    rows = [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("p̃")]
    return rows, err


@each_row("correct_count kind options row setting", WEIGHTS, literals=True)
def test_p_tilde_is_said_and_a_line_warns_where_it_is_far_from_the_papers_best(
    correct_count, kind, options, row, setting, capsys
):
    rows, err = report_signs(capsys, "topr", correct_count, kind, options)

    assert rows == ([] if row is None else [row])
    if setting is None:
        assert "p̃" not in err
    else:
        assert f"the paper's best are p̃ of 0.1 to 0.2 (TOPR, Figure 6): {setting} gives 0.15" in err


def test_p_tilde_is_not_said_of_a_loss_in_which_a_baseline_cancels(capsys):
    rows, err = report_signs(capsys, "sft", 23, "pm1", {})

    assert rows == []
    assert "p̃" not in err


LIMITS = """
"algo=topr" | True
"algo=ppo" | True
"algo=sft" | False
"algo.advantage=group" | False
"""


@each_row("word lowers", LIMITS, literals=True)
def test_losses_that_lower_negative_rewards_alone(word, lowers):
    assert config_of(word).algo.lowers_negative_rewards_alone is lowers


# ---- the first prompt: a dry run's and a run folder's is what the model gets

FIRST_PROMPT = """prompt of the first training problem (27 tokens; the completion begins at ◀):
<bos>Question: Mia has 40 coins. Bea has 4 more than Mia. How many coins does Bea have now?
Answer:◀"""


def test_a_run_and_a_dry_run_show_the_same_prompt(smoke, tmp_path):
    outcome = answer("topr_exp", *overrides(tmp_path), "dry_run=true")

    prompt, _, rows = outcome.stdout.rpartition("\n\n")
    assert prompt == FIRST_PROMPT
    assert rows.splitlines()[-1] == "1 run on this machine; nothing started"
    assert not list(tmp_path.iterdir())
    config, _ = smoke
    assert (config.folder / "prompt.txt").read_text() == prompt + "\n"


def test_a_preview_shows_worked_examples_stop_strings_and_ones_own_template():
    prompt = preview_prompt(config_of("data.shots=2", "data.train_problems=2", "data.template='Q: {question}\nA:'"))

    assert 'begins at ◀ and ends before "\\nQ:"):\n<bos>Q: A ferry' in prompt
    assert prompt.count("\n\nQ: ") == 2
    assert prompt.endswith("\nA:◀")


def test_a_log_brings_the_prompts_of_training_so_the_first_test_prompt_is_shown(tmp_path):
    row = {"prompt": "2 + 2 =", "gold": "4", "completion": " 4", "reward": 1.0}
    log = write_lines(tmp_path / "log.jsonl", [row])
    log_alone = config_of(f"data.completions={log}", "data.reward=given")
    log_and_samples = config_of(f"data.completions={log}", "compose.mix=0.5")

    prompt = preview_prompt(log_alone)

    assert prompt.startswith("prompt of the first test problem (")
    assert load_problems(log_alone.data).test[0].question in prompt
    assert preview_prompt(log_and_samples) == FIRST_PROMPT


def test_a_verifiers_prompt_leaves_room_for_the_solution():
    prompt = preview_prompt(config_of("model=tiny_verifier"))

    assert prompt.endswith("How many coins does Bea have now?\nSolution: {solution}\nVerification:◀")


def test_the_prompt_of_a_model_on_the_hub_is_shown_once_its_tokenizer_is_fetched(own_model, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    config = config_of("model=llama3_8b", "model.path=owner/own", "data.shots=0")
    assert preview_prompt(config).endswith("tokenizer of owner/own, which is not on this machine yet")

    fetched = tmp_path / "hub/models--owner--own"
    shutil.copytree(own_model, fetched / "snapshots/abc")
    write_file(fetched / "refs/main", "abc")
    assert preview_prompt(config).endswith("\n<bos>Question: {question}\nAnswer:◀")


def test_a_tokenizer_that_is_damaged_is_one_line(own_model):
    (own_model / "tokenizer.json").write_text("{")

    with refused("its tokenizer can't be loaded: "):
        preview_prompt(config_of(f"model.path={own_model}"))


@pytest.mark.parametrize("kind", ENDINGS)
def test_the_documents_table_of_templates_is_the_codes(kind):
    lines = document("models.md").splitlines()
    (row,) = [line for line in lines if line.startswith(f"| `{kind}` |")]

    for template in (TEMPLATES[kind], CHAT_TEMPLATES[kind]):
        assert "`" + template.replace("\n", "\\n") + "`" in row
