"""What an op is: its declaration, its checks and the way of a call."""
