"""docs/results/README.md says of each model what is so in its world; its numbers stand in their own rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reproduce import records
from reproduce.page import numbers, write_page
from tests.reproduce.made_up import named
from tests.reproduce.test_proportions import sweep
from tests.reproduce.test_training import figure_1, figure_4
from tests.reproduce.worlds import Group, World, group
from topr_exp.report.selection import Runs

WORDS = ("shown", "not shown", "undecided")


def of_model(world: World, model: str) -> list[dict[str, Any]]:
    found = world.records()
    for record in found:
        record["settings"]["model.name"] = model
    return found


def said(text: str, figure: str, model: str) -> dict[str, str]:
    """The verdict of each claim in a model's part of a figure's section."""
    section = text.split(f"\n## {named(figure).title}\n", 1)[1].split("\n## ", 1)[0]
    part = re.split(r"\n(?=\*\*|<details>)", section.split(f"\n**{model}: ", 1)[1])[0]
    return dict(re.findall(r"^- (.*): \*(.*?)\* \(", part, re.MULTILINE))


def test_each_model_has_its_own_verdicts(tmp_path: Path) -> None:
    """tiny is as the paper says, tiny_noise is a world in which little of it holds; another figure the other way."""
    for name, worlds in (("fig1", figure_1()), ("fig4", figure_4()[::-1])):
        good, bad = worlds[0], worlds[-1] if name == "fig1" else worlds[3]
        models = {"tiny": good, "tiny_noise": bad}
        found = [record for model, world in models.items() for record in of_model(world, model)]
        records.write(tmp_path / f"{name}.json", found, {})
        text = write_page([named(name)], tmp_path).read_text()
        counted = dict.fromkeys(WORDS, 0)
        for model, world in models.items():
            verdicts = said(text, name, model)
            for word in WORDS:
                for sentence in world.decided()[word]:
                    assert verdicts[sentence] == word, (name, model, sentence)
            for word in verdicts.values():
                counted[word] += 1
        total = ", ".join(f"{count} {word}" for word, count in counted.items())
        assert f"\n{sum(counted.values())} claims: {total}.\n" in text


def cells(lines: Sequence[str]) -> dict[str, list[str]]:
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}


def means(row: Sequence[str]) -> list[float]:
    return [float(cell.split(" ")[0]) for cell in row if "[" in cell]


def runs_of(groups: Sequence[Group]) -> Runs:
    return Runs([record for each in groups for record in each.records()])


def test_the_columns_of_the_numbers() -> None:
    groups = [group("topr", (60, 62, 55), invalid=3, maj=75, seeds=(0, 1, 2)), group("ppo", 45, invalid=12, maj=35)]
    lines = numbers(named("fig1"), runs_of(groups))
    assert lines[0] == "| | pass@1 | maj@8 | invalid | pass@1 of each seed |"
    found = cells(lines)
    assert list(found) == ["base", "TOPR", "PPO"]
    assert means(found["base"]) == pytest.approx([30, 40, 20], abs=0.06)
    assert means(found["TOPR"]) == pytest.approx([59, 75, 3], abs=0.06)
    assert means(found["PPO"]) == pytest.approx([45, 35, 12], abs=0.06)
    assert found["TOPR"][3] == "60.0 62.0 55.0"
    assert found["base"][3] == ""


def test_seeds_that_collapsed_are_counted_beside_them() -> None:
    """Those that end below half of the base's 30 %, with Wilson's interval of their share."""
    groups = [group("naive", (14, 60, 16), seeds=(0, 1, 2)), group("topr", (60, 62, 55), seeds=(0, 1, 2))]
    found = cells(numbers(named("fig1"), runs_of(groups)))
    assert found["naive REINFORCE"][3] == "14.0 60.0 16.0; collapsed: 1 of 3 seeds, 33.3 [6.1, 79.2] %"
    assert found["TOPR"][3] == "60.0 62.0 55.0"


def test_seeds_stand_in_their_order_and_bases_apart() -> None:
    """Records in another order; two data sets, whose bases differ, and two samplers."""
    story = group("topr", (60, 62, 55), seeds=(2, 0, 1))
    math = group("topr", 40, data__name="math", base={"correct": 12.0})
    found = cells(numbers(named("fig4"), runs_of([math, story])))
    assert found["GSM8K-like, TOPR"][3] == "62.0 55.0 60.0"
    assert means(found["base, GSM8K-like"])[0] == pytest.approx(30, abs=0.06)
    assert means(found["base, MATH-like"])[0] == pytest.approx(12, abs=0.06)
    told = [group("topr", 60, data__turns=turns, base={"correct": base}) for turns, base in ((2, 30.0), (22, 20.0))]
    found = cells(numbers(named("length"), runs_of(told)))
    assert [means(found[f"base, {turns} turns"])[0] for turns in (2, 22)] == pytest.approx([30, 20], abs=0.06)
    levels = {("scored", 0): 60, ("sampler", 0): 50, ("scored", 2): 70, ("sampler", 2): 20}
    sampled = [group("topr", level, mu=mu, sampler__top_k=k, base={"correct": 30.0 - 5 * k})
               for (mu, k), level in levels.items()]  # fmt: skip
    found = cells(numbers(named("mu"), runs_of(sampled)))
    assert {name: means(row)[0] for name, row in found.items()} == pytest.approx(
        {"base, no top-k": 30, "base, top-k 2": 20, "TOPR, scored, no top-k": 60, "TOPR, sampler, no top-k": 50,
         "TOPR, scored, top-k 2": 70, "TOPR, sampler, top-k 2": 20}, abs=0.06
    )  # fmt: skip


# Of each figure with several settings: groups, and the row that is theirs.
ROWS: dict[str, list[tuple[list[Group], str]]] = {
    "fig5": [
        (sweep("topr", {0.02: 11, 0.5: 12}, compose__positive_share=0.1)[:1], "p = 10 %, p̃ = 2 %"),
        (sweep("topr", {0.02: 11, 0.5: 12}, compose__positive_share=0.1)[1:], "p = 10 %, p̃ = 50 %"),
        (sweep("topr", {0.02: 21}, compose__positive_share=0.5), "p = 50 %, p̃ = 2 %"),
    ],
    "fig6": [
        (sweep("topr", {0.1: 11}, data__name="gsm8k"), "GSM8K-like, TOPR, p̃ = 10 %"),
        (sweep("tis", {0.1: 12}, data__name="gsm8k"), "GSM8K-like, TIS, p̃ = 10 %"),
        (sweep("topr", {0.1: 21}, data__name="math"), "MATH-like, TOPR, p̃ = 10 %"),
        (sweep("topr", {1.0: 22}, data__name="math"), "MATH-like, TOPR, p̃ = 100 %"),
    ],
    "fig7": [
        ([group("is", 11)], "default, IS"),
        ([group("topr", 12)], "default, TOPR"),
        ([group("is", 21, compose__name="proportion", optim__grad_clip=0.1)], "60 % negatives, clip 0.1, IS"),
        ([group("topr", 22, compose__name="proportion", optim__grad_clip=100.0)], "60 % negatives, clip 100, TOPR"),
    ],
    "fig8": [
        ([group("topr", 11, compose__name="positives")], "TOPR on positives"),
        ([group("topr", 12, compose__name="anna_karenina")], "Anna Karenina"),
    ],
    "map": [
        (sweep("topr", {0.1: 11}, optim__lr=1e-4), "TOPR, lr 0.0001, p̃ = 10 %"),
        (sweep("tis", {0.1: 12}, optim__lr=4e-4), "TIS, lr 0.0004, p̃ = 10 %"),
    ],
    "agro_kl": [
        ([group("agro", 11, algo__beta=0.05)], "AGRO, β = 0.05"),
        ([group("agro_on_policy", 12, algo__beta=0.5, schedule__prompts=2)], "AGRO on-policy, β = 0.5"),
        ([group("agro", 22, algo__beta=0.5)], "AGRO, β = 0.5"),
    ],
    "agro_replay": [
        ([group("agro", 11, schedule__replay=0.0)], "replay 0"),
        ([group("agro", 12, schedule__replay=0.5)], "replay 0.5"),
    ],
    "staleness": [
        ([group("ppo", 11, schedule__updates=1)], "PPO, 1 updates"),
        ([group("ppo", 12, schedule__updates=128)], "PPO, 128 updates"),
    ],
    "length": [
        (
            [group("topr", 11, data__turns=2, algo__ratio="token", optim__lr=1e-4)],
            "TOPR, token ratio, 2 turns, lr 0.0001",
        ),
        ([group("gspo", 12, data__turns=22, optim__lr=3e-4)], "GSPO, 22 turns, lr 0.0003"),
    ],
    "length_rates": [
        ([group("cispo", 11, data__turns=4, optim__lr=1e-3)], "CISPO, 4 turns, lr 0.001"),
        ([group("topr", 12, data__turns=4, algo__ratio="geometric", optim__lr=1e-4)],
         "TOPR, geometric ratio, 4 turns, lr 0.0001"),
    ],
    "staleness_long": [
        ([group("vespo", 11, schedule__updates=8)], "VESPO, 8 updates"),
        ([group("topr", 12, schedule__updates=64, algo__advantage="group")], "TOPR, the group's advantage, 64 updates"),
        ([group("ppo", 13, schedule__updates=1, algo__eps_low=0.8)], "PPO, eps_low 0.8, 1 update"),
    ],
    "length_bias": [
        ([group("topr", 11)], "TOPR, with 1/T"),
        ([group("topr", 12, algo__length_normalize=False)], "TOPR, without 1/T"),
    ],
    "ratio": [
        ([group("is", 11, algo__ratio="token", optim__lr=1e-4)], "IS, token, lr 0.0001"),
        ([group("is", 12, algo__ratio="sequence", optim__lr=3e-4)], "IS, sequence, lr 0.0003"),
    ],
    "learning_rates": [
        ([group("dpo", 11, optim__lr=3e-5)], "DPO, 3e-05"),
        ([group("naive", 12, optim__lr=3e-4)], "naive REINFORCE, 0.0003"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("figure", ROWS)
def test_numbers_stand_in_the_rows_of_their_settings(figure: str) -> None:
    made = ROWS[figure]
    found = cells(numbers(named(figure), runs_of([one for groups, _ in made for one in groups])))
    expected = {row: groups[0].correct for groups, row in made}
    shown = {name: means(row)[0] for name, row in found.items() if not name.startswith("base")}
    assert shown == pytest.approx(expected, abs=0.06)


def test_the_numbers_come_back_from_the_file(tmp_path: Path) -> None:
    world = figure_1()[0]
    records.write(tmp_path / "fig1.json", world.records(), {})
    stored = records.read(tmp_path / "fig1.json")
    again = records.known(stored)
    for record in world.records():
        assert again[json.dumps(record["settings"], sort_keys=True)] == record
