"""Shared configuration: hypothesis is deterministic, so that a failure in CI is a failure at the desk."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tilegrad", derandomize=True, deadline=None, max_examples=25, suppress_health_check=list(HealthCheck)
)
settings.load_profile("tilegrad")
