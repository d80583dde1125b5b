"""Convolution, depthwise, sub-pixel, fully connected and transpose, and their gradients."""
