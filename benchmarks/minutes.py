"""Minutes of the paper's GSM8K run of 8B on one GPU and on eight, and of smaller models on a card of 24 GB.

They are derived from the settings and ASSUMED, some of which were measured; no such run was made.

    python benchmarks/minutes.py            seconds; the tables of docs/parallel.md, as Markdown
    python benchmarks/minutes.py --presets  the minutes in the table of docs/own_model.md

Operations and bytes are counted: 2 operations a weight and token forward, 4 backward, of tokens that a batch shares
once (topr_exp/training/packing.py); the output layer's products three times in bfloat16 (logprobs.py); 8 times
the weights' bytes in Adafactor; gathers and sums of FSDP as simulated_memory.py counts them.

The layers of 8B have one share of the peak. In smaller ones norms, activations and casts, which are bound by memory,
weigh more beside the products: they are counted as bytes a token, layer and width, calibrated by one measured update.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import presets
from training import LLAMAS

import topr_exp
from topr_exp.config.settings import Config

TRAIN, TEST = 7473, 1319  # problems of GSM8K
ASSUMED: dict[str, tuple[float, str]] = {
    "tokens that all prompts share": (900, "eight worked examples"),
    "tokens of a question": (60, "mean"),
    "tokens of a completion": (130, "mean"),
    "tokens of the longest completion of a shard": (400, "guess; others have ended before"),
    "peak, TFLOP/s": (989, "NVIDIA's sheet, bfloat16, dense; H200 and H100 alike"),
    "share of the peak, training": (0.36, "measured on an H200, 3,300 distinct tokens; torchtitan: 0.33 to 0.39"),
    "share of the peak, scoring": (0.45, "guess: nothing goes backward"),
    "share of the peak, output layer": (0.39, "measured on an H200: 52 ms for 1,600 tokens"),
    "share of a memory's bandwidth": (0.9, "guess; the sheets have 4.8 TB/s (H200) and 3.35 (H100)"),
    "share of a memory's bandwidth, Adafactor": (0.41, "measured on an H200: 132 ms"),
    "GB/s between GPUs": (300, "guess: two thirds of NVLink's 450 one way"),
    "share of what is sent that is hidden": (0.5, "guess: FSDP gathers the next block while it computes"),
    "sequences that an engine samples at once": (1024, "vLLM's default on such a GPU"),
    "ms of a core for a step of them": (51, "measured: 19,900 tokens/s of a small model, the GPU 89 % idle"),
    "ms of a step beside memory": (2, "guess: launches"),
    "GB read and written by loads": (64, "policy, two engines, trained model"),
    "GB/s of the disk": (0.5, "measured: 16 GB written in 33 s"),
    "minutes of two engines' starts": (2.7, "measured on an H200 with a small model: 95 and 67 s"),
}  # fmt: skip
WORDS = ["model=llama3_8b", "data=gsm8k"]


@dataclass(frozen=True)
class GPU:
    name: str
    bandwidth: float  # bytes/s of its memory, by the sheet
    recompute: bool  # layers again in the backward pass: 80 GB have no room for what they keep


@dataclass(frozen=True)
class Layout:
    """Where a run computes."""

    what: str
    gpu: GPU
    processes: int = 1  # that divide a run
    runs: int = 1  # side by side, which share all that is made with the base


H200, H100 = GPU("H200", 4.8e12, False), GPU("H100", 3.35e12, True)
LAYOUTS = [
    Layout("one H200", H200),
    Layout("8 H100, the plain command: one GPU computes", H100),
    Layout("8 H100, `cluster.processes=8` (`cluster.parallel=fsdp`)", H100, processes=8),
    Layout("8 H100, `cluster.jobs=8`: eight runs that differ in `algo` or `seed`, all of them", H100, runs=8),
]


def assumed(name: str) -> float:
    return ASSUMED[name][0]


def weights() -> tuple[int, int, int]:
    """Of the layers, of the output layer (and of the embeddings), bytes of keys and values a token."""
    shape = LLAMAS["8b"]
    hidden, layers, vocabulary = (int(shape[key]) for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
    heads = hidden * int(shape["num_key_value_heads"]) // int(shape["num_attention_heads"])
    layer = 2 * hidden * (hidden + heads) + 3 * hidden * int(shape["intermediate_size"]) + 2 * hidden
    return layers * layer + hidden, hidden * vocabulary, layers * 2 * heads * 2


LAYERS, HEAD, CACHE = weights()
ALL = LAYERS + 2 * HEAD
SHARED, QUESTION, COMPLETION = (value for value, _ in list(ASSUMED.values())[:3])


def product(operations: float, share: str) -> float:
    """Seconds of matrix products."""
    return operations / (assumed("peak, TFLOP/s") * 1e12 * assumed(f"share of the peak, {share}"))


def memory(size: float, gpu: GPU, work: str = "") -> float:
    """Seconds to move so many bytes; work: whose share of the bandwidth is not that of the others."""
    return size / (gpu.bandwidth * assumed(f"share of a memory's bandwidth{work}"))


def update(gpu: GPU, batch: int, processes: int = 1) -> float:
    """Seconds of an update."""
    own = batch / processes
    tokens = SHARED + own * (QUESTION + COMPLETION)
    layers = product((8 if gpu.recompute or processes > 1 else 6) * LAYERS * tokens, "training")
    head = product(3 * 8 * HEAD * own * COMPLETION, "output layer")  # its logits are computed twice
    sent = (2 * 2 * LAYERS + 4 * 2 * HEAD) + 4 * ALL  # blocks gathered twice in bfloat16, the rest once; sums
    links = sent * (processes - 1) / processes / (assumed("GB/s between GPUs") * 1e9)
    seen = links * (1 - assumed("share of what is sent that is hidden"))
    return layers + head + seen + memory(8 * 4 * ALL / processes, gpu, ", Adafactor")


def scoring(batch: int, n: int) -> float:
    """Seconds to score a batch of completions, n to a problem."""
    tokens = SHARED + batch / n * QUESTION + batch * COMPLETION
    return product(2 * LAYERS * tokens, "scoring") + product(3 * 2 * HEAD * batch * COMPLETION, "output layer")


def sampling(gpu: GPU, problems: int, n: int, shard: int, engines: int = 1) -> float:
    """Seconds of the engine with most shards: a step reads the weights, and the keys and values of each sequence."""
    at_once = assumed("sequences that an engine samples at once")
    token = max(
        memory(CACHE * (SHARED + QUESTION + COMPLETION / 2), gpu),
        assumed("ms of a core for a step of them") / 1e3 / at_once,
    )
    step = memory(2 * ALL, gpu) + assumed("ms of a step beside memory") / 1e3
    tail = assumed("tokens of the longest completion of a shard") - COMPLETION
    shards = math.ceil(math.ceil(problems / shard) / engines)
    tokens = min(problems, shards * shard) * n * COMPLETION
    return tokens * token + step * (tokens / at_once + shards * tail)


def stages(layout: Layout, config: Config) -> dict[str, float]:
    """Minutes of each stage, and seconds of an update."""
    n, shared = config.data.n, layout.processes * layout.runs  # which divide what is made with the base
    batch, score = config.optim.batch_size, config.optim.score_batch_size
    shard = config.sampler.prompts_per_shard
    before, after = (sampling(layout.gpu, TEST, config.data.eval_n, shard, of) for of in (shared, layout.processes))
    seconds = update(layout.gpu, batch, layout.processes)
    starts = 60 * assumed("minutes of two engines' starts")
    found = {
        "loading": starts + assumed("GB read and written by loads") / assumed("GB/s of the disk"),
        "evaluation before": before,
        "sampling": sampling(layout.gpu, TRAIN, n, shard, shared),
        "μ": TRAIN * n / score * scoring(score, n) / shared,
        "training": config.optim.epochs * TRAIN * n / batch * seconds,
        "evaluation after": after,
    }
    return {name: each / 60 for name, each in found.items()} | {"an update, s": seconds}


def tables() -> str:
    """Minutes by stage and layout, then what they rest on."""
    config = topr_exp.compose(WORDS)
    found = {layout.what: stages(layout, config) for layout in LAYOUTS}
    names = list(next(iter(found.values())))
    lines = [
        f"| derived minutes | {' | '.join([*names[:-1], 'together', names[-1]])} |",
        "|---" * (len(names) + 2) + "|",
    ]
    for what, each in found.items():
        cells = [f"{each[name]:.0f}" for name in names[:-1]]
        total = sum(each[name] for name in names[:-1])
        lines.append(f"| {what} | {' | '.join(cells)} | {total:.0f} | {each[names[-1]]:.2f} |")
    lines += ["", "| assumed | | from |", "|---|---|---|"]
    lines += [f"| {name} | {value:,g} | {source} |" for name, (value, source) in ASSUMED.items()]
    return "\n".join(lines)


# ---- models of 0.1 to 2 B parameters on a card of 24 GB

CARD = GPU("RTX 4090", 1.008e12, True)
CARD_PEAK = 165e12  # operations/s in bfloat16 with float32 sums, dense, by NVIDIA's sheet
# An update of SmolLM2-135M's shape on an H100: 64 examples of 14,700 tokens took 0.178 s, AdamW 0.0045 of them. At 60 %
# of the peak the products take 0.03; what is left moved this many bytes a token, layer and unit of width.
ELEMENTWISE_BYTES = 2000
PRODUCTS = 0.6  # share of the peak
PRESET_QUESTION, PRESET_COMPLETION = 130, 200  # tokens with the chat template, mean
PRESET_SEQUENCES = 256  # that an engine samples at once on such a card
ADAM_BYTES = 28  # a weight: gradient, weight and two states read, the last three written


def preset_stages(name: str) -> dict[str, float]:
    """Minutes of each stage of `model=NAME data=gsm8k` on the card, with vLLM."""
    config, shape = presets.settings(name), presets.SHAPES[name]
    everything = presets.parameters(name)
    head = shape["vocab_size"] * shape["hidden_size"]
    layers = everything - head
    width = shape["num_hidden_layers"] * shape["hidden_size"]
    n, batch = config.data.n, config.optim.batch_size

    def forward(tokens: float, head_tokens: float) -> float:
        products_operations = 2 * layers * tokens + 3 * 2 * head * head_tokens
        return products_operations / (CARD_PEAK * PRODUCTS) + ELEMENTWISE_BYTES / 3 * tokens * width / CARD.bandwidth

    def sampled(problems: int, completions: int) -> float:
        tokens = problems * completions * PRESET_COMPLETION
        cache = presets.cache_bytes(name) * (PRESET_QUESTION + PRESET_COMPLETION / 2)
        from_memory = memory(2 * everything + PRESET_SEQUENCES * cache, CARD)
        overhead = (assumed("ms of a step beside memory") + assumed("ms of a core for a step of them") / 4) / 1e3
        return tokens / PRESET_SEQUENCES * (from_memory + overhead)

    own = batch * (PRESET_QUESTION + PRESET_COMPLETION)
    optimizer_bytes = ADAM_BYTES if config.optim.name == "adamw" else 8 * 4
    step = 4 * forward(own, batch * PRESET_COMPLETION) + memory(optimizer_bytes * everything, CARD)
    seconds = {
        "engines": 60 * assumed("minutes of two engines' starts"),
        "evaluations": 2 * sampled(TEST, config.data.eval_n),
        "sampling": sampled(TRAIN, n),
        "μ": TRAIN * forward(PRESET_QUESTION + n * PRESET_COMPLETION, n * PRESET_COMPLETION),
        "training": config.optim.epochs * TRAIN * n / batch * step,
    }
    return {stage: value / 60 for stage, value in seconds.items()}


def preset_rows() -> str:
    """A line for each preset: minutes together, of sampling (evaluations too), μ and training."""
    lines = []
    for name in presets.SHAPES:
        minutes = preset_stages(name)
        sampling_minutes = minutes["sampling"] + minutes["evaluations"]
        parts = f"sampling {sampling_minutes:.0f}, μ {minutes['μ']:.0f}, training {minutes['training']:.0f}"
        lines.append(f"{name}: {sum(minutes.values()):.0f} ({parts})")
    return "\n".join(lines)


if __name__ == "__main__":
    print(preset_rows() if "--presets" in sys.argv[1:] else tables())
