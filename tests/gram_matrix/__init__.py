"""Gram matrices and their gradient."""
