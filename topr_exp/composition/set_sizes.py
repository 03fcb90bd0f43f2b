"""Sizes of training sets that so many completions admit."""


def largest_set_size(first: float, second: float, share: float) -> int:
    """Find the largest N with round(share N) of the first kind and the rest of the second among the available ones."""
    limit_of_first = (first + 0.5) / share
    limit_of_second = (second + 0.5) / (1 - share)
    n = int(min(limit_of_first, limit_of_second)) + 1  # no larger one can round to fit
    while n > 0:
        n_first = round(share * n)
        if n_first <= first and n - n_first <= second:
            break
        n -= 1
    return n
