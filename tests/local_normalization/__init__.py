"""Cross-channel, spatial and local contrast normalization, and their gradients."""
