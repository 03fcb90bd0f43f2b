"""Prompts: templates, worked examples, chat form, stop strings, and what is refused."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import config_of
from topr_exp.config.data import ENDINGS
from topr_exp.data.benchmarks import Benchmarks, math_gold
from topr_exp.data.prompts import Prompter, build_prompter, shipped_shots, tokenize_prompts
from topr_exp.grading import extract
from topr_exp.types import ConfigError, Problem, TOPRError

OWN_FILE = Path(__file__).with_name("own.jsonl")
OWN_PROBLEMS = ("data=jsonl", f"data.path={OWN_FILE}", "data.test_share=0.2", "data.shots=2")


def settings(name: str, **changes: Any) -> Benchmarks:
    words = [f"data={name}", "data.source=hub", "data.train_problems=null", "data.test_problems=null", "data.shots=0"]
    data: Benchmarks = config_of(*words).data
    return dataclasses.replace(data, **changes)


def test_zero_shot_prompts() -> None:
    assert build_prompter(settings("gsm8k")).render("Why {x}?") == "Question: Why {x}?\nAnswer:"
    assert build_prompter(settings("math")).render("Q") == "Problem: Q\nSolution:"
    final = build_prompter(settings("math", grader="final"))
    assert final.render("Q") == "Problem: Q\nReasoning:"
    assert final.stop == ()


@pytest.mark.parametrize(("name", "shots"), [("gsm8k", 8), ("math", 4)])
def test_few_shot_prompts_hold_the_examples_and_stop_before_the_next_question(name: str, shots: int) -> None:
    prompter = build_prompter(settings(name, shots=shots))
    prompt = prompter.render("What now?")
    begin = {"gsm8k": "Question:", "math": "Problem:"}[name]
    assert prompt.count(begin) == shots + 1
    assert prompt.count("\n\n") == shots
    assert prompt.endswith({"gsm8k": "Question: What now?\nAnswer:", "math": "Problem: What now?\nSolution:"}[name])
    assert prompter.stop == (f"\n{begin}",)
    assert build_prompter(settings(name, shots=shots, stop=["END"])).stop == ("END",)


def test_own_examples_end_as_their_format_asks() -> None:
    shots = {each: [shot.answer for shot in shipped_shots(each)] for each in ENDINGS}
    assert [len(each) for each in shots.values()] == [8, 4, 4]
    for text in shots["gsm8k"]:
        equations = re.findall(r"([\d(][\d +*/()-]*) = (\d+)", text)
        assert all(eval(left) == int(right) for left, right in equations)
        assert text.endswith(f"The answer is {equations[-1][1]}.")
    golds = ["12", r"\frac{11}{24}", "(-3,4)", r"4\sqrt{2}"]
    assert [math_gold(text) for text in shots["math"]] == golds
    for text, gold in zip(shots["final"], golds, strict=True):
        assert text.endswith(f"So the final answer is {gold}.")


@pytest.mark.parametrize("format", ["gsm8k", "final"])
def test_a_chat_prompt_shows_a_number_in_the_words_that_its_grader_reads(format: str) -> None:
    prompt = build_prompter(settings("gsm8k", grader=format, chat=True)).template
    assert extract(prompt, format) == "12"


def test_the_lenient_grader_takes_the_prompt_and_the_examples_of_gsm8k() -> None:
    strict = build_prompter(config_of(*OWN_PROBLEMS, "data.grader=gsm8k").data)
    lenient = build_prompter(config_of(*OWN_PROBLEMS, "data.grader=lenient").data)
    assert lenient == strict
    assert len(lenient.shots) == 2
    assert build_prompter(settings("gsm8k", grader="lenient")) == build_prompter(settings("gsm8k"))


def test_examples_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shots.jsonl"
    path.write_text('{"question": "A\\u2028?", "solution": "B."}\n\n{"question": "C?", "solution": "D."}\n')
    prompter = build_prompter(settings("gsm8k", shots=2, fewshot_file=str(path)))
    shown = "Question: A\u2028?\nAnswer: B.\n\nQuestion: C?\nAnswer: D.\n\nQuestion: E?\nAnswer:"
    assert prompter.render("E?") == shown
    path.write_text('{"question": "A?"}\n')
    with pytest.raises(TOPRError, match=r"shots\.jsonl:1: expected the texts question and solution"):
        build_prompter(settings("gsm8k", shots=1, fewshot_file=str(path)))
    with pytest.raises(ConfigError, match=r"data\.shots=9: the gsm8k examples hold 8"):
        build_prompter(settings("gsm8k", shots=9))
    with pytest.raises(TOPRError, match="no such file"):
        build_prompter(settings("gsm8k", shots=1, fewshot_file=str(tmp_path / "none.jsonl")))


class ChatTokenizer(SimpleNamespace):
    chat_template = "yes"

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        own = {"tokenize": False, "add_generation_prompt": True}
        assert options | own == options
        variables = "".join(f"<{name}={value}>" for name, value in options.items() if name not in own)
        return variables + "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<assistant>"


def test_chat_prompts_are_turns() -> None:
    prompter = build_prompter(settings("math", chat=True, shots=1, template="{question}"))
    first = shipped_shots("math")[0]
    expected = f"<user>{first.question}<assistant>{first.answer}<user>Q<assistant>"
    assert prompter.render("Q", ChatTokenizer()) == expected
    assert prompter.stop == ()
    with pytest.raises(TOPRError, match="no chat template"):
        prompter.render("Q", SimpleNamespace(chat_template=None))


def test_the_chat_template_gets_the_options_that_are_set() -> None:
    prompter = build_prompter(settings("math", chat=True, template="{question}", chat_options={"thinking": False}))
    assert prompter.render("Q", ChatTokenizer()) == "<thinking=False><user>Q<assistant>"


@pytest.mark.parametrize(
    ("template", "options", "warned"),
    [
        ("{{ strftime_now('%d') }}", {}, True),
        ("{{ strftime_now('%d') }}", {"date_string": "26 Jul 2024"}, False),
        ("{{ messages }}", {}, False),
    ],
)
def test_a_chat_template_that_puts_todays_date_into_prompts_is_a_warning(template, options, warned, capsys):
    tokenizer = ChatTokenizer(chat_template=template)
    policy = SimpleNamespace(context=99, tokenizer=tokenizer, encode=lambda text, chat: np.zeros(9, np.int32))
    tokenize_prompts([Problem("q", "Why?", "0")], Prompter("{question}", (), True, (), options), policy, 4)
    assert ("puts today's date into every prompt" in capsys.readouterr().err) == warned


def test_a_prompt_is_left_out_where_a_whole_completion_would_not_fit() -> None:
    policy = SimpleNamespace(context=10, tokenizer=None, encode=lambda text, chat: np.zeros(len(text), np.int32))
    problems = [Problem(text, text, "0") for text in ("12345", "123456", "1234567")]
    found = tokenize_prompts(problems, Prompter("{question}", (), False, ()), policy, 4)
    assert (found.problems, [*map(len, found.prompts)], found.too_long) == (problems[:2], [5, 6], 1)
