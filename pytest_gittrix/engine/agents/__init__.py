"""What an agent holds of a session, and its code: started, watched and stopped."""
