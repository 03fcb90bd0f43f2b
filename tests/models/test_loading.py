"""Loading models: shipped ones, folders, and what is said about folders that can't be used."""

import dataclasses
import errno
import json
import os
import re
import shutil
from pathlib import Path

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

from scripts.make_tiny.recipes import RECIPES
from tests.conftest import config_of, each_row, flip_bit, make_model, read_json, refused, update_json
from topr_exp.config.model import LoRA
from topr_exp.config.model_choice import SHIPPED
from topr_exp.data.prompts import Prompter
from topr_exp.models.folder_damage import LARGEST_TEXT
from topr_exp.models.loading import load_model, refuse_other_logits
from topr_exp.models.model_folder import fetch_model_folder, weights_fingerprint
from topr_exp.models.policy import load_policy, save_policy
from topr_exp.models.weight_headers import check_targets, linear_layers
from topr_exp.types import ConfigError

LAYERS = linear_layers(SHIPPED / "tiny")


SHIPPED_NAMES = [name for name in RECIPES if (SHIPPED / name).is_dir()]


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_a_shipped_model_loads_and_is_what_it_says(name):
    model, tokenizer = load_model(name)

    sizes = [path.stat().st_size for path in (SHIPPED / name).iterdir()]
    embeddings = model.get_input_embeddings().weight
    output_layer = model.get_output_embeddings().weight
    assert 500_000 <= model.num_parameters() <= 1_200_000
    assert sum(sizes) < 1.2 * 2**20
    assert not model.training
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size == len(tokenizer)
    assert embeddings.data_ptr() != output_layer.data_ptr(), "weights can't be replaced in a running vLLM"
    for weight in model.parameters():
        assert torch.equal(weight, weight.half().float()), "as float16 it would not be the base"


class DoubledLogits(LlamaForCausalLM):
    """A model whose code scales its logits by no setting."""

    def forward(self, *arguments, **options):
        output = super().forward(*arguments, **options)
        output.logits = 2 * output.logits
        return output


def test_a_model_whose_own_code_changes_its_logits_is_refused():
    model = make_model(11)
    refuse_other_logits(model)
    refuse_other_logits(model.bfloat16())
    refuse_other_logits(make_model(11, model_type="opt", word_embed_proj_dim=16, ffn_dim=32))  # calls its layers itself
    model.__class__ = DoubledLogits

    with refused("model.path: DoubledLogits changes its logits by its own code; not supported"):
        refuse_other_logits(model)


