"""Minutes of the paper's GSM8K run of 8B on one GPU and on eight, and of smaller models on a card of 24 GB.

They are derived from the settings and from the assumptions below, some of which were measured; no such run was made.

    python benchmarks/minutes.py            seconds; by stage, with the assumptions, as Markdown
    python benchmarks/minutes.py --presets  the minutes in the table of docs/models.md

Operations and bytes are counted: 2 operations a weight and token forward, 4 backward, of tokens that a batch shares
once (topr_exp/training/packing.py); the output layer's products three times in bfloat16 (split_product.py); 8 times
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
ADAFACTOR_BYTES = 8 * 4  # a weight: eight passes in float32


@dataclass(frozen=True)
class GPU:
    """A GPU by its data sheet."""

    name: str
    bandwidth: float  # bytes/s of its memory
    recompute: bool  # gradient checkpointing: 80 GB have no room for the layers' activations


@dataclass(frozen=True)
class Layout:
    """The machine of a run."""

    name: str
    gpu: GPU
    processes: int = 1  # that divide a run
    runs: int = 1  # side by side, which share all results of the base


H200 = GPU("H200", bandwidth=4.8e12, recompute=False)
H100 = GPU("H100", bandwidth=3.35e12, recompute=True)
LAYOUTS = [
    Layout("one H200", H200),
    Layout("8 H100, the plain command: one GPU computes", H100),
    Layout("8 H100, `cluster.processes=8` (`cluster.parallel=fsdp`)", H100, processes=8),
    Layout("8 H100, `cluster.jobs=8`: eight runs that differ in `algo` or `seed`, all of them", H100, runs=8),
]


def assumed(name: str) -> float:
    return ASSUMED[name][0]


@dataclass(frozen=True)
class ModelSize:
    """Numbers of weights, and bytes."""

    layers: int
    head: int  # the output layer; the embeddings have as many
    cache_bytes: int  # keys and values of a token

    @property
    def weights(self) -> int:
        return self.layers + 2 * self.head


def size_of_8b() -> ModelSize:
    shape = {key: int(value) for key, value in LLAMAS["8b"].items()}
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    key_width = hidden * shape["num_key_value_heads"] // shape["num_attention_heads"]
    attention = 2 * hidden * (hidden + key_width)
    mlp = 3 * hidden * shape["intermediate_size"]
    norms = 2 * hidden
    return ModelSize(
        layers=layers * (attention + mlp + norms) + hidden,
        head=hidden * shape["vocab_size"],
        cache_bytes=2 * layers * 2 * key_width,
    )


MODEL = size_of_8b()
SHARED = assumed("tokens that all prompts share")
QUESTION = assumed("tokens of a question")
COMPLETION = assumed("tokens of a completion")


def product_seconds(operations: float, share: str) -> float:
    """Return the seconds of matrix products at a share of the peak."""
    return operations / (assumed("peak, TFLOP/s") * 1e12 * assumed(f"share of the peak, {share}"))


def memory_seconds(size: float, gpu: GPU, work: str = "") -> float:
    """Return the seconds to move bytes; work: the suffix of its assumed share of the bandwidth."""
    return size / (gpu.bandwidth * assumed(f"share of a memory's bandwidth{work}"))


def update_seconds(gpu: GPU, batch: int, processes: int = 1) -> float:
    """Return the seconds of an update."""
    examples = batch / processes
    tokens = SHARED + examples * (QUESTION + COMPLETION)
    operations_of_weight = 6
    if gpu.recompute or processes > 1:
        operations_of_weight = 8
    layers = product_seconds(operations_of_weight * MODEL.layers * tokens, "training")
    # Products of halves, three each; logits are computed twice.
    head_operations = 3 * 8 * MODEL.head * examples * COMPLETION
    head = product_seconds(head_operations, "output layer")
    # Blocks are gathered twice in bfloat16, all else once in float32; gradients are summed in float32.
    sent_bytes = 2 * 2 * MODEL.layers + 4 * 2 * MODEL.head + 4 * MODEL.weights
    links = sent_bytes * (processes - 1) / processes / (assumed("GB/s between GPUs") * 1e9)
    visible_links = links * (1 - assumed("share of what is sent that is hidden"))
    optimizer_bytes = ADAFACTOR_BYTES * MODEL.weights / processes
    optimizer = memory_seconds(optimizer_bytes, gpu, ", Adafactor")
    return layers + head + visible_links + optimizer


def scoring_seconds(batch: int, n: int) -> float:
    """Return the seconds to score a batch of completions, n to a problem."""
    tokens = SHARED + batch / n * QUESTION + batch * COMPLETION
    layers = product_seconds(2 * MODEL.layers * tokens, "scoring")
    head_operations = 3 * 2 * MODEL.head * batch * COMPLETION
    return layers + product_seconds(head_operations, "output layer")


def sampling_seconds(gpu: GPU, problems: int, n: int, *, shard: int, engines: int = 1) -> float:
    """Return the seconds of the engine with most shards, of `shard` problems each.

    A step reads the weights, and the keys and values of each sequence.
    """
    sequences_at_once = assumed("sequences that an engine samples at once")
    mean_context = SHARED + QUESTION + COMPLETION / 2
    cache_seconds = memory_seconds(MODEL.cache_bytes * mean_context, gpu)
    core_seconds = assumed("ms of a core for a step of them") / 1e3 / sequences_at_once
    launch_seconds = assumed("ms of a step beside memory") / 1e3
    step_seconds = memory_seconds(2 * MODEL.weights, gpu) + launch_seconds
    tail_steps = assumed("tokens of the longest completion of a shard") - COMPLETION
    all_shards = math.ceil(problems / shard)
    shards = math.ceil(all_shards / engines)
    tokens = min(problems, shards * shard) * n * COMPLETION
    steps = tokens / sequences_at_once + shards * tail_steps
    return tokens * max(cache_seconds, core_seconds) + step_seconds * steps


def stages(layout: Layout, config: Config) -> dict[str, float]:
    """Return the minutes of each stage."""
    gpu, processes = layout.gpu, layout.processes
    base_processes = processes * layout.runs  # which divide the work with the base
    n, eval_n = config.data.n, config.data.eval_n
    shard = config.sampler.prompts_per_shard
    batch, score_batch = config.optim.batch_size, config.optim.score_batch_size
    starts = 60 * assumed("minutes of two engines' starts")
    loads = assumed("GB read and written by loads") / assumed("GB/s of the disk")
    score_batches = TRAIN * n / score_batch
    updates = config.optim.epochs * TRAIN * n / batch
    seconds = {
        "loading": starts + loads,
        "evaluation before": sampling_seconds(gpu, TEST, eval_n, shard=shard, engines=base_processes),
        "sampling": sampling_seconds(gpu, TRAIN, n, shard=shard, engines=base_processes),
        "μ": score_batches * scoring_seconds(score_batch, n) / base_processes,
        "training": updates * update_seconds(gpu, batch, processes),
        "evaluation after": sampling_seconds(gpu, TEST, eval_n, shard=shard, engines=processes),
    }
    return {stage: value / 60 for stage, value in seconds.items()}


def tables() -> str:
    """Format the minutes by stage and layout, then the assumptions."""
    config = topr_exp.compose(WORDS)
    rows = []
    for layout in LAYOUTS:
        minutes = stages(layout, config)
        cells = [f"{value:.0f}" for value in (*minutes.values(), sum(minutes.values()))]
        seconds = update_seconds(layout.gpu, config.optim.batch_size, layout.processes)
        rows.append(f"| {layout.name} | {' | '.join(cells)} | {seconds:.2f} |")
    columns = ["derived minutes", *minutes, "together", "an update, s"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows]
    lines += ["", "| assumed | | from |", "|---|---|---|"]
    for name, (value, source) in ASSUMED.items():
        lines.append(f"| {name} | {value:,g} | {source} |")
    return "\n".join(lines)


# ---- models of 0.1 to 2 B parameters on a card of 24 GB

CARD = GPU("RTX 4090", bandwidth=1.008e12, recompute=True)
CARD_PEAK = 165e12  # operations/s in bfloat16 with float32 sums, dense, by NVIDIA's sheet
# An update of SmolLM2-135M's shape on an H100: 64 examples of 14,700 tokens took 0.178 s, AdamW 0.0045 of them. At 60 %
# of the peak the products take 0.03; the other seconds moved this many bytes a token, layer and unit of width.
ELEMENTWISE_BYTES = 2000
PRODUCT_SHARE = 0.6  # of the peak
PRESET_QUESTION, PRESET_COMPLETION = 130, 200  # tokens with the chat template, mean
PRESET_SEQUENCES = 256  # that an engine samples at once on such a card
ADAM_BYTES = 28  # a weight: gradient, weight and two states read, the last three written


def preset_stages(name: str) -> dict[str, float]:
    """Return the minutes of each stage of `model=NAME data=gsm8k` on the card, with vLLM."""
    config, shape = presets.settings(name), presets.SHAPES[name]
    weights = presets.parameters(name)
    head_weights = shape["vocab_size"] * shape["hidden_size"]
    layer_weights = weights - head_weights
    width = shape["num_hidden_layers"] * shape["hidden_size"]
    n, batch = config.data.n, config.optim.batch_size

    def forward_seconds(tokens: float, completion_tokens: float) -> float:
        operations = 2 * layer_weights * tokens + 3 * 2 * head_weights * completion_tokens
        elementwise_bytes = ELEMENTWISE_BYTES / 3 * tokens * width
        return operations / (CARD_PEAK * PRODUCT_SHARE) + elementwise_bytes / CARD.bandwidth

    def preset_sampling_seconds(problems: int, completions: int) -> float:
        tokens = problems * completions * PRESET_COMPLETION
        cache_bytes = presets.cache_bytes(name) * (PRESET_QUESTION + PRESET_COMPLETION / 2)
        step_seconds = memory_seconds(2 * weights + PRESET_SEQUENCES * cache_bytes, CARD)
        core_milliseconds = assumed("ms of a core for a step of them") / 4
        overhead = (assumed("ms of a step beside memory") + core_milliseconds) / 1e3
        return tokens / PRESET_SEQUENCES * (step_seconds + overhead)

    tokens = batch * (PRESET_QUESTION + PRESET_COMPLETION)
    optimizer_bytes = ADAFACTOR_BYTES
    if config.optim.name == "adamw":
        optimizer_bytes = ADAM_BYTES
    passes = 4 * forward_seconds(tokens, batch * PRESET_COMPLETION)
    step_seconds = passes + memory_seconds(optimizer_bytes * weights, CARD)
    seconds = {
        "engines": 60 * assumed("minutes of two engines' starts"),
        "evaluations": 2 * preset_sampling_seconds(TEST, config.data.eval_n),
        "sampling": preset_sampling_seconds(TRAIN, n),
        "μ": TRAIN * forward_seconds(PRESET_QUESTION + n * PRESET_COMPLETION, n * PRESET_COMPLETION),
        "training": config.optim.epochs * TRAIN * n / batch * step_seconds,
    }
    return {stage: value / 60 for stage, value in seconds.items()}


def preset_rows() -> str:
    """Format a line for each preset: minutes together, of sampling (evaluations too), μ and training."""
    lines = []
    for name in presets.SHAPES:
        minutes = preset_stages(name)
        sampling_minutes = minutes["sampling"] + minutes["evaluations"]
        parts = f"sampling {sampling_minutes:.0f}, μ {minutes['μ']:.0f}, training {minutes['training']:.0f}"
        lines.append(f"{name}: {sum(minutes.values()):.0f} ({parts})")
    return "\n".join(lines)


if __name__ == "__main__":
    if "--presets" in sys.argv[1:]:
        print(preset_rows())
    else:
        print(tables())
