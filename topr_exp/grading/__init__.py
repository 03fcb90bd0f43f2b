"""Stage 3, rewards: completions and golds in; correct, incorrect or invalid out (docs/graders.md)."""

from topr_exp.grading.extraction import extract, last_boxed
from topr_exp.grading.grader import GRADER_VERSION, Grader, Outcome, check_grader

__all__ = ["GRADER_VERSION", "Grader", "Outcome", "check_grader", "extract", "last_boxed"]
