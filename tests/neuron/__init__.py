"""Activation functions and their gradient."""
