"""Alerts: what is sent about an incident, to whom, in which form, and the worker that sends it."""
