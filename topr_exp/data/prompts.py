"""Prompts from questions: template, worked examples, chat form, stop strings."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import ENDINGS, THOUGHT_START, DataConfig
from topr_exp.data.problems import as_text
from topr_exp.data.user_lines import read_json_lines
from topr_exp.runtime.terminal import warn
from topr_exp.runtime.time_limit import processor_time_limit
from topr_exp.schema import first_line
from topr_exp.types import ConfigError, Problem, TOPRError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Worked examples, written for this project in the form of the two benchmarks.
EXEMPLARS = Path(__file__).with_name("exemplars.jsonl")
# By answer format; the completion begins with a space after these.
TEMPLATES = {
    "gsm8k": "Question: {question}\nAnswer:",
    "math": "Problem: {question}\nSolution:",
    "final": "Problem: {question}\nReasoning:",
}
CHAT_TEMPLATES = {
    "gsm8k": '{question}\n\nWork it out step by step. End with your number, as in "The answer is 12."',
    "math": "{question}\n\nWork it out step by step. Put the final answer in \\boxed{}.",
    "final": '{question}\n\nWork it out step by step. End with your answer, as in "So the final answer is 12."',
}

ANSWER = "1 + 1"  # in a conversation that shows how a chat template ends an answer
THOUGHT_START_TOKENS = 8  # at most, of THOUGHT_START and the white space behind it
TEMPLATE_SECONDS = 10.0  # of processor time for a chat template; one of a released model takes milliseconds


@dataclass(frozen=True)
class Prompter:
    """Turns questions into prompts; a completion ends before any of the strings in `stop`."""

    template: str
    shots: tuple[Problem, ...] = ()  # worked examples, whose answers are whole solutions
    chat: bool = False
    stop: tuple[str, ...] = ()
    chat_options: Mapping[str, Any] = field(default_factory=dict)  # variables of the model's chat template

    def render(self, question: str, tokenizer: Any = None, fields: Mapping[str, str] | None = None) -> str:
        """Render the prompt as text; chat prompts go through the chat template of the model's tokenizer.

        fields: the problem's further ones. Raises TOPRError for a chat prompt where the model has no chat template.
        """
        prompt = self._fill_template(question, fields or {})
        if self.chat:
            return self._render_chat(prompt, tokenizer)
        text = ""
        for shot in self.shots:
            shot_prompt = self._fill_template(shot.question, shot.fields)
            text += f"{shot_prompt} {shot.answer}\n\n"
        return text + prompt

    def _render_chat(self, prompt: str, tokenizer: Any) -> str:
        if getattr(tokenizer, "chat_template", None) is None:
            raise TOPRError("data.chat=true: the model has no chat template; leave data.chat out")
        messages = []
        for shot in self.shots:
            shot_prompt = self._fill_template(shot.question, shot.fields)
            messages.append({"role": "user", "content": shot_prompt})
            messages.append({"role": "assistant", "content": shot.answer})
        messages.append({"role": "user", "content": prompt})
        fault = "the model's chat template refuses the prompt"
        return apply_chat_template(tokenizer, messages, self.chat_options, fault=fault)

    def _fill_template(self, question: str, fields: Mapping[str, str]) -> str:
        # Not str.format: templates are full of LaTeX braces. In one go: the texts may hold braces too.
        text_by_placeholder = {f"{{{name}}}": text for name, text in fields.items()}
        text_by_placeholder["{question}"] = question
        any_placeholder = "|".join(map(re.escape, text_by_placeholder))
        return re.sub(any_placeholder, lambda match: text_by_placeholder[match[0]], self.template)


def apply_chat_template(
    tokenizer: Any,
    messages: list[dict[str, str]],
    options: Mapping[str, Any],
    *,
    fault: str,
    add_generation_prompt: bool = True,
) -> str:
    """Render messages up to where the assistant's next one begins; a TOPRError of the template begins with `fault`."""
    try:
        with processor_time_limit(TEMPLATE_SECONDS):  # its sandbox limits no nested loops
            text: str = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt, **options
            )
    except Exception as error:  # a template is a program of the model's
        raise TOPRError(f"{fault} ({first_line(error)})") from None
    return text


