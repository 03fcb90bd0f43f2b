"""Tokens per second of sampler=hf and of transformers' `generate`, on the same prompts in the same run.

    python benchmarks/sampling.py [--shots 900]

Both draw n completions of each prompt at temperature 1 from the whole vocabulary with the shipped tiny model, float32,
until the end-of-sequence token or 64 tokens. `generate` gets the prompts padded on the left, all at once, with
`num_return_sequences=n`, as its documentation shows. The two take turns. Completion tokens are counted up to the end of
each sequence, which is included; on the CPU seconds are processor time, which other work disturbs least.
"""

from __future__ import annotations

import argparse
import time

import measure
import torch
from torch.nn.utils.rnn import pad_sequence

from topr_exp.config.model import SamplerConfig
from topr_exp.data import embedded_gsm8k
from topr_exp.data.embedded import draw_problems
from topr_exp.models.loading import load_model
from topr_exp.models.policy import Policy
from topr_exp.sampling.hf import Decoder

LIMIT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--shots", type=int, default=0, help="tokens of other problems before each prompt")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each side, after one that is not")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    policy = Policy(*load_model("tiny"), "benchmark", torch.float32)
    prompts = make_prompts(policy, options.prompts, options.shots)
    rates: dict[str, list[float]] = {"ours": [], "generate": []}
    for seed in range(options.rounds + 1):
        for side, work in (("ours", ours), ("generate", generate)):
            start_time = time.process_time()
            tokens = work(policy, prompts, options.n, seed)
            seconds = time.process_time() - start_time
            rates[side].append(tokens / seconds)
    medians = {side: measure.median(values[1:]) for side, values in rates.items()}
    ratio = medians["ours"] / medians["generate"]
    longest_prompt = max(map(len, prompts))
    print(f"{options.prompts} prompts of up to {longest_prompt} tokens, {options.n} completions of each")
    print(f"  ours {medians['ours']:,.0f} tokens/s, generate {medians['generate']:,.0f}: {ratio:.2f} times as fast")
    result = {
        "options": vars(options),
        "tokens_per_second": medians,
        "all": rates,
        "ratio": ratio,
    }
    measure.write(f"sampling-{options.shots}", result)


def make_prompts(policy: Policy, count: int, shots: int) -> list[list[int]]:
    """Encode questions after `shots` tokens of other questions."""
    problems = draw_problems(embedded_gsm8k.draw, "gsm8k", split="train", count=count + 60, seed=0)
    rows = []
    for problem in problems:
        ids = policy.encode(f"Question: {problem.question}\nAnswer:")
        rows.append(ids.tolist())
    prefix: list[int] = []
    for row in rows[count:]:
        prefix += row[1:]
    assert len(prefix) >= shots
    return [[row[0], *prefix[:shots], *row[1:]] for row in rows[:count]]


def ours(policy: Policy, prompts: list[list[int]], n: int, seed: int) -> int:
    config = SamplerConfig(
        name="hf",
        seed=0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_new_tokens=LIMIT,
        prompts_per_shard=len(prompts),
    )
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(model=policy.model, config=config, eos_ids=policy.eos_ids, generator=generator)
    token_count = 0
    for group in decoder.draw(prompts, n):
        for sample in group:
            token_count += len(sample.tokens)
    return token_count


def generate(policy: Policy, prompts: list[list[int]], n: int, seed: int) -> int:
    torch.manual_seed(seed)
    prompt_tensors = [torch.tensor(prompt) for prompt in prompts]
    ids = pad_sequence(prompt_tensors, batch_first=True, padding_side="left")
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = ids.shape[1]
    mask = (torch.arange(width) >= width - lengths[:, None]).long()
    with torch.inference_mode():
        sequences = policy.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=LIMIT,
            num_return_sequences=n,
            eos_token_id=policy.eos_ids,
            pad_token_id=0,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
    completions = sequences[:, width:]
    is_end = torch.isin(completions, torch.tensor(policy.eos_ids))
    first_end = is_end.int().argmax(1)
    completion_lengths = torch.where(is_end.any(1), first_end + 1, completions.shape[1])
    return int(completion_lengths.sum())


if __name__ == "__main__":
    main()
