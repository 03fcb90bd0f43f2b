"""The study of a real model: its plan, the settings of its runs, and that another machine goes on from its folder."""

import json
import re
import shutil

import pytest
import torch

from reproduce.real.__main__ import make_study, open_study, parser
from reproduce.real.outcome import write_outcome
from reproduce.real.plan import (
    IMITATION,
    LOSSES,
    SAMPLED_PER_SECOND,
    SAMPLING,
    SHARES,
    UPDATED_PER_SECOND,
    Cell,
    minutes_of,
    plan_steps,
)
from reproduce.real.solutions import write_solutions
from tests.conftest import config_of, document, lines_of, read_json, refused, values_of, write_lines
from tests.reproduce.worlds import group
from topr_exp import run_sweep
from topr_exp.config.model_choice import SHIPPED

pytestmark = pytest.mark.extended


def options(*words):
    return parser().parse_intermixed_args([*map(str, words)])


def open_study_of(*words):
    return open_study(options(*words))


def cells_of(study):
    cells = []
    for step in study.steps:
        cells += step.cells
    return cells


# ---- the plan


def test_every_run_is_in_one_step_of_at_most_ten_minutes(tmp_path):
    study = open_study_of("--out", tmp_path)

    cells = cells_of(study)
    assert len(cells) == len(set(cells)) == 3 * ((len(LOSSES) - 1) * len(SHARES) + 1)
    assert study.steps[:2] == [IMITATION, SAMPLING]
    for step in study.steps:
        assert 0 < minutes_of(step, study.config, []) < 10
    data = study.config.data
    optim = study.config.optim
    assert data.train_problems == 1024
    assert data.n == 8
    assert optim.batch_size == 64
    assert study.config.sampler.max_new_tokens == 256


def test_speeds_are_those_of_the_document():
    page = document("performance.md")

    assert f"{UPDATED_PER_SECOND:,} completion tokens/s" in page
    assert f"{SAMPLED_PER_SECOND:,} to 13,100 tokens/s" in page


def test_the_plan_is_listed_and_starts_nothing(tmp_path, capsys):
    assert make_study(options("--plan", "--out", tmp_path)) == 0

    *lines, total = capsys.readouterr().out.splitlines()
    assert len(lines) == len(plan_steps())
    assert re.match(r"15 steps take at most \d+ minutes on one H200 by estimate, at 44,200 ", total)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which it would run")
def test_without_a_gpu_one_line_says_what_would_be_done(tmp_path):
    line = r"no GPU is seen: 15 steps take at most \d+ minutes on one H200 by estimate; --plan lists .*, --small tries"
    with refused(line):
        make_study(options("--out", tmp_path))


# ---- runs


def test_a_step_trains_on_shared_completions_of_the_imitation_and_leaves_out_what_is_recorded(tmp_path):
    study = open_study_of("--small", "--out", tmp_path)
    study.imitation = {"run": "sft"}
    imitation = tmp_path / "imitation/sft/model"
    shutil.copytree(SHIPPED / "tiny", imitation)
    (tmp_path / "store/rollouts").mkdir(parents=True)
    study.record_of_cell[Cell("tis", 0.1, 0)] = {}
    (step,) = (step for step in study.steps if step.name == "tis, seed 0")

    jobs, _ = study.plan_step(step)

    configs = values_of(jobs, "config")
    assert values_of(configs, "effective_positive") == [None, 0.2, 0.5]
    for config in configs:
        assert config.algo.name == "tis"
        assert config.baseline is None
        assert config.seed == config.sampler.seed == 0
        assert config.model.path == str(imitation)
        assert config.data.completions is None


def test_solutions_end_as_the_grader_reads_them_and_lack_the_calculators_notes(tmp_path):
    answer = "He has 48/2 = <<48/2=24>>24 clips,\nso 24 * 50 = <<24*50=1200>>1,200 in all.\n#### 1,200"
    for split in ("train", "test"):
        write_lines(tmp_path / f"{split}.jsonl", [{"question": f"How many, {split}?", "answer": answer}])

    write_solutions(tmp_path / "solutions.jsonl", config_of("data=gsm8k", f"data.source={tmp_path}"))

    (row,) = lines_of(tmp_path / "solutions.jsonl")
    assert row["completion"] == "He has 48/2 = 24 clips,\nso 24 * 50 = 1,200 in all.\nThe answer is 1200."
    assert row["gold"] == "1200"


