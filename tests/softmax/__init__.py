"""Softmax and log-softmax over channels, and their gradients."""
