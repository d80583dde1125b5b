"""Optimizers: gradient preprocessing, SGD, RMSProp, Adam."""
