"""From the words of a command line and YAMLs to composed settings; a wrong one is one line, a harmless one warns."""

import dataclasses
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tests.algorithms.tabular_policies import NAMES, load
from tests.conftest import ROOT, config_of, refused
from topr_exp import __version__
from topr_exp.__main__ import main
from topr_exp.algorithms.base import NotNegative, Positive
from topr_exp.algorithms.clipping import PPO
from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.data import LINE_BREAKS
from topr_exp.config.load import build_section
from topr_exp.config.retired import RETIRED
from topr_exp.config.settings import Config
from topr_exp.config.yamls import CONF
from topr_exp.runs.plan import plan
from topr_exp.schema import Section, above, at_least, ranges, within
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
    (['output_dir="a\0b"'], r"output_dir='a\x00b': expected a text without NUL"),
    (["data.stop=['a\0b']"], r"data.stop[0]='a\x00b': expected a text without NUL"),
    (['output_dir="~no-such-user/x"'], "output_dir must be a folder (`~` stands for a home folder that there is"),
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


@pytest.mark.parametrize("words", [["experiment=null"], ["-m", "experiment=null", "seed=0,1"]])
def test_no_experiment_is_the_same_as_none_named(words: list[str]) -> None:
    without = [word for word in words if word != "experiment=null"]
    with_word, plain = (plan(parse_arguments(given)) for given in (words, without))
    assert [job.config for job in with_word.jobs] == [job.config for job in plain.jobs]


@pytest.mark.parametrize(("words", "message"), mistakes(), ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(parse_arguments(words))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", RETIRED)
def test_a_key_of_an_earlier_release_is_one_line_that_says_what_to_use(key: str) -> None:
    with refused(f"^{key} is gone: {re.escape(RETIRED[key])}$", ConfigError):
        config_of(f"{key}=1")


@pytest.mark.parametrize(
    "words",
    [
        "model.reference=tiny_noise", "data.threshold=0.5",
        "compose.positive_share=0.5", "compose.mix=0.5",
        "optim.epochs=2 algo=rloo",
        "evaluation.problems=9", "task.solver=tiny", "task.chat=true", "schedule.updates=2", "schedule.replay=0.5",
        "tracking.project=x",
    ],
)  # fmt: skip
def test_what_is_set_and_not_read_is_told_once(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan(parse_arguments(["-m", "seed=0,1", *words.split()]))
    assert capsys.readouterr().err == f"warning: set and not read: {words.split('=')[0]}\n"


def test_what_some_run_of_a_sweep_reads_is_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.jsonl").write_text('{"prompt": "?", "completion": "x", "reward": 1}')
    plan(parse_arguments([f"data.completions={tmp_path}", "data.reward=given", "data.threshold=0.5"]))
    plan(parse_arguments(["-m", "algo=topr,kl_pg", "model.reference=tiny_noise"]))
    plan(parse_arguments(["data.threshold=1", "model.reference=null", "algo.advantage=reward"]))
    assert capsys.readouterr().err == ""


def test_line_breaks_as_the_message_says_and_latex() -> None:
    assert config_of('data.template="Q: {question}\nA:"').data.template == "Q: {question}\nA:"
    assert config_of('data.stop=["\nQ:"]').data.stop == ["\nQ:"]
    latex = r"With $x \neq 0$ and $\nu \notin N$: {question}"
    assert config_of(f'data.template="{latex}"').data.template == latex


WRONG = {"keep_iterations": [0], "shape": [1], "baseline": math.inf, "threshold": math.inf, "delta_v": math.inf,
         "pass_rate": [0.5], "template": "no place", "stop": ["a", ""]}  # fmt: skip


def test_every_range_is_declared_and_applied() -> None:
    config = config_of("cluster=slurm", "sampler=vllm")
    sections = {"": config} | {f"{f.name}.": getattr(config, f.name) for f in dataclasses.fields(Config)}
    sections |= {f"algo={name}": load(name) for name in NAMES}  # whose ranges stand in docs/reference.md
    declared: dict[str, list[str]] = {}
    for prefix, section in sections.items():
        for name, range_ in ranges(type(section)) if isinstance(section, Section) else ():
            if not prefix.startswith("algo"):
                declared.setdefault(range_.allowed, []).append(f"{prefix}{name}")
            wrong: Any = WRONG.get(name, "" if isinstance(getattr(section, name), str) else -11.0)
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
        (Positive.__metadata__[0], [1e-9], [0, math.inf]),
        (NotNegative.__metadata__[0], [0, 1], [-1e-9, math.inf]),
        (ranges(PPO)[0][1], [1e-9, 1], [0, 1.01]),
    ],
)
def test_ranges_end_where_they_say(range_: Any, inside: list[float], outside: list[float]) -> None:
    assert all(range_.holds(value) for value in inside)
    assert not any(range_.holds(value) for value in outside)


def test_the_name_of_a_place_decides_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"^cluster.name=\[1\]: expected one of local, slurm$"):
        build_section("cluster", {"name": [1]})


def composed(*words: str) -> tuple[Composer, list[tuple[list[str], Any]]]:
    composer = Composer(parse_arguments(words))
    composer.compositions = {}  # not those of other tests
    return composer, list(composer.jobs(composer.base()))


@pytest.mark.parametrize(
    "words",
    [
        ["seed=range(0,3)", "baseline=-0.3,0.1", "algo=glob(t*)", "hydra.mode=MULTIRUN"],
        ["seed=choice(5,6)", "data.n=4", "data.stop=[a,b],[c]", "name='x,y'"],
        ["seed=shuffle(1)", "optim.lr=sort(1e-3,1e-5)"],
    ],
)
def test_a_sweep_is_every_combination_in_the_order_of_hydras_sweeper(words: list[str]) -> None:
    from topr_exp.config.hydra_internals import BasicSweeper

    composer, jobs = composed("-m", *words)
    (expected,) = BasicSweeper.split_arguments(composer.overrides, max_batch_size=None)
    assert [words for words, _ in jobs] == [list(one) for one in expected]


