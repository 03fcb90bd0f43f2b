"""An update of the policy and one of TRL's: time and peak memory, on the same model, data, batch and precision.

    python benchmarks/training.py                       CPU: the tiny model, short prompts and 8 shots of 900 tokens
    python benchmarks/training.py --cases plain_8b      GPU: random Llamas of 0.6 and 8 billion weights in bfloat16

TRL's side is `SFTTrainer` on completion tokens. Its loss, the mean of −log π over the batch's completion tokens, is
TOPR's loss with all weights 1; no trainer of TRL takes completions made elsewhere with a reward. SFTTrainer does
less than our update (no log-ratio, no weight by reward, none of the statistics by verdict), so the comparison is in
its favour. It runs with its defaults, but with the same AdamW settings and threads, and without checkpointing on the
CPU. The two take turns, update by update, and both times contain reading and collating the batch.

MFU = operations / (seconds × peak), operations = 6 × (weights of the layers) × tokens + 6 × (weights of the output
layer) × completion tokens + 6 × layers × heads × head size × Σ_sequences length² (causal attention, forward and
backward); the recomputation of gradient checkpointing is not counted, padding neither. It is given for sequences that
share nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import pyarrow as pa
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from topr_exp.algorithms.topr import Tapered
from topr_exp.composition.selection import select
from topr_exp.composition.training_set import TrainingSet, build_training_set
from topr_exp.config.groups import ComposeConfig, OptimConfig
from topr_exp.models.loading import load_model
from topr_exp.models.policy import Policy
from topr_exp.sampling.completions import Completions
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.parallel import ProcessLayout
from topr_exp.training.trainer import Trainer
from topr_exp.types import CORRECT, INCORRECT, Problem

TOPR = Tapered(
    "topr",
    a_pos=1.0,
    b_pos=1.0,
    a_neg=0.0,
    b_neg=1.0,
    ratio="sequence",
    length_normalize=True,
    advantage="reward",
)
WARM_UP_UPDATES = 2  # of each side, which are not timed


@dataclass(frozen=True)
class Case:
    """A setting; lengths in tokens."""

    model: str  # tiny, or a key of LLAMAS
    prefix: int  # that all prompts begin with
    prompt: tuple[int, int]  # least and most beyond the prefix
    completion: tuple[int, int]
    batch: int
    micro: int  # of ours and of TRL's
    optimizer: str
    target: str = "none"
    samples: int = 1  # completions a prompt, side by side

    @property
    def recomputes(self) -> bool:
        """True if both sides use gradient checkpointing; the small models have no need of it."""
        return self.model not in ("tiny", "135m")


LLAMAS = {
    "small": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 2048,
        "tie_word_embeddings": False,
    },
    "100m": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 128_256,
        "tie_word_embeddings": False,
    },
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
    },  # SmolLM2-135M
    "0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": False,
    },
}
CASES = {
    "short": Case(
        "tiny",
        prefix=0,
        prompt=(27, 51),
        completion=(7, 34),
        batch=32,
        micro=32,
        optimizer="adamw",
        target="≥ 1.2 times TRL's samples/s",
    ),
    "few_shot": Case(
        "tiny",
        prefix=900,
        prompt=(27, 51),
        completion=(7, 34),
        batch=32,
        micro=32,
        optimizer="adamw",
        target="≥ 4 times TRL's samples/s",
    ),
    "groups": Case(
        "tiny",
        prefix=0,
        prompt=(27, 51),
        completion=(7, 34),
        batch=64,
        micro=16,
        optimizer="adamw",
        target="none",
        samples=8,
    ),
    "plain_135m": Case(
        "135m",
        prefix=0,
        prompt=(80, 180),
        completion=(50, 150),
        batch=64,
        micro=64,
        optimizer="adamw",
        target="none",
    ),
    "gsm8k_0.6b": Case(
        "0.6b",
        prefix=900,
        prompt=(40, 120),
        completion=(80, 250),
        batch=64,
        micro=16,
        optimizer="adafactor",
        target="≥ 4 times TRL's samples/s",
    ),
    "plain_0.6b": Case(
        "0.6b",
        prefix=0,
        prompt=(40, 120),
        completion=(200, 512),
        batch=64,
        micro=16,
        optimizer="adafactor",
        target="≥ 1.5 × tokens/s, MFU ≥ 45 %",
    ),
    "plain_8b": Case(
        "8b",
        prefix=0,
        prompt=(40, 120),
        completion=(200, 512),
        batch=16,
        micro=8,
        optimizer="adafactor",
        target="≥ 1.5 × tokens/s, ≤ 72 GiB",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["short", "few_shot"])
    parser.add_argument("--updates", type=int, default=8, help="timed updates of each side, after two that are not")
    parser.add_argument("--threads", type=int, default=1, help="of both sides, on the CPU")
    parser.add_argument("--peak-tflops", type=float, help="of the GPU in bfloat16, for MFU (H100, H200: 989)")
    parser.add_argument("--ours-only", action="store_true", help="without TRL, which is an extra (pip install trl)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.cases:
        measure.write(f"training-{name}", run(name, CASES[name], options))


def run(name: str, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print both sides of a case."""
    if case.model != "tiny" and not torch.cuda.is_available():
        raise SystemExit(f"--cases {name} needs a GPU")
    runner = UpdateRunner(case, (options.updates + 3) * case.batch)
    trl_runner = None if options.ours_only else TRLRunner(case, runner)
    seconds: dict[str, list[float]] = {"ours": [], "trl": []}

    def turn() -> None:
        seconds["ours"].append(timed(runner.update, runner.device))
        runner.trainer.zero_grad()  # as TRL does at the end of its updates: both lie on one device

    updates = WARM_UP_UPDATES + options.updates
    if trl_runner is None:
        for _ in range(updates):
            turn()
    else:
        trl_runner.train(updates, turn, seconds["trl"])
    result: dict[str, Any] = {"case": name, "batch": case.batch, "tokens_an_update": runner.tokens / runner.batches}
    for side, values in seconds.items():
        if values:
            median = measure.median(values[WARM_UP_UPDATES:])
            result[side] = {"seconds": median, "all_seconds": values}
    result["ours"]["peak_bytes"] = measure.peak_memory(runner.update, runner.device)
    if trl_runner is not None:
        result["trl"]["peak_bytes"] = trl_runner.peak
    return report(result, case, runner, options)


