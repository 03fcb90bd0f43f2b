"""A wrong setting is one line that names the key, what was given and what is allowed; a harmless one is a warning."""

from __future__ import annotations

import dataclasses
import math
import shlex
from typing import Any

import pytest

from tests.conftest import ROOT, config_of
from topr_exp.config.arguments import parse
from topr_exp.config.load import build_section
from topr_exp.config.schema import Section, above, at_least, ranges, within
from topr_exp.config.settings import NAME, PATH, Config
from topr_exp.runs.plan import plan
from topr_exp.types import ConfigError

SHORT = {
    "VERIFIER": "task=verifier task.solver=tiny",
    "OWN": f"data.path={ROOT / 'tests/data/own.jsonl'} data.test_share=0.25",
}
TABLE = """
basline=-0.3 | nothing reads basline; did you mean baseline?
algo=sft effective_positive=0.1 | effective_positive must be null for algo=sft, where a constant baseline cancels or o
algo.bpos=1 | nothing reads algo.bpos; did you mean algo.b_pos?
algorithm=topr | nothing reads algorithm; did you mean algo?
+optim.learning_rate=1 | nothing reads optim.learning_rate
algo=toper | algo=toper: no such choice; allowed: agro,
baseline=low | baseline=low: expected a number or null
seed=1.5 | seed=1.5: expected a whole number
dry_run=perhaps | dry_run=perhaps: expected true or false
optim.name=sgd | optim.name=sgd: expected one of adamw, adafactor
optim.betas=3 | optim.betas=3: expected a list, as in [1, 2] or null
optim=7 | optim=7: no such choice; allowed: paper, tiny
baseline=-3 | baseline must be in [-1, 1]; got -3
baseline=nan | baseline=nan: expected a number or null
algo.a_pos=-1 | algo.a_pos must be at least 0 and finite; got -1
algo.a_neg=2 | algo.b_neg must be at least a_neg = 2.0; got 1.0
optim.lr=0 | optim.lr must be above 0; got 0
baseline=0.1 effective_positive=0.2 | effective_positive must be null where baseline=0.1 is set: each sets the other (
algo=grpo baseline=0 | baseline must be null for algo=grpo, where a constant baseline cancels or only scales the loss;
algo.advantage=group baseline=0.1 | baseline must be null for algo=topr with algo.advantage=group, where a constant ba
algo.advantage=leave_one_out data.n=1 | data.n must be 2 or more for algo=topr
algo.advantage=mean | algo.advantage=mean: expected one of reward, group, group_std, leave_one_out
algo=dpo optim.reduction=tokens | optim.reduction must be sequences for algo=dpo, which trains on pairs;
optim.reduction=tokens | algo.length_normalize must be false where optim.reduction is tokens, which divides by them to
optim.schedule=step | optim.schedule=step: expected one of constant, linear, cosine
optim.warmup_steps=250 | optim.warmup_steps must be below 250, the most updates of an iteration; got 250
algo=rloo schedule.rounds=6 optim.warmup_steps=9 | optim.warmup_steps must be below 6, the most updates
algo=grpo data.n=1 | data.n must be 2 or more for algo=grpo
algo=agro optim.batch_size=24 | optim.batch_size must be a multiple of data.n=16 for algo=agro
algo=agro_on_policy schedule=offline | schedule.updates must be 1 for algo=agro_on_policy, which is right on-policy on
algo=dpo compose=positives | compose.name must be uniform for algo=dpo, which trains on pairs; got positives
compose=positives effective_positive=0.5 | effective_positive must be null for compose=positives, whose share of posit
algo.eps_low=0.1 | nothing reads algo.eps_low here; allowed: algo.name, algo.a_pos,
~baseline | ~baseline: no key can be left out
lr=1e-4 | nothing reads lr; did you mean optim.lr?
model=meta-llama/Llama-3.2-1B | model=meta-llama/Llama-3.2-1B: no such choice; allowed: deepseek_r1_8b,
-m experiment=fig7,fig8 | experiment=fig7,fig8: each has a sweep of its own
-m hydra.sweeper.params={seed:1} | hydra.sweeper.params={seed:1}: nothing reads hydra.sweeper.params; output_dir, name
-m seed=range(3,0) | seed=range(3,0): there is no such value
-m optim.lr=interval(1e-5,1e-3) | optim.lr=interval(1e-5,1e-3): no list of values
-m algo=glob(x*) | algo=glob(x*): there is no such value
cluster=slurm cluster.mem_gb=16GB | cluster.mem_gb=16GB: expected a whole number
name=.. | name must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit, and neither store nor c
name=store | name must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit, and neither store no
algo=agro_on_policy optim.batch_size=32 sampler.top_k=2 | sampler.top_k must be 0 for algo=agro_on_policy, which is ri
sampler.max_new_tokens=100000 | sampler.max_new_tokens must be below 2048
model.revision=main | model.revision=main: tiny is a folder, which has none
model.name= | model.name must be a text; got nothing
data.chat=true | data.chat=true: the model's tokenizer has no chat template
algo= | algo=: no such choice; allowed: agro,
=3 | =3: expected KEY=VALUE
algo._target_=foo.Bar | algo._target_=foo.Bar: ModuleNotFoundError: No module named 'foo'
data.grader=foo:bar | grader foo:bar cannot be loaded (ModuleNotFoundError
data.completions=none.jsonl | data.completions=none.jsonl: neither a file nor a table of outputs/store
model.path=/nonexistent | model.path=/nonexistent: no such folder; shipped models are tiny,
task=verifier task.solver=/nonexistent | task.solver=/nonexistent: no such folder
data.shots=8 data.fewshot_file=/none | data.fewshot_file=/none: no such file
data.reward=zero_one effective_positive=0.5 | effective_positive must be null for data.reward=zero_one: Eq. 12 is of r
data.reward=graded | data.reward must be pm1 or zero_one, unless data.grader=package.module:function gives numbers; go
data.reward=graded data.grader=a:b task=verifier model=tiny_verifier | data.reward must be pm1 or zero_one for task=ve
data.reward=graded data.grader=a:b baseline=.inf | baseline must be a finite number; got inf
data.reward=pm1 data.grader=a:b baseline=1.5 | baseline must be in [-1, 1]; got 1.5
schedule=on_policy optim.batch_size=16 | optim.batch_size must be 32 or more
schedule=on_policy optim.epochs=2 | optim.epochs must be 1 where schedule.prompts is set; got 2
schedule=on_policy schedule.prompts=999 | schedule.prompts must be at most data.train_problems=500; got 999
schedule=on_policy mu=sampler | mu must be scored where data.completions is set, or schedule.prompts; got sampler
schedule=on_policy effective_positive=0.5 | effective_positive must be null where schedule.prompts is set
schedule=on_policy compose.drop_truncated=true | compose.drop_truncated must be false where schedule.prompts is set
data.completions=x schedule=on_policy | schedule.prompts must be null where data.completions is set; got 2
data.completions=x algo=agro | data.completions must be null for algo=agro, which needs whole groups of data.n; got x
algo=agro_on_policy schedule.replay=0.5 optim.batch_size=32 | schedule.replay must be 0 for algo=agro_on_policy
cluster=slurm cluster.timeout_min=1 | cluster.signal_delay_s must be below 1 minutes; got 120
schedule=on_policy algo=dpo | schedule.prompts must be null for algo=dpo: a round may have no pairs of a correct and a
compose.mix=0.5 data.completions=x algo=dpo | compose.mix must be null for algo=dpo, which trains on pairs; got 0.5
compose.mix=0.5 data.completions=x iterations=2 | iterations must be 1 where data.completions is set; got 2
compose.duplicates=drop schedule=on_policy | compose.duplicates must be keep where schedule.prompts is set: a round ha
schedule=on_policy compose=positives | compose.name must be uniform where schedule.prompts is set: a round has few com
data.source=/not/there | data.source=/not/there: no such folder; allowed: embedded, hub or a folder
data.shots=9 | data.shots=9: the gsm8k examples hold 8
seed=0,1 | seed=0,1: several values are a sweep; add -m
-m seed=0,1 baseline=0.1,2 | baseline must be in [-1, 1]; got 2
task=verifier | task.solver must be set for task=verifier; got null
VERIFIER task.solutions=many | task.solutions=many: expected a whole number or null
VERIFIER 'task.template='"'"'{question}'"'"'' | task.template must hold {question} and {solution} once each; got
VERIFIER 'task.template='"'"'{solution}'"'"'' | task.template must hold {question} and {solution} once each; got
VERIFIER task.template=null | task.template must hold {question} and {solution} once each; got None
VERIFIER task.chat=null | task.chat must be set for task=verifier; got null
VERIFIER data.completions=x.jsonl | data.completions must be null for task=verifier, which writes what it trains on; g
nonsense | nonsense: expected KEY=VALUE
algo._target_=os.system | algo._target_=os.system:
algo._target_=topr_exp.types.Batch | algo._target_=topr_exp.types.Batch: not a loss
data._target_=7 | data._target_ must name a class, as in package.module.Class; got 7
data._target_=topr_exp.types.Batch | data._target_=topr_exp.types.Batch: not a source of problems (a data
data._target_=topr_exp.config.data.DataConfig | DataConfig: not a source of problems (a dataclass below
data.path=x | nothing reads data.path here; data=jsonl does
data=jsonl | data.path must be FILE.jsonl or a folder with train.jsonl and test.jsonl; got null
data=jsonl OWN data.source=hub | nothing reads data.source here; data=gsm8k does
data=jsonl OWN data.grader=null | data.grader must be gsm8k, math, final or package.module:function
data=jsonl OWN data.correct=right | data.correct must hold {answer}; got 'right'
data=jsonl data.path=/none | data.path=/none: no such file or folder
hydra/launcher=basic | hydra/launcher=basic: nothing reads hydra/launcher; output_dir, name and cluster say where
hydra.launcher._target_=a.SlurmLauncher | nothing reads hydra.launcher._target_; output_dir, name and cluster
hydra.sweeper=null | hydra.sweeper=null: nothing reads hydra.sweeper; output_dir, name and cluster say where runs are
hydra/job_logging=none_at_all | hydra/job_logging=none_at_all: nothing reads hydra/job_logging; output_dir
hydra.sweep.dir=x | hydra.sweep.dir=x: nothing reads hydra.sweep.dir; output_dir, name and cluster say where runs are
+hydra.run.dir=x | +hydra.run.dir=x: nothing reads hydra.run.dir;
model.size=null | model.size=null: expected tiny or large, in the model's YAML
-m data.nn=1,2 | nothing reads data.nn
-m cluster=local,slurm | cluster=local,slurm: the runs of a sweep share it
-m name=a,b | name=a,b: the runs of a sweep share it
-m seed=0,0 | seed=0 and seed=0 are the same run
-m tracking=none,wandb | tracking=wandb and tracking=none are the same run
-m optim.micro_batch_size=2,4 | optim.micro_batch_size=4 and optim.micro_batch_size=2 are the same run
cluster.jobs=0 | cluster.jobs must be 1 or more; got 0
-m optim.lr.x=1,2 | optim.lr={'x': 1}: expected a number
model.lora.rank=8 | model.lora.alpha is not set
model.lora.rnk=8 | nothing reads model.lora.rnk
cluster.partition=x | nothing reads cluster.partition here; cluster=slurm does
seed.x=1 | nothing reads seed.x
learning_rates.lss=x | nothing reads learning_rates.lss
VERIFIER task.solutions=0 | task.solutions must be null or 1 or more; got 0
VERIFIER task.test_solutions=null | task.test_solutions must be set for task=verifier; got null
schedule=on_policy schedule.updates=null | schedule.updates must be 1 or more where prompts is set; got null
evaluation.every=0 | evaluation.every must be null or 1 or more; got 0
compose=proportion compose.positive_share=1.5 | compose.positive_share must be in (0, 1); got 1.5
compose=proportion compose.positive_share=0 | compose.positive_share must be in (0, 1); got 0
compose=proportion compose.positive_share=null | compose.positive_share must be in (0, 1) for compose=proportion; got n
compose.pass_rate=[0.9,0.1] | compose.pass_rate must be [low, high] with 0 <= low <= high <= 1; got [0.9, 0.1]
compose.pass_rate=[0.1,1.1] | compose.pass_rate must be [low, high] with 0 <= low <= high <= 1; got [0.1, 1.1]
compose.pass_rate=[0.1] | compose.pass_rate must be [low, high] with 0 <= low <= high <= 1; got [0.1]
compose.mix=0.5 compose=anna_karenina | compose.mix=0.5 goes with compose=uniform or positives; got anna_karenina
algo=agro compose.drop_truncated=true | compose.drop_truncated must be false for algo=agro, which trains on groups; go
algo=agro compose.duplicates=drop | compose.duplicates must be keep for algo=agro, which trains on groups; got drop
"""
LONG, N = 300 * "a", r"\n"
ODD = [
    ([f'data.template="Q: {{question}}{N}A:"'], "data.template holds a backslash and an n, which make no line break"),
    ([f'data.template="{{question}}{N}nu:"'], f"""write one as in $'data.template="Q: {{question}}{N}A:"', in"""),
    ([f'data.stop=["Q:", "{N}"]'], f"""one as in $'data.stop=["{N}Q:"]', in a YAML file in double quotes; got {N}"""),
    (["task=verifier", "task.solver=tiny", f'task.template="{{question}}{N}{{solution}}"'],
     "task.template holds a backslash and an n"),
    ([f"output_dir=/tmp/{LONG}/b"], "output_dir must be a path of folders whose names have at most 255 bytes"),
    (["data=jsonl", f"data.path={LONG}"], f"data.path={LONG}: File name too long"),
    ([f"model.path={LONG}"], f"model.path={LONG}: File name too long"),
    ([f"name='{34 * '語'}'"], "name must be 1 to 100 letters, digits"),
    (["data.template='\udcff{question}'"], r"data.template='\udcff{question}': expected UTF-8; half of a surrogate"),
    (["data.stop=['\udcff']"], r"data.stop[0]='\udcff': expected UTF-8"),
]  # fmt: skip


