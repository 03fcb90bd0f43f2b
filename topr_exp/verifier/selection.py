"""Weighted self-consistency: solutions vote for their answers with the share of their verifications that approve.

Equivalent answers are one candidate, solutions without an answer never vote, the highest sum wins, and ties (sums of 0
among them) are split evenly in expectation. Without any answer a problem scores 0. With equal weights it is maj@K.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation.majority import Ballots


def weighted_score(voting: Ballots, approvals: NDArray[np.integer]) -> NDArray[np.float64]:
    """[P] the expected score of the answer that each problem's weighted vote selects.

    approvals: [P, K] how many verifications of a solution say that it is correct, 0 where it has none. Each solution
    has the same number of verifications, so that sums of counts order answers as sums of shares do, without rounding.
    """
    assert approvals.shape == voting.candidate.shape, (approvals.shape, voting.candidate.shape)
    problems, width = voting.worth.shape
    votes = voting.candidate >= 0
    slot = (voting.candidate + width * np.arange(problems)[:, None])[votes]
    stood = np.bincount(slot, minlength=problems * width).reshape(problems, width) > 0
    total = np.zeros(problems * width, dtype=np.int64)
    np.add.at(total, slot, approvals[votes].astype(np.int64))
    total = np.where(stood, total.reshape(problems, width), -1)
    leads = stood & (total == total.max(axis=1, keepdims=True))
    score: NDArray[np.float64] = (leads * voting.worth).sum(axis=1) / np.maximum(leads.sum(axis=1), 1)
    return score
