"""`python -m scripts.vllm_names FOLDER|WHEEL`: does a build of vLLM have every name that this package takes from it?

The names are read from our source: what `LLM` and `SamplingParams` are given, what is called, and the environment's
variables. vLLM's files are parsed, not imported, so that a CUDA wheel is checked on any machine. Exit status 1 with a
line for each name that is missing.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "topr_exp" / "sampling" / "vllm_worker.py"
ENGINE = ROOT / "topr_exp" / "sampling" / "engine.py"


def used() -> dict[tuple[str, str], set[str]]:
    """The names that we take, by vLLM's file and the class or function that has them ("": the file)."""
    tree = ast.parse(WORKER.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (params,) = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "SamplingParams"]
    llm = {node.func.attr for node in calls if isinstance(node.func, ast.Attribute) and of_llm(node.func.value)}
    remote = {str(node.args[0].value) for node in calls if isinstance(node.func, ast.Attribute)
              and node.func.attr == "collective_rpc" and isinstance(node.args[0], ast.Constant)}  # fmt: skip
    variables = {node.value for node in ast.walk(ast.parse(ENGINE.read_text(encoding="utf-8")))
                 if isinstance(node, ast.Constant) and str(node.value).startswith("VLLM_")}  # fmt: skip
    return {
        ("engine/arg_utils.py", "EngineArgs"): options(tree),
        ("sampling_params.py", "SamplingParams"): {word.arg or "" for word in params.keywords},
        ("entrypoints/llm.py", "LLM"): llm,
        ("v1/worker/gpu_worker.py", "Worker"): remote,
        ("outputs.py", "CompletionOutput"): {"token_ids", "logprobs", "finish_reason", "stop_reason"},
        ("v1/engine/logprobs.py", "LogprobsProcessor"): {"from_new_request"},
        ("platforms/interface.py", "Platform"): {"device_type"},
        ("envs.py", ""): variables,
    }


def of_llm(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "llm"


def options(tree: ast.Module) -> set[str]:
    """The engine's arguments: keys of what `options` is set to, and of what is added to it."""
    found = set[str]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == "options":
            inside = ast.walk(node.value)
            found |= {str(key.value) for each in inside if isinstance(each, ast.Dict) for key in each.keys
                      if isinstance(key, ast.Constant)}  # fmt: skip
            found |= {"model", "dtype", "trust_remote_code"}
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id == "options":
            assert isinstance(target.slice, ast.Constant)
            found.add(str(target.slice.value))
    return found


def missing(read: Callable[[str], str]) -> list[str]:
    """A line for each name that is not there; read: the text of a file of vLLM."""
    lines = []
    for (path, owner), names in used().items():
        assert names, f"nothing of {owner or path} is used"
        tree = ast.parse(read(path))
        there = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)} if not owner else set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == owner:
                there |= members(node)
        lines += [f"vllm/{path}: {owner or 'no variable'} has no {name}" for name in sorted(names - there)]
    return lines


def members(owner: ast.ClassDef) -> set[str]:
    """The fields and methods of a class."""
    found = {node.name for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def main(place: Path) -> int:
    if place.is_dir():
        lines = missing(lambda path: (place / "vllm" / path).read_text(encoding="utf-8"))
    else:
        with zipfile.ZipFile(place) as wheel:
            lines = missing(lambda path: wheel.read(f"vllm/{path}").decode())
    print("\n".join(lines) or f"{place}: every name is there ({sum(map(len, used().values()))})")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
