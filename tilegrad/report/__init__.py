"""What people and scripts read: tables, JSON, messages."""
