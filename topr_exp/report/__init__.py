"""Reports of finished and unfinished runs; for notebooks `topr_exp.read_runs` and `topr_exp.read_curves`."""
