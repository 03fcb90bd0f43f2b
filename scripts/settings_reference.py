"""`python -m scripts.settings_reference`: write the documents' tables of settings and losses from their classes.

docs/reference.md has every setting with range, default and meaning: types and ranges come from the settings'
dataclasses, meanings from the comment beside a field there or beside the key in conf/, defaults from composing the
shipped tiny model and the paper's 8B model. It also has what each loss says of itself, README the number of losses.
"""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.algorithms.base import Loss
from topr_exp.algorithms.policy_gradient import PolicyGradient
from topr_exp.algorithms.topr import Tapered
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.config.load import NAMED_BY_CHOICE, SECTIONS, VARIED_GROUPS, hints_of, schemas_by_choice
from topr_exp.config.settings import Config
from topr_exp.config.yamls import CONF
from topr_exp.losses import load_losses
from topr_exp.runs.plan import plan
from topr_exp.schema import describe, options_of, ranges, show

ROOT = Path(__file__).resolve().parent.parent
REFERENCE, README = ROOT / "docs" / "reference.md", ROOT / "README.md"
MODELS = ("tiny", "llama3_8b")
HEAD = """# Every setting

Written by `python -m scripts.settings_reference` from the schema; [running.md](running.md) is the tour. A key is set
as `KEY=VALUE`. Where a default depends on the model, it is given for the shipped tiny one and the paper's 8B one.
"""
LOSSES_HEAD = """
## Every loss

[Losses](losses.md) has the published methods by their settings, and [what a loss may
need](losses.md#what-a-loss-says-of-itself). An incorrect completion's reward is the paper's; `data.reward` changes it.

| Setting | Method | Paper | Incorrect completion | Not used | Needs |
|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Section:
    """A table of the reference: the keys of a group."""

    prefix: str  # of its keys, as in "algo."; "" for those of the run
    title: str
    schemas: Sequence[Any]  # the dataclasses of its choices
    values: Mapping[str, Any]  # the group's settings by the choice, or the model, that they are the defaults of
    files: Sequence[Path] = ()  # YAMLs whose comments say what a key means

    @property
    def group(self) -> str:
        return self.prefix.rstrip(".")


def pages() -> dict[Path, str]:
    """The text of every document that is written from classes."""
    return {REFERENCE: reference_page(), README: readme()}


def readme() -> str:
    """README with the number of losses, and of those beside TOPR."""
    count = len(load_losses([]))
    text = re.sub(r"\d+ losses\b", f"{count} losses", README.read_text(encoding="utf-8"))
    return re.sub(r"\d+ other losses\b", f"{count - 1} other losses", text)


# ---- losses


def loss_row(loss: Loss) -> str:
    """A row of the table of losses."""
    assert loss.paper is not None, f"algo={loss.name} names no paper"
    sources = []
    if loss.paper.arxiv:
        sources.append(f"[{loss.paper.arxiv}](https://arxiv.org/abs/{loss.paper.arxiv})")
    if loss.paper.equation:
        sources.append(loss.paper.equation)
    incorrect_reward = "−1"
    if loss.rewards == "zero_one":
        incorrect_reward = "0"
    unused = []
    if not loss.uses_baseline:
        unused.append("baseline")
    if not loss.needs_mu:
        unused.append("μ")
    cells = (
        f"`algo={loss.name}`",
        loss.paper.method,
        ", ".join(sources),
        incorrect_reward,
        ", ".join(unused),
        ", ".join(f"`{need}`" for need in sorted(loss.needs)),
    )
    return "| " + " | ".join(cells) + " |"


def loss_sections() -> Iterator[Section]:
    """A section for each class of losses, with the defaults of the algorithms that are made of it."""
    losses_by_class: dict[type, dict[str, Any]] = {}
    for name, loss in load_losses([]).items():
        losses = losses_by_class.setdefault(type(loss), {})
        losses[name] = loss
    for schema, losses in losses_by_class.items():
        title = f"algo={', '.join(losses)}"
        yield Section("algo.", title, [schema], losses)


# ---- the reference


@functools.cache
def reference_page() -> str:
    """The text of docs/reference.md."""
    lines = [HEAD]
    for section in sections():
        if section.group == "algo" and LOSSES_HEAD not in lines:
            lines += [LOSSES_HEAD, *map(loss_row, load_losses([]).values())]
        lines += section_lines(section)
    return "\n".join(lines) + "\n"


def sections() -> Iterator[Section]:
    configs = {model: compose(f"model={model}") for model in MODELS}
    common_files = [CONF / "config.yaml", CONF / "problems.yaml"]
    yield Section("", "The run", [Config], configs, common_files)
    for group, schema in hints_of(Config).items():
        if group == "algo":
            yield from loss_sections()
        elif group in SECTIONS:
            schemas = [schema]
            if group in VARIED_GROUPS:
                schemas = list(dict.fromkeys([schema, *schemas_by_choice(group).values()]))
            values = {model: getattr(config, group) for model, config in configs.items()}
            yamls = sorted((CONF / group).glob("*.yaml"))
            yield Section(f"{group}.", group, schemas, values, [*common_files, *yamls])


def compose(*overrides: str) -> Any:
    """The settings of one run."""
    (job,) = plan(parse_arguments([*overrides])).jobs
    return job.config


def section_lines(section: Section) -> Iterator[str]:
    """The lines of a section: heading, first sentence of its first class, choices, a row a key."""
    introduction = first_sentence(section.schemas[0])
    if section.schemas == [Tapered]:
        further_keys = [f"`{key}`" for key in hints_of(PolicyGradient) if key not in hints_of(Tapered)]
        introduction += f" Each also takes {', '.join(further_keys)}, as `algo=policy_gradient`."
    choice_names = sorted(path.stem for path in section.files if path.parent.name == section.group)
    if choice_names:
        introduction += f" Choices of `{section.group}=`: {', '.join(choice_names)}."
    yield f"\n## {section.title}\n\n{introduction}"
    rows = [*section_rows(section)]
    if rows:
        yield "\n| key | allowed | default | |\n|---|---|---|---|"
    yield from rows


def section_rows(section: Section) -> Iterator[str]:
    """The rows of a section's keys, over all its classes."""
    written_keys = set[str]()
    if not section.prefix:
        written_keys = {*SECTIONS, "algo"}
    elif section.group == "algo":
        written_keys = {"name"}
    for schema in section.schemas:
        remarks = remarks_of(schema)
        for field in dataclasses.fields(schema):
            key = f"{section.prefix}{field.name}"
            if field.name in written_keys or key in NAMED_BY_CHOICE or not field.init:
                continue
            written_keys.add(field.name)
            cells = (
                f"`{key}`",
                allowed_values(schema, field.name),
                default_of(field.name, section.values),
                meaning_of(section, field.name, remarks),
            )
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def allowed_values(schema: Any, key: str) -> str:
    """The ranges of a setting, else its types."""
    allowed = [range_.allowed for name, range_ in ranges(schema) if name == key]
    if allowed:
        return "; ".join(allowed)
    types = options_of(hints_of(schema)[key])
    return " or ".join(map(describe, types))


