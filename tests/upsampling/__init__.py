"""Nearest and bilinear upsampling, and their gradients."""