def report(result: dict[str, Any], case: Case, runner: UpdateRunner, options: argparse.Namespace) -> dict[str, Any]:
    """Print the case and add rates and ratios."""
    print(f"{result['case']}: batch {case.batch}, sequences of {runner.mean_length:.0f} tokens on average")
    for side in ("ours", "trl"):
        if side in result:
            figures = result[side]
            figures["samples_per_second"] = case.batch / figures["seconds"]
            figures["tokens_per_second"] = result["tokens_an_update"] / figures["seconds"]
            print_side(side, figures)
    if "trl" in result:
        result["speed_ratio"] = result["trl"]["seconds"] / result["ours"]["seconds"]
        result["memory_ratio"] = result["ours"]["peak_bytes"] / result["trl"]["peak_bytes"]
        speed = f"{result['speed_ratio']:.2f} times TRL's samples/s"
        print(f"  ours: {speed} at {result['memory_ratio']:.2f} of its memory")
        print(f"  (target: {case.target})")
    if options.peak_tflops and not case.prefix:
        peak_rate = options.peak_tflops * 1e12
        result["mfu"] = runner.operations() / (result["ours"]["seconds"] * peak_rate)
        print(f"  MFU {result['mfu']:.1%}")
    return result


def print_side(side: str, figures: dict[str, Any]) -> None:
    """Print seconds, rates and memory of ours or of TRL's update."""
    rates = f"{figures['samples_per_second']:,.1f} samples/s, {figures['tokens_per_second']:,.0f} tokens/s"
    mebibytes = figures["peak_bytes"] / 2**20
    print(f"  {side:<5} {figures['seconds']:.3f} s an update, {rates}, peak {mebibytes:,.0f} MiB", flush=True)


