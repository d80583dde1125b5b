"""Loss kernels: combined, separate forward and gradient, and object detection."""
