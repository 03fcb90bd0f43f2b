"""How far log π − log μ of a completion is off in bfloat16, with the output layer in bfloat16 and in float32.

    python benchmarks/precision.py [--hidden 512] [--tokens 200] [--prompts 8]

A random Llama with a vocabulary of 128,256 whose logits reach 16 to 32, as a real one's do, and completions that it
draws. `same weights`: μ scored in one batch, π alone, where log π − log μ is 0. `after a step`: π's weights were moved
at random, so that log π − log μ is about 1; what float32 says of it is taken as the truth.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import measure
import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from topr_exp.models.policy import Policy
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens

VOCABULARY, LARGEST = 128_256, 24.0  # the latter: of a position's logits, on average


def random_llama(hidden: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=4,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64, max_position_embeddings=1024,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        largest = model(torch.arange(3, 103)[None]).logits.amax(-1).mean()
        model.lm_head.weight *= LARGEST / largest
    return model


@torch.inference_mode()
def drawn(model: Any, prompts: int, tokens: int) -> list[tuple[Any, Any]]:
    """Prompts with a completion of the model each."""
    ids = torch.randint(3, VOCABULARY, (prompts, 32), generator=torch.Generator().manual_seed(1))
    ids[:, :16] = ids[0, :16].clone()  # shared, so that a batch is laid out in another way than a sequence alone
    cache = None
    for _ in range(tokens):
        out = model(input_ids=ids if cache is None else ids[:, -1:], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        ids = torch.cat([ids, torch.multinomial(out.logits[:, -1].softmax(-1), 1)], dim=1)
    rows = ids.numpy().astype(np.int32)
    return [(row[:32], row[32:]) for row in rows]


@torch.inference_mode()
def scored(model: Any, sequences: list[Any], dtype: torch.dtype, float32_head: bool) -> tuple[Tensor, Tensor]:
    """log-probabilities of the completions, scored together and each alone."""
    policy = Policy(model, None, "benchmark", dtype)
    with policy.autocast():
        parts = [score_tokens(model, Inputs(part, policy.device), float32_head=float32_head).logp
                 for part in [sequences, *([one] for one in sequences)]]  # fmt: skip
    return parts[0].sum(1), torch.cat(parts[1:]).sum(1)


def errors(hidden: int, prompts: int, tokens: int) -> dict[str, dict[str, float]]:
    """The root mean square error of log π − log μ of a completion, by output layer and case."""
    model = random_llama(hidden)
    sequences = drawn(model, prompts, tokens)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for weight in moved.parameters():
            weight += 2e-4 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    truth = scored(moved, sequences, torch.float32, True)[1] - scored(model, sequences, torch.float32, True)[0]
    found = {}
    for name, float32_head in (("bfloat16", False), ("float32", True)):
        together, alone = scored(model, sequences, torch.bfloat16, float32_head)
        after = scored(moved, sequences, torch.bfloat16, float32_head)[1] - together
        found[name] = {"same weights": rms(alone - together), "after a step": rms(after - truth)}
    return {**found, "truth": {"after a step": rms(truth)}}


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = errors(options.hidden, options.prompts, options.tokens)
    for name, values in found.items():
        print(f"output layer in {name}: " if name != "truth" else "log π − log μ itself: ", values)
    measure.write("precision", {**vars(options), "errors": found})


if __name__ == "__main__":
    main()
