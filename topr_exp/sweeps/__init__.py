"""Sweeps: many runs by one command, in processes of this machine or as an array of Slurm jobs.

    plan (topr_exp.runs.plan) -> sweep.py -> launch.py -> local.py | slurm.py -> status.py, table.py, follow.py

A sweep is a list of runs, written to `sweep.json` before any of them starts. The progress of a run is read only from
the run's own folder. So a sweep can be watched, resumed and cancelled from another process or another machine, and a
run that was started in another way counts too. `python -m topr_exp.sweeps` is the command line.
"""
