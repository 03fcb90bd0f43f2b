"""Settings: every YAML composes, every mistake is one line that names key, value and what is allowed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, config_of, needs_gym
from topr_exp.config.arguments import parse
from topr_exp.config.schema import plain
from topr_exp.models.loading import SHIPPED
from topr_exp.runs.plan import plan
from topr_exp.runs.preflight import check_machine
from topr_exp.types import ConfigError

GROUPS = {
    group.name: sorted(path.stem for path in group.glob("*.yaml"))
    for group in (ROOT / "conf").iterdir()
    if group.is_dir()
}
OWN = [f"data.path={ROOT / 'tests/data/own.jsonl'}", "data.test_share=0.25"]


def named(*names: str) -> Any:
    """A parameter; of a choice that draws with reasoning-gym one that is skipped where that is not installed."""
    return pytest.param(*names, marks=[needs_gym] if {"reasoning_gym", "tiny_tasks"} & {*names} else [])


@pytest.mark.parametrize(("group", "choice"), [named(g, c) for g, choices in GROUPS.items() for c in choices])
def test_every_yaml_composes(group: str, choice: str) -> None:
    # Some algorithms are right on-policy only; their YAMLs say so by choosing the schedule.
    more = {"verifier": ["task.solver=tiny"], "jsonl": OWN}.get(choice, [])
    more += ["seed=0"] if group == "experiment" else []  # one of the seeds that it sweeps over
    for job in plan(parse([f"{group}={choice}", "dry_run=true", *more])).jobs:
        assert job.config.folder.parent.name == job.config.name


@pytest.mark.parametrize("model", GROUPS["model"])
@pytest.mark.parametrize("data", [named(choice) for choice in GROUPS["data"]])
def test_every_model_takes_every_data_set(model: str, data: str) -> None:
    config = config_of(f"model={model}", f"data={data}", *(OWN if data == "jsonl" else ()))
    assert config.data.name == data
    if data in ("gsm8k", "math"):
        assert config.data.source == ("embedded" if model.startswith("tiny") else "hub")


def test_the_papers_models_carry_the_papers_settings() -> None:
    for model in ("llama3_8b", "deepseek_r1_8b"):
        for data, n, eval_n in (("gsm8k", 16, 64), ("math", 32, 16)):
            config = config_of(f"model={model}", f"data={data}")
            assert (config.data.n, config.data.eval_n) == (n, eval_n)
            assert plain(config.optim)["name"] == "adafactor"
            assert (config.optim.lr, config.optim.batch_size, config.optim.grad_clip) == (5e-7, 8, 1.0)
            assert (config.optim.weight_decay, config.optim.epochs) == (0.0, 1)
            assert (config.sampler.name, config.sampler.gpu_memory_utilization) == ("vllm", None)
            assert (config.sampler.top_k, config.sampler.max_new_tokens) == (500, 512)
            assert (config.sampler.temperature, config.sampler.top_p) == (1.0, 1.0)


def test_a_cluster_for_the_papers_models() -> None:
    cluster = config_of("cluster=slurm_8b", "cluster.partition=long", "model=llama3_8b", "sampler=hf").cluster
    assert (cluster.name, cluster.partition, cluster.gpus_per_node, cluster.mem_gb) == ("slurm", "long", 1, 128)
    assert cluster.signal_delay_s == 600
    launcher = plan(parse(["cluster=slurm_8b", "model=llama3_8b", "-m", "seed=0,1"])).launcher
    assert (launcher["mem_gb"], launcher["timeout_min"], launcher["gpus_per_node"]) == (128, 480, 1)


def test_the_command_line_wins_over_the_model_and_the_model_over_the_data() -> None:
    assert config_of("data=math").data.n == 16
    assert config_of("data=math", "model=llama3_8b").data.n == 32
    assert config_of("data=math", "data.n=3").data.n == 3
    assert config_of("model=llama3_8b", "sampler=hf").sampler.name == "hf"
    assert config_of("optim=paper").optim.lr == 5e-7
    assert config_of("optim.lr=1e-3").optim.lr == 1e-3
    assert config_of("data.source=hub").data.source == "hub"


VERIFIER = ["task=verifier", "task.solver=tiny"]
MISTAKES = [
    (["basline=-0.3"], "nothing reads basline; did you mean baseline?"),
    (["algo=sft", "effective_positive=0.1"], "effective_positive=0.1 means nothing for algo=sft, where a constant"),
    (["+basline=-0.3"], "nothing reads basline; did you mean baseline?"),
    (["algo.bpos=1"], "nothing reads algo.bpos; did you mean algo.b_pos?"),
    (["+algo.bpos=1"], "nothing reads algo.bpos; did you mean algo.b_pos?"),
    (["algorithm=topr"], "nothing reads algorithm; did you mean algo?"),
    (["+optim.learning_rate=1"], "nothing reads optim.learning_rate"),
    (["algo=toper"], "algo=toper: no such choice; allowed: agro, "),
    (["model=tiny2"], "model=tiny2: no such choice; allowed: deepseek_r1_8b, llama3_8b, tiny"),
    (["baseline=low"], "baseline=low: expected a number or null"),
    (["seed=1.5"], "seed=1.5: expected a whole number"),
    (["dry_run=perhaps"], "dry_run=perhaps: expected true or false"),
    (["optim.name=sgd"], "optim.name=sgd: expected one of adamw, adafactor"),
    (["optim.betas=3"], "optim.betas=3: expected a list, as in [1, 2] or null"),
    (["optim=7"], "optim=7: no such choice; allowed: paper, tiny"),
    (["baseline=-3"], "baseline must be in [-1, 1]; got -3"),
    (["effective_positive=1.1"], "effective_positive must be in [0, 1]; got 1.1"),
    (["baseline=nan"], "baseline=nan: expected a number or null"),
    (["algo.a_pos=-1"], "algo.a_pos must be at least 0 and finite; got -1"),
    (["algo.a_neg=2"], "algo.b_neg must be at least a_neg = 2.0; got 1.0"),
    (["optim.lr=0"], "optim.lr must be above 0; got 0"),
    (["optim.batch_size=0"], "optim.batch_size must be 1 or more; got 0"),
    (["sampler.top_p=0"], "sampler.top_p must be in (0, 1]; got 0"),
    (["data.n=0"], "data.n must be 1 or more; got 0"),
    (["baseline=0.1", "effective_positive=0.2"], "baseline=0.1 and effective_positive=0.2 exclude each other"),
    (["algo=dpo", "baseline=0.1"], "baseline=0.1 means nothing for algo=dpo"),
    (["algo=dpo", "effective_positive=0.1"], "effective_positive=0.1 means nothing for algo=dpo"),
    (["algo=grpo", "baseline=0"], "baseline=0 means nothing for algo=grpo"),
    (["algo.advantage=group", "baseline=0.1"], "baseline=0.1 means nothing for algo=topr with algo.advantage=group, "),
    (["algo.advantage=group_std", "effective_positive=0.2"], "effective_positive=0.2 means nothing for algo=topr with"),
    (["algo.advantage=leave_one_out", "data.n=1"], "data.n must be 2 or more for algo=topr"),
    (["algo.advantage=mean"], "algo.advantage=mean: expected one of reward, group, group_std, leave_one_out"),
    (["algo=dpo", "optim.reduction=tokens"], "optim.reduction must be sequences for algo=dpo, which trains on pairs;"),
    (["optim.reduction=tokens"], "optim.reduction=tokens divides by the number of tokens, and so does algo.length_nor"),
    (["optim.schedule=step"], "optim.schedule=step: expected one of constant, linear, cosine"),
    (["optim.warmup_steps=-1"], "optim.warmup_steps must be 0 or more; got -1"),
    (["optim.warmup_steps=250"], "optim.warmup_steps must be below 250, the most updates of an iteration; got 250"),
    (
        ["algo=rloo", "schedule.rounds=6", "optim.warmup_steps=9"],
        "optim.warmup_steps must be below 6, the most updates",
    ),
    (["algo=grpo", "data.n=1"], "data.n must be 2 or more for algo=grpo"),
    (["algo=agro", "optim.batch_size=24"], "optim.batch_size must be a multiple of data.n=16 for algo=agro"),
    (["algo=agro_on_policy", "schedule=offline"], "algo=agro_on_policy is right on-policy only"),
    (
        ["algo=dpo", "compose=positives"],
        "compose.name=positives picks single completions, but algo=dpo trains on pairs",
    ),
    (["compose=positives", "effective_positive=0.5"], "effective_positive=0.5 can't be reached with compose=positives"),
    (["compose.positive_share=0.5"], "compose.positive_share=0.5 means nothing for compose=uniform"),
    (["algo.eps_low=0.1"], "nothing reads algo.eps_low here; the algorithm has algo.a_pos, algo.b_pos,"),
    (["+algo=tis"], "algo is set already; write algo=VALUE without +"),
    (["~baseline"], "~baseline: no key can be left out"),
    (["~seed"], "~seed: no key can be left out"),
    (["+seed=1"], "seed is set already; write seed=VALUE without +"),
    (["lr=1e-4"], "nothing reads lr; did you mean optim.lr?"),
    (["optim.learning_rate=1e-4"], "nothing reads optim.learning_rate; did you mean optim.lr?"),
    (["model=meta-llama/Llama-3.2-1B"], "model=meta-llama/Llama-3.2-1B: no such choice; allowed: deepseek_r1_8b,"),
    (["-m", "experiment=fig7,fig8"], "experiment=fig7,fig8: each has a sweep of its own"),
    (["-m", "hydra.sweeper.params={seed:1}"], "hydra.sweeper.params={seed:1}: that is for YAML files"),
    (["-m", "seed=range(3,0)"], "seed=range(3,0): there is no such value"),
    (["-m", "optim.lr=interval(1e-5,1e-3)"], "optim.lr=interval(1e-5,1e-3): no list of values"),
    (["-m", "algo=glob(x*)"], "algo=glob(x*): there is no such value"),
    (["cluster=slurm", "cluster.mem_gb=16GB"], "cluster.mem_gb=16GB: expected a whole number"),
    (["name=.."], "name must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit; got .."),
    (["name=store"], "name=store: that folder of output_dir has another use"),
    (["algo=agro_on_policy", "optim.batch_size=32", "sampler.top_k=2"], "algo=agro_on_policy is right on-policy only"),
    (["model.reference=tiny_noise"], "model.reference=tiny_noise is not read by algo=topr"),
    (["sampler.max_new_tokens=100000"], "sampler.max_new_tokens must be below 2048"),
    (["model.revision=main"], "model.revision=main: tiny is a folder, which has none"),
    (["model.name="], "model.name must not be empty"),
    (["data.chat=true"], "data.chat=true: the model's tokenizer has no chat template"),
    (["algo="], "algo=: no such choice; allowed: agro,"),
    (["=3"], "=3: expected KEY=VALUE"),
    (["--config-name", "nope"], "--config-name nope: no such file"),
    (["algo._target_=foo.Bar"], "algo._target_=foo.Bar: ModuleNotFoundError: No module named 'foo'"),
    (["tracking.project=x"], "nothing reads tracking.project here; tracking=wandb does"),
    (["data.grader=foo:bar"], "grader foo:bar cannot be loaded (ModuleNotFoundError"),
    (["data.completions=none.jsonl"], "data.completions=none.jsonl: neither a file nor a table of outputs/store"),
    (["model.path=/nonexistent"], "model.path=/nonexistent: no such folder; shipped models are tiny,"),
    (["task=verifier", "task.solver=/nonexistent"], "task.solver=/nonexistent: no such folder"),
    (["data.shots=8", "data.fewshot_file=/none"], "data.fewshot_file=/none: no such file"),
    (["data.reward=zero_one", "effective_positive=0.5"], "effective_positive=0.5 is of rewards 1 and -1 (Eq. 12)"),
    (
        ["data.reward=graded", "data.grader=a:b", "effective_positive=0.5"],
        "effective_positive=0.5 is of rewards 1 and -1 (Eq. 12), and data.reward is graded; set baseline instead",
    ),
    (["data.reward=graded"], "data.reward=graded needs a grader of your own that returns numbers (data.grader=pa"),
    (["data.reward=graded", "data.grader=a:b", "task=verifier", "model=tiny_verifier"], "data.reward=graded: a verd"),
    (["data.reward=graded", "data.grader=a:b", "baseline=.inf"], "baseline must be a finite number; got inf"),
    (["data.reward=pm1", "data.grader=a:b", "baseline=1.5"], "baseline must be in [-1, 1]; got 1.5"),
    (["data.threshold=0.5"], "data.threshold=0.5 is for the numbers of a grader of your own; grader=gsm8k gives none"),
    (["schedule=on_policy", "optim.batch_size=16"], "optim.batch_size must be 32 or more"),
    (["schedule=on_policy", "algo=dpo"], "algo=dpo trains on pairs of a correct and an incorrect completion"),
    (["compose.mix=0.5"], "compose.mix=0.5 is a share of completions made elsewhere; set data.completions"),
    (["compose.mix=0.5", "data.completions=x", "algo=dpo"], "compose.mix=0.5 picks single completions, but algo=dpo"),
    (
        ["compose.mix=0.5", "data.completions=x", "iterations=2"],
        "data.completions=x is trained on instead of sampling, or beside it",
    ),
    (["compose.max_draws=3", "schedule=on_policy"], "compose.max_draws=3 is read with schedule=on_policy and compo"),
    (["compose.max_draws=3", "compose.pass_rate=[0,1]"], "compose.max_draws=3 is read with schedule=on_policy and"),
    (["compose.duplicates=drop", "schedule=on_policy"], "compose.duplicates=drop may leave nothing of a round's few"),
    (["schedule=on_policy", "compose=positives"], "compose=positives may find nothing in a round's few completions"),
    (
        ["schedule=on_policy", "schedule.updates=0"],
        "schedule.updates must be 1 or more for an on-policy schedule; got 0",
    ),
    (["schedule.updates=2"], "schedule.prompts must be set where updates, rounds or replay are"),
    (["data.source=/not/there"], "data.source=/not/there: no such folder; allowed: embedded, hub or a folder"),
    (["data.shots=9"], "data.shots=9: the gsm8k examples hold 8"),
    (["name=../x"], "name must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit; got ../x"),
    (["seed=0,1"], "seed=0,1: several values are a sweep; add -m"),
    (["-m", "seed=0,1", "baseline=0.1,2"], "baseline must be in [-1, 1]; got 2"),
    (["task=verifier"], "task.solver must be a model for task=verifier"),
    (["task=verify"], "task=verify: no such choice; allowed: solve, verifier"),
    (["task.solver=tiny"], "task.solver=tiny is read for task=verifier only"),
    ([*VERIFIER, "task.solutions=0"], "task.solutions must be 1 or more; got 0"),
    ([*VERIFIER, "task.solutions=many"], "task.solutions=many: expected a whole number or null"),
    ([*VERIFIER, "task.test_solutions=null"], "task.test_solutions must be 1 or more; got null"),
    ([*VERIFIER, "task.template='{question}'"], "task.template must hold {question} and {solution} once each; got"),
    ([*VERIFIER, "task.template='{solution}'"], "task.template must hold {question} and {solution} once each; got"),
    ([*VERIFIER, "task.template=null"], "task.template must hold {question} and {solution} once each; got None"),
    ([*VERIFIER, "task.chat=null"], "task.chat must be true or false for task=verifier; got null"),
    ([*VERIFIER, "data.completions=x.jsonl"], "data.completions=x.jsonl holds answers to the problems, which task=v"),
    (
        [r'data.template="Q: {question}\nA:"'],
        "data.template holds a backslash and an n, which make no line break; in bash",
    ),
    (
        [r'data.template="{question}\nnu:"'],
        r"""write one as in $'data.template="Q: {question}\nA:"', in a YAML file in""",
    ),
    (
        [r'data.stop=["Q:", "\n"]'],
        r"""write one as in $'data.stop=["\nQ:"]', in a YAML file in double quotes; got \n""",
    ),
    ([*VERIFIER, r'task.template="{question}\n{solution}"'], "task.template holds a backslash and an n"),
    (["nonsense"], "nonsense: expected KEY=VALUE"),
    (["algo._target_=os.system"], "algo._target_=os.system: "),
    (["algo._target_=topr_exp.types.Batch"], "algo._target_=topr_exp.types.Batch: not a loss"),
    (["data._target_=foo.Bar"], "data._target_=foo.Bar: ModuleNotFoundError: No module named 'foo'"),
    (["data._target_=7"], "data._target_ must name a class, as in package.module.Class; got 7"),
    (["data._target_=topr_exp.types.Batch"], "data._target_=topr_exp.types.Batch: not a source of problems (a data"),
    (["data._target_=topr_exp.config.data.DataConfig"], "DataConfig: not a source of problems (a dataclass below"),
    (["data.path=x"], "nothing reads data.path here; data=jsonl does"),
    (["data=jsonl"], "data.path must be FILE.jsonl or a folder with train.jsonl and test.jsonl; got null"),
    (["data=jsonl", *OWN, "data.source=hub"], "nothing reads data.source here; data=gsm8k does"),
    (["data=jsonl", *OWN, "data.source=/x"], "nothing reads data.source here; data=gsm8k does"),
    (["data=jsonl", *OWN, "data.grader=null"], "data.grader must be gsm8k, math, final or package.module:function"),
    (["data=jsonl", *OWN, "data.test_share=1"], "data.test_share must be in (0, 1); got 1"),
    (["data=jsonl", *OWN, "data.correct=right"], "data.correct must hold {answer}; got 'right'"),
    (["data=jsonl", "data.path=/none"], "data.path=/none: no such file or folder"),
    (["hydra/launcher=basic"], "hydra/launcher=basic: cluster=local and cluster=slurm set it; leave it out"),
    (
        ["hydra.launcher._target_=a.SlurmLauncher"],
        "hydra/launcher is a.SlurmLauncher: it must be basic for cluster=loc",
    ),
    (["hydra.launcher=x"], "hydra/launcher is x: it must be basic for cluster=local"),
    (["hydra.sweeper=null"], "hydra/sweeper is None: it must be basic for cluster=local"),
    (["hydra/job_logging=none_at_all"], "hydra/job_logging=none_at_all: no such choice; allowed: "),
    ([f"output_dir=/tmp/{300 * 'a'}/b"], f"output_dir: {20 * 'a'}... has 300 bytes; a folder's name must be at most 2"),
    (["data=jsonl", f"data.path={300 * 'a'}"], f"data.path={300 * 'a'}: File name too long"),
    ([f"model.path={300 * 'a'}"], f"model.path={300 * 'a'}: File name too long"),
    ([f"name='{34 * '語'}'"], "name must be 1 to 100 letters, digits"),
    (
        ["data.template='\udcff{question}'"],
        "data.template='\\udcff{question}': expected UTF-8; half of a surrogate pair",
    ),
    (["data.stop=['\udcff']"], "data.stop[0]='\\udcff': expected UTF-8"),
    (["model.size=null"], "model.size=null: expected tiny or large, in the model's YAML"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_mistake_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(parse(arguments))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_line_breaks_as_the_message_says_and_latex() -> None:
    assert config_of('data.template="Q: {question}\nA:"').data.template == "Q: {question}\nA:"
    assert config_of('data.stop=["\nQ:"]').data.stop == ["\nQ:"]
    latex = r"With $x \neq 0$ and $\nu \notin N$: {question}"
    assert config_of(f'data.template="{latex}"').data.template == latex


def test_a_path_alone_names_the_model_after_itself_and_changes_no_other_name(tmp_path: Path) -> None:
    """What `tiny` sets holds on, but the run is not called tiny; as soon as a name or a model is given, that holds."""
    own = shutil.copytree(SHIPPED / "tiny", tmp_path / "runs" / "my_run" / "iteration-2" / "model")
    names = {
        "tiny": "tiny",
        "tiny_noise": "tiny_noise",
        "owner/Name-7B": "Name-7B",
        str(own): "my_run",
        f"{own.parent}/../iteration-2/model/": "my_run",
    }
    for path, name in names.items():
        config = config_of(f"model.path={path}")
        assert config.model.name == name
        assert (config.data.source, config.optim.lr) == ("embedded", 1e-4)
    assert config_of("model.path=tiny").folder == config_of().folder
    for more in ("model=tiny", "model.name=tiny"):
        assert config_of(more, "model.path=tiny_noise").model.name == "tiny"


def test_a_loss_of_the_users_own_needs_no_change_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    (tmp_path / "conf" / "algo" / "mine.yaml").write_text("_target_: my_loss.Mine\nname: mine\nscale: 2.0\n")
    (tmp_path / "my_loss.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    name: str\n    scale: float\n"
        "    needs: ClassVar[frozenset] = frozenset()\n    uses_baseline: ClassVar[bool] = True\n"
        "    def __call__(self, batch): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = config_of("--config-dir", str(tmp_path / "conf"), "algo=mine", "algo.scale=3")
    assert (config.algo.name, config.algo.scale) == ("mine", 3.0)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            "needs = frozenset({'ref_logp', 'refrence'})",
            "needs refrence, which nothing provides; allowed: pairs, ",
        ),
        ("needs = 'pairs'", "needs must be a set of names; got 'pairs'"),
        ("needs = frozenset(); rewards = 'zero-one'", "rewards=zero-one: expected one of pm1, zero_one"),
        ("needs = frozenset(); __call__ = None", "not a loss (it needs `name` and `__call__`)"),
    ],
)
def test_a_loss_declares_nothing_that_nobody_knows(
    declared: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the package or in a folder of the user's own, and before anything starts."""
    (tmp_path / "wrong_loss.py").write_text(
        f"from topr_exp.algorithms.dpo import DPO\nclass Mine(DPO):\n    {declared}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_loss", raising=False)
    with pytest.raises(ConfigError) as caught:
        config_of("algo=dpo", "algo._target_=wrong_loss.Mine", "dry_run=true")
    assert str(caught.value).startswith(f"algo._target_=wrong_loss.Mine: {message}")
    assert "\n" not in str(caught.value)


def test_a_loss_of_the_package_is_held_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topr_exp.algorithms.dpo.DPO.needs", frozenset({"pairs", "pair"}))
    with pytest.raises(ConfigError, match=r"^algo\._target_=topr_exp\.algorithms\.dpo\.DPO: needs pair, which nothing"):
        config_of("algo=dpo")


def test_a_folder_that_can_t_be_written_in_and_a_key_taken_over_by_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=f"output_dir={path}: cannot make {path}/runs .Not a directory"):
            check_machine([config_of(f"output_dir={path}")])
    check_machine([config_of(f"output_dir={tmp_path / 'not' / 'yet' / 'there'}")])
    with pytest.raises(ConfigError, match=r"^seed=abc: expected a whole number"):  # sampler.seed is seed's
        config_of("experiment=fig1", "algo=topr", "seed=abc")
