"""What tests need that build a program of their own."""

import os


def environment() -> dict[str, str]:
    """Variables for a compiler and its programs: a sanitizer loaded ahead is not meant for them."""
    return {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