def mistakes() -> list[tuple[list[str], str]]:
    rows = [line.split(" | ") for line in TABLE.strip().splitlines()]
    words = [[word for text in shlex.split(given) for word in SHORT.get(text, text).split(" ")] if "OWN" in given
             or "VERIFIER" in given else shlex.split(given) for given, _ in rows]  # fmt: skip
    return [*zip(words, (message for _, message in rows), strict=True), *ODD]


@pytest.mark.parametrize(("words", "message"), mistakes(), ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(parse(words))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "model.reference=tiny_noise", "model.float32_head=true", "data.threshold=0.5",
        "compose.positive_share=0.5", "compose.mix=0.5", "compose.max_draws=3", "compose.max_draws=3 algo=rloo",
        "evaluation.problems=9", "task.solver=tiny", "task.chat=true", "schedule.updates=2", "schedule.replay=0.5",
        "tracking.project=x",
    ],
)  # fmt: skip
def test_what_is_set_and_not_read_is_told_once(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan(parse(["-m", "seed=0,1", *words.split()]))
    assert capsys.readouterr().err == f"warning: set and not read: {words.split('=')[0]}\n"


def test_what_some_run_of_a_sweep_reads_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    plan(parse(["-m", "algo=topr,kl_pg", "model.reference=tiny_noise"]))
    plan(parse(["data.threshold=1", "model.reference=null", "algo.advantage=reward", "compose.max_draws=10"]))
    assert capsys.readouterr().err == ""


def test_a_plus_before_a_key_that_there_is_changes_nothing() -> None:
    assert (
        config_of("+seed=1", "+algo=tis", "+optim.lr=1e-3").folder
        == config_of("seed=1", "algo=tis", "optim.lr=1e-3").folder
    )


def test_line_breaks_as_the_message_says_and_latex() -> None:
    assert config_of('data.template="Q: {question}\nA:"').data.template == "Q: {question}\nA:"
    assert config_of('data.stop=["\nQ:"]').data.stop == ["\nQ:"]
    latex = r"With $x \neq 0$ and $\nu \notin N$: {question}"
    assert config_of(f'data.template="{latex}"').data.template == latex


# What is allowed, and the keys that it holds for.
RANGES = {
    "1 or more": "iterations data.n data.eval_n sampler.max_new_tokens sampler.prompts_per_shard "
    "sampler.tensor_parallel compose.max_draws compose.pairs_per_problem optim.batch_size optim.micro_batch_size "
    "optim.score_batch_size optim.epochs cluster.timeout_min cluster.signal_delay_s cluster.nodes "
    "cluster.array_parallelism",
    "0 or more": "seed data.seed data.shots sampler.seed optim.weight_decay optim.warmup_steps evaluation.seed "
    "cluster.max_num_timeout",
    "null or 1 or more": "schedule.prompts schedule.updates schedule.rounds task.solutions task.test_solutions "
    "sampler.shards_at_once evaluation.every evaluation.problems cluster.threads cluster.gpus_per_node "
    "cluster.cpus_per_task cluster.mem_gb",
    "null (all) or 1 or more": "data.train_problems data.test_problems compose.n_examples",
    "a finite number": "data.threshold baseline",
    "in (0, 1)": "compose.mix compose.positive_share",
    "in [0, 1)": "schedule.replay",
    "in [0, 1]": "effective_positive",
    "in (0, 1]": "sampler.top_p sampler.gpu_memory_utilization",
    "in (0, 10]": "sampler.temperature",
    "above 0": "sampler.cpu_cache_gib sampler.timeout_min optim.lr",
    "above 0 (.inf for none)": "optim.grad_clip",
    "0 (the whole vocabulary) or more": "sampler.top_k",
    "0 (after every update) or more": "checkpoint.every_seconds",
    "numbers from 1, null for all": "checkpoint.keep_iterations",
    "null or {NAME: VALUE}": "cluster.additional_parameters",
    "[low, high] with 0 <= low <= high <= 1": "compose.pass_rate",
    "a text": "model.name",
    "a shipped model, a folder or a name on the hub": "model.path",
    "none, wandb or tensorboard": "tracking.name",
    "a text that holds {question} once": "data.template",
    "texts, none of them empty": "data.stop",
    NAME.allowed: "name",
    PATH.allowed: "output_dir",
}
WRONG = {"keep_iterations": [0], "baseline": math.inf, "threshold": math.inf, "pass_rate": [0.5],
         "template": "no place", "stop": ["a", ""], "output_dir": 256 * "a"}  # fmt: skip


def test_every_range_is_declared_and_applied() -> None:
    config = config_of("cluster=slurm", "sampler=vllm")
    sections = {"": config} | {f"{f.name}.": getattr(config, f.name) for f in dataclasses.fields(Config)}
    declared: dict[str, list[str]] = {}
    for prefix, section in sections.items():
        for name, range_ in ranges(type(section)) if isinstance(section, Section) else ():
            declared.setdefault(range_.allowed, []).append(f"{prefix}{name}")
            wrong: Any = WRONG.get(name, "" if isinstance(getattr(section, name), str) else -11)
            with pytest.raises(ValueError) as error:
                dataclasses.replace(section, **{name: wrong})
            assert str(error.value) == f"{name} must be {range_.allowed}; got {wrong if wrong != '' else 'nothing'}"
    assert {allowed: sorted(keys) for allowed, keys in declared.items()} == {
        allowed: sorted(keys.split()) for allowed, keys in RANGES.items()
    }


@pytest.mark.parametrize("key", ["cluster.processes", "cluster.jobs", "cluster.threads"])
def test_each_cluster_has_ranges_of_its_own(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be (null or )?1 or more; got 0$"):
        config_of(f"{key}=0")


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
