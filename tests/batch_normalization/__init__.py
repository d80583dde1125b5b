"""Batch normalization: statistics, normalization, and their gradients."""
