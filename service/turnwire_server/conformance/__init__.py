"""A strict conformance suite for any server of the protocol; see `docs/conformance.md`.

A client like any other: nothing here knows the server that it examines.
"""

from __future__ import annotations

from turnwire_server.conformance.checks import Check, Failure, Result, Skip
from turnwire_server.conformance.context import SuiteSettings
from turnwire_server.conformance.suite import CHECKS, Report, SuiteFailure, catalogue, run_suite

__all__ = [
    "CHECKS",
    "Check",
    "Failure",
    "Report",
    "Result",
    "Skip",
    "SuiteFailure",
    "SuiteSettings",
    "catalogue",
    "run_suite",
]
