"""What runs import, most of it by the first call of a library, imported once by the process they are forked from.

Nothing is computed by torch: that would start threads, and a thread does not survive a fork.
"""

import pyarrow
import torch._dynamo  # torch's optimizers import it at their first step
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import topr_exp.pipeline

__all__ = ["AutoModelForCausalLM", "AutoTokenizer", "LlamaForCausalLM", "pyarrow", "topr_exp", "torch"]

pyarrow.array([0]).to_numpy()  # makes pyarrow look for pandas
