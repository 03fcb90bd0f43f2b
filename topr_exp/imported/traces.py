"""Traces of verifiers, as prime-rl saves its rollouts: trees of messages, each with the tokens that it adds.

Format as of 2026-11: a line is a trace, or an episode with several. A message has its parent's index, `token_ids`, a
`mask` of the sampled ones, and their `logprobs`; rewards are numbers or scores with weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Node = Mapping[str, Any]  # a message with its tokens


def trace_rows(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Read the completions of a trace, or of an episode's traces, as rows of a log; ValueError for anything else."""
    try:
        traces = [row] if row.get("nodes") is not None else row["traces"]
        for trace in traces:
            agent = trace.get("agent") or {}
            is_trainable = agent.get("trainable") is not False
            if is_trainable:
                yield from sampled_leaves(trace)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a trace as verifiers writes it ({type(error).__name__}: {error})") from None


def sampled_leaves(trace: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each sampled message without an answer, with the messages before it as prompt."""
    nodes: Sequence[Node] = trace["nodes"]
    parents = [node.get("parent") for node in nodes]
    for index, parent in enumerate(parents):
        if parent is not None and not 0 <= parent < index:
            raise ValueError("a message's parent does not stand before it")
    finish_by_index = {call.get("node"): call.get("finish_reason") for call in trace.get("calls") or []}
    reward = total_reward(trace)
    task = trace.get("task") or {}
    task_data = task.get("data") or {}
    gold = task_data.get("answer")
    if not isinstance(gold, str):
        gold = None
    for index, leaf in enumerate(nodes):
        mask = leaf.get("mask") or []
        is_sampled = leaf.get("sampled") or True in mask
        has_answer = index in parents
        if has_answer or not is_sampled:
            continue
        ancestors = ancestors_of(index, nodes, parents)
        yield {
            "prompt": [node["message"] for node in ancestors],
            "completion": [leaf["message"]],
            **sampled_tokens(leaf, ancestors, mask),
            "reward": reward,
            "finish": finish_by_index.get(index) or leaf.get("finish_reason"),
            "gold": gold,
        }


def sampled_tokens(leaf: Node, ancestors: Sequence[Node], mask: Sequence[bool]) -> dict[str, Any]:
    """The tokens of a row, the prompt's and the sampled ones; nothing where the mask says that none was sampled."""
    if True not in mask:
        return {}
    start = mask.index(True)  # after the message's header
    prompt_ids: list[int] = []
    for node in ancestors:
        prompt_ids += node["token_ids"]
    leaf_ids = leaf.get("token_ids") or []
    return {
        "prompt_tokens": prompt_ids + leaf_ids[:start],
        "tokens": leaf_ids[start:],
        "logprobs": leaf.get("logprobs"),
    }


def ancestors_of(index: int, nodes: Sequence[Node], parents: Sequence[int | None]) -> list[Node]:
    """List the messages before one, from the root on."""
    ancestors = []
    parent = parents[index]
    while parent is not None:
        ancestors.append(nodes[parent])
        parent = parents[parent]
    return ancestors[::-1]


def total_reward(trace: Mapping[str, Any]) -> float | None:
    """Sum a trace's rewards, scores times their weights; None without rewards."""
    rewards = []
    for reward in (trace.get("rewards") or {}).values():
        if isinstance(reward, dict):
            rewards.append(reward["score"] * reward.get("weight", 1))
        elif reward is not None:
            rewards.append(reward)
    return sum(rewards) if rewards else None
