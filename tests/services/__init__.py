"""Units of the distribution under a systemd of their own."""
