"""Reshape, slice and pad, and the gradients of the first and the last."""
