"""Training on completions made elsewhere."""

import dataclasses
import json

import pandas as pd
import pyarrow as pa
import pytest

from tests.conftest import config_of, each_row, lines_of, refused, small_config, values_of, write_lines
from topr_exp.api import read_completions
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter, tokenize_prompts
from topr_exp.imported.encoding import encode_log, match_problems, tokenize_completions
from topr_exp.imported.log import open_log
from topr_exp.imported.overlap import count_asking, warn_of_test_questions
from topr_exp.models.policy import load_policy
from topr_exp.pipeline import run
from topr_exp.report import problem_results, read_run
from topr_exp.runtime import distributed
from topr_exp.store import Store
from topr_exp.store.completions import export_file
from topr_exp.types import Problem

FEW_TESTS = ("data.test_problems=2", "data.eval_n=1")
PROBLEMS = load_problems(config_of("experiment=smoke").data).train
KNOWN, OTHER = PROBLEMS[:2]


@pytest.fixture(scope="module")
def tiny():
    return load_policy(config_of().model, "cpu")


@pytest.fixture
def encode(tiny, tmp_path):
    """A function: what a file of these lines becomes beside the problems of the smoke experiment."""

    def encode(rows, *words, policy=tiny, problems=PROBLEMS, group_size=None, **options_of_data):
        path = write_lines(tmp_path / "own.jsonl", rows)
        data = config_of("experiment=smoke", *words).data
        data = dataclasses.replace(data, completions=str(path), **options_of_data)
        log = open_log(data, Store(tmp_path))
        return encode_log(log, data, policy, problems=problems, group_size=group_size)

    return encode


# ---- from rows to completions


def test_one_process_of_a_run_reads_the_lines(encode, tmp_path, monkeypatch):
    rows = [{"question": "2 + 2?", "gold": "4", "completion": "z"}]
    name = encode(rows).stored.rollouts
    (folder,) = (tmp_path / "imported").iterdir()
    monkeypatch.setattr(distributed, "_rank", 1)
    monkeypatch.setattr(distributed, "broadcast", lambda value: (f"imported/{folder.name}", ""))

    assert encode([{}]).stored.rollouts == name


def test_lines_answer_problems_by_id_or_bring_their_own_with_a_gold_that_wins(encode):
    known_question = {"problem_id": KNOWN.id, "question": KNOWN.question, "completion": "x"}
    rows = [
        known_question | {"gold": "7777"},
        known_question | {"gold": KNOWN.answer},
        known_question | {"gold": "7777"},
        {"problem_id": OTHER.id, "completion": "y"},
        {"question": "2 + 2?", "gold": "4", "completion": "z"},
    ]

    completions = encode(rows)

    assert values_of(completions.problems, "id") == [KNOWN.id, KNOWN.id, OTHER.id, "imported/000003"]
    assert values_of(completions.problems, "answer") == ["7777", KNOWN.answer, OTHER.answer, "4"]
    assert completions.problem_index.tolist() == [0, 1, 0, 2, 3]
    assert completions.sample_index.tolist() == [0, 0, 1, 0, 0]
    assert not completions.has("mu_logp")


def test_a_problem_keeps_its_fields_in_a_log_that_brings_its_question(encode):
    row = {"problem_id": "a", "question": "q?", "gold": "2", "text": "x"}
    problems = [Problem("a", "q", "1", fields={"hint": "h"})]

    matches = match_problems(pa.Table.from_pylist([row]), problems, "log", is_graded=True)

    assert matches.problems == [Problem("a", "q?", "2", fields={"hint": "h"})]
    with refused("problem imported/000000 has no field hint, which data.template shows as {hint}"):
        encode([QUESTION], problems=problems, template="{hint} {question}")


