"""Group normalization and its gradient."""
