"""Completions: problems in, sampled token ids out."""
