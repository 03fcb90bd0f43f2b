"""What the plain script of a run takes from models and from files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.reference.formulas import Completion


def load(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).double().eval()


def weights_of(model: Any) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def completion_logits(model: Any, one: Completion) -> Tensor:
    """[T, vocabulary]: what each token of a completion is predicted by, from all before it."""
    logits: Tensor = model(input_ids=torch.tensor([one.prompt + one.tokens]), use_cache=False).logits[0]
    return logits[len(one.prompt) - 1 : -1]


def token_logp(model: Any, one: Completion) -> Tensor:
    return at(completion_logits(model, one).log_softmax(-1), one.tokens)


def at(logp: Tensor, tokens: list[int]) -> Tensor:
    return logp[torch.arange(len(tokens)), torch.tensor(tokens)]


def table_of(run: Path, kind: str, iteration: int = 1) -> list[dict[str, Any]]:
    """The rows of a table of the store that an iteration of a run used."""
    sources = json.loads((run / f"iteration-{iteration}" / "sources.json").read_text())
    folder = Path(sources["store"]) / sources[kind].split()[0]
    shards = [pa.ipc.open_file(path).read_all().to_pylist() for path in sorted(folder.glob("shard-*.arrow"))]
    return [row for shard in shards for row in shard]
