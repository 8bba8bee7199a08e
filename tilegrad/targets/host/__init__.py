"""The machine tilegrad runs on."""
