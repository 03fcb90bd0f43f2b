"""Loading of causal language models and their tokenizers, from safetensors only."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.models.folder_damage import TOKEN_IDS_RULE, is_token_ids
from topr_exp.models.model_folder import fetch_model_folder
from topr_exp.models.out_of_memory import memory_for
from topr_exp.runtime.json_files import read_object
from topr_exp.schema import first_line
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import torch

# Settings by which models of transformers scale or cap the output layer's logits.
LOGIT_SCALES = (
    *("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"),
    *("softcap", "logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier"),
)
NEW_CACHE_ARGUMENT = "cache"  # of a model's and a layer's forward, from transformers 5.24 on
OLD_CACHE_ARGUMENT = "past_key_values"
EAGER_TYPES = ("gpt_oss",)  # of models whose attention transformers has no SDPA for: a sink stands beside the tokens
TRIED_TOKENS = 3
LOGIT_TOLERANCE = 1e-3  # of the largest logit; the same product differs by rounding alone, in bfloat16 by more
# Of this machine, not of the model; transformers would save them with the tokenizer.
MACHINE_SETTINGS = ("is_local", "local_files_only")


def load_model(
    path_or_name: str,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    *,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """Load a model (dtype None: float32, no dropout) and its tokenizer; TOPRError for a folder that can't be used."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from topr_exp.models.published_settings import PublishedGenerationConfig

    folder = fetch_model_folder(path_or_name)
    # On a GPU each tensor goes there as it is read: eight processes of an 8B model would else hold 256 GB.
    device_map = None if str(device) == "cpu" else {"": device}
    config, _ = read_object(folder / "config.json")
    attention = "eager" if config.get("model_type") in EAGER_TYPES else "sdpa"
    generation_config = None
    try:
        if (folder / "generation_config.json").exists():  # of which transformers itself passes over a failing read
            generation_config = PublishedGenerationConfig.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=dtype or torch.float32,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            device_map=device_map,
        )
        if generation_config is not None and model.can_generate():
            model.generation_config = generation_config
    except Exception as error:
        # transformers raises many types for damaged folders; the user needs to know which folder and why.
        raise TOPRError(f"model folder {folder} can't be loaded: {first_line(error)}") from error
    refuse_incomplete(folder, model, tokenizer, report["missing_keys"])
    for name in MACHINE_SETTINGS:
        tokenizer.init_kwargs.pop(name, None)
    return model.eval(), tokenizer


def refuse_incomplete(folder: Path, model: Any, tokenizer: Any, missing_weights: Collection[str]) -> None:
    """Raise TOPRError for a loaded model that lacks weights, ids of end tokens, or rows for its tokenizer's tokens.

    missing_weights: those that no file had, which transformers draws at random.
    """
    eos_ids = getattr(model.generation_config, "eos_token_id", None)
    if not is_token_ids(eos_ids):
        raise TOPRError(f"model folder {folder}: eos_token_id={eos_ids!r:.60} {TOKEN_IDS_RULE}")
    if missing_weights:
        fault = f"its files lack {len(missing_weights)} weights of the model, as {min(missing_weights)}"
        raise TOPRError(f"model folder {folder}: {fault}")
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > vocabulary:
        raise TOPRError(
            f"model folder {folder}: the tokenizer has {len(tokenizer)} tokens, the model only {vocabulary}"
        )


def text_config(model: Any) -> Any:
    """The settings of a model, or of the part that reads text where it has several."""
    return model.config.get_text_config()


def context_of(model: Any) -> int:
    """The largest number of tokens of a sequence that a model takes.

    Of longrope (Phi-3, Phi-4-mini) the length it was first trained at. In a batch with a longer sequence it rotates
    every position by other frequencies: the keys that a sampler holds, and the score of each short sequence, would be
    wrong.
    """
    config = text_config(model)
    context = int(config.max_position_embeddings)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        context = min(context, int(rope.get("original_max_position_embeddings", context)))
    return context


def logit_scale_of(model: Any) -> str | None:
    """The setting by which a model's logits are no linear map of its last states; None for a linear map."""
    for name in LOGIT_SCALES:
        if getattr(text_config(model), name, None) not in (None, 1.0):
            return name
    return None


def refuse_scaled_logits(model: Any) -> None:
    """Raise TOPRError for a model whose logits are no linear map of its last states, as scoring takes them."""
    setting = logit_scale_of(model)
    if setting is not None:
        raise TOPRError(f"model.path: {type(model).__name__} changes its logits by {setting}; not supported")


def refuse_other_logits(model: Any) -> None:
    """Raise TOPRError unless a model's logits are its output layer's of its last states, as scoring takes them.

    A few tokens are tried: code of a model's own may scale either without a setting that is known here.
    """
    import torch

    refuse_scaled_logits(model)
    name = type(model).__name__
    output_layer = model.get_output_embeddings()
    device = model.get_input_embeddings().weight.device
    token_ids = torch.arange(TRIED_TOKENS, device=device)[None]
    with memory_for("trying the model's output layer", "take a smaller model"), torch.no_grad():
        logits = model(input_ids=token_ids, use_cache=False).logits.float()
        base_output = model.base_model(input_ids=token_ids, use_cache=False)
        last_states = getattr(base_output, "last_hidden_state", None)
        if last_states is None:
            raise TOPRError(f"model.path: {name} gives no states without its output layer; not supported")
        expected_logits = output_layer(last_states).float()
    tolerance = max(LOGIT_TOLERANCE, 2 * torch.finfo(output_layer.weight.dtype).eps)
    largest = float(expected_logits.abs().max())
    has_other_shape = logits.shape != expected_logits.shape
    # Not where they are NaN: what computes with them says so.
    if has_other_shape or bool(((logits - expected_logits).abs() > tolerance * largest).any()):
        raise TOPRError(f"model.path: {name} changes its logits by its own code; not supported")
