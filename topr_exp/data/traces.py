"""Traces of verifiers, as prime-rl saves its rollouts: trees of messages, each with the tokens that it adds.

Read as of 2026-11: a line is a trace, or an episode with several. A message has its parent's place, `token_ids`, a
`mask` of those that were sampled, and their `logprobs`; rewards are numbers or scores with weights.
"""

from collections.abc import Iterator, Mapping
from typing import Any


def trace_rows(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The completions of a trace, or of an episode's traces: each last message that was sampled, as a row of a log.

    ValueError for what is no trace.
    """
    try:
        for trace in [row] if row.get("nodes") is not None else row["traces"]:
            if (trace.get("agent") or {}).get("trainable") is not False:
                yield from leaves(trace)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a trace as verifiers writes it ({type(error).__name__}: {error})") from None


def leaves(trace: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    nodes, data = trace["nodes"], (trace.get("task") or {}).get("data") or {}
    rewards = [one for one in (trace.get("rewards") or {}).values() if one is not None]
    parts = [one["score"] * one.get("weight", 1) if isinstance(one, dict) else one for one in rewards]
    finishes = {call.get("node"): call.get("finish_reason") for call in trace.get("calls") or []}
    parents = [node.get("parent") for node in nodes]
    if any(parent is not None and not 0 <= parent < at for at, parent in enumerate(parents)):
        raise ValueError("a message's parent does not stand before it")
    for at, last in enumerate(nodes):
        ids, mask = last.get("token_ids") or [], last.get("mask") or []
        if at in parents or not (last.get("sampled") or True in mask):
            continue
        before: list[Any] = []
        place = parents[at]
        while place is not None:
            before.insert(0, nodes[place])
            place = parents[place]
        found: dict[str, Any] = {"prompt": [node["message"] for node in before], "completion": [last["message"]]}
        if True in mask:
            start = mask.index(True)  # after the generation prompt
            prompt = [token for node in before for token in node["token_ids"]] + ids[:start]
            found |= {"prompt_tokens": prompt, "tokens": ids[start:], "logprobs": last.get("logprobs")}
        found |= {"reward": sum(parts) if parts else None, "finish": finishes.get(at) or last.get("finish_reason")}
        yield found | {"gold": data.get("answer") if isinstance(data.get("answer"), str) else None}
