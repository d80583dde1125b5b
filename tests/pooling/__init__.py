"""Max, average, L2 norm and dilated max pooling, and their gradients."""
