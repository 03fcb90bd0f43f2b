"""The arrows between the packages: data flows one way, and each stage knows only those before it."""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.conftest import ROOT, document, run_python, values_of

PACKAGE = ROOT / "topr_exp"
# In the order in which data flows; a package may import those before it and itself.
ORDER = """
types schema algorithms config runtime store data models sampling grading composition training evaluation verifier
imported runs tracking session pipeline report sweeps
""".split()  # noqa: SIM905 - names read better than a list of strings
STAGES = "data models sampling grading composition training evaluation verifier store".split()  # noqa: SIM905
# Programs of their own, which may import everything and are imported by nobody.
COMMANDS = {"__main__", "api", "compare", "evaluate", "grade", "losses", "track"}
BESIDE = ("reproduce", "scripts")  # the library: import it and are imported by nothing in it


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path):
    """The modules of this repository that a file imports, below TYPE_CHECKING too, as paths of names."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.Import):
            names |= set(values_of(node.names, "name"))
    return {name for name in names if name.startswith(("topr_exp.", "reproduce.", "scripts."))}


def module_of(name):
    """The module that an import reads: the longest part of the name that is a file or a folder."""
    path = ROOT / name.replace(".", "/")
    while not path.is_dir() and not path.with_suffix(".py").exists():
        path = path.parent
    return ".".join(path.relative_to(ROOT).parts)


def package_of(path):
    """The top-level name that a file of the library belongs to; a package's command is a command."""
    if path.stem == "__main__":
        return path.stem
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


LIBRARY = {path: package_of(path) for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"}


def files_of(*packages):
    for path, package in LIBRARY.items():
        if package in packages:
            yield path


def test_every_part_of_the_package_has_its_place():
    assert sorted(set(LIBRARY.values())) == sorted([*ORDER, *COMMANDS])


def test_no_stage_imports_a_later_one_a_command_or_what_is_beside_the_library():
    for path, package in LIBRARY.items():
        for name in imports(path):
            assert not name.startswith(BESIDE), f"{path} imports {name}"
            imported = name.split(".")[1]
            if package not in COMMANDS:
                assert imported not in COMMANDS, f"{path} imports {name}"
                assert ORDER.index(imported) <= ORDER.index(package), f"{path} imports {name}"


def test_no_two_files_import_each_other_by_way_of_others():
    """A circle of any length, imports inside functions included."""
    graph = TopologicalSorter()
    for folder in ("topr_exp", *BESIDE):
        for path in (ROOT / folder).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            imported = {module_of(name) for name in imports(path)}
            graph.add(module, *(imported - {module}))
    try:
        graph.prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {error.args[1]}")


def test_stages_see_their_section_of_the_settings_alone():
    """So a stage can be used, and understood, without the whole of them and without where a run computes."""
    for path in files_of(*STAGES):
        modules = {module_of(name) for name in imports(path)}
        assert not modules & {"topr_exp.config.settings", "topr_exp.config.load"}, path
        assert "topr_exp.config.groups.ClusterConfig" not in imports(path), path


def test_only_sweeps_know_a_scheduler():
    """A new one is a class there and a YAML in conf/cluster."""
    words = re.compile("slurm|sbatch|srun|squeue|sacct|scontrol", re.IGNORECASE)

    for path in [*LIBRARY, *(ROOT / "reproduce").rglob("*.py")]:
        if "sweeps" not in path.parts:
            assert not words.search(path.read_text(encoding="utf-8")), path


def test_losses_import_torch_types_and_schema_alone():
    for path in files_of("algorithms"):
        for name in imports(path):
            assert name.startswith(("topr_exp.types.", "topr_exp.schema.", "topr_exp.algorithms.")), path


def constants_of(path):
    return {str(node.value) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)}


def test_no_stage_names_a_loss():
    losses = set(values_of(ROOT.glob("conf/algo/*.yaml"), "stem"))

    for path in files_of("training", "composition", "sampling", "evaluation"):
        assert not losses & constants_of(path), path
        assert not any("algorithms" in name for name in imports(path)), path


def test_checking_settings_imports_nothing_heavy():
    heavy = ["torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib", "pandas"]
    code = f"""
import sys
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs.plan import plan
plan(parse_arguments(['data=math', 'algo=dpo']))
print([name for name in {heavy} if name in sys.modules])
"""

    process = run_python("-c", code)

    assert process.stdout == "[]\n", process.stderr


# ---- docs/architecture.md: ways through the code


def identifiers(path):
    """The names of variables, attributes, parameters, functions and classes in a file."""
    names = set()
    for node in ast.walk(tree_of(path)):
        for field in ("id", "attr", "arg", "name"):
            names.add(getattr(node, field, None))
    return names


