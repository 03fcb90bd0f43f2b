"""`python -m scripts.vllm_names FOLDER|WHEEL`: does a build of vLLM have every name that this package takes from it?

The names are read from our source: the arguments of `LLM` and `SamplingParams`, called methods, environment variables.
vLLM's files are parsed, not imported, so that a CUDA wheel is checked on any machine. Exit status 1 with a line for
each missing name.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "topr_exp" / "sampling" / "vllm_worker.py"
ENGINE = ROOT / "topr_exp" / "sampling" / "engine.py"


class Owner(NamedTuple):
    """The class of vLLM that has names, or a whole file."""

    path: str  # below vllm/
    name: str = ""  # "": the file

    def __str__(self) -> str:
        return self.name or self.path


def used_names() -> dict[Owner, set[str]]:
    """Return the names that this package takes from vLLM, by their owner."""
    worker = ast.parse(WORKER.read_text(encoding="utf-8"))
    return {
        Owner("engine/arg_utils.py", "EngineArgs"): engine_options(worker),
        Owner("sampling_params.py", "SamplingParams"): keywords_of_call(worker, "SamplingParams"),
        Owner("entrypoints/llm.py", "LLM"): methods_of_llm(worker),
        Owner("v1/worker/gpu_worker.py", "Worker"): remote_methods(worker),
        Owner("outputs.py", "CompletionOutput"): {
            "token_ids",
            "logprobs",
            "sampling_mask",
            "finish_reason",
            "stop_reason",
        },
        Owner("outputs.py", "SamplingMask"): {"token_ids"},
        Owner("v1/engine/logprobs.py", "LogprobsProcessor"): {"from_new_request", "update_from_output", "logprobs"},
        Owner("v1/engine/__init__.py", "EngineCoreOutput"): {"new_logprobs"},
        Owner("v1/outputs.py", "LogprobsLists"): {"logprob_token_ids", "logprobs"},
        Owner("triton_utils/__init__.py"): {"HAS_TRITON"},
        Owner("platforms/interface.py", "Platform"): {"device_type"},
        Owner("envs.py"): environment_variables(ast.parse(ENGINE.read_text(encoding="utf-8"))),
    }


def calls_in(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node


def strings_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def engine_options(worker: ast.Module) -> set[str]:
    """Return the engine's arguments: the keys that the function `engine_options` gives its dictionary."""
    names = set[str]()
    for node in ast.walk(function_named(worker, "engine_options")):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            for key in node.value.keys:
                names.update(strings_in(key or node))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            names.update(strings_in(node.targets[0].slice))
    return names


def function_named(tree: ast.Module, name: str) -> ast.FunctionDef:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise ValueError(f"no function {name} in {WORKER}")


def keywords_of_call(tree: ast.AST, function: str) -> set[str]:
    """Return the names of the arguments that a function is called with."""
    names = set[str]()
    for call in calls_in(tree):
        if isinstance(call.func, ast.Name) and call.func.id == function:
            for keyword in call.keywords:
                names.add(keyword.arg or "")
    return names


def methods_of_llm(tree: ast.AST) -> set[str]:
    """Return the methods that are called on an attribute `llm`."""
    names = set[str]()
    for call in calls_in(tree):
        if not isinstance(call.func, ast.Attribute):
            continue
        owner = call.func.value
        if isinstance(owner, ast.Attribute) and owner.attr == "llm":
            names.add(call.func.attr)
    return names


def remote_methods(tree: ast.AST) -> set[str]:
    """Return the methods of vLLM's workers that `collective_rpc` names."""
    names = set[str]()
    for call in calls_in(tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "collective_rpc":
            names.update(strings_in(call.args[0]))
    return names


def environment_variables(tree: ast.AST) -> set[str]:
    return {text for text in strings_in(tree) if text.startswith("VLLM_")}


def missing_names(read: Callable[[str], str]) -> list[str]:
    """Return a line for each missing name; read: returns the text of a file of vLLM."""
    lines = []
    for owner, names in used_names().items():
        assert names, f"nothing of {owner} is used"
        tree = ast.parse(read(owner.path))
        if owner.name:
            existing_names = members(tree, owner.name)
        else:
            existing_names = set(strings_in(tree))
        for name in sorted(names - existing_names):
            lines.append(f"vllm/{owner.path}: {owner.name or 'the file'} has no {name}")
    return lines


def members(tree: ast.AST, class_name: str) -> set[str]:
    """Return the fields and methods of a class."""
    names = set[str]()
    for definition in ast.walk(tree):
        if not isinstance(definition, ast.ClassDef) or definition.name != class_name:
            continue
        for node in definition.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return names


def main(build: Path) -> int:
    if build.is_dir():
        folder = build / "vllm"
        lines = missing_names(lambda path: (folder / path).read_text(encoding="utf-8"))
    else:
        with zipfile.ZipFile(build) as wheel:
            lines = missing_names(lambda path: wheel.read(f"vllm/{path}").decode())
    if lines:
        print("\n".join(lines))
        return 1
    count = sum(map(len, used_names().values()))
    print(f"{build}: every name is there ({count})")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
