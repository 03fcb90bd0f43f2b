"""Prompts: templates, worked examples, chat form, stop strings, and what is refused."""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.conftest import config_of, each_row, refused, values_of, write_lines
from topr_exp.data import prompts
from topr_exp.data.benchmarks import math_gold
from topr_exp.data.problems import ProblemSets
from topr_exp.data.prompts import (
    Prompter,
    build_prompter,
    shipped_shots,
    tokenize_all,
    tokenize_prompts,
    warn_of_hidden_stops,
    warn_of_open_answers,
)
from topr_exp.grading import extract
from topr_exp.models.policy import load_policy
from topr_exp.runs.problem_checks import check_prompts
from topr_exp.types import Problem

BENCHMARK = "data.source=hub data.train_problems=null data.test_problems=null data.shots=0"


def settings(name, **changes):
    data = config_of(f"data={name}", *BENCHMARK.split()).data
    return dataclasses.replace(data, **changes)


class ChatTokenizer(SimpleNamespace):
    """A tokenizer whose chat template shows its variables and the roles."""

    chat_template = "yes"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, **variables):
        assert not tokenize
        assert add_generation_prompt
        turns = [f"<{message['role']}>{message['content']}" for message in messages]
        return f"{variables or ''}{''.join(turns)}<assistant>"


def stub_policy(context, tokenizer=None):
    """A policy with a token for each character of a text."""
    encode = lambda text, chat: np.zeros(len(text), np.int32)
    return SimpleNamespace(context=context, tokenizer=tokenizer, encode=encode)


# A benchmark | a grader | what stands before a question | and behind it
ZERO_SHOT = """
gsm8k | gsm8k | Question: | Answer:
math | math | Problem: | Solution:
math | final | Problem: | Reasoning:
"""


@each_row("name grader beginning ending", ZERO_SHOT)
def test_a_prompt_without_examples_is_the_question_between_its_benchmarks_words(name, grader, beginning, ending):
    prompter = build_prompter(settings(name, grader=grader))

    assert prompter.render("Why {x}?") == f"{beginning} Why {{x}}?\n{ending}"
    assert prompter.stop == ()


# A benchmark | how many examples | what stands before a question
FEW_SHOT = """
"gsm8k" | 8 | "Question:"
"math" | 4 | "Problem:"
"""


@each_row("name shots beginning", FEW_SHOT, literals=True)
def test_few_shot_prompts_hold_the_examples_and_stop_before_the_next_question(name, shots, beginning):
    prompter = build_prompter(settings(name, shots=shots))

    prompt = prompter.render("What now?")

    assert prompt.count(beginning) == shots + 1
    assert prompt.count("\n\n") == shots
    assert prompter.stop == (f"\n{beginning}",)
    assert build_prompter(settings(name, shots=shots, stop=["END"])).stop == ("END",)


MATH_SHOT_GOLDS = ["12", r"\frac{11}{24}", "(-3,4)", r"4\sqrt{2}"]


def shipped_answers(name):
    return values_of(shipped_shots(name), "answer")


def test_shipped_examples_of_gsm8k_compute_rightly_and_end_in_the_last_number():
    answers = shipped_answers("gsm8k")

    assert len(answers) == 8
    for text in answers:
        equations = re.findall(r"([\d(][\d +*/()-]*) = (\d+)", text)
        for expression, number in equations:
            assert eval(expression) == int(number)
        assert text.endswith(f"The answer is {number}.")


def test_shipped_examples_of_math_end_as_their_format_asks():
    assert list(map(math_gold, shipped_answers("math"))) == MATH_SHOT_GOLDS
    endings = [text.rpartition("So the final answer is ")[2] for text in shipped_answers("final")]
    assert endings == [f"{gold}." for gold in MATH_SHOT_GOLDS]