def build_prompter(config: DataConfig) -> Prompter:
    """Build the prompter that the settings describe.

    Raises ConfigError when more worked examples are asked for than there are, TOPRError for a bad file of them.
    """
    shots = load_shots(config)
    template = config.template if config.template is not None else default_template(config)
    stop: Sequence[str] = ()
    if config.stop is not None:
        stop = config.stop
    elif config.shots and not config.chat:
        stop = before_next_question(template)
    return Prompter(template, shots, config.chat, tuple(stop), config.chat_options or {})


def before_next_question(template: str) -> tuple[str, ...]:
    """The stop string behind which a model would ask itself the next question; none for a template that begins so."""
    text = template.split("{question}")[0].strip()
    return (f"\n{text}",) if text else ()


def refuse_missing_fields(template: str, problems: Sequence[Problem], key: str = "data.template") -> None:
    """Raise TOPRError where a problem lacks a field that a template shows of others: its placeholder would stay.

    key: the template's setting.
    """
    names = set[str]()
    for problem in problems:
        names.update(problem.fields)
    shown_names = sorted(name for name in names if f"{{{name}}}" in template)
    for name in shown_names:
        for problem in problems:
            if name not in problem.fields:
                owner = f"problem {problem.id}" if problem.id else f"the worked example {problem.question!r:.40}"
                raise TOPRError(f"{owner} has no field {name}, which {key} shows as {{{name}}}")


def default_template(config: DataConfig) -> str:
    """The template of the answer format; of a user's grader one that asks for no format."""
    if config.prompt_format is not None:
        templates = CHAT_TEMPLATES if config.chat else TEMPLATES
        return templates[config.prompt_format]
    if config.chat:
        return "{question}"
    return "Question: {question}\nAnswer:"


def load_shots(config: DataConfig) -> tuple[Problem, ...]:
    """Load the worked examples of a file, or as many of the project's as the settings ask for."""
    shots = config.shots
    if isinstance(shots, str):
        if not Path(shots).is_file():
            raise ConfigError(f"data.shots={shots}: no such file")
        return read_shots(Path(shots))
    available = shipped_shots(config.prompt_format)
    if shots > len(available):
        kind = config.prompt_format
        if kind is None:
            kind = f"data.grader={config.grader_name}"
        raise ConfigError(f"data.shots={shots}: the {kind} examples hold {len(available)}")
    return available[:shots]


def shipped_shots(answer_format: str | None) -> tuple[Problem, ...]:
    """The project's worked examples, ending as the answer format asks; none for a user's grader."""
    if answer_format is None:
        return ()
    benchmark = "gsm8k" if answer_format == "gsm8k" else "math"
    shots = []
    for _, row in read_json_lines(EXEMPLARS):
        if row["benchmark"] == benchmark:
            ending = ENDINGS[answer_format].format(answer=row["answer"])
            shots.append(Problem("", row["question"], f"{row['steps']} {ending}"))
    return tuple(shots)


def read_shots(path: Path) -> tuple[Problem, ...]:
    """Read worked examples from JSON lines with `question` and `solution`, used unchanged, and further fields.

    Raises TOPRError naming the file, and the line that is none.
    """
    shots = []
    for number, row in read_json_lines(path):
        question = row.pop("question", None)
        solution = row.pop("solution", None)
        if not (isinstance(question, str) and isinstance(solution, str)):
            raise TOPRError(f"{path}:{number}: expected the texts question and solution")
        fields = {name: as_text(value) for name, value in row.items() if value is not None}
        shots.append(Problem("", question, solution, fields=fields))
    if not shots:
        raise TOPRError(f"{path} holds no examples")
    return tuple(shots)


@dataclass(frozen=True)
class TokenizedProblems:
    """Problems whose prompt leaves room for a whole completion in the model's context."""

    problems: list[Problem]
    prompts: list[NDArray[np.int32]]  # token ids, an array a problem
    stop: tuple[str, ...]
    too_long: int  # problems left out: the prompt is longer than the context admits

    def select(self, indices: Sequence[int] | NDArray[np.integer]) -> TokenizedProblems:
        """The problems at some indices, which may repeat."""
        problems = [self.problems[index] for index in indices]
        prompts = [self.prompts[index] for index in indices]
        return replace(self, problems=problems, prompts=prompts)


def puts_date(tokenizer: Any, chat_options: Mapping[str, Any]) -> bool:
    """True where a chat template asks for the date and no option gives one."""
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and "strftime_now" in template and "date_string" not in chat_options


