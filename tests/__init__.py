"""The test suite: one folder per kernel family, each with its float64 oracle and its cases."""