def test_examples_of_a_file_stand_before_the_question(tmp_path):
    path = tmp_path / "shots.jsonl"
    path.write_text('{"question": "A\\u2028?", "solution": "B."}\n\n{"question": "C?", "solution": "D."}\n')

    prompter = build_prompter(settings("gsm8k", shots=str(path)))

    prompt = "Question: A\u2028?\nAnswer: B.\n\nQuestion: C?\nAnswer: D.\n\nQuestion: E?\nAnswer:"
    assert prompter.render("E?") == prompt


NO_EXAMPLES = r"""
shots.jsonl | shots\.jsonl:1: expected the texts question and solution
empty.jsonl | empty\.jsonl holds no examples
none.jsonl | no such file
"""


@each_row("name message", NO_EXAMPLES)
def test_examples_that_are_not_there_are_one_line(tmp_path, name, message):
    (tmp_path / "shots.jsonl").write_text('{"question": "A?"}\n')
    (tmp_path / "empty.jsonl").write_text("\n")

    with refused(message):
        build_prompter(settings("gsm8k", shots=str(tmp_path / name)))


# ---- chat


@pytest.mark.parametrize("grader", ["gsm8k", "final"])
def test_a_chat_prompt_shows_a_number_in_the_words_that_its_grader_reads(grader):
    prompt = build_prompter(settings("gsm8k", grader=grader, chat=True)).template

    assert extract(prompt, grader) == "12"


def test_chat_prompts_are_turns_and_get_the_options_that_are_set():
    (shot, *_) = shipped_shots("math")
    options = {"thinking": False}

    prompter = build_prompter(settings("math", chat=True, shots=1, template="{question}", chat_options=options))

    prompt = prompter.render("Q", ChatTokenizer())
    assert prompt == f"{options}<user>{shot.question}<assistant>{shot.answer}<user>Q<assistant>"
    assert prompter.stop == ()
    with refused("no chat template"):
        prompter.render("Q", SimpleNamespace(chat_template=None))


class JinjaTokenizer(SimpleNamespace):
    """A tokenizer whose chat template is rendered in the sandbox that transformers renders it in."""

    def apply_chat_template(self, messages, **_):
        return ImmutableSandboxedEnvironment().from_string(self.chat_template).render(messages=messages)


def test_a_chat_template_that_would_never_end_is_one_line(monkeypatch):
    monkeypatch.setattr(prompts, "TEMPLATE_SECONDS", 0.05)
    prompter = Prompter("{question}", chat=True)
    loop = "{% for _ in range(100000) %}"
    assert prompter.render("Why?", JinjaTokenizer(chat_template="{{ messages[0].content }}")) == "Why?"

    with refused(r"the model's chat template refuses the prompt \(it takes more than 0\.05 s of processor time\)"):
        prompter.render("Why?", JinjaTokenizer(chat_template=3 * loop + 3 * "{% endfor %}"))


DATES = """
"{{ strftime_now('%d') }}" | {} | True
"{{ strftime_now('%d') }}" | {"date_string": "26 Jul 2024"} | False
"{{ messages }}" | {} | False
"""


@each_row("template options is_warned_of", DATES, literals=True)
def test_a_chat_template_that_puts_todays_date_into_prompts_is_a_warning(template, options, is_warned_of, capsys):
    policy = stub_policy(99, ChatTokenizer(chat_template=template))

    tokenize_prompts([Problem("q", "Why?", "0")], Prompter("{question}", chat=True, chat_options=options), policy, 4)

    assert ("puts today's date into every prompt" in capsys.readouterr().err) == is_warned_of


# Settings | a test question | what the first worked example ends with | what is said of them
DOUBTFUL = """
{"template": "Q: {question}"} | "One plus one?" | "The answer is 2." | "1 of 2 worked examples is asked by test"
{"template": "Q: {question}"} | "When?" | "#### 2" | "1 of 2 worked examples is solved without an answer that grader"
{"template": "{question} A:"} | "When?" | "The answer is 2." | "so that nothing ends a completion"
{"template": "{question} A:", "stop": ["END"]} | "When?" | "The answer is 2." | ""
{"template": "{question} A:", "chat": True} | "When?" | "The answer is 2." | ""
"""