def tokens_behind_answer(tokenizer: Any, options: Mapping[str, Any]) -> list[int]:
    """The token ids that a chat template puts behind an answer; [] without a template, or for one that refuses this."""
    if getattr(tokenizer, "chat_template", None) is None:
        return []
    messages = [{"role": "user", "content": ANSWER}, {"role": "assistant", "content": ANSWER}]
    conversation = ""
    with contextlib.suppress(TOPRError):
        conversation = apply_chat_template(tokenizer, messages, options, fault="", add_generation_prompt=False)
    _, _, text_behind = conversation.rpartition(ANSWER)
    token_ids: list[int] = tokenizer(text_behind, add_special_tokens=False)["input_ids"]
    return token_ids


def warn_of_open_answers(prompter: Prompter, policy: Any) -> None:
    """Warn where the token that ends an answer in the chat template ends no completion, as with some base models."""
    if not prompter.chat:
        return
    token_ids = tokens_behind_answer(policy.tokenizer, prompter.chat_options)
    special_ids = [token for token in token_ids if is_special(token, policy.tokenizer)]
    if special_ids and not set(policy.eos_ids).intersection(token_ids):
        token = special_ids[0]
        text = policy.tokenizer.decode([token])
        warn(
            f"the model's chat template ends an answer with {text}, which ends no completion of this model; "
            f"add its id, {token}, to eos_token_id in the model's generation_config.json"
        )


def is_special(token: int, tokenizer: Any) -> bool:
    """True for a token that texts of completions leave out."""
    shown_text: str = tokenizer.decode([token])
    return shown_text != tokenizer.decode([token], skip_special_tokens=True)


def warn_of_hidden_stops(prompter: Prompter, policy: Any) -> None:
    """Warn of stop strings with a special token, which texts of completions leave out, so that they end none.

    A token that ends completions by itself may stand in one, and in what stops worked examples by default.
    """
    if prompter.stop == before_next_question(prompter.template):
        return
    for text in prompter.stop:
        for token in policy.tokenizer(text, add_special_tokens=False)["input_ids"]:
            if is_special(token, policy.tokenizer) and token not in policy.eos_ids:
                warn(
                    f"data.stop: {text!r} never ends a completion, whose text is without special tokens; add "
                    f"{policy.tokenizer.decode([token])}, by its id {token}, to eos_token_id in the model's "
                    "generation_config.json"
                )


def tokenize_prompts(
    problems: Sequence[Problem], prompter: Prompter, policy: Any, max_new_tokens: int
) -> TokenizedProblems:
    """Render and encode the prompts; those that leave no room for `max_new_tokens` are left out and counted.

    TOPRError when nothing fits.
    """
    if not problems:
        raise TOPRError("no problem is left: every training question is also a test question")
    questions = tokenize_all(problems, prompter, policy)
    lengths = list(map(len, questions.prompts))
    longest_prompt = policy.context - max_new_tokens
    fitting = [index for index, length in enumerate(lengths) if length <= longest_prompt]
    if not fitting:
        raise TOPRError(
            f"no prompt fits: the shortest of {len(lengths)} has {min(lengths)} tokens, the model's context "
            f"of {policy.context} less sampler.max_new_tokens={max_new_tokens} leaves {longest_prompt}"
        )
    return replace(questions.select(fitting), too_long=len(lengths) - len(fitting))


def tokenize_all(
    problems: Sequence[Problem],
    prompter: Prompter,
    policy: Any,
    encoded_prompts: Mapping[int, NDArray[np.int32]] | None = None,
) -> TokenizedProblems:
    """Render and encode the prompts of all problems, but for those whose index is in `encoded_prompts`."""
    if prompter.chat and puts_date(policy.tokenizer, prompter.chat_options):
        warn(
            "the model's chat template puts today's date into every prompt, so that the same command samples anew "
            "tomorrow; if the template has a variable for it, set that: 'data.chat_options={date_string: 26 Jul 2024}'"
        )
    prompts = []
    asked_problems = []
    for index, problem in enumerate(problems):
        if encoded_prompts and index in encoded_prompts:
            prompt = encoded_prompts[index]
            text = policy.text_of(prompt[-THOUGHT_START_TOKENS:])
        else:
            text = prompter.render(problem.question, policy.tokenizer, problem.fields)
            prompt = policy.encode(text, chat=prompter.chat)
        prompts.append(prompt)
        opens_thought = text.rstrip().endswith(THOUGHT_START)
        asked_problems.append(replace(problem, opens_thought=opens_thought))
    return TokenizedProblems(asked_problems, prompts, prompter.stop, too_long=0)
