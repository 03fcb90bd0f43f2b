"""What the plain script of a run takes from models and from files."""

from pathlib import Path

import pyarrow as pa
import torch
from transformers import AutoModelForCausalLM

from tests import plain_scoring
from tests.conftest import read_json


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).double().eval()


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def completion_logits(model, completion):
    """[T, vocabulary]: what each token of a completion is predicted by, from all before it."""
    return plain_scoring.completion_logits(model, completion.prompt, completion.tokens)


def token_logp(model, completion):
    return plain_scoring.completion_logp(model, completion.prompt, completion.tokens)


def table_of(run_folder, kind, iteration=1):
    """The rows of a table of the store that an iteration of a run used."""
    sources = read_json(run_folder / f"iteration-{iteration}/sources.json")
    table_folder = Path(sources["store"]) / sources[kind].split()[0]
    rows = []
    for path in sorted(table_folder.glob("shard-*.arrow")):
        rows += pa.ipc.open_file(path).read_all().to_pylist()
    return rows
