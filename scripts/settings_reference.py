"""`python -m scripts.settings_reference`: write docs/reference.md, every setting with range, default and meaning.

Types and ranges come from the settings' dataclasses, meanings from the remark beside a field there or beside the key in
conf/, defaults from composing the shipped tiny model and the paper's 8B model.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.config.load import CHOICES, SECTIONS, choices, hints_of
from topr_exp.config.settings import Config
from topr_exp.config.yamls import CONF
from topr_exp.runs.plan import plan
from topr_exp.schema import describe, options_of, ranges, show

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
MODELS = ("tiny", "llama3_8b")
MEANINGS = {  # of losses' keys that several have
    "length_normalize": "divide an answer's loss by its number of tokens",
    "eps_low": "the ratio is clipped below 1 − this",
    "eps_high": "the ratio is clipped above 1 + this",
    "normalize_std": "divide the advantage by the group's standard deviation",
    "a_pos": "least weight of a positive",
    "b_pos": "largest weight of a positive",
    "a_neg": "least weight of a negative",
    "b_neg": "largest weight of a negative",
    "correction": "cap C of the weight min(π_old/μ, C) from the sampler; null: none",
    "renormalize": "π is renormalised over what top_k and top_p let the sampler draw",
    "mask": "tokens or answers that are dropped: statistic, level, band, sides",
}
HEAD = """# Every setting

Written by `python -m scripts.settings_reference` from the schema; [settings.md](settings.md) is the tour. A key is set
as `KEY=VALUE`. Where a default depends on the model, it is given for the shipped tiny one and the paper's 8B one.
"""


@functools.cache
def page() -> str:
    """The page's text."""
    models = {model: settings(f"model={model}") for model in MODELS}
    parts = [HEAD, *section("", "The run", [Config], models)]
    for group in hints_of(Config):
        if group == "algo":
            parts += losses()
        elif group in SECTIONS:
            schemas = choices(group) if group in ("data", *CHOICES) else {"": hints_of(Config)[group]}
            values = {model: getattr(config, group) for model, config in models.items()}
            parts += section(f"{group}.", group, list(dict.fromkeys(schemas.values())), values)
    return "\n".join(parts) + "\n"


def settings(*overrides: str) -> Any:
    (job,) = plan(parse_arguments([*overrides])).jobs
    return job.config


def losses() -> Iterator[str]:
    """A table for each class of losses, with the defaults of the algorithms that are made of it."""
    built = {path.stem: settings(f"algo={path.stem}").algo for path in sorted((CONF / "algo").glob("*.yaml"))}
    for schema in dict.fromkeys(map(type, built.values())):
        values = {name: loss for name, loss in built.items() if type(loss) is schema}
        yield from section("algo.", f"algo={', '.join(values)}", [schema], values)


def section(prefix: str, title: str, schemas: list[Any], values: dict[str, Any]) -> Iterator[str]:
    """A table of the keys of a group, over all the classes that its choices have."""
    yield f"\n## {title}\n\n{first_sentence(schemas[0])}\n\n| key | allowed | default | |\n|---|---|---|---|"
    seen = {*SECTIONS, "algo"} if not prefix else {"name"} if prefix == "algo." else set[str]()
    for schema in schemas:
        remarks, allowed = remarks_of(schema), {name: each.allowed for name, each in ranges(schema)}
        for field in dataclasses.fields(schema):
            if field.name in seen or not field.init:
                continue
            seen.add(field.name)
            options = " or ".join(describe(option) for option in options_of(hints_of(schema)[field.name]))
            files = [CONF / "algo" / f"{name}.yaml" for name in values] if prefix == "algo." else files_of(prefix)
            is_choice = field.name == "name" and prefix not in ("", "optim.")
            chosen = f"`{prefix.rstrip('.')}=NAME` chooses" if is_choice else ""
            meaning = chosen or remarks.get(field.name) or yaml_remark(files, prefix.rstrip("."), field.name)
            meaning = meaning or MEANINGS.get(field.name, "")
            cells = (f"`{prefix}{field.name}`", allowed.get(field.name, options), default(field.name, values), meaning)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def default(key: str, values: dict[str, Any]) -> str:
    """A key's default; several, each with the names that have it, where these differ."""
    named = dict[str, list[str]]()
    for name, each in values.items():
        if hasattr(each, key):
            named.setdefault(f"`{show(getattr(each, key))}`", []).append(name)
    return (
        ", ".join(named)
        if len(named) < 2
        else ", ".join(f"{text} ({', '.join(names)})" for text, names in named.items())
    )


def files_of(prefix: str) -> list[Path]:
    group = CONF / prefix.rstrip(".")
    return [CONF / "config.yaml", CONF / "problems.yaml", *(sorted(group.glob("*.yaml")) if prefix else [])]


def first_sentence(schema: Any) -> str:
    return re.split(r"(?<=\.)\s|\n\n", inspect.getdoc(schema) or "", maxsplit=1)[0].replace("\n", " ")


def remarks_of(schema: Any) -> dict[str, str]:
    """The comment beside each field of a dataclass and of its bases."""
    found = dict[str, str]()
    for each in reversed(schema.__mro__):
        if dataclasses.is_dataclass(each):
            source = textwrap.dedent(inspect.getsource(each))
            lines = source.splitlines()
            for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno:
                    _, _, remark = lines[node.end_lineno - 1][node.end_col_offset :].partition("# ")
                    found[node.target.id] = remark.replace("None", "null") or found.get(node.target.id, "")
    return found


def yaml_remark(files: list[Path], group: str, key: str) -> str:
    """The comment beside or above a key in these files of conf/; in config.yaml, in the group's section."""
    for path in files:
        above = list[str]()
        inside = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if top := re.match(r"(\w+):", line):
                inside = top[1]
            found = re.match(rf"\s*{key}:(?:[^#\"']|\"[^\"]*\"|'[^']*')*(?:# (.*))?$", line)
            mine = path.name != "config.yaml" or (inside == group if group else not line.startswith(" "))
            if found and mine and (remark := found[1] or " ".join(above)):
                return str(remark)
            above = [*above, line.strip(" #")] if line.lstrip().startswith("#") else []
    return ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
