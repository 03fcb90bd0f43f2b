"""Command lines and YAMLs: a mistake is one line that names key, value and what is allowed; a harmless one warns."""

import dataclasses
import json
import math
import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tests.algorithms.tabular_policies import NAMES, load
from tests.conftest import ROOT, config_of, each_row, plan_of, refused, write_file
from tests.sweep_tools import answer
from topr_exp.config.compose_overrides import METHODS, Composer, parse_arguments
from topr_exp.config.data import LINE_BREAKS
from topr_exp.config.hydra_internals import BasicSweeper
from topr_exp.config.other_names import SETTING_BY_OTHER_NAME
from topr_exp.config.retired import RETIRED, migrate
from topr_exp.config.yamls import CONF
from topr_exp.schema import Section, above, at_least, ranges, show, within
from topr_exp.types import ConfigError

PLACEHOLDERS = {
    "VERIFIER": "task=verifier task.solver=tiny",
    "OWN": f"data.path={ROOT / 'tests/data/own.jsonl'} data.test_share=0.25",
    "BY_LENGTH": "schedule=async schedule.lag=null schedule.concurrency=6 schedule.tokens_per_update=9",
    "PROBLEMS": str(ROOT / "tests/data/own.jsonl"),
    "NEWLINE": "\n",
    "NUL": "\0",
    "HALF_PAIR": "\udcff",
}


# ---- mistakes


def mistakes():
    """The rows of mistakes.txt: words of a command line, and a part of the line that answers them."""
    rows = []
    for row in Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").splitlines()[1:]:
        command, _, message = row.partition(" | ")
        for placeholder, text in PLACEHOLDERS.items():
            command = command.replace(placeholder, text)
        rows.append(pytest.param(shlex.split(command), message, id=row[:60]))
    return rows


@pytest.mark.parametrize("words, message", mistakes())
def test_a_mistake_is_one_line(words, message):
    with refused(re.escape(message), ConfigError):
        plan_of(*words)


def test_another_frameworks_name_is_none_of_ours_and_stands_for_one_that_is():
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    settings = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}

    assert set(SETTING_BY_OTHER_NAME.values()) <= settings | groups
    assert not SETTING_BY_OTHER_NAME.keys() & {key.rpartition(".")[2] for key in settings | groups}


@pytest.mark.parametrize("method", METHODS)
def test_a_published_method_without_a_name_here_is_the_settings_of_the_page(method):
    page = (ROOT / "docs/losses.md").read_text(encoding="utf-8").replace("\n  ", " ")
    items = [item for item in page.split("\n- ") if f"`{METHODS[method]}`" in item]

    assert any(method in re.sub(r"\W+", "_", item.lower()) for item in items)


@pytest.mark.parametrize("key", RETIRED)
def test_a_key_of_an_earlier_release_is_one_line_that_says_what_to_use(key):
    with refused(f"^{key} is gone: {re.escape(RETIRED[key])}$", ConfigError):
        config_of(f"{key}=1")

    group, _, name = key.partition(".")
    data = {"_target_": "topr_exp.data.jsonl.JsonLines"}
    stored = {"data": data, group: {**data, name: 1, "other": 2}}
    assert name not in migrate(stored)[group], "a run of that release is evaluated without it"


# Other than -11, or an empty text.
WRONG_VALUES = dict.fromkeys(("baseline", "threshold", "delta_v"), math.inf)
WRONG_VALUES |= {"pass_rate": [0.5], "template": "no place", "stop": ["a", ""], "completions": ""}


def wrong_value(section, key, range_):
    """A value of a key that its range excludes."""
    if range_ is LINE_BREAKS:
        return [r"\n"] if key == "stop" else r"{question}\n"
    default = "" if isinstance(getattr(section, key), str) else -11.0
    return WRONG_VALUES.get(key, default)


def test_every_range_is_applied_in_its_own_words():
    """What is allowed for each key stands in docs/reference.md."""
    config = config_of("cluster=slurm", "sampler=vllm")
    groups = [getattr(config, field.name) for field in dataclasses.fields(config)]
    losses = [load(name) for name in NAMES]
    sections = [section for section in (config, *groups, *losses) if isinstance(section, Section)]

    for section in sections:
        for key, range_ in ranges(type(section)):
            wrong = wrong_value(section, key, range_)
            message = f"{key} must be {range_.allowed}; got {show(wrong) or 'nothing'}"
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                dataclasses.replace(section, **{key: wrong})


@pytest.mark.parametrize(
    "range_, inside, outside",
    [
        (at_least(1), 1, [0.5, math.nan]),
        (above(0), 1e-9, [0, math.nan]),
        (within("(0, 1]"), 1, [0, 1.01, math.nan]),
        (within("[0, 1)"), 0, [-0.01, 1]),
    ],
)
def test_ranges_end_where_they_say(range_, inside, outside):
    assert range_.holds(inside)
    assert not any(map(range_.holds, outside))