def clock(device: torch.device) -> float:
    """Return seconds: wall time on a GPU, processor time on the CPU, which other work on the machine disturbs least."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def timed(work: Any, device: torch.device) -> float:
    start_time = clock(device)
    work()
    return clock(device) - start_time


def sequences(case: Case, count: int, vocabulary: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw random tokens of the case's lengths: an update's time does not depend on the tokens."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(3, vocabulary, case.prefix)

    def ids(bounds: tuple[int, int]) -> np.ndarray:
        low, high = bounds
        length = rng.integers(low, high + 1)
        return rng.integers(3, vocabulary, length)

    pairs = []
    for _ in range(count // case.samples):
        prompt = np.concatenate([prefix, ids(case.prompt)]).astype(np.int32)
        for _ in range(case.samples):
            completion = ids(case.completion).astype(np.int32)
            pairs.append((prompt, completion))
    return pairs


def make_model(name: str) -> Any:
    """Load the shipped model, or make a random one on the GPU if there is one; weights are float32."""
    if name == "tiny":
        model, _ = load_model("tiny")
        return model
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    config = LlamaConfig(**LLAMAS[name], max_position_embeddings=8192)
    with torch.device(device):
        return LlamaForCausalLM(config).eval()


def training_set(policy: Policy, pairs: list[tuple[np.ndarray, np.ndarray]], case: Case) -> TrainingSet:
    """Make a training set of (prompt, completion) pairs, a third of them correct, with log μ by the policy itself."""
    indices = np.arange(len(pairs))
    columns = pa.table(
        {
            "tokens": pa.array([tokens for _, tokens in pairs], pa.list_(pa.int32())),
            "finish": ["stop"] * len(pairs),
            "problem": pa.array(indices // case.samples, pa.int32()),
            "sample": pa.array(indices % case.samples, pa.int16()),
        }
    )
    prompts = [prompt for prompt, _ in pairs[:: case.samples]]
    problems = [Problem(str(index), "", "") for index in range(len(prompts))]
    completions = Completions(problems, prompts, columns)
    mu_logp = log_probabilities(policy, completions, range(len(pairs)), case.micro)
    is_correct = indices % 3 == 0
    verdicts = pa.array(np.where(is_correct, CORRECT, INCORRECT), pa.int8())
    completions = completions.with_columns({"verdict": verdicts, "mu_logp": mu_logp})
    selection = select(completions, ComposeConfig(), "examples", seed=0, iteration=1)
    return build_training_set(completions, selection, "pm1")


def optimizer_config(case: Case) -> OptimConfig:
    return OptimConfig(
        name=case.optimizer,
        lr=1e-5,
        grad_clip=1.0,
        batch_size=case.batch,
        micro_batch_size=case.micro,
        gradient_checkpointing=case.recomputes,
        epochs=1,
        reduction="sequences",
        warmup_steps=0,
        schedule="constant",
    )


class UpdateRunner:
    """Updates of `Trainer` on random completions."""

    def __init__(self, case: Case, count: int) -> None:
        """count: completions; updates go through them again and again."""
        self.case = case
        compute_dtype = torch.float32 if case.model == "tiny" else torch.bfloat16
        self.policy = Policy(make_model(case.model), None, "benchmark", compute_dtype)
        self.device = self.policy.device
        self.batches = count // case.batch
        self.next_batch = 0
        self.sequences = sequences(case, count, self.policy.vocabulary)
        self.examples = training_set(self.policy, self.sequences, case)
        layout = ProcessLayout(self.policy.model)
        config = optimizer_config(case)
        self.trainer = Trainer(self.policy, TOPR, None, config, Path(tempfile.mkdtemp()), layout)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(prompt) + len(tokens) for prompt, tokens in self.sequences])

    @property
    def mean_length(self) -> float:
        return float(self.lengths.mean())

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, each counted as often as it occurs."""
        return int(self.lengths.sum())

    def update(self) -> None:
        start = self.next_batch * self.case.batch
        batch = GlobalBatch(self.examples, np.arange(start, start + self.case.batch), mu_is_policy=False)
        self.next_batch = (self.next_batch + 1) % self.batches
        self.trainer.update(batch, self.trainer.step + 1)

    def operations(self) -> float:
        """Count the operations of an update, by the formula above."""
        model = self.policy.model
        config = model.config
        head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        layer_weights = model.num_parameters() - head.numel()
        if head is not embedding:
            layer_weights -= embedding.numel()
        completion_tokens = sum(len(tokens) for _, tokens in self.sequences)
        products = layer_weights * self.tokens + head.numel() * completion_tokens
        attention_width = config.num_hidden_layers * config.num_attention_heads * config.head_dim
        squared_lengths = (self.lengths.astype(float) ** 2).sum()
        return float(6 * products + 6 * attention_width * squared_lengths) / self.batches


class TRLRunner:
    """TRL's SFTTrainer on the same sequences."""

    def __init__(self, case: Case, runner: UpdateRunner) -> None:
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        self.device = runner.device
        self.peak = 0  # bytes
        rows = []
        for prompt, tokens in runner.sequences:
            completion_mask = [0] * len(prompt) + [1] * len(tokens)
            rows.append({"input_ids": [*prompt.tolist(), *tokens.tolist()], "completion_mask": completion_mask})
        arguments = {
            "output_dir": tempfile.mkdtemp(),
            "per_device_train_batch_size": case.micro,
            "max_length": None,
            "gradient_accumulation_steps": case.batch // case.micro,
            "learning_rate": 1e-5,
            "max_grad_norm": 1.0,
            "lr_scheduler_type": "constant",
            "report_to": "none",
            "save_strategy": "no",
            "completion_only_loss": True,
            "bf16": case.model != "tiny",
            "use_cpu": runner.device.type == "cpu",
            "gradient_checkpointing": case.recomputes,
            "optim": "adamw_torch_fused" if case.optimizer == "adamw" else "adafactor",
            "disable_tqdm": True,
        }
        self.make_trainer = lambda steps, callback: SFTTrainer(
            make_model(case.model),
            SFTConfig(**arguments, max_steps=steps),
            train_dataset=Dataset.from_list(rows),
            processing_class=load_model("tiny")[1],
            callbacks=[callback],
        )

    def train(self, steps: int, turn: Any, seconds: list[float]) -> None:
        """Train `steps` updates, each followed by a turn of ours; the last one's memory is measured besides."""
        device = self.device

        class Turns(TrainerCallback):
            def __init__(self) -> None:
                self.start_time = 0.0

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                self.start_time = clock(device)

            def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
                seconds.append(clock(device) - self.start_time)
                turn()
                self.start_time = clock(device)

        self.make_trainer(steps, Turns()).train()
        trainer = self.make_trainer(2, TrainerCallback())
        self.peak = measure.peak_memory(trainer.train, device)


if __name__ == "__main__":
    main()