def test_generated_problems_have_no_solutions_to_imitate(tmp_path):
    with refused("data.source=embedded: no solutions there; allowed: hub or a folder"):
        write_solutions(tmp_path / "solutions.jsonl", config_of("data=gsm8k"))


# ---- the outcome


def page_of(folder, invalid_of_share):
    """The page of made-up runs of TOPR, with these percentages of invalid completions by p̃; None: that of c = 0."""
    answers = {"length": 100.0, "truncated_share": 0.25}
    cell_records = []
    for share, invalid in invalid_of_share.items():
        runs = group("topr", 20.0, invalid=invalid, base={"invalid": 20.0}, effective_positive=share)
        if share is None:
            runs = group("topr", 1.0, invalid=invalid, base={"invalid": 20.0})
        for record in runs.records():
            cell_records.append(record | {"answers": {"base": answers, "final": answers}})
    return write_outcome(None, cell_records, 51, folder).read_text(encoding="utf-8")


def test_the_hypothesis_is_decided_by_the_records(tmp_path):
    as_expected = page_of(tmp_path, {None: 80.0, 0.1: 20.0, 0.2: 22.0})
    otherwise = page_of(tmp_path, {None: 10.0, 0.1: 60.0, 0.2: 22.0})

    assert "9 of 51 runs ended." in as_expected
    assert as_expected.count("*shown*") == 5
    assert "c = 0: more of TOPR's completions are invalid than before: *reversed*" in otherwise
    assert "p̃ = 0.1: at most 10 points more of its completions are invalid than before: *reversed*" in otherwise
    assert "| TOPR, c = 0 | 100 | 25.0 |" in as_expected


@pytest.mark.timeout(900)
def test_a_study_that_broke_off_goes_on_in_another_folder(tmp_path):
    """The whole small study: two steps here; there a run that nothing recorded, then the others."""
    first_folder = tmp_path / "first"
    folder = tmp_path / "second"
    study = open_study_of("--small", "--out", first_folder)
    for step in (IMITATION, SAMPLING):
        assert study.run(step) == 0
    shutil.move(first_folder, folder)
    study = open_study_of("--small", "--out", folder)
    jobs, words = study.plan_step(study.steps[2])
    run_sweep(jobs[:1], words)

    assert make_study(options("--small", "--out", folder)) == 0

    stored = read_json(folder / "real.json")
    imitation = stored["extra"]["imitation"]
    assert len(stored["runs"]) == len(cells_of(study)) == 17
    assert [*folder.glob("imitation/*/DONE")] == [folder / "imitation" / imitation["run"] / "DONE"]
    assert imitation["summary"]["positive_share"] == 1
    assert len(list(folder.glob("runs/*/DONE"))) == 17
    assert len(stored["bases"]) == 1, "all begin from one model"
    # Once for all runs: the tests of the model as it came and after the imitation, and what is trained on.
    assert len(list(folder.glob("store/rollouts/*"))) == 3
    for record in stored["runs"]:
        assert {"length", "truncated_share"} < record["answers"]["base"].keys() == record["answers"]["final"].keys()
    page = (folder / "real.md").read_text(encoding="utf-8")
    assert "17 of 17 runs ended." in page
    assert "numbers of tiny mean nothing here" in page
    assert (folder / "real.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def folder_of_tiny(tmp_path):
    """The folder of a study of the tiny model whose imitation is recorded, and gone."""
    imitation = {"run": "sft", "settings": {"model.name": "tiny"}}
    stored = {"environments": [], "bases": [], "runs": [], "extra": {"imitation": imitation}}
    (tmp_path / "real.json").write_text(json.dumps(stored))
    return tmp_path


def test_a_study_whose_weights_or_completions_did_not_come_back_is_refused(folder_of_tiny):
    study = open_study_of("--small", "--out", folder_of_tiny)
    with refused("imitation/sft/model is missing, on which recorded runs rest: bring it back"):
        study.run(SAMPLING)

    (folder_of_tiny / "imitation/sft/model").mkdir(parents=True)
    study.record_of_cell[Cell("topr", 0.1, 0)] = {}
    with refused("store/rollouts is missing, on which recorded runs rest"):
        study.run(SAMPLING)


def test_the_folder_of_another_models_study_is_refused(folder_of_tiny):
    with refused("--out .*: it holds the study of tiny; give another folder"):
        open_study_of("--out", folder_of_tiny)
