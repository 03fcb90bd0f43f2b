"""Error of log π − log μ of a completion in bfloat16, with the output layer in bfloat16 and in float32.

    python benchmarks/precision.py [--hidden 512] [--tokens 200] [--prompts 8]

A random Llama with a vocabulary of 128,256 whose logits reach 16 to 32, as a real one's do, and completions that it
draws. `same weights`: μ scored in one batch, π alone, where log π − log μ is 0. `after a step`: π's weights were moved
at random, so that log π − log μ is about 1; its value in float32 is taken as the truth.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import measure
import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from topr_exp.models.policy import Policy
from topr_exp.training.hidden_states import Inputs, predicting_states
from topr_exp.training.logprobs import score_tokens
from topr_exp.training.padding import pad_tokens

VOCABULARY = 128_256
LARGEST_LOGIT = 24.0  # of a position, on average
PROMPT_TOKENS = 32


def random_llama(hidden: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=4,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=1024,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        largest_logit = model(torch.arange(3, 103)[None]).logits.amax(-1).mean()
        model.lm_head.weight *= LARGEST_LOGIT / largest_logit
    return model


def moved(model: Any) -> Any:
    """Copy a model with weights that are moved at random."""
    moved_model = copy.deepcopy(model)
    with torch.no_grad():
        for weight in moved_model.parameters():
            generator = torch.Generator().manual_seed(2)
            weight += 2e-4 * torch.randn(weight.shape, generator=generator)
    return moved_model


@torch.inference_mode()
def draw_sequences(model: Any, prompts: int, tokens: int) -> list[tuple[Any, Any]]:
    """Draw random prompts, and a completion of each by the model."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (prompts, PROMPT_TOKENS), generator=generator)
    ids[:, :16] = ids[0, :16].clone()  # shared, so that a batch is laid out in another way than a sequence alone
    new_ids, cache = ids, None
    for _ in range(tokens):
        output = model(input_ids=new_ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        probabilities = output.logits[:, -1].softmax(-1)
        new_ids = torch.multinomial(probabilities, 1)
        ids = torch.cat([ids, new_ids], dim=1)
    rows = ids.numpy().astype(np.int32)
    return [(row[:PROMPT_TOKENS], row[PROMPT_TOKENS:]) for row in rows]


class Scores(NamedTuple):
    """Log-probabilities of completions, [B] each."""

    together: Tensor  # scored in one batch
    one_by_one: Tensor


@torch.inference_mode()
def score(model: Any, sequences: Sequence[Any], dtype: torch.dtype, *, float32_head: bool) -> Scores:
    policy = Policy(model, None, "benchmark", dtype)

    def log_probabilities(batch: Sequence[Any]) -> Tensor:
        inputs = Inputs(batch, policy.device)
        with policy.autocast():
            if float32_head:
                return score_tokens(model, inputs).logp.sum(1)
            logits = model.lm_head(predicting_states(model, inputs)).float()
        logp = logits.log_softmax(-1).gather(-1, inputs.targets[:, None])
        return pad_tokens(logp[:, 0], inputs.mask).sum(1)

    one_by_one = [log_probabilities([sequence]) for sequence in sequences]
    return Scores(log_probabilities(sequences), torch.cat(one_by_one))


def errors(hidden: int, prompts: int, tokens: int) -> dict[str, dict[str, float]]:
    """Measure the root mean square error of log π − log μ of a completion, by output layer and case."""
    model = random_llama(hidden)
    moved_model = moved(model)
    sequences = draw_sequences(model, prompts, tokens)
    true_log_mu = score(model, sequences, torch.float32, float32_head=True).together
    true_log_pi = score(moved_model, sequences, torch.float32, float32_head=True).one_by_one
    true_log_ratio = true_log_pi - true_log_mu
    figures = {}
    for name, float32_head in (("bfloat16", False), ("float32", True)):
        scores = score(model, sequences, torch.bfloat16, float32_head=float32_head)
        log_mu = scores.together
        log_pi = score(moved_model, sequences, torch.bfloat16, float32_head=float32_head).one_by_one
        figures[name] = {
            "same weights": root_mean_square(scores.one_by_one - log_mu),
            "after a step": root_mean_square(log_pi - log_mu - true_log_ratio),
        }
    figures["truth"] = {"after a step": root_mean_square(true_log_ratio)}
    return figures


def root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = errors(options.hidden, options.prompts, options.tokens)
    for name, values in figures.items():
        title = f"output layer in {name}: "
        if name == "truth":
            title = "log π − log μ itself: "
        print(title, values)
    measure.write("precision", {**vars(options), "errors": figures})


if __name__ == "__main__":
    main()