# What a row has beside its completion | what is said of it
UNFIT = """
{"problem_id": "nowhere"} | completion 1 answers problem_id 'nowhere', which is not among
{"prompt": "q", "gold": "1", "tokens": [99999]} | completion 1 has token id 99999
{"prompt": "q", "gold": "1", "completion": "", "finish": "length"} | completion 1 is empty
{"prompt": "q"} | completion 1 has no gold to grade it by; data.reward=given
{"prompt": "q", "gold": ""} | completion 1 has no gold to grade it by; data.reward=given
{"prompt": "q", "gold": NaN} | completion 1 has no gold to grade it by; data.reward=given
{"prompt": "q", "gold": "1", "tokens": [5, 2, 0]} | completion 1 or its prompt is padded; log their ids
{"prompt_tokens": [0, 0, 5], "gold": "1", "tokens": [5, 0, 0]} | completion 1 or its prompt is padded; log their ids
{"prompt": "q", "gold": "1", "tokens": LONG} | completion 1 and its prompt have 20
{"prompt_tokens": LONG, "gold": "1"} | completion 1 and its prompt have 20
{"prompt_tokens": [99999], "gold": "1"} | completion 1 has token id 99999
{"prompt": [{"role": "user", "content": "q"}], "gold": "1"} | no chat template
"""


@each_row("row message", UNFIT)
def test_what_cannot_be_trained_on_is_one_line(encode, row, message):
    columns = json.loads(row.replace("LONG", str([5] * 2048)))

    with refused(message):
        encode([{"completion": "x"} | columns])


def rows_of_tokens(*token_lists):
    return [{"prompt": "q", "gold": "1", "tokens": tokens} for tokens in token_lists]


def test_completions_that_the_model_cannot_take_may_be_left_out(encode, capsys):
    unknown = [99999]
    too_long = [5] * 2048

    long_prompt = {"prompt": "q" * 2048, "gold": "1", "tokens": [5]}

    completions = encode([long_prompt, *rows_of_tokens([5], unknown, [6], too_long)], skip_malformed=True)

    assert "warning: 3 malformed completions left out: data.completions=" in capsys.readouterr().err
    sound_completions = encode(rows_of_tokens([5], [6]))
    assert completions.table["tokens"] == sound_completions.table["tokens"]
    assert completions.stored.rollouts != sound_completions.stored.rollouts
    with refused("completion 1 has token id 99999"):
        encode(rows_of_tokens(unknown), skip_malformed=True)
    assert len(encode([{"prompt_tokens": [2], "gold": "1", "tokens": [5]}])) == 1, "an end token alone is no padding"


def test_other_prompts_and_no_others_make_another_name_so_that_they_are_scored_again(encode):
    rows = [{"problem_id": problem.id, "completion": "x"} for problem in PROBLEMS[:4]]

    first = encode(rows)
    second = encode(rows)
    of_other_prompts = encode(rows, "data.template='Question: {question}'")

    assert first.stored.rollouts == second.stored.rollouts != of_other_prompts.stored.rollouts


ENDINGS = """
None | True
"stop" | True
"length" | False
"stop_string" | False
"""


@each_row("finish has_eos", ENDINGS, literals=True)
def test_text_ends_by_itself_unless_it_says_otherwise(tiny, finish, has_eos):
    """docs/rollouts.md says so: without `finish` an end-of-sequence token is put after the text."""
    table = pa.table({"text": [" The answer is 2."], "finish": pa.array([finish], pa.string())})

    (tokens,) = tokenize_completions(table, tiny, tiny.tokenizer.eos_token_id).to_pylist()

    assert (tokens[-1] == tiny.tokenizer.eos_token_id) == has_eos
    assert tiny.decode(tokens) == " The answer is 2."