@each_row("changes question ending warning", DOUBTFUL, literals=True)
def test_worked_examples_that_mislead_or_that_nothing_ends_are_a_warning(
    tmp_path, changes, question, ending, warning, capsys
):
    rows = [{"question": "one  PLUS one?", "solution": ending}, {"question": "Who?", "solution": "The answer is 1."}]
    config = settings("gsm8k", shots=str(write_lines(tmp_path / "shots.jsonl", rows)), **changes)
    capsys.readouterr()

    check_prompts(build_prompter(config), ProblemSets([], [Problem("a", question, "2")], None, None), config)

    stderr = capsys.readouterr().err
    assert warning in stderr
    assert stderr.count("warning") == bool(warning)


def test_a_stop_string_that_no_text_can_hold_is_a_warning(capsys):
    policy = load_policy(config_of().model, "cpu")
    in_worked_examples = build_prompter(settings("gsm8k", shots=1, template="<bos>{question}"))
    capsys.readouterr()

    warn_of_hidden_stops(in_worked_examples, policy)
    warn_of_hidden_stops(Prompter("{question}", stop=("<eos>", "<b>")), policy)
    assert capsys.readouterr().err == ""
    warn_of_hidden_stops(Prompter("{question}", stop=("x<bos>",)), policy)
    assert "'x<bos>' never ends a completion, whose text is without special tokens" in capsys.readouterr().err


# A chat template | end tokens of the model, among them <eos> = 2 | is it warned of
OPEN_ANSWERS = """
"{% for m in messages %}{{ m.content }}<pad>x{% endfor %}" | [2] | True
"{% for m in messages %}{{ m.content }}<pad>x{% endfor %}" | [0, 2] | False
"{% for m in messages %}{{ m.content }}x{% endfor %}" | [2] | False
"{{ raise_exception('No') }}" | [2] | False
"""


@each_row("template eos_ids is_warned_of", OPEN_ANSWERS, literals=True)
def test_a_chat_template_whose_answers_end_in_no_end_token_is_a_warning(template, eos_ids, is_warned_of, capsys):
    policy = load_policy(config_of().model, "cpu")
    policy.tokenizer.chat_template = template
    policy.model.generation_config.eos_token_id = eos_ids
    capsys.readouterr()

    warn_of_open_answers(Prompter("{question}"), policy)
    assert capsys.readouterr().err == ""
    warn_of_open_answers(Prompter("{question}", chat=True), policy)
    assert ("ends an answer with <pad>, which ends no completion" in capsys.readouterr().err) == is_warned_of


@pytest.mark.parametrize("ending, opens_thought", [("<think>\n", True), ("<think>\n\n</think>\n\n", False)])
def test_a_prompt_that_ends_within_a_thought_is_known_by_its_problem(ending, opens_thought):
    policy = load_policy(config_of().model, "cpu")
    prompter = Prompter("<think> {question}" + ending)
    logged_prompts = {1: policy.encode(prompter.render("Why?"))}

    questions = tokenize_all([Problem(id, "Why?", "0") for id in "ab"], prompter, policy, logged_prompts)

    assert [problem.opens_thought for problem in questions.problems] == [opens_thought] * 2


def test_a_prompt_is_left_out_where_a_whole_completion_would_not_fit():
    problems = [Problem(text, text, "0") for text in ("12345", "123456", "1234567")]

    questions = tokenize_prompts(problems, Prompter("{question}"), stub_policy(context=10), 4)

    assert questions.problems == problems[:2]
    assert list(map(len, questions.prompts)) == [5, 6]
    assert questions.too_long == 1
    with refused("no prompt fits: the shortest of 3 has 5 tokens, .* context of 8 less .*max_new_tokens=4 leaves 4"):
        tokenize_prompts(problems, Prompter("{question}"), stub_policy(context=8), 4)
