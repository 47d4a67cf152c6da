"""Fixtures of the adapters' tests."""

from __future__ import annotations

from harness.models import qwen3_path, smollm2_path

__all__ = ["qwen3_path", "smollm2_path"]