QUESTION = {"question": "2 + 2?", "gold": "4", "completion": "x"}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def test_a_prompt_is_taken_as_it_was_given(encode, capsys):
    """Text as it is, ids as they are, messages through the chat template: all three are one prompt."""
    policy = load_policy(config_of().model, "cpu")
    policy.tokenizer.chat_template = CHAT_TEMPLATE
    text = "<user>2 + 2?<a>"
    prompt_ids = policy.encode(text).tolist()
    messages = {"prompt": [{"role": "user", "content": "2 + 2?"}], "completion": "x", "reward": 0.5}

    for prompt in ({"prompt": text}, {}, {"prompt": None, "prompt_tokens": prompt_ids}):
        completions = encode([messages | prompt], policy=policy, reward="given", chat=True)
        assert completions.prompt_of(0).tolist() == prompt_ids
        assert completions.reward.tolist() == [0.5]
    assert capsys.readouterr().err.count("1 prompt without the special tokens of a chat model") == 1

    policy.tokenizer.chat_template = "{{ raise_exception('No system message, please') }}"
    with refused(r"chat template refuses the messages .* \(No system message, please\)$"):
        encode([messages], policy=policy, reward="given")


def last_tokens(completions):
    return [tokens[-1] for tokens in completions.tokens]


def test_text_of_a_chat_ends_with_the_token_that_ends_a_turn_in_its_template(encode):
    """Of Gemma 3 and Phi-3 that is not the tokenizer's end token; here it is <pad>, of the id 0."""
    policy = load_policy(config_of().model, "cpu")
    policy.tokenizer.chat_template = "{% for m in messages %}<user>{{ m.content }}<pad><eos>{% endfor %}"
    policy.model.generation_config.eos_token_id = [0, 2]
    rows = [{"prompt": [{"role": "user", "content": "2 + 2?"}], "gold": "4", "completion": "x"}, QUESTION]

    in_chat = encode(rows, policy=policy)
    plain = encode([QUESTION], policy=policy)

    assert last_tokens(in_chat) == [0, 0]
    assert last_tokens(plain) == [2]
    assert "ended by 0" in in_chat.stored.rollouts


TESTED = [Problem("a", "2 + 2?", "4"), Problem("b", "Why  not?", "5", fields={"hint": "Think of it."})]
# A prompt | does it ask one of the two
ASKING = r"""
"Question: 2  + 2?\nAnswer:" | True
"<user>2 + 2?<end>" | True
"12 + 2?" | False
"2 + 23?" | False
"[INST]WHY NOT? think of it.[/INST]" | True
"Why not? Think of her." | False
"" | False
"""


@each_row("prompt asks", ASKING, literals=True)
def test_prompts_that_ask_test_questions_are_counted_in_any_template(prompt, asks):
    data = config_of("data.template='{hint} {question}'").data

    assert count_asking([prompt, "Who?"], TESTED, data) == asks


def test_test_questions_among_the_prompts_of_a_log_are_said(encode, tiny, capsys):
    data = dataclasses.replace(config_of("experiment=smoke").data, completions="log")
    completions = encode([{"problem_id": problem.id, "completion": "x"} for problem in (KNOWN, OTHER)])

    warn_of_test_questions(completions, PROBLEMS[2:], data, tiny)
    warn_of_test_questions(completions, [KNOWN], data, tiny)

    line = "data.completions=log: 1 of its 2 prompts asks a question that the run is tested on"
    assert capsys.readouterr().err == f"warning: {line}\n"


def test_a_limit_says_which_rows_were_cut_off(encode, tiny):
    text = " The answer is 2."
    length = len(tiny.tokenizer(text, add_special_tokens=False)["input_ids"])
    rows = [{"prompt": "?", "gold": "2", "completion": completion} for completion in (text, " The answer")]

    plain = encode(rows)
    limited = encode(rows, completion_limit=length)
    longer = encode(rows, completion_limit=length + 1)

    assert limited.is_truncated.tolist() == [True, False]
    eos = tiny.tokenizer.eos_token_id
    assert last_tokens(plain) == [eos, eos]
    text_end, last_token = last_tokens(limited)
    assert text_end not in tiny.eos_ids
    assert last_token == eos
    assert len({plain.stored.rollouts, limited.stored.rollouts, longer.stored.rollouts}) == 3


