"""Element-wise operations of two images, comparisons, and their gradients."""
