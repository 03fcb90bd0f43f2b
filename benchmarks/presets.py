"""Shapes of the models in conf/model for one card of 24 GB, by their public configurations."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import topr_exp
from topr_exp.config.settings import Config

# All share the embeddings with the output layer.
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2_135m": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "qwen2_5_0_5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "qwen3_0_6b": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "llama3_2_1b": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "qwen2_5_1_5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
}


def model_config(name: str) -> Any:
    """Return transformers' configuration for a preset's shape."""
    return AutoConfig.for_model(**SHAPES[name], tie_word_embeddings=True, max_position_embeddings=8192)


def settings(name: str) -> Config:
    """Compose the settings of `model=NAME data=gsm8k`."""
    return topr_exp.compose([f"model={name}", "data=gsm8k"])


def cache_bytes(name: str) -> int:
    """Count the bytes of keys and values of one token in bfloat16."""
    shape = SHAPES[name]
    head_size = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
    numbers_of_layer = 2 * shape["num_key_value_heads"] * head_size
    return int(2 * shape["num_hidden_layers"] * numbers_of_layer)


def parameters(name: str) -> int:
    """Count the weights, the shared embeddings once."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config(name))
    return int(model.num_parameters())
