"""What the fork server does once for all runs. A module, because the server takes names of modules."""

import signal

import pyarrow

from topr_exp.sweeps.imports import import_pipeline

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a closed terminal: the process that starts others sends them SIGTERM

pyarrow.array([0]).to_numpy()  # makes pyarrow look for pandas

import_pipeline()