UNEVEN_LOG = """
{"prompt": "a", "gold": "2", "completion": " 0", "tokens": [5]}
{"prompt": "a", "gold": "2", "completion": " 1", "tokens": [5]}
{"prompt": "a", "gold": "2", "completion": " 2", "tokens": [5]}
{"prompt": "b", "gold": "2", "completion": " 0", "tokens": [5]}
{"prompt": "b", "gold": "2", "completion": " 1", "tokens": [5]}
{"prompt": "c", "gold": "2", "completion": " 0", "tokens": [5]}
{"prompt": "c", "gold": "2", "completion": " 1", "tokens": [5]}
{"prompt": "c", "gold": "2", "completion": " 2", "tokens": [5]}
"""


def test_complete_groups_go_to_losses_of_groups(encode):
    rows = UNEVEN_LOG.split("\n")

    completions = encode(rows, group_size=3)

    assert completions.problem_index.tolist() == [0, 0, 0, 2, 2, 2]
    assert completions.stored.sharding.sizes == (6,)
    with refused(r"^data\.n=4: no prompt of .* has so many completions; they have 2, 3$"):
        encode(rows, group_size=4)


# ---- whole runs on text and on what another run sampled


def test_text_alone_is_scored_by_the_starting_model_though_its_prompt_leaves_too_little_room_to_sample(tmp_path, tiny):
    prompter = build_prompter(config_of("experiment=smoke").data)
    questions = tokenize_prompts(PROBLEMS, prompter, tiny, 1)
    room = tiny.context - max(map(len, questions.prompts)) + 1
    assert tokenize_prompts(PROBLEMS, prompter, tiny, room).too_long > 0
    rows = [{"problem_id": problem.id, "completion": " The answer is 1."} for problem in PROBLEMS]
    log = write_lines(tmp_path / "all.jsonl", rows)

    summary = run(small_config(tmp_path, f"data.completions={log}", f"sampler.max_new_tokens={room}", *FEW_TESTS))

    assert summary["n_train"] == 16
    assert summary["too_long"]["train"] == 0
    tokens = tiny.tokenizer(" The answer is 1.", add_special_tokens=False)["input_ids"]
    assert summary["tokens"]["tokens_scored"] == 16 * (len(tokens) + 1), "with the token that ends them"
    assert "tokens_sampled" not in summary["tokens"]
    assert summary["trained_on"] == "16 problems generated in the form of gsm8k"


def test_what_one_run_sampled_trains_another_alike_after_export_and_import(smoke, tmp_path):
    config, sampled = smoke
    tables = list(map(Store(config.store).open, (config.store / "rollouts").iterdir()))
    sampled_to_train = max(tables, key=lambda table: table.row_count())
    assert sampled_to_train.row_count() == 64
    export_file(sampled_to_train, tmp_path / "out.jsonl")

    imported = run(small_config(tmp_path, f"data.completions={tmp_path / 'out.jsonl'}"))

    assert imported["n_train"] == sampled["n_train"]
    assert imported["positive_share"] == sampled["positive_share"]
    # Its sampler's log-probabilities are μ here: the same up to rounding, so the results are close, not equal.
    assert imported["final"]["pass@1"] == pytest.approx(sampled["final"]["pass@1"], abs=0.2)


# ---- whole runs on a log with rewards


def log_rows(**columns):
    """Four answers to each of 16 prompts, with rewards that no grader would give."""
    rows = []
    for problem in PROBLEMS:
        prompt = f"Question: {problem.question}\nAnswer:"
        for number in range(4):
            completion = f" The answer is {number}."
            rows.append({"prompt": prompt, "completion": completion, "score": float(number == 1), **columns})
    return pd.DataFrame(rows)


def config_on_log(folder, rows, *words):
    path = folder / "log.parquet"
    rows.to_parquet(path)
    return small_config(folder, f"data.completions={path}", "data.reward=given", *FEW_TESTS, *words)


