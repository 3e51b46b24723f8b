"""What one operation on one session needs: its lease, its log, its checks and its files."""
