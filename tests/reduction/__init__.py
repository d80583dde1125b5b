"""Reductions of rows, columns and feature channels, and sums of products."""
