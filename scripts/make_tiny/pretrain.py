"""Pre-training of a tiny model: `python -m scripts.make_tiny --base tiny --out FOLDER`.

A small Llama is trained on generated completions (completion tokens only): first clean ones, then the recipe's mix.
"""

import argparse
import json
import math
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from scripts.make_tiny.recipes import RECIPES, LaterRecipe, Recipe, examples, vocabulary_texts
from scripts.make_tiny.tokenizer import build_tokenizer
from topr_exp.models.loading import load_model
from topr_exp.runtime.files import write_text

TYPICAL_TOKENS = 20  # of a completion
BATCHES_SORTED_TOGETHER = 32  # batches of similar length waste little on padding


class Row(NamedTuple):
    """Token ids of a text."""

    prompt: list[int]
    completion: list[int]  # with the end-of-sequence token

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.completion)


class Batch(NamedTuple):
    """Texts padded on the right."""

    ids: torch.Tensor  # [B, T]
    mask: torch.Tensor  # [B, T] bool, True at completion tokens


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Build the recipe's untrained model."""
    torch.manual_seed(recipe.seed)

    # Input and output embeddings are separate: vLLM on a CPU keeps an old output layer when tied weights are replaced.
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        intermediate_size=recipe.mlp,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def copy_weights(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, source: str) -> None:
    """Copy the weights of a model of the same shape; of the embeddings, the rows of tokens that both know."""
    source_model, source_tokenizer = load_model(source)
    ids, source_ids = [], []
    for token, index in tokenizer.vocab.items():
        if token in source_tokenizer.vocab:
            ids.append(index)
            source_ids.append(source_tokenizer.vocab[token])
    source_weights = source_model.state_dict()
    for name, weight in model.state_dict().items():
        if weight.shape == source_weights[name].shape:
            weight.copy_(source_weights[name])
        else:
            weight[torch.tensor(ids)] = source_weights[name][torch.tensor(source_ids)]


def batches(
    recipe: Recipe, mix: dict[str, float], tokenizer: PreTrainedTokenizerFast, rng: random.Random
) -> Iterator[Batch]:
    """Iterate over batches, without end."""
    texts = examples(recipe, mix, rng)
    while True:
        chunk = list(islice(texts, recipe.batch_size * BATCHES_SORTED_TOGETHER))
        prompts = tokenizer([prompt for prompt, _ in chunk]).input_ids
        completions = tokenizer([completion for _, completion in chunk], add_special_tokens=False).input_ids
        rows = []
        for prompt, completion in zip(prompts, completions, strict=True):
            rows.append(Row(prompt, [*completion, tokenizer.eos_token_id]))
        rows.sort(key=lambda row: row.length)
        row_groups = list(split_rows(rows, recipe))
        rng.shuffle(row_groups)
        for row_group in row_groups:
            yield padded(row_group, tokenizer.pad_token_id)


