"""Sweeps: many runs by one command, in processes of this machine or as an array of Slurm jobs.

    plan (topr_exp.runs.plan) -> sweep.py -> launch.py -> processes.py | slurm.py

A sweep is a folder of runs, each written down in its own folder before any starts. Progress is read only from there, so
a sweep can be watched, resumed and cancelled from another process or another machine.
"""
