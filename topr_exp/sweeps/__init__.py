"""Sweeps: many runs by one command, in processes of this machine or as an array of Slurm jobs.

    plan (topr_exp.jobs) -> sweep.py -> launch.py -> local.py | slurm.py -> status.py

A sweep is a list of runs, written down in `sweep.json` before any of them starts. How far a run is says its own
folder, and nothing else: so a sweep can be watched, resumed and cancelled from another process or another machine,
and a run that was started in another way counts too. `python -m topr_exp.sweeps` is the command line.
"""
