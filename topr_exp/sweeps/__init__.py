"""Sweeps: many runs by one command, in processes of this machine or as jobs of a cluster.

    plan (topr_exp.runs.plan) -> launch.py -> scheduler.py: local.py | slurm.py

A sweep is a folder of runs, each described in its own folder before any starts. Progress is read only from there, so
a sweep can be watched, resumed and cancelled from another process or another machine.
"""
