"""Checks of problems and their prompts: golds that the grader refuses, fields that some lack, examples that mislead."""

import json
from collections.abc import Sequence

from topr_exp.config.data import ANSWER_GRADERS, DataConfig
from topr_exp.data.problems import ProblemSets, load_problems, normalized_question
from topr_exp.data.prompts import Prompter, build_prompter, refuse_missing_fields
from topr_exp.grading.extraction import extract
from topr_exp.runs.inputs import code_of_data, file_of_user_class
from topr_exp.runtime.terminal import plural, warn
from topr_exp.schema import plain
from topr_exp.store.source import file_state
from topr_exp.types import Problem, TOPRError

MAX_REFUSED_SHARE = 0.05  # of gold answers

_problem_sets: dict[str, ProblemSets] = {}  # by settings and versions of files

# ---- problems


def problems_at_hand(data: DataConfig) -> ProblemSets | None:
    """Load a run's problems, once per process and version of their files; None for those of the hub or the like."""
    if not data.at_hand:
        return None
    named_files = [*data.files(), *code_of_data(data)]
    key = json.dumps([plain(data), *(file_state(path) for _, path in named_files)])
    if key not in _problem_sets:
        _problem_sets[key] = load_gradable_problems(data)
    return _problem_sets[key]


def load_gradable_problems(data: DataConfig) -> ProblemSets:
    """Load problems, and check their prompts and golds."""
    sets = load_problems(data)
    check_prompts(build_prompter(data), sets, data)
    check_golds([*sets.train, *sets.test], data)
    return sets


def check_golds(problems: Sequence[Problem], data: DataConfig) -> None:
    """Raise TOPRError if the grader refuses over 5 % of the gold answers; warn if it refuses some."""
    from topr_exp.grading.grader import open_grader

    trials = []  # problems with their solutions
    for problem in problems:
        solution = data.solution(problem)
        if solution is not None:
            trials.append((problem, solution))
    with open_grader(data.grading(graded=data.reward == "graded")) as grader:
        outcomes = list(grader.grade((solution, problem.answer) for problem, solution in trials))
    refusals = []
    for (problem, solution), outcome in zip(trials, outcomes, strict=True):
        if outcome.verdict != "correct":
            refusals.append((problem, solution, outcome.reward))
    if not refusals:
        return
    problem, solution, reward = refusals[0]
    line = (
        f"data={data.name}: the grader {data.grader_name} refuses the gold of {len(refusals)} of {len(trials)} "
        f"problems; the first is {problem.id}, gold {problem.answer!r:.80}, tried as {solution!r:.120}"
    )
    if reward is not None and reward < data.threshold:
        line += f", whose reward {reward:g} is below data.threshold={data.threshold:g}"
    if len(refusals) > MAX_REFUSED_SHARE * len(trials):
        raise TOPRError(f"{line} (at most 5 % may be refused); {remedy_for_golds(data)}")
    warn(line)


def remedy_for_golds(data: DataConfig) -> str:
    """Say what to do where the grader refuses gold answers."""
    if file_of_user_class(data):
        return f"let solution() of {type(data).__name__} return what it calls correct, or None where that can't be said"
    if isinstance(data.grader, dict):
        return "set data.correct to what it calls correct, as in 'data.correct=\"<answer>{answer}</answer>\"'"
    return "a gold is the answer alone; files in the form of GSM8K or MATH: data=gsm8k (or math) data.source=FOLDER"


# ---- prompts


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
