"""Instance normalization and its gradient."""
