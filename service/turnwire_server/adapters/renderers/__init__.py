"""Prompt formats: tokenizers, templates and output parsers."""