# ---- warnings


UNREAD = """
model.reference=tiny_noise
data.threshold=0.5
compose.positive_share=0.5
optim.epochs=2 algo=rloo
evaluation.problems=9
task.solver=tiny
schedule.updates=2
schedule.replay=0.5
"""


@each_row("words", UNREAD)
def test_a_setting_that_nothing_reads_is_a_warning_of_the_whole_sweep(words, capsys):
    plan_of("-m", "seed=0,1", *words.split())

    assert capsys.readouterr().err == f"warning: set and not read: {words.split('=')[0]}\n"


def test_a_setting_that_some_run_reads_or_that_is_the_default_is_no_warning(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text('{"prompt": "?", "completion": "x", "reward": 1}')

    plan_of(f"data.completions={tmp_path}", "data.reward=given", "data.threshold=0.5")
    plan_of("-m", "algo=topr,kl_pg", "model.reference=tiny_noise")
    plan_of("data.threshold=1", "model.reference=null", "algo.advantage=reward")

    assert capsys.readouterr().err == ""


# ---- texts


def test_line_breaks_and_latex_are_taken_as_they_are():
    latex = r"With $x \neq 0$ and $\nu \notin N$: {question}"

    assert config_of('data.template="Q: {question}\nA:"').data.template == "Q: {question}\nA:"
    assert config_of('data.stop=["\nQ:"]').data.stop == ["\nQ:"]
    assert config_of(f'data.template="{latex}"').data.template == latex


def composed(*words):
    """A composer with nothing of other tests, and the words and settings of its runs."""
    composer = Composer(parse_arguments(words))
    composer.compositions = {}
    return composer, list(composer.jobs())


# A setting of a sweep | its values
TEXTS = r"""
name=2024_11_03 | ["2024_11_03"]
name=True | ["True"]
output_dir= +.5e-3 | ["+.5e-3"]
model.name=2024_11_03,1e5,'2_0',tiny | ["2024_11_03", "1e5", "2_0", "tiny"]
model.name=choice(1e5,2_0) | ["1e5", "2_0"]
data.stop=[1e5, '2_0', a\,3_0],[nan] | [["1e5", "2_0", "a,3_0"], ["nan"]]
mu=none,1_0 | ["none", "1_0"]
optim.lr=1e-3,2e-3 | [0.001, 0.002]
"""


@each_row("setting values", TEXTS)
def test_a_text_has_the_users_own_words(setting, values):
    _, runs = composed("-m", "tracking=wandb", setting)

    key = setting.partition("=")[0]
    assert [OmegaConf.select(settings, key) for _, settings in runs] == json.loads(values)


def test_a_number_in_the_place_of_a_text_is_refused_where_its_words_are_lost(tmp_path):
    write_file(tmp_path / "experiment/mine.yaml", "# @package _global_\ndata: {stop: [1e5]}\n")

    with refused(r"data.stop\[0\]=100000.0: expected text; a text that looks like a number needs quotes", ConfigError):
        config_of("--config-dir", str(tmp_path), "experiment=mine")


# A YAML of the user's own | its text | a command line | a part of the line that answers it
OWN_YAMLS = """
experiment/mine | seed: 3 | experiment=mine | nothing reads experiment.seed; a YAML of experiment/ that sets whole
experiment/mine | defaults: [override /algo: tis] | experiment=mine | of experiment/ with an override begins with # @p
cluster/mine | cluster: {threads: 3} | cluster=mine | nothing reads cluster.cluster; a YAML of cluster/ that sets whole
sampler/mine | temperature: 0.7 | sampler=mine | sampler.name is not set; a YAML may take what it leaves out from anot
cluster/mine | threads: 3 | cluster=mine | cluster.name is not set; a YAML may take what it leaves out from another
experiment/mine | GLOBAL model: {path: owner/name} | experiment=mine | model=tiny model.path=owner/name: settings of a
experiment/mine | GLOBAL hydra: {job: {chdir: true}} | experiment=mine | nothing reads hydra.job.chdir, which a YAML
experiment/mine | GLOBAL hydra: {run: {dir: x}} | experiment=mine | nothing reads hydra.run.dir, which a YAML sets
config | hydra: {run: {dir: .}, sweep: {subdir: .}, output_subdir: null, job: {chdir: false}} | seed=4 | name is not set
config | seed: 3 | seed=4 | write an experiment/NAME.yaml in its place, or copy that file
experiment/mine | GLOBAL seed: "3" | experiment=mine | seed=3: expected a whole number; it is a text, as is each number
experiment/mine | GLOBAL optim: {lr: "1e-4"} | experiment=mine | optim.lr=1e-4: expected a number; it is a text
"""


@each_row("path text words message", OWN_YAMLS)
def test_a_mistake_in_a_yaml_of_ones_own_is_one_line(path, text, words, message, tmp_path):
    write_file(tmp_path / f"{path}.yaml", text.replace("GLOBAL ", "# @package _global_\n") + "\n")

    with refused(re.escape(message), ConfigError):
        plan_of("--config-dir", str(tmp_path), *words.split())


def test_a_yaml_that_is_there_and_not_looked_for_is_named(working_folder):
    text = (CONF / "algo/dpo.yaml").read_text(encoding="utf-8")
    write_file(working_folder / "conf/algo/mine.yaml", text)
    write_file(working_folder / "conf/algo/other.yml", text)

    with refused("conf/algo/mine.yaml is read with --config-dir conf", ConfigError):
        plan_of("algo=mine")
    with refused("other.yml to .yaml", ConfigError):
        plan_of("--config-dir", "conf", "algo=other")


def test_the_sweep_of_a_yaml_that_does_not_start_is_a_warning(tmp_path, capsys):
    text = "# @package _global_\nhydra: {sweeper: {params: {seed: '0,1'}}}\n"
    write_file(tmp_path / "experiment/mine.yaml", text)
    words = ["--config-dir", str(tmp_path), "experiment=mine"]

    assert len(plan_of("-m", *words).jobs) == 2
    assert capsys.readouterr().err == ""
    assert len(plan_of(*words).jobs) == 1
    assert "set and not read: hydra.sweeper.params; for its sweep add -m" in capsys.readouterr().err


# A command line | a line of its settings
UNLISTED = """
algo.denominator=old mu=sampler | denominator: old
model.lora.rank=8 model.lora.alpha=4 model.lora.targets=all-linear | alpha: 4
"""


@each_row("words line", UNLISTED)
def test_settings_that_no_yaml_lists_are_shown(words, line):
    outcome = answer("topr_exp", "--cfg", "job", *words.split())

    assert f" {line}\n" in outcome.stdout, outcome.stderr


# ---- sweeps and YAMLs


def test_no_experiment_is_the_same_as_none_named():
    assert plan_of("experiment=null").jobs[0].config == plan_of().jobs[0].config


SWEEPS = """
seed=range(0,3) baseline=-0.3,0.1 algo=glob(t*) hydra.mode=MULTIRUN
seed=choice(5,6) data.n=4 data.stop=[a,b],[c] name='x,y'
seed=shuffle(1) optim.lr=sort(1e-3,1e-5)
"""


@each_row("words", SWEEPS)
def test_a_sweep_is_every_combination_in_the_order_of_hydras_sweeper(words):
    composer, runs = composed("-m", *words.split())

    (batch,) = BasicSweeper.split_arguments(composer.overrides, max_batch_size=None)
    assert [overrides for overrides, _ in runs] == list(map(list, batch))


@pytest.mark.extended
def test_runs_that_share_a_composition_are_what_hydra_composes():
    words = ["model=tiny,llama3_8b", "algo=topr,is,dpo", "data.n=2,8", "optim.lr=1e-3,1e-5", "seed=3"]
    lora = "++model.lora={rank: 4, alpha: 8, targets: all-linear}"

    composer, runs = composed("-m", *words, lora)

    assert len(runs) == 24
    assert len(composer.compositions) == 1 + 6, "YAMLs are read once for each choice of groups: it takes 0.1 s"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for overrides, settings in runs:
            assert settings == compose("config", overrides)


def test_what_a_yaml_sweeps_over_comes_first_and_gives_way_to_the_command_line():
    _, runs = composed("experiment=agro_fig1", "-m")
    _, runs_of_one_seed = composed("experiment=agro_fig1", "-m", "seed=7")

    first_overrides, _ = runs_of_one_seed[0]
    assert first_overrides[-2:] == ["experiment=agro_fig1", "seed=7"]
    assert len(runs) > len(runs_of_one_seed)


def test_a_yaml_of_the_users_hides_ours_for_this_command_alone(tmp_path):
    dpo = (CONF / "algo/dpo.yaml").read_text(encoding="utf-8")
    write_file(tmp_path / "algo/dpo.yaml", "_target_: topr_exp.algorithms.regressions.DPO\nname: dpo\nbeta: 7.0\n")
    write_file(tmp_path / "algo/1_0.yaml", dpo)
    own_folder = ["--config-dir", str(tmp_path)]

    outcome = answer("topr_exp", *own_folder, "algo=dpo", "--cfg", "job", "--package", "algo")

    assert "beta: 7.0" in outcome.stdout, outcome.stderr
    assert config_of(*own_folder, "algo=dpo").algo.beta == 7.0
    assert config_of(*own_folder, "algo=1_0").algo.name == "dpo", "a choice may look like a number"
    assert config_of("algo=dpo").algo.beta == 0.1
