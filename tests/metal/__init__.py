"""Tests of what only the Metal device has."""
