"""Sizes of training sets that so many completions admit."""


def largest_set_size(first_count: float, second_count: float, share: float) -> int:
    """Find the largest N of which round(share N) can be of a first kind and the rest of a second.

    Counts are of the completions available; one of them may be inf: unknown. share: in (0, 1).
    """
    limit_of_first = (first_count + 0.5) / share
    limit_of_second = (second_count + 0.5) / (1 - share)
    n = int(min(limit_of_first, limit_of_second)) + 1  # no larger one can round to fit
    while n > 0:
        n_first = round(share * n)
        if n_first <= first_count and n - n_first <= second_count:
            break
        n -= 1
    return n
