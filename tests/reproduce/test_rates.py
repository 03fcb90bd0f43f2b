"""The choice of learning rates: by place and loss, written into conf, where nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reproduce import rates, records
from reproduce.rates import TRIED, best_are_used, choose, key_of, read_rates, tried_on_models
from reproduce.records import runs_of
from reproduce.selection import Runs
from tests.conftest import ROOT
from tests.reproduce.worlds import group, named, request_for
from topr_exp.config.schema import plain
from topr_exp.types import TOPRError


def tried(algo: str, model: str, levels: dict[float, Any], **more: Any) -> list[dict[str, Any]]:
    groups = [group(algo, level, optim__lr=rate, data__test_split="validation", model__name=model, **more)
              for rate, level in levels.items()]  # fmt: skip
    return [record for each in groups for record in each.records()]


# By the mean over seeds: the highest single run is at another rate.
ON_MODELS = [
    *tried("topr", "tiny", {1e-5: (60, 60, 60), 1e-4: (85, 40, 40), 1e-3: (20, 20, 20)}),
    *tried("is", "tiny", {1e-5: (40, 40, 40), 1e-4: (85, 20, 20), 1e-3: (50, 45, 50)}),
    *tried("topr", "tiny_noise", {1e-5: (60, 60, 60), 1e-4: (60, 61, 60)}),
    *tried("is", "tiny_noise", {1e-5: 40, 1e-4: 40}),  # the lower of two
]
AT_LENGTHS = [
    *tried("topr", "tiny_long", {1e-4: 60, 3e-4: 70}, data__turns=2),
    *tried("topr", "tiny_long", {1e-4: 60, 3e-4: 50}, data__turns=2, algo__ratio="token"),
    *tried("topr", "tiny_long", {1e-4: 70, 3e-4: 50}, data__turns=22),
]


def test_the_choice_is_of_each_place_and_loss_and_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "rates.yaml"
    conf.write_text("loss: ${algo.name}\ntiny: {topr: 9.0, dpo: 7.0}\ntiny_long_2_turns: {is: 8.0}\n")
    monkeypatch.setattr(rates, "LEARNING_RATES", conf)
    records.write(tmp_path / "learning_rates.json", ON_MODELS, {})
    records.write(tmp_path / "length_rates.json", AT_LENGTHS, {})
    assert rates.main([str(tmp_path)]) == 0
    assert read_rates(conf) == {
        "loss": "${algo.name}", "tiny": {"topr": 1e-5, "is": 1e-3, "dpo": 7.0},
        "tiny_noise": {"topr": 1e-4, "is": 1e-5}, "tiny_long_22_turns": {"topr": 1e-4},
        "tiny_long_2_turns": {"is": 8.0, "topr": 3e-4, "topr_token_ratio": 1e-4},
    }  # fmt: skip


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rates.main([str(tmp_path)]) == 1
    expected = f"{tmp_path} records no runs; python -m reproduce learning_rates length_rates --full makes them"
    assert expected in capsys.readouterr().err
    with pytest.raises(TOPRError, match="tiny: the algorithms were not tried with the same learning rates and seeds"):
        choose(tried_on_models(Runs(ON_MODELS[1:])))


def test_a_loss_that_conf_does_not_know_is_said_to_have_none() -> None:
    found = best_are_used(tried_on_models(Runs(tried("mine", "nowhere", {1e-4: 60, 3e-4: 40}))), "used")
    assert [(claim.text, claim.word) for claim in found] == [("used", "not shown")]
    assert found[0].evidence.startswith("mine 0.0001 (used none)")


def test_conf_has_the_rates_that_were_chosen() -> None:
    rates = read_rates()
    assert set(rates["tiny"]) == set(rates["tiny_noise"]) <= {path.stem for path in (ROOT / "conf" / "algo").glob("*")}
    for figure, by_place in TRIED.items():
        stored = runs_of(records.read(ROOT / "docs" / "results" / f"{figure}.json"))
        for place, chosen in choose(by_place(stored)).items():
            assert {name: rates[key_of(place)][key_of(name)] for name in chosen} == chosen


@pytest.mark.extended
def test_runs_on_long_answers_have_the_rate_of_their_length_and_loss() -> None:
    """The loss by its ratio and width, where these are not the YAML's."""
    names = {("topr", "token"): "topr_token_ratio", ("topr", "geometric"): "topr_geometric_ratio",
             ("gspo", 0.03): "gspo_eps_low_0_03", ("ppo", 0.8): "ppo_eps_low_0_8", ("opmd", 0.01): "opmd_tau_0_01",
             ("cispo", 1.0): "cispo_cap_1", ("vespo", 0.5): "vespo_c1_pos_0_5"}  # fmt: skip
    conf, seen = read_rates(), set()
    for job in jobs_of_length():
        algo = job.config.algo
        values = [plain(value) for key, value in vars(algo).items() if key != "correction_level"]
        own = [(algo.name, value) for value in values if (algo.name, value) in names]
        loss = names[own[0]] if own else algo.name
        assert job.config.optim.lr == conf[f"tiny_long_{job.config.data.turns}_turns"][loss]
        seen.add((loss, job.config.data.turns))
    assert {loss for loss, _ in seen} >= {*names.values(), "topr", "tis", "is", "ppo"}
    assert len(seen) == 15 * 4


def jobs_of_length() -> list[Any]:
    from reproduce.jobs import jobs_of

    return list(jobs_of(named("length"), request_for(named("length"))).values())
