"""Loading models: shipped ones, folders, and what is said about folders that can't be used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from scripts.make_tiny.recipes import RECIPES
from tests.conftest import config_of
from topr_exp.models import files
from topr_exp.models.loading import SHIPPED, load_model, model_folder, weights_fingerprint
from topr_exp.models.policy import load_policy, save_policy
from topr_exp.types import TOPRError

SHIPPED_NAMES = [name for name in RECIPES if (SHIPPED / name).is_dir()]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / "tiny", tmp_path / "copy"))


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_a_shipped_model_loads_and_is_what_it_says(name: str) -> None:
    model, tokenizer = load_model(name)
    parameters = sum(p.numel() for p in model.parameters())
    assert 500_000 <= parameters <= 1_200_000
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size == len(tokenizer)
    # Untied, so that weights can be replaced in a running vLLM.
    assert model.get_input_embeddings().weight.data_ptr() != model.get_output_embeddings().weight.data_ptr()
    # The rounded float16 weights are the base: nothing is lost by storing them so.
    assert all(torch.equal(p, p.half().float()) for p in model.parameters())


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_what_ships_is_small(name: str) -> None:
    assert sum(path.stat().st_size for path in (SHIPPED / name).iterdir()) < 1.2 * 2**20


def test_a_folder_loads_like_the_shipped_model(copy: Path) -> None:
    ids = torch.tensor([[1, 5, 9, 20]])
    shipped, _ = load_model("tiny")
    model, _ = load_model(str(copy), device="cpu")
    assert torch.equal(model(ids).logits, shipped(ids).logits)
    assert load_model(str(copy), dtype=torch.bfloat16)[0].dtype is torch.bfloat16


def test_weights_stored_in_bfloat16_are_trained_in_float32(copy: Path, tmp_path: Path) -> None:
    """As those of the hub's Llamas: an update of 5e-7 would not move a weight of bfloat16."""
    load_model(str(copy), dtype=torch.bfloat16)[0].save_pretrained(copy)
    assert json.loads((copy / "config.json").read_text())["dtype"] == "bfloat16"
    model = config_of(f"model.path={copy}", "model.dtype=bfloat16").model
    policy = load_policy(model, "cpu")
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.float32}
    assert policy.compute is torch.bfloat16
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 5e-7
    save_policy(policy, tmp_path / "trained")
    again = load_policy(model, "cpu", tmp_path / "trained")
    for saved, weight in zip(again.model.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(saved, weight)
        assert not torch.equal(saved, saved.bfloat16().float())


def test_weights_are_read_to_the_device_and_not_moved_there(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = set()
    read = AutoModelForCausalLM.from_pretrained

    def noted(*given: Any, **options: Any) -> Any:
        model = read(*given, **options)
        devices.update(weight.device.type for weight in model.parameters())
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noted)
    load_model(str(copy), device="meta")
    assert devices == {"meta"}


def test_the_fingerprint_follows_weights_and_tokenizer(copy: Path) -> None:
    first = weights_fingerprint(copy)
    assert first == weights_fingerprint(SHIPPED / "tiny")
    (copy / "README.md").write_text("another card")
    assert weights_fingerprint(copy) == first
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    second = weights_fingerprint(copy)
    assert second != first
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + " ")
    assert weights_fingerprint(copy) not in (first, second)


def test_a_saved_model_is_one_whether_online_or_not_and_others_may_read_it(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for offline in (False, True):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        folder = tmp_path / f"offline {offline}"
        save_policy(load_policy(config_of(f"model.path={copy}").model, "cpu"), folder)
        found.add(weights_fingerprint(folder))
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}
    assert len(found) == 1


def test_a_saved_model_is_checked_wherever_it_is_copied(copy: Path, tmp_path: Path) -> None:
    config = config_of(f"model.path={copy}").model
    save_policy(load_policy(config, "cpu"), tmp_path / "saved")
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        for damage in ("flip", "cut", "delete"):
            moved = Path(shutil.copytree(tmp_path / "saved", tmp_path / f"{name} {damage}"))
            content = (moved / name).read_bytes()
            (moved / name).unlink()
            if damage != "delete":
                (moved / name).write_bytes(content[:-1] + (b"" if damage == "cut" else bytes([content[-1] ^ 1])))
            with pytest.raises(TOPRError, match=rf"{name} {damage} is damaged: {name}"):
                load_policy(config, "cpu", moved)
    (moved / "checksums.json").unlink()  # as of a folder from elsewhere
    load_policy(config, "cpu", moved)


def test_folders_that_cannot_be_used(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match=r"no such folder; shipped models are .*tiny"):
        model_folder(str(tmp_path / "nowhere"))
    with pytest.raises(TOPRError, match="no such folder"):
        model_folder("tinny")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(TOPRError, match="has no tokenizer"):
        load_model(str(copy))
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(TOPRError, match=r"no weights .*pickled"):
        load_model(str(copy))
    (copy / "config.json").unlink()
    with pytest.raises(TOPRError, match=r"no config\.json"):
        load_model(str(copy))


def test_damaged_weights_are_one_line(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(TOPRError, match="can't be loaded") as error:
        load_model(str(copy))
    assert "\n" not in str(error.value)


def test_a_tokenizer_larger_than_the_model_is_refused(copy: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(TOPRError, match="tokens, the model only"):
        load_model(str(copy))


def test_an_unreachable_hub_says_how_to_give_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(TOPRError, match=r"model a/b: .*no route.*give a folder") as error:
        model_folder("a/b")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("index", [True, False])
def test_a_file_that_has_the_weights_once_more_is_not_counted(tmp_path: Path, index: bool) -> None:
    """As `consolidated.safetensors` of some models on the hub, whose tensors have other names."""
    weight = {"lm_head.weight": torch.zeros(3, 5)}
    if index:
        save_file(weight, tmp_path / "model-00001-of-00001.safetensors")
        where = {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(where))
    else:
        save_file(weight, tmp_path / "model.safetensors")
    save_file({"output.weight": torch.zeros(3, 5)}, tmp_path / "consolidated.safetensors")
    assert files.linear_layers(tmp_path) == ["lm_head"]
