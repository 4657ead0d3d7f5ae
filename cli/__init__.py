"""The front door: one module per command, and what they share. Nothing else imports this package."""