def meaning_of(section: Section, key: str, remarks: Mapping[str, str]) -> str:
    """What a key means: the comment beside its field, else the comment in a YAML."""
    return remarks.get(key) or yaml_remark(section, key)


def default_of(key: str, values: Mapping[str, Any]) -> str:
    """A key's default; several, each with the names that have it, where these differ."""
    names_by_default: dict[str, list[str]] = {}
    for name, settings in values.items():
        if hasattr(settings, key):
            default = f"`{show(getattr(settings, key))}`"
            names_by_default.setdefault(default, []).append(name)
    if len(names_by_default) < 2:
        return ", ".join(names_by_default)
    defaults = [f"{default} ({', '.join(names)})" for default, names in names_by_default.items()]
    return ", ".join(defaults)


def first_sentence(schema: Any) -> str:
    text = inspect.getdoc(schema) or ""
    sentence, *_ = re.split(r"(?<=\.)\s|\n\n", text, maxsplit=1)
    return sentence.replace("\n", " ")


def remarks_of(schema: Any) -> dict[str, str]:
    """The comment beside each field of a dataclass and of its bases."""
    remarks: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        lines = source.splitlines()
        (definition,) = ast.parse(source).body
        assert isinstance(definition, ast.ClassDef)
        for node in definition.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            assert node.end_lineno is not None
            text_after_field = lines[node.end_lineno - 1][node.end_col_offset :]
            _, _, remark = text_after_field.partition("# ")
            key = node.target.id
            remarks[key] = remark.replace("None", "null") or remarks.get(key, "")
    return remarks


def yaml_remark(section: Section, key: str) -> str:
    """The comment beside or above a key in the section's files; in config.yaml, within its group."""
    pattern = re.compile(rf"\s*{key}:(?:[^#\"']|\"[^\"]*\"|'[^']*')*(?:# (.*))?$")
    for path in section.files:
        comments_above: list[str] = []
        for line in lines_of_section(path, section.group):
            match = pattern.match(line)
            if match and (remark := match[1] or " ".join(comments_above)):
                return str(remark)
            if line.lstrip().startswith("#"):
                comments_above.append(line.strip(" #"))
            else:
                comments_above = []
    return ""


def lines_of_section(path: Path, group: str) -> Iterator[str]:
    """The lines of a YAML; in config.yaml those that are not about a group are empty. group: "" for the run's keys."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.name != "config.yaml":
        yield from lines
        return
    group_of_line = ""
    for line in lines:
        if top_level := re.match(r"(\w+):", line):
            group_of_line = top_level[1]
        is_about_group = not line.startswith(" ")
        if group:
            is_about_group = group_of_line == group
        if is_about_group:
            yield line
        else:
            yield ""


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
