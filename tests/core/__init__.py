"""Geometry, padding policies and image storage, shared by every kernel."""
