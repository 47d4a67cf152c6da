"""Fixtures of the adapters' tests."""

from __future__ import annotations

from harness.models import smollm2_path

__all__ = ["smollm2_path"]
