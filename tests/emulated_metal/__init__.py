"""Tests of the emulated Metal framework itself."""
