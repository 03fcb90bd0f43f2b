"""A wrong setting is one line that names the key, what was given and what is allowed; a harmless one is a warning."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, config_of
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.config.data import LINE_BREAKS
from topr_exp.config.load import build_section
from topr_exp.config.schema import Section, above, at_least, ranges, within
from topr_exp.config.settings import Config
from topr_exp.runs.plan import plan
from topr_exp.types import ConfigError

SHORT = {
    "VERIFIER": "task=verifier task.solver=tiny",
    "OWN": f"data.path={ROOT / 'tests/data/own.jsonl'} data.test_share=0.25",
}
N = r"\n"
ODD = [
    ([f'data.template="Q: {{question}}{N}A:"'], "data.template must be without a backslash and an n"),
    ([f'data.stop=["Q:", "{N}"]'], f"""write one as in $'KEY="one{N}two"', in a YAML file in double quotes; got """),
    (["task=verifier", "task.solver=tiny", f'task.template="{{question}}{N}{{solution}}"'],
     "task.template must be without a backslash and an n"),
    ([f"name='{34 * '語'}'"], "name must be 1 to 100 letters, digits"),
    (["data.template='\udcff{question}'"], r"data.template='\udcff{question}': expected UTF-8; half of a surrogate"),
    (["data.stop=['\udcff']"], r"data.stop[0]='\udcff': expected UTF-8"),
]  # fmt: skip


def table(name: str) -> list[tuple[str, str]]:
    """The rows of a file beside this one."""
    lines = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").splitlines()[1:]
    return [(left, right) for left, _, right in (line.partition(" | ") for line in lines)]


def mistakes() -> list[tuple[list[str], str]]:
    rows = table("mistakes")
    words = [shlex.split(re.sub(r"\b(OWN|VERIFIER)\b", lambda short: SHORT[short[1]], given)) for given, _ in rows]
    return [*zip(words, (message for _, message in rows), strict=True), *ODD]


@pytest.mark.parametrize(("words", "message"), mistakes(), ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(parse_arguments(words))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "model.reference=tiny_noise", "model.float32_head=true", "data.threshold=0.5",
        "compose.positive_share=0.5", "compose.mix=0.5", "compose.max_draws=3", "compose.max_draws=3 algo=rloo",
        "optim.epochs=2 algo=rloo",
        "evaluation.problems=9", "task.solver=tiny", "task.chat=true", "schedule.updates=2", "schedule.replay=0.5",
        "tracking.project=x",
    ],
)  # fmt: skip
def test_what_is_set_and_not_read_is_told_once(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan(parse_arguments(["-m", "seed=0,1", *words.split()]))
    assert capsys.readouterr().err == f"warning: set and not read: {words.split('=')[0]}\n"


def test_what_some_run_of_a_sweep_reads_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    plan(parse_arguments(["-m", "algo=topr,kl_pg", "model.reference=tiny_noise"]))
    plan(parse_arguments(["data.threshold=1", "model.reference=null", "algo.advantage=reward", "compose.max_draws=10"]))
    assert capsys.readouterr().err == ""


def test_line_breaks_as_the_message_says_and_latex() -> None:
    assert config_of('data.template="Q: {question}\nA:"').data.template == "Q: {question}\nA:"
    assert config_of('data.stop=["\nQ:"]').data.stop == ["\nQ:"]
    latex = r"With $x \neq 0$ and $\nu \notin N$: {question}"
    assert config_of(f'data.template="{latex}"').data.template == latex


WRONG = {"keep_iterations": [0], "baseline": math.inf, "threshold": math.inf, "pass_rate": [0.5],
         "template": "no place", "stop": ["a", ""]}  # fmt: skip


def test_every_range_is_declared_and_applied() -> None:
    config = config_of("cluster=slurm", "sampler=vllm")
    sections = {"": config} | {f"{f.name}.": getattr(config, f.name) for f in dataclasses.fields(Config)}
    declared: dict[str, list[str]] = {}
    for prefix, section in sections.items():
        for name, range_ in ranges(type(section)) if isinstance(section, Section) else ():
            declared.setdefault(range_.allowed, []).append(f"{prefix}{name}")
            wrong: Any = WRONG.get(name, "" if isinstance(getattr(section, name), str) else -11)
            if range_ is LINE_BREAKS:
                wrong = [N] if name == "stop" else f"{{question}}{N}"
            with pytest.raises(ValueError) as error:
                dataclasses.replace(section, **{name: wrong})
            assert str(error.value) == f"{name} must be {range_.allowed}; got {wrong if wrong != '' else 'nothing'}"
    assert {allowed: sorted(keys) for allowed, keys in declared.items()} == {
        allowed: sorted(keys.split()) for allowed, keys in table("ranges")
    }


@pytest.mark.parametrize(
    ("range_", "inside", "outside"),
    [
        (at_least(1), [1, 2], [0, 0.5, math.nan]),
        (above(0), [1e-9, math.inf], [0, -1, math.nan]),
        (within("(0, 1]"), [1e-9, 1], [0, 1.01, math.nan]),
        (within("[-1, 1]"), [-1, 0, 1], [-1.01, 1.01]),
        (within("[0, 1)"), [0, 0.99], [-0.01, 1]),
    ],
)
def test_ranges_end_where_they_say(range_: Any, inside: list[float], outside: list[float]) -> None:
    assert all(range_.holds(value) for value in inside)
    assert not any(range_.holds(value) for value in outside)


def test_the_name_of_a_place_decides_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"^cluster.name=\[1\]: expected one of local, slurm$"):
        build_section("cluster", {"name": [1]})