def split_rows(rows: list[Row], recipe: Recipe) -> Iterator[list[Row]]:
    """Split rows, sorted by length, by `batch_size` texts each or, where that is set, about `batch_tokens`."""
    while rows:
        size = recipe.batch_size
        if recipe.batch_tokens:
            size = max(1, recipe.batch_tokens // rows[0].length)
        yield rows[:size]
        rows = rows[size:]


def padded(rows: list[Row], pad_id: int) -> Batch:
    """Pad rows to the last, which is the longest."""
    shape = (len(rows), rows[-1].length)
    ids = torch.full(shape, pad_id)
    mask = torch.zeros(shape, dtype=torch.bool)
    for index, row in enumerate(rows):
        start, end = len(row.prompt), row.length
        ids[index, :end] = torch.tensor(row.prompt + row.completion)
        mask[index, start:end] = True
    return Batch(ids, mask)


def build_optimizers(model: PreTrainedModel, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Build Muon for the layers' matrices, AdamW for other weights: in a pilot, half the tokens of AdamW alone."""
    matrices, other_weights = [], []
    for name, weight in model.named_parameters():
        if name.startswith("model.layers.") and weight.ndim == 2:
            matrices.append(weight)
        else:
            other_weights.append(weight)
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(other_weights, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def schedule(step: int, recipe: Recipe) -> float:
    """Return the share of the learning rates at a step: linear warm-up over 100 steps, then a cosine to a twentieth."""
    warm_up = min(1.0, (step + 1) / 100)
    cosine = math.cos(math.pi * step / recipe.steps)
    return warm_up * (0.05 + 0.475 * (1 + cosine))


def batch_loss(model: PreTrainedModel, batch: Batch, divisor: int) -> torch.Tensor:
    """Compute the cross-entropy of completion tokens, summed and divided by a fixed number.

    Batches are sorted by length, and a mean would favour the short style in them.
    """
    inputs = batch.ids[:, :-1]
    is_completion = batch.mask[:, 1:]
    targets = batch.ids[:, 1:][is_completion]
    # Padding is on the right and attention is causal, so real positions never see it.
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[is_completion])
    return cross_entropy(logits, targets, reduction="sum") / divisor


def pretrain(recipe: Recipe, log_every: int = 100) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, int]:
    """Train the recipe's model; returns it with its tokenizer and the number of tokens that it has seen."""
    tokenizer = build_tokenizer(vocabulary_texts(recipe), recipe.context)
    model = new_model(recipe, tokenizer)
    if isinstance(recipe, LaterRecipe):
        copy_weights(model, tokenizer, recipe.start)
    schedulers = []
    for optimizer in build_optimizers(model, recipe):
        schedulers.append(LambdaLR(optimizer, partial(schedule, recipe=recipe)))
    rng = random.Random(recipe.seed)
    clean_batches = batches(recipe, recipe.clean, tokenizer, rng)
    mixed_batches = batches(recipe, recipe.mix, tokenizer, rng)
    divisor = recipe.batch_tokens or TYPICAL_TOKENS * recipe.batch_size
    start_time = time.monotonic()
    token_count, loss_sum = 0, 0.0
    for step in range(recipe.steps):
        if step < recipe.clean_steps:
            batch = next(clean_batches)
        else:
            batch = next(mixed_batches)
        loss = batch_loss(model, batch, divisor)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for scheduler in schedulers:
            scheduler.optimizer.step()
            scheduler.step()
        token_count += batch.ids.numel()
        loss_sum += loss.item()
        if (step + 1) % log_every == 0:
            seconds = time.monotonic() - start_time
            print(f"step {step + 1}/{recipe.steps}  loss {loss_sum / log_every:.4f}  {seconds:.0f} s", flush=True)
            loss_sum = 0.0
    return model.eval(), tokenizer, token_count


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a folder that transformers and vLLM load; weights are stored in float16, to compute in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    change_json(folder / "config.json", {"dtype": "float32"})
    # The name of the class that every version of transformers knows.
    change_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def change_json(path: Path, changes: dict[str, str]) -> None:
    values = json.loads(path.read_text()) | changes
    write_text(path, json.dumps(values, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.make_tiny", description=__doc__)
    parser.add_argument("--base", choices=list(RECIPES), default="tiny", help="the model (recipes.py)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not hold a model yet")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if (options.out / "config.json").exists():
        parser.error(f"--out {options.out} holds a model already")
    torch.set_num_threads(options.threads)
    recipe = RECIPES[options.base]
    start_time = time.monotonic()
    model, tokenizer, token_count = pretrain(recipe)
    save(model, tokenizer, options.out)
    seconds = round(time.monotonic() - start_time)
    facts = {
        "base": options.base,
        "recipe": asdict(recipe),
        "tokens": token_count,
        "seconds": seconds,
    }
    (options.out / "recipe.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"{options.out}: {token_count:,} tokens, {seconds} s")
