"""Files of users: opened only if they are what they seem, arrays read and written."""
