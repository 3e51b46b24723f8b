"""Durable and ephemeral backends behind two protocols. Know no session."""
