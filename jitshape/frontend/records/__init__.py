"""Entries as records: what a process needs to serve a call without tracing it."""
