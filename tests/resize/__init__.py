"""Tests of resizing, cropping and grid sampling."""
