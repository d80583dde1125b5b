"""Tests of the mpsgrad command."""
