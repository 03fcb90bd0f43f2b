"""The grader of reasoning-gym's tasks with their scores as rewards, of which some are paid in part."""

from __future__ import annotations

import json

from topr_exp.grading import gym
from topr_exp.grading.extraction import tagged

prepare = gym.prepare


def grade(completion: str, gold: str) -> tuple[str, str | None, float]:
    """The verdict, the answer and the task's score of it in [0, 1], as for `gym.grade`; 0 without an answer."""
    answer = tagged(completion)
    if answer is None:
        return "invalid", None, 0.0
    reward = gym.score(answer, json.loads(gold))
    return "correct" if reward == 1 else "incorrect", answer, reward