def way_on_page(title):
    """The symbol of each file on a way through the code, as the section of docs/architecture.md has them."""
    sections = document("architecture.md").split("\n## ")
    (section,) = [section for section in sections if section.startswith(title)]
    rows = re.findall(r"^\| (\S+\.py) \|(?: [^|]*?`(?:\w+\.)?(\w+))?", section, re.MULTILINE)
    return dict(rows)


@pytest.mark.parametrize(
    "title, words, packages, most_files",
    [
        ("A setting of a loss", {"b_neg", "algo"}, (*ORDER, *COMMANDS), 13),
        ("A completion's reward", {"reward"}, ("types", "grading", "composition", "training", "evaluation"), 10),
    ],
)
def test_the_page_names_every_file_on_a_way(title, words, packages, most_files):
    symbols = way_on_page(title)
    files = {str(path.relative_to(PACKAGE)) for path in files_of(*packages) if words & identifiers(path)}

    assert symbols.keys() == files
    assert len(files) <= most_files
    for file, symbol in symbols.items():
        assert not symbol or symbol in identifiers(PACKAGE / file), f"{file} has no {symbol}"


def test_few_files_hold_all_settings_and_the_stop_flag():
    assert sum("Config" in identifiers(path) for path in LIBRARY) <= 22
    assert sum("StopFlag" in identifiers(path) for path in LIBRARY) <= 9


# ---- attributes: an object's own methods set them, and its class defines them where it is made


# An interface of another library asks for it: patched functions, settings of a process, options, tensors, torch's ctx.
FOREIGN = """
api.py: arguments.config_dir
evaluate.py: args.overrides
sweeps/resume.py: args.overrides
evaluate.py: composed.model.path
__init__.py: os.environ
runtime/terminal.py: sys.stdout
runtime/terminal.py: sys.stderr
grading/worker.py: sys.dont_write_bytecode
tracking/wandb_writer.py: logging.raiseExceptions
grading/symbolic.py: sympy.utilities.lambdify.lambdify
grading/symbolic.py: sympy.core.evalf.lambdify
grading/symbolic.py: sympy_parser.parse_expr
grading/symbolic.py: sympy_parser.eval_expr
sampling/vllm_worker.py: LogprobsProcessor.from_new_request
sampling/vllm_worker.py: LogprobsProcessor.update_from_output
sampling/vllm_worker.py: processor.logprobs
models/adapter.py: weight.data
models/adapter.py: config.target_modules
models/adapter.py: layer._disable_adapters
sampling/decoding_batch.py: self.keys
sampling/decoding_batch.py: self.values
models/loading.py: model.generation_config
models/policy.py: model.should_save_on_this_rank
sampling/mismatch.py: weight.data
training/layers.py: layer.forward
training/parallel.py: weight.grad
training/output_layer.py: ctx.scoring
training/output_layer.py: ctx.layer
training/tree_attention.py: model.config._attn_implementation
training/tree_attention.py: model._warned_of_padding
"""


def set_attributes(tree):
    """The attributes that statements set."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {attribute for attribute in attributes if isinstance(attribute.ctx, ast.Store)}


def classes_in(tree):
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def defined_attributes(definition, classes):
    """The fields of a class and the attributes of its `__init__`, with those of its bases in the package."""
    names = set()
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            names.add(ast.unparse(statement.target))
        elif isinstance(statement, ast.Assign):
            names |= set(map(ast.unparse, statement.targets))
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            names |= set(values_of(set_attributes(statement), "attr"))
    for base in definition.bases:
        base_class = classes.get(ast.unparse(base).rpartition(".")[2])
        if base_class not in (None, definition):
            names |= defined_attributes(base_class, classes)
    return names


def is_own(attribute, defined):
    return ast.unparse(attribute.value) in ("self", "cls") and attribute.attr in defined


def test_attributes_are_defined_where_an_object_is_made_and_set_by_itself():
    trees = {path: tree_of(path) for path in PACKAGE.rglob("*.py")}
    classes = {}
    for tree in trees.values():
        classes |= classes_in(tree)

    for path, tree in trees.items():
        attributes = set_attributes(tree)
        for definition in classes_in(tree).values():
            defined = defined_attributes(definition, classes)
            attributes -= {attribute for attribute in set_attributes(definition) if is_own(attribute, defined)}
        file = path.relative_to(PACKAGE)
        assert {f"{file}: {ast.unparse(attribute)}" for attribute in attributes} <= {*FOREIGN.splitlines()}
