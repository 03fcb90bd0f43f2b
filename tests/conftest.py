"""What many tests use: a small random model, a policy around it, and runs with few problems."""

import ast
import functools
import gc
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import chdir, contextmanager
from pathlib import Path
from unittest.mock import patch

import hypothesis
import pytest

# The same cases every time, however slow the machine is: chance must not decide whether a change passes. New ones:
# python -m pytest --hypothesis-profile=default tests/grading/test_equivalence.py
HEALTH = [*hypothesis.HealthCheck]
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=HEALTH)
hypothesis.settings.load_profile("same")

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = Path(os.environ.get("TOPR_SHARED_DATA", ROOT.parent / "shared/data"))

# It needs packages that are built from source, one of them with a C compiler: no part of the extra [dev].
needs_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason="reasoning-gym is not installed (pip install -e '.[tasks]'; it needs a C compiler)",
)

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft is not installed (pip install -e '.[lora]')"
)


# The files that take longest begin first, in this order, so that no process waits for another's at the end.
LONGEST = """
reference/test_reference_run grading/test_processes training/test_asynchronous training/test_resume config/test_load
training/test_parallel report/test_page sweeps/test_local tracking/test_tracker_command test_pipeline runs/test_attempt
evaluation/test_journal scripts/test_io_faults grading/test_own_grader imported/test_imported_runs report/test_runs
store/test_table sweeps/test_group verifier/test_verifier_runs docs/test_python test_evaluate
""".split()  # noqa: SIM905 - paths read better than a list of strings


gc.disable()  # until the tests are collected: a sixth of the time went into looking for garbage among imports


def pytest_collection_finish():
    gc.enable()


def pytest_collection_modifyitems(items):
    rank = {f"tests/{name}.py": index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.location[0], len(LONGEST)))


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Search no garbage in what was imported: a run looks for some twice."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def haste():
    """List the choices of conf/ once for all tests, and compose each of them once; wait for no disk.

    Both take a tenth of a second for each command line. Tests of what is flushed count the calls.
    """
    from topr_exp.config import compose_overrides

    compositions = {}
    init = compose_overrides.Composer.__init__

    def init_with_shared_compositions(self, args):
        init(self, args)
        if args.config_dir is None:
            self.compositions = compositions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose_overrides.Composer, "__init__", init_with_shared_compositions)
        patch.setattr(compose_overrides, "config_loader", loader_with_shared_choices(compose_overrides.config_loader))
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def loader_with_shared_choices(new_loader):
    """A `config_loader` that makes one loader of conf/ and the plugins, which lists the choices of a group once."""
    from topr_exp.config.yamls import OwnFolder, plugin_modules

    @functools.cache
    def shared_loader(plugins):
        loader = new_loader(None)
        loader.get_group_options = functools.cache(loader.get_group_options)
        return loader

    def config_loader(config_dir):
        if config_dir is not None:
            return new_loader(config_dir)
        OwnFolder.use(None)
        return shared_loader(tuple(plugin_modules()))

    return config_loader


# ---- surroundings of a command


def run_python(*arguments, **options):
    """What a new Python did that was given these arguments; it starts in the repository's folder."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, **{"cwd": ROOT, "capture_output": True, "text": True} | options)


@pytest.fixture
def sweep_of_two(tmp_path):
    """The folder of a sweep of a finished run (topr) and one that was killed (tis)."""
    from tests.run_folders import make_sweep_of_two

    return make_sweep_of_two(tmp_path / "sweep")


@contextmanager
def at_work_in(folder):
    """Make a folder the working folder, beside whose commands modules of one's own are found."""
    path = [*sys.path]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        with chdir(folder):
            yield folder
    finally:
        sys.path[:] = path


@pytest.fixture
def working_folder(tmp_path):
    with at_work_in(tmp_path):
        yield tmp_path


@pytest.fixture
def variables():
    """The variables of this process, which a test may change."""
    with patch.dict(os.environ):
        yield os.environ


class Clock:
    """A time that passes only where a test says so; `asleep` is called while somebody sleeps."""

    def __init__(self):
        self.now = 100.0
        self.asleep = lambda: None

    def sleep(self, seconds):
        self.now += seconds
        self.asleep()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


@pytest.fixture
def stand_in(monkeypatch):
    """A function that puts an object in the place of a package; None: as if the package were not installed."""
    return lambda package, module: monkeypatch.setitem(sys.modules, package, module)


@pytest.fixture
def hub(monkeypatch):
    """A function that has another one answer for the data sets of the hub."""
    import datasets

    return lambda answer: monkeypatch.setattr(datasets, "load_dataset", answer)


@pytest.fixture
def be_rank(monkeypatch):
    """A function: be this process of the run from now on."""
    from topr_exp.runtime import distributed

    return lambda rank: monkeypatch.setattr(distributed, "_rank", rank)


# ---- models, completions, settings


@pytest.fixture(scope="session")
def small_model():
    """A Llama of two layers with random weights, float32, in evaluation mode."""
    return make_model(vocabulary=11)


def make_model(vocabulary, seed=0, model_type="llama", **changes):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    settings = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        # Wide weights, so that the distributions are far from uniform.
        "initializer_range": 0.6,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    config = AutoConfig.for_model(model_type, **settings | changes)
    return AutoModelForCausalLM.from_config(config).eval()


