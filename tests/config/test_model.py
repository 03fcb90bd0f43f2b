"""Settings of the model: each choice that ships has them all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, config_of
from topr_exp.config.model import ALL_LINEAR, LoRA, ModelConfig
from topr_exp.types import ConfigError

SHIPPED_CHOICES = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))


@pytest.mark.parametrize("choice", SHIPPED_CHOICES)
def test_every_model_that_ships_takes_an_adapter_and_has_every_key(choice: str) -> None:
    values = yaml.safe_load((ROOT / "conf" / "model" / f"{choice}.yaml").read_text(encoding="utf-8"))
    assert set(values["model"]) == {field.name for field in dataclasses.fields(ModelConfig)}
    if choice == "tiny_tasks":
        pytest.importorskip("reasoning_gym", reason="its problems are reasoning-gym's")
    config = config_of(f"model={choice}", "model.lora={rank: 4, alpha: 8, targets: all-linear}")
    assert config.model.lora == LoRA(4, 8.0, ALL_LINEAR)


@pytest.mark.parametrize(("model", "label", "problems"), [("tiny", "mine", 32), ("llama3_8b", "tiny", 2)])
def test_a_models_size_goes_by_its_yaml_not_by_its_label(model: str, label: str, problems: int) -> None:
    config = config_of(f"model={model}", f"model.name={label}", "sampler=hf")
    assert config.sampler.prompts_per_shard == problems


def test_a_choice_of_the_user_s_own_without_a_size_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "model" / "tiny.yaml").read_text(encoding="utf-8")
    (tmp_path / "model").mkdir()
    lines = [line for line in text.splitlines() if not line.startswith("  size:")]
    (tmp_path / "model" / "mine.yaml").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^model\.size=null: expected tiny or large, in the model's YAML$"):
        config_of("--config-dir", str(tmp_path), "model=mine")


def test_a_choice_of_the_user_s_own_without_the_key_takes_it_with_a_plus(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "model" / "tiny.yaml").read_text(encoding="utf-8")
    (tmp_path / "model").mkdir()
    lines = [line for line in text.splitlines() if not line.startswith("  lora:")]
    (tmp_path / "model" / "mine.yaml").write_text("\n".join(lines), encoding="utf-8")
    words, given = ["--config-dir", str(tmp_path), "model=mine"], "model.lora={rank: 4, alpha: 8, targets: q_proj}"
    assert config_of(*words).model.lora is None
    with pytest.raises(
        ConfigError, match=r"^model\.lora: the YAML that was chosen has no such key; write \+model\.lora="
    ):
        config_of(*words, given)
    assert config_of(*words, f"+{given}").model.lora == LoRA(4, 8.0, "q_proj")


def test_one_field_of_what_is_null_names_all_of_them() -> None:
    with pytest.raises(ConfigError) as refused:
        config_of("model.lora.rank=8")
    assert str(refused.value) == (
        "model.lora.rank: model.lora is null here; give all of it, "
        "'model.lora={rank: ..., alpha: ..., targets: ...}'"
    )  # fmt: skip
    assert config_of("model.lora={rank: 4, alpha: 8, targets: q_proj}", "model.lora.rank=8").model.lora == LoRA(
        8, 8.0, "q_proj"
    )
    with pytest.raises(ConfigError, match=r"^nothing reads model\.lora\.rnk"):
        config_of("model.lora.rnk=8")
