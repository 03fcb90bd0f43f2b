"""A study on a real model: SmolLM2-135M-Instruct on GSM8K, by steps of at most ten minutes on one GPU.

plan (cells, steps, minutes) -> study (runs what a step lacks, keeps records) -> outcome (claims, tables, picture)
"""
