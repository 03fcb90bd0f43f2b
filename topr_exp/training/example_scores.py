"""Log-probabilities, coefficients and gradients of single completions, for analyses outside a run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from topr_exp.models.policy import Policy
from topr_exp.sampling.completions import TokenSequence
from topr_exp.sampling.sampler import split_every
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens
from topr_exp.training.own_loop import ConfiguredLoss
from topr_exp.types import Batch, Tensor, TOPRError

TokenIds = Sequence[NDArray[np.integer[Any]]]  # one array a completion


def score_completions(
    policy: Policy, prompt_ids: TokenIds, token_ids: TokenIds, *, batch_size: int = 8
) -> list[NDArray[np.float32]]:
    """Score completions by a policy: log π of each sampled token, in nats, one array a completion.

    policy: from `topr_exp.load_policy`. prompt_ids, token_ids: B arrays each, of a prompt and of its completion.
    batch_size: completions of one forward pass.
    """
    if batch_size < 1:
        raise TOPRError(f"batch_size must be 1 or more; got {batch_size}")
    sequences = []
    prompt_numbers = []  # by completion, in order of appearance
    number_by_prompt: dict[bytes, int] = {}
    for prompt, completion in zip(prompt_ids, token_ids, strict=True):
        sequence = token_sequence(prompt, completion, policy)
        sequences.append(sequence)
        prompt_array, _ = sequence
        prompt_number = number_by_prompt.setdefault(prompt_array.tobytes(), len(number_by_prompt))
        prompt_numbers.append(prompt_number)
    lengths = list(map(len, token_ids))
    order = np.lexsort((lengths, prompt_numbers))  # completions of a prompt may share its computation
    scores = [np.zeros(0, np.float32)] * len(sequences)
    for rows in split_every(order, batch_size):
        inputs = Inputs([sequences[row] for row in rows], policy.device)
        with torch.inference_mode(), policy.autocast():
            logp = score_tokens(policy.model, inputs).logp
        for row, padded_logp in zip(rows, logp.cpu().numpy(), strict=True):
            scores[row] = padded_logp[: lengths[row]]
    return scores


def token_sequence(
    prompt: NDArray[np.integer[Any]], completion: NDArray[np.integer[Any]], policy: Policy
) -> TokenSequence:
    """A prompt and its completion as arrays; TOPRError unless each has tokens of the vocabulary, and both a context."""
    vocabulary = policy.vocabulary
    sequence = np.asarray(prompt, np.int32), np.asarray(completion, np.int32)
    for ids in sequence:
        if not len(ids):
            raise TOPRError("a prompt and a completion must each have one token or more; got an empty one")
        strange_ids = ids[(ids < 0) | (ids >= vocabulary)]
        if len(strange_ids):
            raise TOPRError(f"token ids must be from 0 to {vocabulary - 1}, the vocabulary; got {strange_ids[0]}")
    length = sum(map(len, sequence))
    if length > policy.context:
        raise TOPRError(f"a prompt and its completion have {length} tokens, the model's context is {policy.context}")
    return sequence


def example_gradients(policy: Policy, prompt_ids: TokenIds, token_ids: TokenIds) -> Iterator[Tensor]:
    """Yield ∇ log π(y | x) / T of each completion, [weights] in float32, one after the other.

    Arguments as those of `score_completions`; T: the completion's tokens.
    """
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    for prompt, completion in zip(prompt_ids, token_ids, strict=True):
        sequence = token_sequence(prompt, completion, policy)
        inputs = Inputs([sequence], policy.device)
        scores = score_tokens(policy.model, inputs)
        mean_logp = scores.logp.sum() / len(completion)
        gradients = torch.autograd.grad(mean_logp, weights, materialize_grads=True)
        flat_gradients = [gradient.flatten().float() for gradient in gradients]
        yield torch.cat(flat_gradients)


def loss_coefficients(loss: ConfiguredLoss, batch: Batch) -> Tensor:
    """Return −∂ loss / ∂ log π, [B, T]: what an update multiplies ∇ log π of each token with.

    Of TOPR without 1/T it is w R: the tapered weight times the reward. loss: from `topr_exp.loss`, of a `Batch`; the
    losses of a batch are summed, not reduced.
    """
    if not isinstance(batch, Batch):
        raise TOPRError(f"loss_coefficients takes a topr_exp.Batch; got a {type(batch).__name__}")
    logp = batch.logp.detach().requires_grad_()
    output = loss(replace(batch, logp=logp))
    (gradient,) = torch.autograd.grad(output.loss.sum(), logp)
    return -gradient
