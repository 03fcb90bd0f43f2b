"""Checks of prompts with the problems that they ask: fields that some lack, worked examples that mislead."""

from collections.abc import Sequence

from topr_exp.config.data import ANSWER_GRADERS, DataConfig
from topr_exp.data.problems import ProblemSets, normalized_question
from topr_exp.data.prompts import Prompter, refuse_missing_fields
from topr_exp.grading.extraction import extract
from topr_exp.runtime.terminal import plural, warn
from topr_exp.types import Problem


def check_prompts(prompter: Prompter, sets: ProblemSets, config: DataConfig) -> None:
    """Raise TOPRError for a field that some problems lack; warn of worked examples that mislead."""
    shots = prompter.shots
    refuse_missing_fields(prompter.template, [*sets.train, *sets.test, *shots])
    test_questions = {normalized_question(problem, config) for problem in sets.test}
    tested = [shot for shot in shots if normalized_question(shot, config) in test_questions]
    warn_of_shots(tested, config, "asked by test problems, whose answers each prompt then gives", shots)
    if config.grader_name in ANSWER_GRADERS:
        unreadable = [shot for shot in shots if extract(shot.answer, config.grader_name) is None]
        warn_of_shots(unreadable, config, f"solved without an answer that grader {config.grader_name} reads", shots)
    if shots and not prompter.chat and config.stop is None and not prompter.stop:
        warn(
            "data.template begins with {question}, so that nothing ends a completion before it asks itself a next one, "
            "whose answer graders may read: set data.stop"
        )


def warn_of_shots(shots: Sequence[Problem], config: DataConfig, fault: str, all_shots: Sequence[Problem]) -> None:
    """Warn of the worked examples with a fault, if there are any."""
    if shots:
        counts = f"{len(shots)} of {plural(len(all_shots), 'worked example')}"
        verb = "is" if len(shots) == 1 else "are"
        warn(f"data.shots={config.shots}: {counts} {verb} {fault}; the first: {shots[0].question!r:.80}")
