"""pass@K: the chance that at least one of K completions of a problem is correct."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def powers_of_two(n: int) -> list[int]:
    """The K that are reported for n completions a problem: 1, 2, 4, ... up to n."""
    assert n >= 1, n
    return [1 << i for i in range(n.bit_length())]


def pass_at_k(correct: NDArray[np.integer], n: int, k: int) -> NDArray[np.float64]:
    """The unbiased estimate of pass@K of each problem, in closed form.

    1 - C(n - c, K) / C(n, K) = 1 - prod_{i = n-c+1}^{n} (1 - K/i)   (Chen et al. 2021, arXiv 2107.03374, Eq. 1):
    the mean over all K-subsets of the n completions. As a product of factors below 1 it cannot overflow.

    correct: [P] correct completions of each problem, 0 to n.
    n, k: completions of each problem, and K with 1 <= K <= n.
    """
    assert 1 <= k <= n, (k, n)
    # One entry for each possible count; the factor is 0 at i = K, and so is the product from there on.
    factors = 1 - k / np.arange(n, 0, -1)
    return 1 - np.concatenate([[1.0], np.cumprod(factors)])[correct]
