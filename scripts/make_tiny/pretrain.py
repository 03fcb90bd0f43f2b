"""Make a tiny model again: `python -m scripts.make_tiny --base tiny --out FOLDER`.

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
Row = tuple[list[int], list[int]]  # tokens of a prompt and of its completion


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """The recipe's untrained model."""
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
        **{f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")},
    )
    return LlamaForCausalLM(config)


def begin_with(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, start: str) -> None:
    """Copy the weights of a model of the same shape; of the embeddings, the rows of tokens that both know."""
    other, known = load_model(start)
    rows = other.state_dict()
    shared = [(index, known.vocab[token]) for token, index in tokenizer.vocab.items() if token in known.vocab]
    here, there = (torch.tensor(ids) for ids in zip(*shared, strict=True))
    weights = model.state_dict()
    for name, weight in weights.items():
        if weight.shape == rows[name].shape:
            weight.copy_(rows[name])
        else:
            weight[here] = rows[name][there]


def batches(
    recipe: Recipe, mix: dict[str, float], tokenizer: PreTrainedTokenizerFast, rng: random.Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids [B, T] and the mask [B, T] of completion tokens, padded on the right."""
    source = examples(recipe, mix, rng)
    while True:
        chunk = list(islice(source, recipe.batch_size * BATCHES_SORTED_TOGETHER))
        prompts = tokenizer([prompt for prompt, _ in chunk]).input_ids
        completions = tokenizer([text for _, text in chunk], add_special_tokens=False).input_ids
        rows = [(p, [*c, tokenizer.eos_token_id]) for p, c in zip(prompts, completions, strict=True)]
        parts = list(cut(sorted(rows, key=length), recipe))
        rng.shuffle(parts)
        for part in parts:
            width = length(part[-1])
            ids = torch.full((len(part), width), tokenizer.pad_token_id)
            mask = torch.zeros(len(part), width, dtype=torch.bool)
            for i, (p, c) in enumerate(part):
                ids[i, : len(p) + len(c)] = torch.tensor(p + c)
                mask[i, len(p) : len(p) + len(c)] = True
            yield ids, mask


def length(row: Row) -> int:
    return len(row[0]) + len(row[1])


def cut(rows: list[Row], recipe: Recipe) -> Iterator[list[Row]]:
    """Rows sorted by length as batches: of `batch_size` texts each or, where that is set, of about `batch_tokens`."""
    while rows:
        size = max(1, recipe.batch_tokens // length(rows[0])) if recipe.batch_tokens else recipe.batch_size
        yield rows[:size]
        rows = rows[size:]


def build_optimizers(model: PreTrainedModel, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the rest: in a pilot, half the tokens of AdamW alone."""
    matrices = {f"model.{name}": p for name, p in model.model.layers.named_parameters("layers") if p.ndim == 2}
    rest = [p for name, p in model.named_parameters() if name not in matrices]
    return [
        torch.optim.Muon(matrices.values(), lr=recipe.muon_lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def schedule(step: int, recipe: Recipe) -> float:
    """Share of the learning rates at a step: linear warm-up over 100 steps, then a cosine to a twentieth."""
    return min(1.0, (step + 1) / 100) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / recipe.steps)))


def pretrain(recipe: Recipe, log_every: int = 100) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, int]:
    """Train the recipe's model; returns it with its tokenizer and the number of tokens that it has seen."""
    tokenizer = build_tokenizer(vocabulary_texts(recipe), recipe.context)
    model = new_model(recipe, tokenizer)
    if isinstance(recipe, LaterRecipe):
        begin_with(model, tokenizer, recipe.start)
    rates = [LambdaLR(each, partial(schedule, recipe=recipe)) for each in build_optimizers(model, recipe)]
    rng = random.Random(recipe.seed)
    clean, mixed = (batches(recipe, mix, tokenizer, rng) for mix in (recipe.clean, recipe.mix))
    divisor = recipe.batch_tokens or TYPICAL_TOKENS * recipe.batch_size
    seen, started, total = 0, time.monotonic(), 0.0
    for step in range(recipe.steps):
        ids, mask = next(clean if step < recipe.clean_steps else mixed)
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        # Padding is on the right and attention is causal, so real positions never see it.
        logits, targets = model.lm_head(hidden[mask[:, 1:]]), ids[:, 1:][mask[:, 1:]]
        # A fixed divisor: batches are sorted by length, and a mean would favour the short style in them.
        loss = cross_entropy(logits, targets, reduction="sum") / divisor
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for rate in rates:
            rate.optimizer.step()
            rate.step()
        seen += ids.numel()
        total += loss.item()
        if (step + 1) % log_every == 0:
            seconds = time.monotonic() - started
            print(f"step {step + 1}/{recipe.steps}  loss {total / log_every:.4f}  {seconds:.0f} s", flush=True)
            total = 0.0
    return model.eval(), tokenizer, seen


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a folder that transformers and vLLM load; weights in float16, to be computed with in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    known = {"tokenizer_class": "PreTrainedTokenizerFast"}  # the name that every version of transformers knows
    for path, changes in (("config.json", {"dtype": "float32"}), ("tokenizer_config.json", known)):
        values = json.loads((folder / path).read_text()) | changes
        write_text(folder / path, json.dumps(values, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.make_tiny", description=__doc__)
    parser.add_argument("--base", choices=list(RECIPES), default="tiny", help="the model (recipes.py)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not hold a model yet")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if (args.out / "config.json").exists():
        parser.error(f"--out {args.out} holds a model already")
    torch.set_num_threads(args.threads)
    recipe, started = RECIPES[args.base], time.monotonic()
    model, tokenizer, seen = pretrain(recipe)
    save(model, tokenizer, args.out)
    facts = {"base": args.base, "recipe": asdict(recipe), "tokens": seen, "seconds": round(time.monotonic() - started)}
    (args.out / "recipe.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"{args.out}: {seen:,} tokens, {facts['seconds']} s")
