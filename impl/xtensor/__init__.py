"""Blocks in reserved addresses whose pages get memory on demand (seed 5.1; chapters `xtensor` and `pages`)."""
