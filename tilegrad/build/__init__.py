"""Writes projects to disk and runs toolchains."""
