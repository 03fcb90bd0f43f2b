"""The arrows between the packages: data flows one way, and each stage knows only those before it."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

# In the order in which data flows; a package may import those before it and itself.
ORDER = [
    "types", "schema", "algorithms", "config", "runtime", "store",
    "data", "models", "sampling", "grading", "composition", "training", "evaluation", "verifier",
    "imported", "runs", "tracking", "session", "pipeline", "report", "sweeps",
]  # fmt: skip
# Programs of their own, which may import everything and are imported by nobody.
COMMANDS = {"__main__", "api", "compare", "evaluate", "grade", "losses", "track"}
BESIDE = ("reproduce", "scripts")  # the library: import it and are imported by nothing in it


def imports(path: Path) -> set[str]:
    """The modules of this repository that a file imports, below TYPE_CHECKING too."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names if not name.name.startswith("__")}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name for name in found if name.startswith(tuple(f"{root}." for root in ("topr_exp", *BESIDE)))}


def package_of(path: Path) -> str:
    """The top-level name that a file of the library belongs to; a package's command is a command."""
    parts = path.relative_to(ROOT / "topr_exp").with_suffix("").parts
    return parts[-1] if parts[-1] == "__main__" else parts[0]


LIBRARY = {path: package_of(path) for path in sorted((ROOT / "topr_exp").rglob("*.py"))}
LIBRARY.pop(ROOT / "topr_exp" / "__init__.py")
IMPORTS = {path: imports(path) for path in LIBRARY}


def nearest(imported: str) -> str:
    """The module that an import reads: of `package.module.name` the longest part that is a file or a folder."""
    parts = imported.split(".")
    while not (path := ROOT.joinpath(*parts)).with_suffix(".py").exists() and not path.is_dir():
        parts.pop()
    return ".".join(parts)


def test_every_part_of_the_package_has_its_place() -> None:
    assert {*LIBRARY.values()} == {*ORDER, *COMMANDS}
    assert not set(ORDER) & COMMANDS


def test_no_stage_imports_a_later_one_a_command_or_what_is_beside_the_library() -> None:
    for path, package in LIBRARY.items():
        assert not [name for name in IMPORTS[path] if name.startswith(BESIDE)], path
        for name in IMPORTS[path] if package not in COMMANDS else ():
            part = name.split(".")[1]
            assert part not in COMMANDS, f"{path} imports {name}"
            assert ORDER.index(part) <= ORDER.index(package), f"{path} imports {name}"


def test_no_two_files_import_each_other_by_way_of_others() -> None:
    """A circle of any length, imports inside functions included."""
    beside = {path: imports(path) for folder in BESIDE for path in (ROOT / folder).rglob("*.py")}
    graph = TopologicalSorter[str]()
    for path, names in (IMPORTS | beside).items():
        parts = path.relative_to(ROOT).with_suffix("").parts
        own = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        graph.add(own, *({nearest(name) for name in names} - {own}))
    circle = None
    try:
        graph.prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle is None


def test_stages_see_their_own_section_of_the_settings() -> None:
    """Not the whole of them: so a stage can be used, and understood, without the rest."""
    stages = ("data", "models", "sampling", "grading", "composition", "training", "evaluation", "verifier", "store")
    for path in [path for path, package in LIBRARY.items() if package in stages]:
        whole = {"topr_exp.config.settings", "topr_exp.config.load"}
        assert not whole & {nearest(name) for name in IMPORTS[path]}, path
        # Where a run computes: they are given a device, the trainer a layout.
        assert "topr_exp.config.groups.ClusterConfig" not in IMPORTS[path], path


def test_only_sweeps_know_a_scheduler() -> None:
    """A new one is a class there and a YAML in conf/cluster."""
    library = [path for path, package in LIBRARY.items() if "sweeps" not in path.parts]
    texts = [*library, *(ROOT / "reproduce").rglob("*.py")]
    words = re.compile("slurm|sbatch|srun|squeue|sacct|scontrol", re.IGNORECASE)
    assert [path for path in texts if words.search(path.read_text(encoding="utf-8"))] == []


