"""Logits and log-probabilities of completions by transformers alone: each sequence by itself, without padding."""

import torch


def completion_logits(model, prompt, tokens):
    """[T, V] logits that predict each token of a completion."""
    ids = torch.tensor([[*prompt, *tokens]])
    logits = model(ids).logits[0]
    return logits[len(prompt) - 1 : -1]


def logp_at(logits, tokens):
    """[T] log-probability of each token by its row of [T, V]."""
    places = torch.arange(len(tokens))
    return logits.log_softmax(-1)[places, torch.as_tensor(tokens)]


def completion_logp(model, prompt, tokens):
    """[T] log-probability of each token of a completion."""
    return logp_at(completion_logits(model, prompt, tokens), tokens)


def cut_to_top_k(logits, top_k):
    """[T, V] logits, −∞ but for the largest `top_k` of each row."""
    smallest = logits.topk(top_k).values[:, -1:]
    return logits.masked_fill(logits < smallest, -torch.inf)


def padded_sequences(sequences):
    """[B, T] tokens of prompts with their completions, and 1 where they are a completion's."""
    rows, masks = [], []
    for prompt, tokens in sequences:
        rows.append([*prompt, *tokens])
        masks.append([0] * len(prompt) + [1] * len(tokens))
    return padded(rows).long(), padded(masks)


def padded(rows):
    """[B, T, ...] of rows of different lengths, with zeros behind each."""
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
