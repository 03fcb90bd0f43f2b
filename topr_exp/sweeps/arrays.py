"""Arrays of jobs: a sweep that is larger than a cluster's arrays may be is submitted as several."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Array:
    """Runs [first, end) of a submission as one array."""

    first: int
    end: int
    parallel_runs: int  # at most so many of its runs at once
    predecessor: int | None  # index of the array whose end it waits for

    def __len__(self) -> int:
        return self.end - self.first


def plan_arrays(run_count: int, max_size: int, parallel_runs: int) -> list[Array]:
    """Divide runs among arrays, of which together at most `parallel_runs` run at once.

    With more arrays than runs at once, an array waits for the end of an earlier one.
    """
    array_count = math.ceil(run_count / max_size)
    lanes = min(array_count, parallel_runs)  # arrays that run side by side
    arrays = []
    for index in range(array_count):
        lane = index % lanes
        lane_runs = parallel_runs // lanes
        if lane < parallel_runs % lanes:  # the first lanes share the remainder
            lane_runs += 1
        first = index * max_size
        end = min(run_count, first + max_size)
        predecessor = index - lanes if index >= lanes else None
        arrays.append(Array(first, end, lane_runs, predecessor))
    return arrays
