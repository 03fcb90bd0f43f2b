"""Numbers of a run, from the metrics of its updates."""

from reproduce.panels import PERCENT
from reproduce.selection import Record


def last_metric(record: Record, name: str) -> float:
    """A metric in the last updates."""
    return float(record["metrics"][name][-1])


def effective_size(record: Record) -> float:
    """Percent: the effective sample size of a batch by its ratios, (Σ r)² / (B Σ r²), in the last updates."""
    return PERCENT * last_metric(record, "ess")


def nats(record: Record) -> float:
    """Nats a completion in the first updates, where the policy is still near the base."""
    return float(record["metrics"]["nats"][0])