def test_losses_import_torch_types_and_schema_only_and_nothing_but_the_settings_names_one() -> None:
    losses = {path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml")}
    for path, package in LIBRARY.items():
        if package == "algorithms":
            below = ("topr_exp.types.", "topr_exp.schema.", "topr_exp.algorithms.")
            assert all(name.startswith(below) for name in IMPORTS[path]), path
        elif package in ("training", "composition", "sampling", "evaluation"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            assert not losses & {str(node.value) for node in nodes if isinstance(node, ast.Constant)}, path
            assert not any("algorithms" in name for name in IMPORTS[path]), path


def test_checking_settings_imports_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib", "pandas"]
    code = (
        "import sys; from topr_exp.config.compose_overrides import parse_arguments;"
        "from topr_exp.runs.plan import plan;"
        "plan(parse_arguments(['data=math', 'algo=dpo']));"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


# ---- docs/architecture.md: three ways through the code

STAGES = ("types", "grading", "composition", "training", "evaluation", "algorithms")
WAYS = {
    # the identifiers that hold it, where they are looked for, the most files
    "A setting of a loss": ({"b_neg", "algo"}, None, 13),
    "A completion's reward": ({"reward"}, STAGES, 11),
    "A stop signal": ({"StopFlag"}, None, 9),
}


def identifiers(path: Path) -> set[str]:
    """The names of variables, attributes, parameters, functions and classes in a file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {str(getattr(node, field, None)) for node in nodes for field in ("id", "attr", "arg", "name")}


@pytest.mark.parametrize("way", WAYS)
def test_the_page_names_every_file_on_a_way(way: str) -> None:
    names, packages, most = WAYS[way]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = next(part for part in text.split("\n## ") if part.startswith(way))
    rows = {line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")} - {"file"}
    found = {
        "algorithms/" if package == "algorithms" and "reward" in names else str(path.relative_to(ROOT / "topr_exp"))
        for path, package in LIBRARY.items()
        if (packages is None or package in packages) and names & identifiers(path)
    }
    assert rows == found
    assert len(found) <= most
    for path, symbol in re.findall(r"^\| (\S+\.py) \| [^|]*?`(?:\w+\.)?(\w+)", section, re.M):
        assert symbol in identifiers(ROOT / "topr_exp" / path), f"{path} has no {symbol}"


def test_few_files_hold_all_settings() -> None:
    holders = [path for path in LIBRARY if "Config" in identifiers(path)]
    assert len(holders) <= 22, holders


# ---- attributes: an object's own methods set them, and its class defines them where it is made


# An interface of another library asks for it: patched functions, settings of a process, options, tensors, torch's ctx.
FOREIGN = {
    "api.py: arguments.config_dir", "evaluate.py: args.overrides", "runs/plan.py: args.overrides",
    "evaluate.py: composed.model.path",
    "__init__.py: os.environ", "runtime/terminal.py: sys.stdout", "runtime/terminal.py: sys.stderr",
    "grading/worker.py: sys.dont_write_bytecode", "tracking/wandb_writer.py: logging.raiseExceptions",
    "grading/symbolic.py: sympy.utilities.lambdify.lambdify", "grading/symbolic.py: sympy.core.evalf.lambdify",
    "grading/symbolic.py: sympy.parsing.sympy_parser.parse_expr",
    "grading/symbolic.py: sympy.parsing.sympy_parser.eval_expr",
    "sampling/vllm_worker.py: LogprobsProcessor.from_new_request",
    "models/adapter.py: weight.data", "models/adapter.py: config.target_modules",
    "models/adapter.py: layer._disable_adapters", "sampling/decoding_batch.py: self.keys",
    "sampling/decoding_batch.py: self.values", "models/policy.py: model.should_save_on_this_rank",
    "sampling/mismatch.py: weight.data", "training/layers.py: layer.forward",
    "training/output_layer.py: ctx.scoring", "training/output_layer.py: ctx.layer",
    "training/tree_attention.py: model.config._attn_implementation",
    "training/tree_attention.py: model._warned_of_padding",
}  # fmt: skip


def is_set(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def defined_attributes(definition: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The fields of a class and the attributes of its `__init__`, with those of its bases in the package."""
    names = set[str]()
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            names.add(ast.unparse(statement.target))
        elif isinstance(statement, ast.Assign):
            names |= {ast.unparse(target) for target in statement.targets}
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            names |= {ast.unparse(node).removeprefix("self.") for node in ast.walk(statement) if is_set(node)}
    for base in definition.bases:
        name = ast.unparse(base).rpartition(".")[2]
        if name in classes and classes[name] is not definition:
            names |= defined_attributes(classes[name], classes)
    return names


def test_attributes_are_defined_where_an_object_is_made_and_set_by_itself() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "topr_exp").rglob("*.py")}
    definitions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    classes = {definition.name: definition for definition in definitions}
    set_elsewhere = set[str]()
    for path, tree in trees.items():
        nodes = list(ast.walk(tree))
        own = set[ast.AST]()  # set by a method of the class that defines it
        for definition in [node for node in nodes if isinstance(node, ast.ClassDef)]:
            defined = defined_attributes(definition, classes)
            for node in ast.walk(definition):
                if is_set(node) and ast.unparse(node).removeprefix("self.").removeprefix("cls.") in defined:
                    own.add(node)
        file = path.relative_to(ROOT / "topr_exp")
        set_elsewhere |= {f"{file}: {ast.unparse(node)}" for node in nodes if is_set(node) and node not in own}
    assert set_elsewhere <= FOREIGN
