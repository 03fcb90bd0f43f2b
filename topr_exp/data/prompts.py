"""Prompts from questions: template, worked examples, chat form, stop strings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import ENDINGS, DataConfig
from topr_exp.data.problems import as_text
from topr_exp.runtime.exit_status import warn
from topr_exp.runtime.files import read_json_lines
from topr_exp.schema import first_line
from topr_exp.types import ConfigError, Problem, TOPRError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Written for this project in the form of the two benchmarks.
EXEMPLARS = Path(__file__).with_name("exemplars.jsonl")
# The completion begins with a space after these.
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


@dataclass(frozen=True)
class Prompter:
    """Turns questions into prompts. `stop` are the strings that end a completion."""

    template: str
    shots: tuple[Problem, ...]  # worked examples, whose answers are whole solutions
    chat: bool
    stop: tuple[str, ...]
    chat_options: Mapping[str, Any] = field(default_factory=dict)  # variables of the model's chat template

    def render(self, question: str, tokenizer: Any = None, fields: Mapping[str, str] | None = None) -> str:
        """The prompt as text; chat prompts need the model's tokenizer, whose chat template they go through.

        fields: the problem's further ones. Raises TOPRError for a chat prompt where the model has no chat template.
        """
        worked = [(self._ask(shot.question, shot.fields), shot.answer) for shot in self.shots]
        asked = self._ask(question, fields or {})
        if not self.chat:
            return "".join(f"{ask} {solution}\n\n" for ask, solution in worked) + asked
        if getattr(tokenizer, "chat_template", None) is None:
            raise TOPRError("data.chat=true: the model has no chat template; leave data.chat out")
        said = [*itertools.chain(*worked), asked]
        messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]
        try:
            text: str = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self.chat_options
            )
        except Exception as error:  # a template is a program of the model's
            raise TOPRError(f"the model's chat template refuses the prompt ({first_line(error)})") from None
        return text

    def _ask(self, question: str, fields: Mapping[str, str]) -> str:
        # Not str.format: templates are full of LaTeX braces. In one go: what is put in may hold braces too.
        parts = {**fields, "question": question}
        places = "|".join(re.escape(f"{{{name}}}") for name in parts)
        return re.sub(places, lambda place: parts[place.group()[1:-1]], self.template)


def build_prompter(config: DataConfig) -> Prompter:
    """The prompter that the settings describe.

    Raises ConfigError when more worked examples are asked for than there are, TOPRError for a bad file of them.
    """
    if config.fewshot_file is not None and not Path(config.fewshot_file).is_file():
        raise ConfigError(f"data.fewshot_file={config.fewshot_file}: no such file")
    available = load_shots(Path(config.fewshot_file)) if config.fewshot_file else own_shots(config.asked_as)
    if config.shots > len(available):
        kind = config.asked_as if config.asked_as is not None else f"data.grader={config.grader_name}"
        origin = config.fewshot_file or f"the {kind} examples"
        raise ConfigError(f"data.shots={config.shots}: {origin} hold {len(available)}")
    plain = "{question}" if config.chat else "Question: {question}\nAnswer:"  # for a grader of the user's own
    default = plain if config.asked_as is None else (CHAT_TEMPLATES if config.chat else TEMPLATES)[config.asked_as]
    template = config.template if config.template is not None else default
    beginning = template.split("{question}")[0].strip()
    next_question = [f"\n{beginning}"] if config.shots and beginning and not config.chat else []
    stop = tuple(next_question if config.stop is None else config.stop)
    return Prompter(template, available[: config.shots], config.chat, stop, config.chat_options or {})


def own_shots(answer_format: str | None) -> tuple[Problem, ...]:
    """The project's worked examples, ending as the answer format asks; none for a user's grader."""
    if answer_format is None:
        return ()
    benchmark = "gsm8k" if answer_format == "gsm8k" else "math"
    rows = [row for _, row in read_json_lines(EXEMPLARS) if row["benchmark"] == benchmark]
    ending = ENDINGS[answer_format]
    return tuple(Problem("", row["question"], f"{row['steps']} {ending.format(answer=row['answer'])}") for row in rows)


def load_shots(path: Path) -> tuple[Problem, ...]:
    """Worked examples from a file of JSON lines with `question` and `solution`, used as they are, and further fields.

    Raises TOPRError naming file and line.
    """
    shots = []
    for number, row in read_json_lines(path):
        question, solution = row.get("question"), row.get("solution")
        if not (isinstance(question, str) and isinstance(solution, str)):
            raise TOPRError(f"{path}:{number}: expected the texts question and solution")
        fields = {key: as_text(value) for key, value in row.items() if key not in ("question", "solution")}
        shots.append(Problem("", question, solution, fields=fields))
    return tuple(shots)


@dataclass(frozen=True)
class TokenizedProblems:
    """Problems whose prompt leaves room for a whole completion in the model's context."""

    problems: list[Problem]
    prompts: list[NDArray[np.int32]]
    stop: tuple[str, ...]
    too_long: int  # problems left out: the prompt is longer than the context admits


def puts_date(tokenizer: Any, chat_options: Mapping[str, Any]) -> bool:
    """True where a chat template asks for the date and no option gives one."""
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and "strftime_now" in template and "date_string" not in chat_options


def tokenize_prompts(
    problems: Sequence[Problem],
    prompter: Prompter,
    policy: Any,
    max_new_tokens: int,
    given: Mapping[int, NDArray[np.int32]] | None = None,
) -> TokenizedProblems:
    """Render and encode the prompts; what doesn't fit into the context with `max_new_tokens` is left out and counted.

    given: prompts that are encoded already, by the problem's place. Raises TOPRError when nothing fits.
    """
    if not problems:
        raise TOPRError("no problem is left: every training question is also a test question")
    room = policy.context - max_new_tokens
    if prompter.chat and puts_date(policy.tokenizer, prompter.chat_options):
        warn(
            "the model's chat template puts today's date into every prompt, so that the same command samples anew "
            "tomorrow; if the template has a variable for it, set that: 'data.chat_options={date_string: 26 Jul 2024}'"
        )

    def encoded(problem: Problem) -> NDArray[np.int32]:
        text = prompter.render(problem.question, policy.tokenizer, problem.fields)
        return policy.encode(text, chat=prompter.chat)

    prompts = [given[place] if given and place in given else encoded(one) for place, one in enumerate(problems)]
    fitting = [i for i, prompt in enumerate(prompts) if len(prompt) <= room]
    if not fitting:
        raise TOPRError(
            f"no prompt fits: the shortest of {len(prompts)} has {min(map(len, prompts))} tokens, the model's context "
            f"of {policy.context} less sampler.max_new_tokens={max_new_tokens} leaves {room}"
        )
    return TokenizedProblems(
        [problems[i] for i in fitting], [prompts[i] for i in fitting], prompter.stop, len(prompts) - len(fitting)
    )
