"""Imports of every run, done once by the fork server. A module, because the server takes names of modules.

torch computes nothing here: that would start threads, and a thread does not survive a fork.
"""

import gc
import signal

import pyarrow
import torch._dynamo  # torch's optimizers import it at their first step
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import topr_exp.pipeline

__all__ = ["AutoModelForCausalLM", "AutoTokenizer", "LlamaForCausalLM", "pyarrow", "topr_exp", "torch"]

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a closed terminal: the process that starts others sends them SIGTERM

pyarrow.array([0]).to_numpy()  # makes pyarrow look for pandas

gc.collect()
gc.freeze()  # what was imported is no garbage of a run, and stays shared among processes