def normal(*shape, seed=0):
    """Standard normal numbers, the same for a seed."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator)


def make_completions(problem, prompts=None, name=None, shard_sizes=None, **columns):
    """Completions of these problems, by row, with these columns; `finish` is "stop" where it is not given.

    name: of the table of a store in which they are said to lie, in shards of these sizes.
    """
    import numpy as np
    import pyarrow as pa

    from topr_exp.sampling.completions import Completions, StoredTables
    from topr_exp.store.source import Sharding
    from topr_exp.types import Problem

    rows = np.asarray(problem)
    if prompts is None:
        prompts = [[0]] * (int(rows.max()) + 1)
    problems = columns.pop("problems", None)
    if problems is None:
        problems = [Problem(f"p{index}", "?", "1") for index in range(len(prompts))]
    samples = [int((rows[:row] == rows[row]).sum()) for row in range(len(rows))]
    columns = {"problem": rows, "sample": samples, "finish": ["stop"] * len(rows)} | columns
    types = {
        "problem": pa.int32(),
        "sample": pa.int16(),
        "verdict": pa.int8(),
        "class": pa.int32(),
        "tokens": pa.list_(pa.int32()),
        "mu_logp": pa.list_(pa.float32()),
        "text": pa.string(),
        "answer": pa.string(),
        "path": pa.string(),
    }
    arrays = {column: pa.array(values, types.get(column)) for column, values in columns.items()}
    stored = None
    if name is not None:
        stored = StoredTables(name, Sharding(shard_sizes or (len(rows),)))
    prompt_ids = [np.array(prompt, np.int32) for prompt in prompts]
    return Completions(problems, prompt_ids, pa.table(arrays), stored)


def make_graded(problem, is_correct, **columns):
    """Completions that are correct or incorrect."""
    import numpy as np

    return make_completions(problem, verdict=np.where(is_correct, 0, 1), **columns)


def overrides(folder, *settings):
    """A run of a few seconds in `folder`; a setting replaces what stands before it."""
    return last_of_each(["experiment=smoke", f"output_dir={folder}", "cluster.threads=1", *settings])


def last_of_each(words):
    """Settings of which each is given once, with its last value; options stay."""
    last = {}
    for word in words:
        key = word.lstrip("+").partition("=")[0] if "=" in word else word
        last[key] = word
    return list(last.values())


def plan_of(*words):
    """The runs that a command line stands for."""
    from topr_exp.config.compose_overrides import parse_arguments
    from topr_exp.runs.plan import plan

    return plan(parse_arguments(words))


def config_of(*arguments):
    """The checked settings of one run; of a key given twice, the last."""
    (job,) = plan_of(*last_of_each(arguments)).jobs
    return job.config


def small_config(folder, *settings):
    """The checked settings of a run of a few seconds in `folder`."""
    return config_of(*overrides(folder, *settings))


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """The settings and the summary of a finished run of these, to read only."""
    from topr_exp.pipeline import run

    config = small_config(tmp_path_factory.mktemp("smoke"))
    return config, run(config)


@pytest.fixture
def copied_smoke(smoke, tmp_path):
    """The settings of a copy of this run, whose files a test may change."""
    config, _ = smoke
    shutil.copytree(config.output_dir, tmp_path, dirs_exist_ok=True)
    return small_config(tmp_path)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """A folder for the runs of a module, which share its store."""
    return tmp_path_factory.mktemp("outputs")


def parted(table):
    """The rows of a table, whose cells ` | ` parts."""
    return [row.split(" | ") for row in table.strip("\n").splitlines()]


def each_row(names, table, *, literals=False):
    """Run a test for each row of a table; names: of its columns. Cells are texts, or Python's literals."""
    rows = parted(table)
    if literals:
        rows = [list(map(ast.literal_eval, row)) for row in rows]
    return pytest.mark.parametrize(names.split(), rows)


def document(name):
    """The text of a page of docs/."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def lines_of(path):
    """The objects of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def values_of(items, name):
    """The attribute of each item, in their order."""
    return [getattr(item, name) for item in items]


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def update_json(path, **changes):
    """Change values of a JSON file's object."""
    write_file(path, json.dumps(read_json(path) | changes))


def flip_bit(path):
    """Change a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def column(rows, key):
    """The value of a key in each row, in their order."""
    return [row[key] for row in rows]


def names_in(folder):
    """The names of a folder's files and folders."""
    return {path.name for path in folder.iterdir()}


def contents(folder):
    """The content of every file below a folder, by its path from there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_file(path, text=""):
    """Write a text file, whose folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def append_text(path, text):
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def write_lines(path, rows):
    """Write a JSON Lines file; a row that is text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return write_file(path, "".join(f"{line}\n" for line in lines))


def sums(count, start=0, answer="{}", **fields):
    """Rows of so many problems, "What is 5 + 1?" where `start` is 5; answer: the form of theirs."""
    rows = []
    for number in range(start, start + count):
        rows.append({"question": f"What is {number} + 1?", "answer": answer.format(number + 1), **fields})
    return rows


@pytest.fixture
def own_model(tmp_path):
    """A model folder that a test may change."""
    from topr_exp.config.model_choice import SHIPPED

    return Path(shutil.copytree(SHIPPED / "tiny", tmp_path / "own"))


def refused(pattern, error=None):
    """As `pytest.raises`, of a single line; TOPRError where no other is named."""
    from topr_exp.types import TOPRError

    return pytest.raises(error or TOPRError, match=rf"\A(?=.*(?:{pattern}))[^\n]*\Z")


@pytest.fixture
def ordinary_user():
    """A folder of root's, seen by a user who may only read it (for whoever isn't root: a folder without w)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield folder
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)


def become_ordinary(folder, mode=0o555):
    folder.chmod(mode)
    if os.getuid() == 0:
        os.seteuid(65534)