def train_on_log(folder, *words, **columns):
    """A run on the log: its settings, its summary, and the record of its first update."""
    config = config_on_log(folder, log_rows(**columns), *words)
    summary = run(config)
    return config, summary, lines_of(config.folder / "metrics.jsonl")[0]


def test_the_rewards_of_a_log_are_trained_on_without_gold_and_grader(outputs, capsys):
    _, summary, first_update = train_on_log(outputs)

    assert summary["n_train"] == 64
    assert summary["positive_share"] == 0.25
    assert summary["mean_reward"] == 0.25
    assert first_update["kl_mu"] == pytest.approx(0, abs=1e-6)
    printed = capsys.readouterr().out
    for text in (
        "reward from score",
        "64 completions of 16 prompts, 4 of each",
        "taken for the model that drew them",
    ):
        assert text in printed


@pytest.mark.parametrize("loss, reads_mu", [("naive", False), ("dpo", True)])
def test_without_mu_only_a_loss_with_a_reference_scores_and_gradients_stay(outputs, loss, reads_mu):
    _, summary, without_mu = train_on_log(outputs, f"algo={loss}", "mu=none")
    _, _, with_mu = train_on_log(outputs, f"algo={loss}")

    assert ("tokens_scored" in summary["tokens"]) == reads_mu
    assert ("kl_mu" in without_mu) == reads_mu
    assert without_mu["grad_norm"] == pytest.approx(with_mu["grad_norm"], rel=1e-5)


def test_mu_is_whose_it_is_said_to_be(tmp_path, tiny):
    """The log's own by default, the named model's where one is."""
    tokens = tiny.tokenizer(" The answer is 1.", add_special_tokens=False)["input_ids"]
    logprobs = [-1.0, *[-1.1] * (len(tokens) - 1)]

    kl_mu = {}
    for words in ((), ("mu=sampler",), ("mu=tiny_noise",)):
        _, _, update = train_on_log(tmp_path, *words, tokens=tokens, logprobs=logprobs)
        kl_mu["".join(words)] = update["kl_mu"]

    assert kl_mu[""] == kl_mu["mu=sampler"] > 0.1
    assert kl_mu[""] != kl_mu["mu=tiny_noise"] > 1e-4


def test_a_loss_of_groups_refuses_a_log_in_which_a_prompt_has_a_single_completion(tmp_path):
    rows = log_rows().drop(index=[0, 1, 2])
    config = config_on_log(tmp_path, rows, "algo=grpo", "data.n=4")

    with refused(r"^algo=grpo compares .*: 1 of 16 prompts of .* have a single one$"):
        run(config)

    assert not (config.folder / "eval.jsonl").exists()


def test_completions_of_whole_groups_are_read_beside_their_own_verdicts_wherever_a_run_lies(tmp_path):
    rows = log_rows().drop(index=[1, 9])  # of two groups three are left
    config = config_on_log(tmp_path, rows, "algo=grpo", "data.n=4", "optim.whole_groups=true")
    assert run(config)["n_train"] == 56
    moved = tmp_path / "moved"
    moved.mkdir()
    for folder in (config.store, config.folder.parent):
        folder.rename(moved / folder.name)
    run_folder = moved / config.folder.relative_to(tmp_path)

    completions = read_completions(run_folder)

    assert len(completions) == 56
    assert completions.chosen.sum() == 56
    moved_run = read_run(str(run_folder))
    assert problem_results(moved_run, moved_run.evaluations[-1])["n"] == 1
    is_right = completions.text == " The answer is 1."
    assert (completions.verdict == "correct").equals(is_right)
    assert completions.reward.equals(is_right.astype(float))
    (run_folder / "iteration-1/examples.npy").write_bytes(b"")
    with refused(r"examples\.npy can't be read"):
        read_completions(run_folder)