def test_weights_stored_in_bfloat16_are_trained_in_float32(own_model, tmp_path):
    """As those of the hub's Llamas: an update of 5e-7 would not move a weight of bfloat16."""
    load_model(str(own_model), dtype=torch.bfloat16)[0].save_pretrained(own_model)
    assert read_json(own_model / "config.json")["dtype"] == "bfloat16"
    config = config_of(f"model.path={own_model}", "model.dtype=bfloat16").model
    policy = load_policy(config, "cpu")
    assert policy.compute_dtype is torch.bfloat16
    assert policy.device_description.startswith(f"cpu with {torch.get_num_threads()} thread")

    for weight in policy.model.parameters():
        weight.data += 5e-7
    save_policy(policy, tmp_path / "trained")

    reloaded = load_policy(config, "cpu", tmp_path / "trained")
    for stored, weight in zip(reloaded.model.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(stored, weight)
        assert not torch.equal(stored, stored.bfloat16().float())


# ---- identity and damage


def test_the_fingerprint_follows_weights_and_tokenizer(own_model):
    fingerprint = weights_fingerprint(own_model)
    (own_model / "README.md").write_text("another card")
    assert weights_fingerprint(own_model) == fingerprint == weights_fingerprint(SHIPPED / "tiny")

    fingerprints = {fingerprint}
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        with (own_model / name).open("ab") as file:
            file.write(b" ")
        fingerprints.add(weights_fingerprint(own_model))
    assert len(fingerprints) == 4


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_policy(load_policy(config_of().model, "cpu"), folder)
    return folder


def cut_off(path):
    os.truncate(path, path.stat().st_size - 1)


def test_a_read_of_the_end_tokens_that_fails_is_no_model_without_them(own_model, monkeypatch):
    """transformers takes those of config.json then, which are other ones (of Llama 3, say)."""
    change_settings("generation_config.json", eos_token_id=[2, 5])(own_model)
    assert load_model(str(own_model))[0].generation_config.eos_token_id == [2, 5]
    read_file = GenerationConfig.from_pretrained

    def fail_once(folder, *arguments, **options):
        monkeypatch.setattr(GenerationConfig, "from_pretrained", read_file)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(GenerationConfig, "from_pretrained", fail_once)
    with refused("own can't be loaded: .*Stale file handle"):
        load_model(str(own_model))


def test_a_published_generation_config_is_saved_as_it_is_also_where_transformers_warns_of_it(own_model, tmp_path):
    """As of models with a temperature and without do_sample; else training would end without a model."""
    change_settings("generation_config.json", temperature=0.6, top_p=0.9)(own_model)
    model, _ = load_model(str(own_model))

    model.save_pretrained(tmp_path / "saved")

    assert read_json(tmp_path / "saved/generation_config.json")["temperature"] == 0.6


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("damage", [flip_bit, cut_off, Path.unlink])
def test_a_saved_model_is_checked_wherever_it_is_copied(saved_model, tmp_path, name, damage):
    copy = Path(shutil.copytree(saved_model, tmp_path / "copy"))
    damage(copy / name)

    with refused(f"copy is damaged: {name}"):
        load_policy(config_of().model, "cpu", copy)


def test_a_folder_from_elsewhere_has_no_checksums(saved_model, tmp_path):
    copy = Path(shutil.copytree(saved_model, tmp_path / "copy"))
    (copy / "generation_config.json").unlink()
    (copy / "checksums.json").unlink()

    loaded = load_policy(config_of().model, "cpu", copy).model
    saved = load_policy(config_of().model, "cpu", saved_model).model

    torch.testing.assert_close(loaded.state_dict(), saved.state_dict(), atol=0, rtol=0)


# ---- folders that can't be used


def add_tokens(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(folder)


def drop_weight(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def pickle_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def change_settings(name, **changes):
    def change(folder):
        update_json(folder / name, **changes)

    return change


def write_index(weight_map):
    text = json.dumps({"weight_map": weight_map})
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def write_weights(folder, header, content=b""):
    """Write a safetensors file; header: its JSON text."""
    length = len(header).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(length + header + content)


def nest_header(folder):
    write_weights(folder, b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def with_tensors(tensors, **settings):
    """Add tensors without content to a model's weights, and change its settings."""

    def change(folder):
        content = (folder / "model.safetensors").read_bytes()
        header_end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:header_end])
        for name, shape in tensors.items():
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
        write_weights(folder, json.dumps(header).encode(), content[header_end:])
        change_settings("config.json", **settings)(folder)

    return change


def make_fifo(name):
    def make(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)

    return make


def enlarge(folder):
    os.truncate(folder / "tokenizer.json", LARGEST_TEXT + 1)  # takes no room on the disk


@pytest.mark.parametrize(
    "change, message",
    [
        (shutil.rmtree, r"no such folder; shipped models are .*tiny"),
        (add_tokens, "the tokenizer has 415 tokens, the model only 413"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 100), "can't be loaded"),
        (drop_weight, r"its files lack 1 weights of the model, as model\.layers\.0\.mlp\.up_proj\.weight"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
        (pickle_weights, r"no weights .*pickled"),
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json"),
        (lambda folder: (folder / "adapter_config.json").touch(), "would add an adapter"),
    ],
)
def test_a_folder_that_can_not_be_used_is_one_line(own_model, change, message):
    change(own_model)

    with refused(message):
        load_model(str(own_model))


@pytest.mark.parametrize(
    "change, message",
    [
        (write_index(["a"]), "has a weight_map that is no object"),
        (write_index({"a": "../x"}), "has a weight_map that is no object of file"),
        (nest_header, "model.safetensors is no safetensors file"),
        (
            change_settings("config.json", num_hidden_layers=10**7),
            "config.json has num_hidden_layers=10000000, and the weights have 30 tensors",
        ),
        (
            change_settings("config.json", hidden_size=10**7),
            "config.json has hidden_size=10000000, and the weights have no dimension above 413",
        ),
        (
            with_tensors({"empty": [10**7, 0]}, hidden_size=10**7),
            "config.json has hidden_size=10000000, and the weights have no dimension above 413",
        ),
        (with_tensors({"x": [10**7]}, hidden_size=10**7), "model.safetensors is no safetensors file"),
        (make_fifo("vocab.txt"), "vocab.txt is no regular file"),
        (make_fifo("additional_chat_templates/tool.jinja"), "tool.jinja is no regular file"),
        (enlarge, "tokenizer.json has 1,073,741,825 bytes"),
        (
            change_settings("generation_config.json", eos_token_id=[1, "a"]),
            r"generation_config.json has eos_token_id=\[1, 'a'\], which must be a token id, or a list",
        ),
    ],
)
def test_a_folder_that_somebody_packed_is_refused_before_anything_is_built_of_it(own_model, change, message):
    change(own_model)

    with refused(message, ConfigError):
        config_of(f"model.path={own_model}")


def test_a_chat_template_that_fails_is_one_line():
    _, tokenizer = load_model("tiny")
    tokenizer.chat_template = "{{ raise_exception('no\nsystem prompt') }}"

    with refused("the model's chat template refuses the prompt .*no"):
        Prompter("{question}", chat=True).render("1 + 1?", tokenizer)


# ---- the hub


GATED = GatedRepoError(
    "403 Client Error.\nCannot access gated repo",
    response=httpx.Response(403, request=httpx.Request("GET", "https://huggingface.co/a/b")),
)
WRAPPED = LocalEntryNotFoundError("no files\nhere")
WRAPPED.__cause__ = GATED
ASK_FOR_ACCESS = r"model a/b is gated: ask for access at https://huggingface\.co/a/b and run `hf auth login`, or "
UNREACHABLE = r"model a/b: .*no route.* `hf download a/b{}` .*model\.path=FOLDER"


@pytest.mark.parametrize(
    "error, revision, message",
    [
        (ConnectionError("no route\nat all"), None, UNREACHABLE.format("")),
        (ConnectionError("no route\nat all"), "1234abc", UNREACHABLE.format(" --revision 1234abc")),
        (GATED, None, ASK_FOR_ACCESS),
        (WRAPPED, None, ASK_FOR_ACCESS),
    ],
    ids=["unreachable", "revision", "gated", "wrapped"],
)
def test_what_the_hub_refuses_is_one_line_that_says_what_to_do(monkeypatch, error, revision, message):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)

    with refused(message):
        fetch_model_folder("a/b", revision)


# ---- which layers LoRA may be asked to train, told from a model's files before it is loaded


def test_layers_of_weights_that_are_damaged_are_one_line(own_model):
    nest_header(own_model)

    with refused("its weights are no whole safetensors files"):
        linear_layers(own_model)


TARGETS = """
q_prj | no linear layer of the model's blocks; did you mean q_proj?
proj | no linear layer of the model's blocks; did you mean v_proj?
lm_head | no linear layer of the model's blocks
"""


@each_row("target line", TARGETS)
def test_a_target_that_is_no_layer_of_a_block_is_refused_with_the_nearest(target, line):
    lora = LoRA(4, 8.0, ["o_proj", target])
    allowed = "(allowed: all-linear, or some of down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj)"
    pattern = f"^{re.escape(f'model.lora.targets={target}: {line} {allowed}')}$"

    with refused(pattern, ConfigError):
        check_targets(lora, LAYERS)
    with refused(pattern, ConfigError):  # of a name on the hub nothing is known before it is loaded
        load_policy(dataclasses.replace(config_of().model, lora=lora), "cpu")
