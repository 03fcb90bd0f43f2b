"""Loading models: shipped ones, folders, and what is said about folders that can't be used."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.make_tiny.recipes import RECIPES
from tests.conftest import config_of, refused
from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.data.prompts import Prompter
from topr_exp.models import model_folder
from topr_exp.models.loading import load_model
from topr_exp.models.model_folder import SHIPPED, check_targets, fetch_model_folder, weights_fingerprint
from topr_exp.models.policy import load_policy, save_policy
from topr_exp.types import ConfigError, TOPRError


@pytest.mark.parametrize("name", [name for name in RECIPES if (SHIPPED / name).is_dir()])
def test_a_shipped_model_loads_and_is_what_it_says(name: str) -> None:
    assert sum(path.stat().st_size for path in (SHIPPED / name).iterdir()) < 1.2 * 2**20
    model, tokenizer = load_model(name)
    assert 500_000 <= sum(p.numel() for p in model.parameters()) <= 1_200_000
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert type(model).__name__ == "LlamaForCausalLM"
    assert (model.config.eos_token_id, model.config.vocab_size) == (tokenizer.eos_token_id, len(tokenizer))
    # Untied, so that weights can be replaced in a running vLLM.
    assert model.get_input_embeddings().weight.data_ptr() != model.get_output_embeddings().weight.data_ptr()
    # The rounded float16 weights are the base: nothing is lost by storing them so.
    assert all(torch.equal(p, p.half().float()) for p in model.parameters())


def test_a_folder_loads_like_the_shipped_model_and_to_its_device(own_model, monkeypatch):
    """Weights are read to the device and not moved there."""
    ids = torch.tensor([[1, 5, 9, 20]])
    shipped, _ = load_model("tiny")
    model, _ = load_model(str(own_model), device="cpu")
    assert torch.equal(model(ids).logits, shipped(ids).logits)
    devices = set()
    read = AutoModelForCausalLM.from_pretrained

    def noted(*given: Any, **options: Any) -> Any:
        found = read(*given, **options)
        devices.update(weight.device.type for weight in found[0].parameters())
        return found

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noted)
    load_model(str(own_model), device="meta")
    assert devices == {"meta"}


def test_weights_stored_in_bfloat16_are_trained_in_float32(own_model: Path, tmp_path: Path) -> None:
    """As those of the hub's Llamas: an update of 5e-7 would not move a weight of bfloat16."""
    load_model(str(own_model), dtype=torch.bfloat16)[0].save_pretrained(own_model)
    assert json.loads((own_model / "config.json").read_text())["dtype"] == "bfloat16"
    model = config_of(f"model.path={own_model}", "model.dtype=bfloat16").model
    policy = load_policy(model, "cpu")
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.float32}
    assert policy.compute_dtype is torch.bfloat16
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 5e-7
    save_policy(policy, tmp_path / "trained")
    again = load_policy(model, "cpu", tmp_path / "trained")
    for saved, weight in zip(again.model.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(saved, weight)
        assert not torch.equal(saved, saved.bfloat16().float())


def test_the_fingerprint_follows_weights_and_tokenizer(own_model: Path) -> None:
    first = weights_fingerprint(own_model)
    assert first == weights_fingerprint(SHIPPED / "tiny")
    (own_model / "README.md").write_text("another card")
    assert weights_fingerprint(own_model) == first
    weights = bytearray((own_model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (own_model / "model.safetensors").write_bytes(weights)
    second = weights_fingerprint(own_model)
    (own_model / "tokenizer.json").write_text((own_model / "tokenizer.json").read_text() + " ")
    third = weights_fingerprint(own_model)
    (own_model / "chat_template.jinja").write_text("{{ messages }}")
    assert len({first, second, third, weights_fingerprint(own_model)}) == 4


def test_a_saved_model_is_one_online_or_not_and_is_checked_wherever_it_is_copied(own_model, tmp_path, monkeypatch):
    config, found = config_of(f"model.path={own_model}").model, set()
    for offline in (False, True):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        folder = tmp_path / f"offline {offline}"
        save_policy(load_policy(config, "cpu"), folder)
        found.add(weights_fingerprint(folder))
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}
    assert len(found) == 1
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        for damage in ("flip", "cut", "delete"):
            moved = Path(shutil.copytree(folder, tmp_path / f"{name} {damage}"))
            content = (moved / name).read_bytes()
            (moved / name).unlink()
            if damage != "delete":
                (moved / name).write_bytes(content[:-1] + (b"" if damage == "cut" else bytes([content[-1] ^ 1])))
            with pytest.raises(TOPRError, match=rf"{name} {damage} is damaged: {name}"):
                load_policy(config, "cpu", moved)
    (moved / "checksums.json").unlink()  # as of a folder from elsewhere
    load_policy(config, "cpu", moved)


def test_folders_that_cannot_be_used(own_model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(own_model)
    tokenizer.add_tokens(["<one>", "<two>"])
    larger = Path(shutil.copytree(own_model, tmp_path / "larger"))
    tokenizer.save_pretrained(larger)
    damaged = Path(shutil.copytree(own_model, tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes(b"\0" * 100)
    lacking = Path(shutil.copytree(own_model, tmp_path / "lacking"))
    weights = load_file(lacking / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, lacking / "model.safetensors", metadata={"format": "pt"})
    steps = [
        (str(tmp_path / "nowhere"), None, r"no such folder; shipped models are .*tiny"),
        ("tinny", None, "no such folder"),
        (str(larger), None, "the tokenizer has 415 tokens, the model only 413"),
        (str(damaged), None, "can't be loaded"),
        (str(lacking), None, r"its files lack 1 weights of the model, as model\.layers\.0\.mlp\.up_proj\.weight"),
        (str(own_model), "tokenizer.json", "has no tokenizer"),
        (str(own_model), "model.safetensors", r"no weights .*pickled"),
        (str(own_model), "config.json", r"no config\.json"),
    ]
    (own_model / "pytorch_model.bin").touch()
    for name, removed, said in steps:
        if removed is not None:
            (own_model / removed).unlink()
        with refused(said):
            load_model(name)


@pytest.mark.parametrize(("revision", "option"), [(None, ""), ("1234abc", " --revision 1234abc")])
def test_an_unreachable_hub_says_how_to_download_the_model_and_how_to_give_a_folder(
    revision: str | None, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with refused(rf"model a/b: .*no route.* `hf download a/b{option}` .*model\.path=FOLDER"):
        fetch_model_folder("a/b", revision)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_gated_model_says_where_access_is_asked_for(wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    response = httpx.Response(403, request=httpx.Request("GET", "https://huggingface.co/a/b"))
    gated = GatedRepoError("403 Client Error.\nCannot access gated repo", response=response)

    def refuse(*args: object, **kwargs: object) -> None:
        if wrapped:
            raise LocalEntryNotFoundError("no files\nhere") from gated
        raise gated

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    page = r"https://huggingface\.co/a/b"
    with refused(rf"model a/b is gated: ask for access at {page} and run `hf auth login`, or .*model\.path=FOLDER"):
        fetch_model_folder("a/b")


@pytest.mark.parametrize("index", [True, False])
def test_a_file_that_has_the_weights_once_more_is_not_counted(tmp_path: Path, index: bool) -> None:
    """As `consolidated.safetensors` of some models on the hub, whose tensors have other names."""
    name = "model-00001-of-00001.safetensors" if index else "model.safetensors"
    save_file({"lm_head.weight": torch.zeros(3, 5)}, tmp_path / name)
    if index:
        where = {"weight_map": {"lm_head.weight": name}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(where))
    save_file({"output.weight": torch.zeros(3, 5)}, tmp_path / "consolidated.safetensors")
    assert model_folder.linear_layers(tmp_path) == ["lm_head"]


# ---- which layers LoRA may be asked to train, told from a model's files before it is loaded


ALLOWED = "all-linear, or some of down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"


@pytest.mark.parametrize(
    ("target", "hint"),
    [("q_prj", "; did you mean q_proj?"), ("proj", "; did you mean v_proj?"), ("lm_head", ""), ("embed_tokens", "")],
)
def test_a_target_that_is_no_layer_of_a_block_is_refused_with_the_nearest(target: str, hint: str) -> None:
    line = f"model.lora.targets={target}: no linear layer of the model's blocks{hint} (allowed: {ALLOWED})"
    lora = LoRA(4, 8.0, ["o_proj", target])
    with pytest.raises(ConfigError) as by_files:
        check_targets(lora, model_folder.linear_layers(SHIPPED / "tiny"))
    with pytest.raises(ConfigError) as loaded:  # of a name on the hub nothing is known before that
        load_policy(dataclasses.replace(config_of().model, lora=lora), "cpu")
    assert str(by_files.value) == str(loaded.value) == line


@pytest.mark.parametrize("targets", [ALL_LINEAR, "q_proj", ["layers.1.mlp.up_proj", "v_proj"], ["self_attn.o_proj"]])
def test_names_and_ends_of_names_are_taken(targets: str | list[str]) -> None:
    check_targets(LoRA(4, 8.0, targets), model_folder.linear_layers(SHIPPED / "tiny"))


# ---- a model's folder that somebody packed: one line, before anything is built of it


def settings(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def index_of(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def nested_header(folder: Path) -> None:
    text = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)


PACKED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a list as weight_map": (lambda folder: index_of(folder, ["a"]), "has a weight_map that is no object"),
    "a number as file": (lambda folder: index_of(folder, {"a": 3}), "has a weight_map that is no object"),
    "a file elsewhere": (lambda folder: index_of(folder, {"a": "../x"}), "has a weight_map that is no object of file"),
    "a nested header": (nested_header, "model.safetensors is no safetensors file"),
    "layers": (lambda folder: settings(folder, "config.json", num_hidden_layers=10**7),
               "config.json has num_hidden_layers=10000000, and the weights have 30 tensors"),
    "size": (lambda folder: settings(folder, "config.json", hidden_size=10**7),
             "config.json has hidden_size=10000000, and the weights have no dimension above 413"),
    "size of a part": (lambda folder: settings(folder, "config.json", text_config={"n_embd": 10**7}),
                       "config.json has n_embd=10000000"),
    "a text as end token": (lambda folder: settings(folder, "generation_config.json", eos_token_id=[1, "a"]),
                            r"generation_config.json has eos_token_id=\[1, 'a'\], which must be a token id, or a list"),
    "an object as end token": (lambda folder: settings(folder, "config.json", eos_token_id={"a": 1}),
                               "config.json has eos_token_id="),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_model_folder_is_refused_in_one_line(name: str, own_model: Path) -> None:
    change, line = PACKED[name]
    change(own_model)
    with refused(line, ConfigError):
        config_of(f"model.path={own_model}")


def test_settings_of_a_part_that_are_no_object_are_left_out(own_model: Path) -> None:
    settings(own_model, "config.json", text_config=[1])
    assert model_folder.config_number(own_model, "vocab_size") == 413
    assert model_folder.config_number(own_model, "nothing") is None


def test_end_tokens_of_a_model_of_the_hub_are_checked_once_it_is_loaded(own_model: Path) -> None:
    settings(own_model, "generation_config.json", eos_token_id=[1, "a"])
    with refused(r"eos_token_id=\[1, 'a'\] must be a token id, or a list of them"):
        load_model(str(own_model))


def test_layers_of_weights_that_are_damaged_are_one_line(own_model: Path) -> None:
    nested_header(own_model)
    with refused("its weights are no whole safetensors files"):
        model_folder.linear_layers(own_model)


def test_a_chat_template_that_fails_is_one_line() -> None:
    _, tokenizer = load_model("tiny")
    tokenizer.chat_template = "{{ raise_exception('no\nsystem prompt') }}"
    with refused("the model's chat template refuses the prompt .*no"):
        Prompter("{question}", (), True, ()).render("1 + 1?", tokenizer)