@pytest.mark.extended
def test_runs_that_share_a_composition_are_what_hydra_composes() -> None:
    words = ["model=tiny,llama3_8b", "algo=topr,is,dpo", "data.n=2,8", "optim.lr=1e-3,1e-5", "seed=3"]
    words += ["++model.lora={rank: 4, alpha: 8, targets: all-linear}", "model.lora.rank=8"]
    composer, jobs = composed("-m", *words)
    assert len(jobs) == 24
    assert len(composer.compositions) == 1 + 6, "YAMLs are read once for each choice of groups: it takes 0.1 s"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert all(job == compose("config", overrides) for overrides, job in jobs)


def test_what_a_yaml_sweeps_over_comes_first_and_gives_way_to_the_command_line() -> None:
    (_, jobs), (_, fewer) = composed("experiment=agro_fig1", "-m"), composed("experiment=agro_fig1", "-m", "seed=7")
    assert fewer[0][0][-2:] == ["experiment=agro_fig1", "seed=7"]
    assert len(jobs) > len(fewer)


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("name=2024_11_03", ["2024_11_03"]),
        ("name=True", ["True"]),
        ("name='1_0'", ["1_0"]),
        ("output_dir= +.5e-3 ", ["+.5e-3"]),
        ("model.name=2024_11_03,1e5,'2_0',tiny", ["2024_11_03", "1e5", "2_0", "tiny"]),
        ("model.name=choice(1e5,2_0)", ["1e5", "2_0"]),
        ("model.name=range(1,3)", ["1", "2"]),
        ("data.source=1e5", ["1e5"]),
        ("data.fewshot_file=nan", ["nan"]),
        ("data.stop=[1e5, '2_0', a\\,3_0],[nan]", [["1e5", "2_0", "a,3_0"], ["nan"]]),
        ("tracking.project=null,1_0", [None, "1_0"]),
        ("optim.lr=1e-3,2e-3", [0.001, 0.002]),
    ],
)
def test_a_text_has_the_users_own_words(words: str, texts: list[Any]) -> None:
    _, jobs = composed("-m", "tracking=wandb", words)
    assert [OmegaConf.select(job, words.partition("=")[0]) for _, job in jobs] == texts


def test_a_number_of_a_yaml_or_of_the_users_own_class_has_lost_its_words_and_is_refused(tmp_path, monkeypatch):
    (tmp_path / "words_loss.py").write_text(
        "from dataclasses import dataclass\nfrom topr_exp.algorithms.regressions import DPO\n"
        "@dataclass(frozen=True)\nclass Mine(DPO):\n    kind: str = 'a'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own, yaml = ["algo=dpo", "algo._target_=words_loss.Mine"], ["--config-dir", str(tmp_path), "experiment=mine"]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ndata: {stop: [1e5]}\n")
    assert config_of(*own, "+algo.kind='1e5'").algo.kind == "1e5"
    for words, key in (([*own, "+algo.kind=1e5"], "algo.kind"), (yaml, "data.stop[0]")):
        with pytest.raises(ConfigError) as refused:
            config_of(*words)
        assert str(refused.value).startswith(f"{key}=100000.0: expected text; a text that looks like a number needs")


def test_a_yaml_of_the_users_hides_ours_in_the_run_and_in_what_is_shown(tmp_path, monkeypatch, capsys):
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "dpo.yaml").write_text("_target_: topr_exp.algorithms.regressions.DPO\nname: dpo\nbeta: 7.0\n")
    (tmp_path / "algo" / "1_0.yaml").write_text((ROOT / "conf" / "algo" / "dpo.yaml").read_text())
    words = ["--config-dir", str(tmp_path), "algo=dpo"]
    assert config_of(*words).algo.beta == 7.0
    assert config_of(*words[:2], "algo=1_0").algo.name == "dpo", "a choice may look like a number"
    monkeypatch.setattr("sys.argv", ["topr_exp", *words, "--cfg", "job", "--package", "algo"])
    assert main() == 0
    assert "beta: 7.0" in capsys.readouterr().out
    assert config_of("algo=dpo").algo.beta == 0.1  # and no later command is answered from that folder


def test_the_version_is_this_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--version"])
    assert capsys.readouterr().out == f"topr_exp {__version__}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["-m", "seed=0,1", "seed=2,3"],
            "^seed=0,1 and seed=2,3: seed is given twice; give it once, its values separated",
        ),
        (["seed=0", "seed=1"], "^seed=0 and seed=1: seed is given twice; give it once$"),
        (["seed=0", "+seed=0"], r"^seed=0 and \+seed=0: seed is given twice; give it once$"),
        (["algo=topr", "algo=tis"], "^algo=topr and algo=tis: algo is given twice"),
        (["-m", "algo=topr,tis", "seed=0", "algo=sft"], "^algo=topr,tis and algo=sft: algo is given twice"),
        (["algo.b_neg=1", "optim.lr=1", "algo.b_neg=2"], r"^algo\.b_neg=1 and algo\.b_neg=2: algo\.b_neg is given"),
        (["experiment=smoke", "experiment=fig1"], "^experiment=smoke and experiment=fig1: experiment is given twice"),
    ],
)
def test_a_key_that_is_given_twice_is_one_line(words: list[str], line: str) -> None:
    with refused(line, ConfigError):
        plan(parse_arguments(words))
